/* SPDX-License-Identifier: MIT */
/* The link over TCP: how ranks of a star meet each other through rank 0, its hub.
 *
 *   turns       two ranks above 0 meet in turns, each with a number that rank 0 has made
 *               up. A turn begins at one of the two once rank 0 has told it of the other
 *               (PEER), and it has forgotten the process before that one; TAKEN and
 *               GOES_ON follow, as over a connection that was mended. A peer has come
 *               once its first GOES_ON has. Rank 0 begins another turn whenever one of
 *               the two has a new connection
 *   gone        nobody but rank 0 listens, so rank 0 decides that another rank is gone,
 *               and tells all: at BYE; at another process of that rank; or where the
 *               rank's host has closed its connection, by an end or a reset, and no new
 *               one has come for TCP_CLOSED_MS. A host closes the connections of a
 *               process that dies. A process that lives dials again at once, or after
 *               FAR_IDLE_S where a box on the way has reset the connection, and two of
 *               its tries may be lost in TCP_CLOSED_MS; a process that is stopped just
 *               then does not, and is gone. A rank whose connection has broken since
 *               nothing comes through is not gone, however long it is cut off
 *   no hub      if rank 0 dies, the others are out of reach, and not gone. They connect
 *               to its next process once they have forgotten the one before, and go on.
 *               Of a rank that has died meanwhile they hear as its next process comes */
#include "link/tcp_parts.h"

/* --- what rank 0 says --- */

/* Two ranks begin another turn once no frames of an earlier one are held. */
static bool make_turn(struct tcp_link *link, struct tcp_pair *one, struct tcp_pair *other)
{
    if (one->held || other->held)
        return false;
    link->n_turns += link->n_turns == UINT32_MAX ? 2 : 1;
    *one = *other = (struct tcp_pair){.turn = link->n_turns};
    return true;
}

/* All that the rank has sent comes before the word that it is gone. */
bool tcp_find_far_place(struct tcp_peer *to, struct tcp_peer *of,
                        struct tcp_place *place)
{
    struct tcp_pair *there = &of->pairs[to->rank], *back = &to->pairs[of->rank];

    *place = (struct tcp_place){.rank = of->rank, .generation = of->newest,
                                .window = tcp_window(to->link)};
    snprintf(place->name, sizeof place->name, "%s", of->host);
    if (!tcp_is_there(of))
        return !there->held;
    if (!there->turn && !make_turn(to->link, there, back))
        return false;
    place->turn = there->turn;
    return true;
}

/* How much of what it has sent to another rank is held no more. */
bool tcp_say_room(struct tcp_connection *c, int rank)
{
    struct tcp_pair *pair = &c->peer->pairs[rank];
    const struct tcp_frame frame = {.what = TCP_ROOM, .rank = (uint16_t)rank,
                                    .turn = pair->turn,
                                    .total = pair->left + tcp_window(c->link)};

    if (!tcp_tells_room(c->link, pair))
        return true;
    if (!tcp_say(c, frame, NULL))
        return false;
    pair->told_left = pair->left;
    return true;
}

/* --- what another rank hears, and says --- */

/* PEER: another rank is there, or is gone. */
bool tcp_hear_far_place(struct tcp_peer *peer, const struct tcp_place *place)
{
    if (place->generation < peer->newest || !place->generation)
        return true;
    if (!place->turn) {
        peer->next_turn = 0;
        tcp_goes(peer);
        if (!peer->generation)
            tcp_part(peer);
        return true;
    }
    if (place->generation == peer->newest && !tcp_is_there(peer)) {
        peer->bye_turn = place->turn;   /* it was given up here, and hears of it */
        peer->link->peers[0].owes = true;
        return true;
    }
    if (place->generation > peer->newest)
        tcp_goes(peer);
    if (!peer->generation && place->generation != peer->at) {
        tcp_part(peer);             /* a process that never came may have said TAKEN */
        tcp_give_up(peer, LINK_PEER);
    }
    text_line(peer->host, sizeof peer->host, place->name);
    peer->at = place->generation;
    peer->next_turn = place->turn;
    peer->window = place->window;
    peer->next_goes_on = false;
    tcp_begin_turn(peer);
    return true;
}

/* A frame that rank 0 has passed on, or ROOM; those of an earlier turn say nothing. */
bool tcp_hear_far(struct tcp_connection *c, const struct tcp_frame *f)
{
    struct tcp_peer *peer = &c->link->peers[f->rank];
    bool now = peer->connection == c && peer->turn == f->turn;
    bool next = peer->next_turn && peer->next_turn == f->turn;

    switch ((enum tcp_what)f->what) {
    case TCP_GOES_ON:
        peer->next_goes_on |= next;
        if (!now)
            return true;
        if (peer->goes_on)
            return false;
        tcp_comes(peer, peer->at);
        tcp_go_on(peer);
        return true;
    case TCP_BYE:
        peer->next_turn = next ? 0 : peer->next_turn;
        if (now && peer->generation)
            tcp_goes(peer);
        else if (now)
            tcp_part(peer);
        return true;
    case TCP_ROOM:
        if (now && f->total > peer->room)
            peer->room = f->total;
        return true;
    default:
        return false;
    }
}

bool tcp_has_left(const struct tcp_link *link)
{
    for (int k = 1; link->options.star && k < link->size; k++)
        if (link->peers[k].bye_turn || tcp_is_there(&link->peers[k]))
            return false;
    return true;
}

bool tcp_say_byes(struct tcp_connection *c)
{
    for (int k = 1; k < c->link->size; k++) {
        uint32_t *turn = &c->link->peers[k].bye_turn;
        const struct tcp_frame frame = {.what = TCP_BYE, .rank = (uint16_t)k,
                                        .turn = *turn};
        if (*turn && !tcp_say(c, frame, NULL))
            return false;
        *turn = 0;
    }
    c->peer->owes = false;
    return true;
}
