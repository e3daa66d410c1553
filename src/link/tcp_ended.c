/* SPDX-License-Identifier: MIT */
/* The link over TCP: what both sides of a stream do with messages that end, with series
 * that are through, and with frames. */
#include "link/tcp_parts.h"

#include <string.h>

bool tcp_no_memory(struct tcp_link *link)
{
    snprintf(link->why, sizeof link->why, "no memory for a message");
    link->failed = true;
    return false;
}

bool tcp_is_through(const struct tcp_peer *peer, uint64_t series)
{
    return series && (series < peer->below || series < peer->link->below);
}

bool tcp_is_below(uint64_t series, uint64_t below)
{
    return below == LINK_PEER || (series && series < below);
}

void tcp_ended(struct tcp_link *link, struct link_ended ended)
{
    if (link->n_ended == link->ended_room) {
        int room = link->ended_room ? 2 * link->ended_room : 64;
        struct link_ended *more = memory_take_array((size_t)room, sizeof *more);
        if (!more) {
            tcp_no_memory(link);
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

size_t tcp_put(unsigned char *to, struct tcp_frame frame, const void *bytes)
{
    memcpy(to, &frame, sizeof frame);
    if (bytes && frame.bytes)
        memcpy(to + sizeof frame, bytes, frame.bytes);
    return sizeof frame + (bytes ? frame.bytes : 0);
}
