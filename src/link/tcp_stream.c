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
 *      streams of series that are at rest only those that were used last are kept. */
#include "link/tcp_parts.h"

#include <limits.h>
#include <string.h>

enum { TOLD_AT = LINK_WORDS / 2 /* TAKEN is sent after so many words */,
       KEPT = TCP_STREAMS / 4 };

static bool no_memory(struct tcp_link *link)
{
    snprintf(link->why, sizeof link->why, "no memory for a message");
    link->failed = true;
    return false;
}

static bool is_through(const struct tcp_peer *peer, uint64_t series)
{
    return series && (series < peer->below || series < peer->link->below);
}

void tcp_ended(struct tcp_link *link, struct link_ended ended)
{
    if (link->n_ended == link->ended_room) {
        int room = link->ended_room ? 2 * link->ended_room : 64;
        struct link_ended *more = memory_take_array((size_t)room, sizeof *more);
        if (!more) {
            no_memory(link);
            return;
        }
        if (link->n_ended)
            memcpy(more, link->ended, (size_t)link->n_ended * sizeof *more);
        memory_give(link->ended);
        link->ended = more;
        link->ended_room = room;
    }
    link->ended[link->n_ended++] = ended;
}

/* --- out --- */

static void free_out(struct tcp_peer *peer, struct tcp_out *out);
static void free_in(struct tcp_peer *peer, struct tcp_in *in);

static void retire_outs(struct tcp_peer *peer)      /* 5 */
{
    struct tcp_out **at = &peer->outs;

    for (int n = 0; *at; n++) {
        struct tcp_out *out = *at;
        bool over = out->series && !out->first && out->n == out->opened;
        if (n < KEPT || !over) {
            at = &out->next;
            continue;
        }
        *at = out->next;
        free_out(peer, out);
    }
}

static void retire_ins(struct tcp_peer *peer)
{
    struct tcp_in **at = &peer->ins;

    for (int n = 0; *at; n++) {
        struct tcp_in *in = *at;
        bool over = in->series && !in->receives && !in->words && !in->owed && !in->want &&
                    !in->total && in->received == in->opened;
        if (n < KEPT || !over) {
            at = &in->next;
            continue;
        }
        *at = in->next;
        free_in(peer, in);
    }
}

/* heard: it is the peer that names the stream. */
static struct tcp_out *find_out(struct tcp_peer *peer, int tag, uint64_t series,
                                bool heard)
{
    struct tcp_out **at = &peer->outs, *out;
    int n = 0;

    for (; (out = *at); at = &out->next, n++)
        if (out->tag == tag && out->series == series) {
            *at = out->next;            /* the one that was used last comes first */
            out->next = peer->outs;
            peer->outs = out;
            return out;
        }
    if (n >= 2 * KEPT)
        retire_outs(peer);
    if ((heard && n >= TCP_STREAMS) || !(out = memory_take(sizeof *out)))
        return NULL;
    out->tag = tag;
    out->series = series;
    out->next = peer->outs;
    peer->outs = out;
    return out;
}

static bool is_word(const struct tcp_message *m)
{
    return m->bytes <= LINK_WORD;
}

static bool may_leave(const struct tcp_out *out)
{
    const struct tcp_message *m = out->at;
    return m && m->index < out->opened + (is_word(m) ? LINK_WORDS : 0);
}

static bool has_due(const struct tcp_peer *peer, const struct tcp_out *out)
{
    if (peer->link->closing && out->at && out->at->open)
        return false;
    return may_leave(out) || (out->at && !is_word(out->at) && !out->wanted);
}

static void make_ready(struct tcp_peer *peer, struct tcp_out *out)
{
    if (out->ready || !has_due(peer, out))
        return;
    out->ready = true;
    out->next_ready = NULL;
    if (peer->ready)
        peer->last_ready->next_ready = out;
    else
        peer->ready = out;
    peer->last_ready = out;
}

static void take_ready(struct tcp_peer *peer, struct tcp_out *out)
{
    struct tcp_out **at = &peer->ready, *last = NULL;

    while (*at != out) {
        last = *at;
        at = &(*at)->next_ready;
    }
    *at = out->next_ready;
    if (peer->last_ready == out)
        peer->last_ready = last;
    out->ready = false;
}

/* A word has ended for its sender once there is a copy. */
static void copy_words(struct tcp_peer *peer, struct tcp_out *out)
{
    for (struct tcp_message *m = out->first; m; m = m->next)
        if (m->open && is_word(m) && m->index < out->opened + LINK_WORDS) {
            if (m->bytes)
                memcpy(m->copy, m->p, m->bytes);
            m->p = m->copy;
            m->open = false;
            tcp_ended(peer->link, (struct link_ended){.op = m->op, .from = peer->rank});
        }
}

bool tcp_send(struct tcp_peer *peer, const void *p, size_t bytes,
              const struct link_message *message)
{
    if (is_through(peer, message->series)) {
        tcp_ended(peer->link, (struct link_ended){.op = message->op, .failed = true});
        return true;
    }
    struct tcp_out *out = find_out(peer, message->tag, message->series, false);
    struct tcp_message *m =
        out ? memory_take(sizeof *m + (bytes <= LINK_WORD ? bytes : 0)) : NULL;
    if (!m)
        return no_memory(peer->link);
    m->p = p;
    m->bytes = bytes;
    m->op = message->op;
    m->index = out->n++;
    m->open = true;
    if (out->first)
        out->last->next = m;
    else
        out->first = m;
    out->last = m;
    if (!out->at)
        out->at = m;
    copy_words(peer, out);
    make_ready(peer, out);
    return true;
}

/* The last part of the message before `at` is still read by the connection. */
static bool is_leaving(const struct tcp_peer *peer, const struct tcp_out *out)
{
    const struct tcp_connection *c = peer->connection;
    return c && c->chunk_left && c->chunk_of == out && !out->offset;
}

static bool hear_taken(struct tcp_peer *peer, const struct tcp_frame *f, const char **why)
{
    struct tcp_out *out = find_out(peer, f->tag, f->series, true);

    if (!out) {
        *why = "it receives too many streams";
        return false;
    }
    if (!out->n && f->index)
        return true;                    /* 5: it was given up here, and is at rest */
    uint64_t sent = (out->at ? out->at->index : out->n) - is_leaving(peer, out);
    if (f->index > sent || f->index < out->received || f->total < out->opened ||
        f->total > INT64_MAX) {
        *why = "it has taken what was not sent";
        return false;
    }
    out->received = f->index;
    out->opened = f->total;
    while (out->first && out->first->index < out->received) {
        struct tcp_message *m = out->first;
        out->first = m->next;
        if (m->open)
            tcp_ended(peer->link, (struct link_ended){.op = m->op, .from = peer->rank});
        memory_give(m);
    }
    copy_words(peer, out);
    make_ready(peer, out);
    return true;
}

/* --- in --- */

static struct tcp_in *find_in(struct tcp_peer *peer, int tag, uint64_t series, bool heard)
{
    struct tcp_in **at = &peer->ins, *in;

    for (; (in = *at); at = &in->next)
        if (in->tag == tag && in->series == series) {
            *at = in->next;
            in->next = peer->ins;
            peer->ins = in;
            return in;
        }
    if (peer->n_ins >= 2 * KEPT)
        retire_ins(peer);
    if ((heard && peer->n_ins >= TCP_STREAMS) || !(in = memory_take(sizeof *in)))
        return NULL;
    in->tag = tag;
    in->series = series;
    in->next = peer->ins;
    peer->ins = in;
    peer->n_ins++;
    return in;
}

static void owe(struct tcp_peer *peer, struct tcp_in *in)
{
    if (in->owed)
        return;
    in->owed = true;
    in->next_owed = NULL;
    if (peer->owed)
        peer->last_owed->next_owed = in;
    else
        peer->owed = in;
    peer->last_owed = in;
}

static void owe_words(struct tcp_peer *peer, struct tcp_in *in)
{
    if (in->received - in->told_received >= TOLD_AT ||
        in->opened - in->told_opened >= TOLD_AT)
        owe(peer, in);
}

static void append(struct tcp_receive **first, struct tcp_receive **last,
                   struct tcp_receive *r)
{
    r->next = NULL;
    if (*first)
        (*last)->next = r;
    else
        *first = r;
    *last = r;
}

static void end_receive(struct tcp_peer *peer, struct tcp_in *in, size_t bytes)
{
    struct tcp_receive *r = in->receives;

    in->receives = r->next;
    tcp_ended(peer->link, (struct link_ended){
                              .op = r->op, .from = peer->rank,
                              .bytes = bytes > r->bytes ? LINK_TOO_LONG : bytes});
    memory_give(r);
}

static void fill(struct tcp_peer *peer, struct tcp_in *in, const void *p, size_t bytes)
{
    if (bytes && bytes <= in->receives->bytes)
        memcpy(in->receives->p, p, bytes);
    end_receive(peer, in, bytes);
}

static void fill_from_words(struct tcp_peer *peer, struct tcp_in *in)
{
    while (in->words && in->receives) {
        struct tcp_word *word = in->words;
        in->words = word->next;
        fill(peer, in, word->p, word->bytes);
        memory_give(word);
    }
}

/* A receive for the next message of this stream that lacks one. */
static void open_receive(struct tcp_peer *peer, struct tcp_in *in, struct tcp_receive *r)
{
    append(&in->receives, &in->last_receive, r);
    in->opened++;
    bool bulk = in->want || r->bytes > LINK_WORD;
    fill_from_words(peer, in);
    if (bulk)
        owe(peer, in);
    else
        owe_words(peer, in);
}

/* A message that lacks a receive takes the first from LINK_ANY. */
static void take_any(struct tcp_peer *peer, struct tcp_in *in)
{
    struct tcp_receive **first = &peer->link->any[in->tag], *r = *first;

    if (!r || in->series || in->receives)
        return;
    *first = r->next;
    open_receive(peer, in, r);
}

/* Messages that wait take the receives from LINK_ANY, peer by peer. */
static void share_any(struct tcp_link *link, int tag)
{
    for (int i = 1; i <= link->size && link->any[tag]; i++) {
        struct tcp_peer *peer = &link->peers[(link->turn + i) % link->size];
        for (struct tcp_in *in = peer->ins; in; in = in->next)
            if (in->tag == tag && !in->series && (in->words || in->want)) {
                take_any(peer, in);
                link->turn = peer->rank;
            }
    }
}

static struct tcp_receive *make_receive(void *p, size_t bytes,
                                        const struct link_message *message)
{
    struct tcp_receive *r = memory_take(sizeof *r);

    if (r)
        *r = (struct tcp_receive){.p = p, .bytes = bytes, .op = message->op,
                                  .any = message->rank == LINK_ANY};
    return r;
}

bool tcp_receive(struct tcp_peer *peer, void *p, size_t bytes,
                 const struct link_message *message)
{
    if (is_through(peer, message->series)) {
        tcp_ended(peer->link, (struct link_ended){.op = message->op, .failed = true});
        return true;
    }
    struct tcp_in *in = find_in(peer, message->tag, message->series, false);
    struct tcp_receive *r = in ? make_receive(p, bytes, message) : NULL;
    if (!r)
        return no_memory(peer->link);
    open_receive(peer, in, r);
    return true;
}

bool tcp_receive_any(struct tcp_link *link, void *p, size_t bytes,
                     const struct link_message *message)
{
    struct tcp_receive *r = make_receive(p, bytes, message);
    int tag = message->tag;

    if (!r)
        return no_memory(link);
    append(&link->any[tag], &link->last_any[tag], r);
    share_any(link, tag);
    return true;
}

static bool hear_word(struct tcp_peer *peer, struct tcp_in *in, const struct tcp_frame *f,
                      const unsigned char *bytes, const char **why)
{
    *why = "a word out of order, or one too many";
    if (f->index != in->received || in->total || in->want ||
        f->index >= in->opened + LINK_WORDS)
        return false;
    in->received++;
    if (in->receives) {
        fill(peer, in, bytes, f->bytes);
    } else {
        struct tcp_word *word = memory_take(sizeof *word + f->bytes);
        if (!word)
            return no_memory(peer->link);
        word->bytes = f->bytes;
        if (f->bytes)
            memcpy(word->p, bytes, f->bytes);
        if (in->words)
            in->last_word->next = word;
        else
            in->words = word;
        in->last_word = word;
        take_any(peer, in);
    }
    owe_words(peer, in);
    return true;
}

static bool hear_bulk(struct tcp_in *in, const struct tcp_frame *f, unsigned char **into,
                      const char **why)
{
    *why = "bulk out of order, or without room";
    if (f->index != in->received || f->index >= in->opened || f->offset != in->offset ||
        f->total <= LINK_WORD || f->total > INT_MAX || !f->bytes ||
        f->bytes > f->total - f->offset || (in->total && f->total != in->total))
        return false;
    in->total = f->total;
    in->want = 0;
    *into = f->total <= in->receives->bytes ? in->receives->p + f->offset : NULL;
    return true;
}

void tcp_came(struct tcp_peer *peer, struct tcp_in *in, size_t bytes)
{
    in->offset += bytes;
    if (in->offset < in->total)
        return;
    size_t total = in->total;
    in->total = in->offset = 0;
    in->received++;
    end_receive(peer, in, total);
    owe(peer, in);
}

static bool hear_want(struct tcp_peer *peer, struct tcp_in *in, const struct tcp_frame *f,
                      const char **why)
{
    *why = "a wish out of order";
    if (f->index != in->received || in->total || in->want || f->total <= LINK_WORD)
        return false;
    if (f->index < in->opened)
        return true;            /* TAKEN has said so, or is owed */
    in->want = f->total;
    if (!in->words)
        take_any(peer, in);
    return true;
}

bool tcp_hear(struct tcp_peer *peer, const struct tcp_frame *f,
              const unsigned char *bytes, struct tcp_in **stream, unsigned char **into,
              const char **why)
{
    *stream = NULL;
    *into = NULL;
    *why = "a frame that is none";
    if (f->tag >= LINK_TAGS || f->bytes > TCP_CHUNK)
        return false;
    if (is_through(peer, f->series))
        return true;
    if (f->what == TCP_TAKEN)
        return hear_taken(peer, f, why);
    struct tcp_in *in = find_in(peer, f->tag, f->series, true);
    *why = "it sends too many streams";
    if (!in)
        return false;
    *stream = in;
    if (f->what == TCP_WORD)
        return hear_word(peer, in, f, bytes, why);
    if (f->what == TCP_BULK)
        return hear_bulk(in, f, into, why);
    return hear_want(peer, in, f, why);
}

/* --- frames that leave --- */

static size_t put(unsigned char *to, struct tcp_frame frame, const void *bytes)
{
    memcpy(to, &frame, sizeof frame);
    if (bytes && frame.bytes)
        memcpy(to + sizeof frame, bytes, frame.bytes);
    return sizeof frame + (bytes ? frame.bytes : 0);
}

static size_t write_taken(struct tcp_peer *peer, unsigned char *to)
{
    struct tcp_in *in = peer->owed;

    peer->owed = in->next_owed;
    in->owed = false;
    in->told_received = in->received;
    in->told_opened = in->opened;
    return put(to, (struct tcp_frame){.what = TCP_TAKEN, .tag = (uint16_t)in->tag,
                                      .series = in->series, .index = in->received,
                                      .total = in->opened}, NULL);
}

static void step(struct tcp_out *out)
{
    out->at = out->at->next;
    out->offset = 0;
    out->wanted = false;
}

/* The first stream that has a word or a WANT; else the first. */
static struct tcp_out *choose(const struct tcp_peer *peer)
{
    for (struct tcp_out *out = peer->ready; out; out = out->next_ready)
        if (is_word(out->at) || !may_leave(out))
            return out;
    return peer->link->closing ? NULL : peer->ready;
}

size_t tcp_write(struct tcp_peer *peer, unsigned char *to, size_t room,
                 const unsigned char **chunk, size_t *chunk_bytes, struct tcp_out **of)
{
    *chunk_bytes = 0;
    if (room < sizeof(struct tcp_frame) + LINK_WORD)
        return 0;
    if (peer->owed)
        return write_taken(peer, to);
    if (!peer->told_goes_on) {
        peer->told_goes_on = true;
        return put(to, (struct tcp_frame){.what = TCP_GOES_ON}, NULL);
    }
    struct tcp_out *out = peer->goes_on ? choose(peer) : NULL;
    if (!out)
        return 0;
    const struct tcp_message *m = out->at;
    struct tcp_frame frame = {.what = TCP_WANT, .tag = (uint16_t)out->tag,
                              .series = out->series, .index = m->index,
                              .total = m->bytes};
    const void *bytes = NULL;
    take_ready(peer, out);
    if (!may_leave(out)) {
        out->wanted = true;
    } else if (is_word(m)) {
        frame.what = TCP_WORD;
        frame.bytes = (uint32_t)m->bytes;
        bytes = m->p;
        step(out);
    } else {
        size_t left = m->bytes - out->offset;
        frame.what = TCP_BULK;
        frame.offset = out->offset;
        frame.bytes = (uint32_t)(left < TCP_CHUNK ? left : TCP_CHUNK);
        *chunk = m->p + out->offset;
        *chunk_bytes = frame.bytes;
        *of = out;
        out->offset += frame.bytes;
        if (out->offset == m->bytes)
            step(out);
    }
    make_ready(peer, out);
    return put(to, frame, bytes);
}

bool tcp_has_more(const struct tcp_peer *peer)
{
    return peer->owed || !peer->told_goes_on || (peer->goes_on && peer->ready);
}

/* --- another connection; giving up --- */

void tcp_begin_again(struct tcp_peer *peer)
{
    peer->goes_on = peer->told_goes_on = false;
    for (struct tcp_in *in = peer->ins; in; in = in->next) {
        in->total = in->offset = in->want = 0;
        owe(peer, in);
    }
}

void tcp_go_on(struct tcp_peer *peer)
{
    peer->goes_on = true;
    for (struct tcp_out *out = peer->outs; out; out = out->next) {
        out->at = out->first;
        out->offset = 0;
        out->wanted = false;
        if (out->ready)
            take_ready(peer, out);
        make_ready(peer, out);
    }
}

static void free_out(struct tcp_peer *peer, struct tcp_out *out)
{
    if (peer->connection && peer->connection->chunk_of == out)
        peer->connection->chunk = NULL;
    if (out->ready)
        take_ready(peer, out);
    while (out->first) {
        struct tcp_message *m = out->first;
        out->first = m->next;
        if (m->open)
            tcp_ended(peer->link, (struct link_ended){
                                      .op = m->op, .from = peer->rank, .failed = true});
        memory_give(m);
    }
    memory_give(out);
}

static void take_owed(struct tcp_peer *peer, struct tcp_in *in)
{
    struct tcp_in **at = &peer->owed, *last = NULL;

    while (*at != in) {
        last = *at;
        at = &(*at)->next_owed;
    }
    *at = in->next_owed;
    if (peer->last_owed == in)
        peer->last_owed = last;
}

static void free_in(struct tcp_peer *peer, struct tcp_in *in)
{
    struct tcp_link *link = peer->link;
    struct tcp_connection *c = peer->connection;

    if (c && c->stream == in) {
        c->stream = NULL;
        c->into = NULL;
    }
    if (in->owed)
        take_owed(peer, in);
    while (in->receives) {
        struct tcp_receive *r = in->receives;
        in->receives = r->next;
        if (r->any) {           /* it stays open */
            if (!link->any[in->tag])
                link->last_any[in->tag] = r;
            r->next = link->any[in->tag];
            link->any[in->tag] = r;
            continue;
        }
        tcp_ended(link,
                  (struct link_ended){.op = r->op, .from = peer->rank, .failed = true});
        memory_give(r);
    }
    while (in->words) {
        struct tcp_word *word = in->words;
        in->words = word->next;
        memory_give(word);
    }
    peer->n_ins--;
    memory_give(in);
}

static bool is_below(uint64_t series, uint64_t below)
{
    return below == LINK_PEER || (series && series < below);
}

void tcp_give_up(struct tcp_peer *peer, uint64_t below)
{
    for (struct tcp_out **at = &peer->outs, *out; (out = *at);) {
        if (is_below(out->series, below)) {
            *at = out->next;
            free_out(peer, out);
        } else {
            at = &out->next;
        }
    }
    for (struct tcp_in **at = &peer->ins, *in; (in = *at);) {
        if (is_below(in->series, below)) {
            *at = in->next;
            free_in(peer, in);
        } else {
            at = &in->next;
        }
    }
    for (int tag = 0; below == LINK_PEER && tag < LINK_TAGS; tag++)
        share_any(peer->link, tag);     /* those that its bulk had taken */
}

/* Words that have ended and can leave: not those behind bulk, which is given up. */
bool tcp_has_words(const struct tcp_peer *peer)
{
    for (const struct tcp_out *out = peer->outs; out; out = out->next)
        if (out->at && !out->at->open)
            return true;
    return false;
}
