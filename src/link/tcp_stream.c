/* SPDX-License-Identifier: MIT */
/* The link over TCP: messages, and the frames that carry them. It knows no socket: frames
 * come in through tcp_hear and tcp_came and go out through tcp_write, so a test can play
 * both ends, and a fuzzer one.
 *
 *   1. The messages of a stream are numbered. Both ends count: the receiver how many have
 *      come whole, and for how many it has had a receive; the sender what it was told of
 *      these. Counts only grow, and a TAKEN has both, so one that is lost with its
 *      connection costs nothing.
 *   2. The sender keeps each message until it is told that it has come whole. Words are
 *      copies by then, and have ended; bulk ends only then.
 *   3. Everything in a frame is tested before it is used. The memory that a peer can make
 *      this end take is LINK_WORDS words of each of TCP_STREAMS streams. This end's own
 *      messages find room, however many streams the peer has begun.
 *   4. Bytes of bulk may be on their way between a socket and a message's memory (`into`
 *      and `chunk` of the peer's connection). Before the message ends, they are sent to
 *      nowhere, or come from zeros; a peer cannot end it sooner.
 *   5. No link is told that a series has ended before a later one gives it up. So of the
 *      streams of series that are at rest only those that were used last are kept. The
 *      sender of one that had few words has not heard that they came, and keeps them: it
 *      is told before the stream goes. */
#include "link/tcp_parts.h"

#include <stddef.h>
#include <string.h>

bool tcp_hear(struct tcp_peer *peer, const struct tcp_frame *f,
              const unsigned char *bytes, struct tcp_in **stream, unsigned char **into,
              const char **why)
{
    *stream = NULL;
    *into = NULL;
    *why = "a frame that is none";
    if (f->tag >= LINK_TAGS || f->bytes > TCP_CHUNK)
        return false;
    if (tcp_is_through(peer, f->series))
        return true;
    if (f->what == TCP_TAKEN)
        return tcp_hear_taken(peer, f, why);
    return tcp_hear_in(peer, f, bytes, stream, into, why);
}

static size_t write_one(struct tcp_peer *peer, unsigned char *to,
                        const unsigned char **chunk, size_t *chunk_bytes,
                        struct tcp_out **of)
{
    bool late = peer->link->now_ns - peer->owed_ns > LINK_LAZY_NS;

    if (peer->owed && (peer->urges || peer->ready || late))
        return tcp_write_taken(peer, to);
    if (!peer->told_goes_on) {
        peer->told_goes_on = true;
        return tcp_put(to, (struct tcp_frame){.what = TCP_GOES_ON}, NULL);
    }
    return tcp_write_out(peer, to, chunk, chunk_bytes, of);
}

size_t tcp_write(struct tcp_peer *peer, unsigned char *to, size_t room,
                 const unsigned char **chunk, size_t *chunk_bytes, struct tcp_out **of)
{
    const uint16_t rank = (uint16_t)peer->rank;

    *chunk_bytes = 0;
    if (room < sizeof(struct tcp_frame) + LINK_WORD)
        return 0;
    if (!tcp_is_far(peer))
        return write_one(peer, to, chunk, chunk_bytes, of);
    if (peer->room < peer->sent + sizeof(struct tcp_frame) + TCP_PART)
        return 0;
    size_t n = write_one(peer, to, chunk, chunk_bytes, of);
    if (n) {
        memcpy(to + offsetof(struct tcp_frame, rank), &rank, sizeof rank);
        memcpy(to + offsetof(struct tcp_frame, turn), &peer->turn, sizeof peer->turn);
    }
    peer->sent += n + *chunk_bytes;
    return n;
}

void tcp_begin_again(struct tcp_peer *peer)
{
    peer->goes_on = peer->told_goes_on = false;
    tcp_owe_all(peer);
}

void tcp_give_up(struct tcp_peer *peer, uint64_t below)
{
    tcp_give_up_out(peer, below);
    tcp_give_up_in(peer, below);
}
