/* SPDX-License-Identifier: MIT */
/* The link over TCP: how a peer comes, goes and is forgotten, and what others are to be
 * told of it. A far peer, which this rank reaches through rank 0 of a star, has rank 0's
 * connection while the two meet (tcp_star.c). */
#include "link/tcp_parts.h"

#include <string.h>

bool tcp_make_peers(struct tcp_link *link)
{
    size_t size = (size_t)link->size;

    link->peers = memory_take_array(size, sizeof *link->peers);
    link->names = memory_take_array(size, sizeof *link->names);
    if (link->rank == 0)
        link->owes_place = memory_take_array(size * size, sizeof *link->owes_place);
    if (!link->peers || !link->names || (link->rank == 0 && !link->owes_place)) {
        snprintf(link->why, sizeof link->why, "no memory for %zu ranks", size);
        link->failed = true;
        return false;
    }
    for (int k = 0; k < link->size; k++) {
        link->peers[k].link = link;
        link->peers[k].rank = k;
        snprintf(link->names[k], LINK_NAME_ROOM, "the host of rank %d", k);
    }
    snprintf(link->names[tcp_turned(link, link->rank, -1)], LINK_NAME_ROOM, "%s",
             link->name);
    link->peers[0].address = link->meeting;
    link->peers[0].listens = true;
    return true;
}

static void tell(struct tcp_link *link, const struct tcp_peer *peer, bool gone)
{
    if (link->n_news == link->news_room) {
        int room = link->news_room ? 2 * link->news_room : 16;
        struct link_peer *more = memory_take_array((size_t)room, sizeof *more);
        if (!more) {
            link->failed = true;
            snprintf(link->why, sizeof link->why, "no memory for news");
            return;
        }
        if (link->n_news)
            memcpy(more, link->news, (size_t)link->n_news * sizeof *more);
        memory_give(link->news);
        link->news = more;
        link->news_room = room;
    }
    link->news[link->n_news++] = (struct link_peer){
        peer->rank, peer->generation, gone, gone ? NULL : peer->host};
}

/* Bulk that is under way from or to messages with a far peer goes on as zeros, or to
 * nowhere. */
void tcp_part(struct tcp_peer *peer)
{
    struct tcp_connection *c = peer->connection;

    peer->connection = NULL;
    if (c && c->to == peer) {
        c->chunk = NULL;
        c->chunk_of = NULL;
    }
    if (c && c->from == peer) {
        c->stream = NULL;
        c->into = NULL;
    }
}

void tcp_lost(struct tcp_peer *peer)
{
    struct tcp_link *link = peer->link;

    peer->connection = NULL;
    if (tcp_is_hub(link))
        tcp_pass_clear(peer);
    for (int k = 1; link->options.star && peer->rank == 0 && k < link->size; k++) {
        tcp_part(&link->peers[k]);
        link->peers[k].next_turn = link->peers[k].bye_turn = 0;
    }
}

static void lose(struct tcp_peer *peer)
{
    if (tcp_is_far(peer)) {
        tcp_part(peer);
        return;
    }
    if (peer->connection)
        tcp_drop(peer->connection);
    if (peer->dialing)
        tcp_drop(peer->dialing);
    tcp_lost(peer);
    peer->dialing = NULL;
}

/* No process listens at its address; its next process may have told another address. */
static void lose_address(struct tcp_peer *peer)
{
    peer->listens &= peer->rank == 0 || peer->at > peer->generation;
}

static void owe_place(struct tcp_link *link, int rank, int of)
{
    link->owes_place[rank * link->size + of] = true;
    link->peers[rank].owes = true;
}

/* Rank 0 tells the others what has become of this one, and, where it is there, this one
 * of them. A star's turns with it end. */
static void owe_places(struct tcp_link *link, int rank)
{
    bool star = tcp_is_hub(link), there = tcp_is_there(&link->peers[rank]);

    for (int k = 1; link->owes_place && k < link->size; k++) {
        const struct tcp_peer *other = &link->peers[k];
        if (k == rank)
            continue;
        if (star && other->pairs)
            link->peers[rank].pairs[k].turn = other->pairs[rank].turn = 0;
        if (tcp_is_there(other))
            owe_place(link, k, rank);
        if (there && (tcp_is_there(other) || (star && other->newest)))
            owe_place(link, rank, k);
    }
}

void tcp_goes(struct tcp_peer *peer)
{
    if (!tcp_is_there(peer))
        return;
    lose(peer);
    peer->gone = true;
    lose_address(peer);
    tell(peer->link, peer, true);
    if (tcp_is_hub(peer->link))
        owe_places(peer->link, peer->rank);
}

/* The record of a rank that has come, in rank 0 of a star. Frames from it that are held leave
 * all the same, before the next turns. False: no memory. */
static bool make_pairs(struct tcp_peer *peer)
{
    struct tcp_link *link = peer->link;

    if (!tcp_is_hub(link))
        return true;
    if (!peer->pairs)
        peer->pairs = memory_take_array((size_t)link->size, sizeof *peer->pairs);
    peer->closed_ns = 0;
    return peer->pairs != NULL;
}

void tcp_comes(struct tcp_peer *peer, uint64_t generation)
{
    if (peer->generation)
        return;
    peer->generation = peer->newest = generation;
    peer->gone = false;
    tell(peer->link, peer, false);
}

/* The connection is the peer's from now on. */
void tcp_opens(struct tcp_connection *c, struct tcp_peer *peer, uint64_t generation)
{
    struct tcp_link *link = c->link;

    if (peer->dialing == c)
        peer->dialing = NULL;
    lose(peer);
    tcp_counts(c, false);
    c->peer = peer;
    c->state = TCP_OPEN;
    if (!tcp_is_known(c) || !make_pairs(peer)) {
        link->failed = true;
        snprintf(link->why, sizeof link->why, "no memory for a connection");
        tcp_drop(c);
        return;
    }
    peer->connection = c;
    peer->refused_ns = 0;
    tcp_begin_again(peer);
    tcp_comes(peer, generation);
    owe_places(link, peer->rank);       /* what was told over another one may be lost */
}

/* News of a peer that is forgotten, and that collect has not told, is dropped. */
static void untell(struct tcp_link *link, int rank)
{
    int n = 0;

    for (int i = 0; i < link->n_news; i++)
        if (link->news[i].rank != rank)
            link->news[n++] = link->news[i];
    link->n_news = n;
}

/* A turn begins with a peer behind rank 0, once there is one. */
void tcp_begin_turn(struct tcp_peer *peer)
{
    struct tcp_connection *c = peer->link->peers[0].connection;

    if (!c || !peer->next_turn || (peer->generation && peer->generation != peer->at))
        return;
    tcp_part(peer);
    peer->connection = c;
    peer->turn = peer->next_turn;
    peer->next_turn = peer->bye_turn = 0;
    peer->sent = 0;
    peer->room = peer->window;
    tcp_begin_again(peer);
    if (peer->next_goes_on) {
        tcp_comes(peer, peer->at);
        tcp_go_on(peer);
    }
}

void tcp_forget(struct tcp_peer *peer)
{
    struct tcp_connection *c = peer->connection;
    bool there = tcp_is_there(peer), far = tcp_is_far(peer);

    if (far && !peer->generation)
        return;
    if (c && far) {
        peer->bye_turn = peer->turn;
        peer->link->peers[0].owes = true;
    } else if (c) {             /* it hears of it; nothing that comes is looked at */
        c->stream = NULL;
        c->into = NULL;
        c->chunk = c->writes ? c->chunk : NULL;
        c->state = TCP_ENDS;
        c->bye = true;
        c->since_ns = peer->link->now_ns;
        c->peer = NULL;
        tcp_lost(peer);
    }
    lose(peer);
    tcp_give_up(peer, LINK_PEER);
    lose_address(peer);
    untell(peer->link, peer->rank);
    peer->generation = 0;
    peer->told = peer->gone = false;
    if (there && tcp_is_hub(peer->link) && !peer->link->closing)
        owe_places(peer->link, peer->rank);
    if (far)
        tcp_begin_turn(peer);
}
