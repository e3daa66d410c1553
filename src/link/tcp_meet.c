/* SPDX-License-Identifier: MIT */
/* The link over TCP: the processes that are there, and the connections between them.
 *
 *   meeting     a rank connects to rank 0's address and says HELLO. Rank 0 answers with
 *               that rank's number and the most ranks that the job can have, and tells
 *               all ranks of each other (PEER). The higher of two ranks connects to the
 *               lower
 *   mending     a connection that has broken is made anew by the higher rank, at once
 *               and then each AGAIN, or SOON where the other host has answered. The lower
 *               rank tests whether the other still listens: soon after a test in which it
 *               did, for a process that dies may listen a little longer than it has
 *               connections, and less often later
 *   gone        a peer is gone after BYE; or when no process listens at its address (a
 *               process listens as long as its link is open); or when another process
 *               answers there, or comes as its rank
 *
 * In a star two ranks above 0 meet in turns, each with a number that rank 0 has made up. A
 * turn begins at one of them once rank 0 has told it of the other (PEER), if the process
 * before that one is forgotten there; TAKEN and GOES_ON follow, as over a connection that
 * was mended. A peer has come once its first GOES_ON has. Rank 0 begins another turn each
 * time that one of the two has a new connection.
 *
 * Nobody listens but rank 0, so rank 0 decides that another rank is gone, and tells all: at
 * BYE; at another process of that rank; or where its host has closed the connection, by
 * an end or a reset, and no new one has come for TCP_CLOSED_MS. A host does that for a process
 * that dies. A process that lives dials again at once, or after FAR_IDLE_S where only a
 * box on the way had reset the connection; in TCP_CLOSED_MS two of its tries may be lost. A
 * connection that breaks since nothing comes any more closes in no such way, and its rank
 * is not gone, however long it is cut off. If rank 0 dies, nobody tells of the death of
 * others until it is there again and hears of their next processes.
 *
 * Of two processes that come as one rank the one with the higher generation is the newer.
 * Generations are times; rank 0 tells a process whose clock is late which generation it
 * must exceed. A process fails when it hears that a newer one has its rank. */
#include "link/tcp_parts.h"

#include <errno.h>
#include <string.h>

enum {
    SOON_MS = 50,
    SOON_TESTS = 4,
    REFUSES_MS = 100            /* before a peer that does not listen any more is gone */
};

/* REFUSED.offset. FULL: no rank is free, until one of them is given up */
enum refusal { REFUSED_NO, REFUSED_LATER, REFUSED_GONE, REFUSED_OLD, REFUSED_FULL };

static const char magic[8] = "descant";

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
    snprintf(link->names[link->rank], LINK_NAME_ROOM, "%s", link->name);
    link->peers[0].address = link->meeting;
    link->peers[0].listens = true;
    return true;
}

/* --- coming and going --- */

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

/* A peer behind rank 0 does not meet this rank any more. Bulk that is under way from or to
 * its messages goes on as zeros, or to nowhere. */
static void part(struct tcp_peer *peer)
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
        tcp_pass_clear(NULL, peer);
    for (int k = 1; link->options.star && peer->rank == 0 && k < link->size; k++) {
        part(&link->peers[k]);
        link->peers[k].next_turn = link->peers[k].bye_turn = 0;
    }
}

static void lose(struct tcp_peer *peer)
{
    if (tcp_is_far(peer)) {
        part(peer);
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

/* What rank 0 of a star keeps of a rank that has come; its sender's frames that are held
 * leave all the same where it is another process than before. False: no memory. */
static bool make_pairs(struct tcp_peer *peer)
{
    struct tcp_link *link = peer->link;

    if (!tcp_is_hub(link))
        return true;
    if (!peer->pairs)
        peer->pairs = memory_take_array((size_t)link->size, sizeof *peer->pairs);
    for (int k = 1; peer->generation && k < link->size; k++)
        tcp_pass_clear(peer, &link->peers[k]);
    peer->closed_ns = 0;
    return peer->pairs != NULL;
}

static void comes(struct tcp_peer *peer, uint64_t generation)
{
    if (peer->generation)
        return;
    peer->generation = peer->newest = generation;
    peer->gone = false;
    tell(peer->link, peer, false);
}

/* The connection is the peer's from now on. */
static void opens(struct tcp_connection *c, struct tcp_peer *peer, uint64_t generation)
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
    comes(peer, generation);
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
static void begin_turn(struct tcp_peer *peer)
{
    struct tcp_connection *c = peer->link->peers[0].connection;

    if (!c || !peer->next_turn || (peer->generation && peer->generation != peer->at))
        return;
    part(peer);
    peer->connection = c;
    peer->turn = peer->next_turn;
    peer->next_turn = peer->bye_turn = 0;
    peer->sent = 0;
    peer->room = peer->window;
    tcp_begin_again(peer);
    if (peer->next_goes_on) {
        comes(peer, peer->at);
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
        c->chunk = NULL;
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
    if (there && tcp_is_hub(peer->link))
        owe_places(peer->link, peer->rank);
    if (far)
        begin_turn(peer);
}

/* --- HELLO --- */

static void say_hello(struct tcp_connection *c, int to, uint64_t generation)
{
    struct tcp_link *link = c->link;
    struct tcp_hello hello = {.protocol = TCP_PROTOCOL, .most = (uint32_t)link->size,
                              .rank = link->rank, .to = to, .port = link->port,
                              .star = link->options.star,
                              .generation = link->generation,
                              .to_generation = generation};

    memcpy(hello.magic, magic, sizeof hello.magic);
    snprintf(hello.name, sizeof hello.name, "%s", link->name);
    tcp_say(c, (struct tcp_frame){.what = TCP_HELLO, .bytes = sizeof hello}, &hello);
}

static bool turn_away(struct tcp_connection *c, enum refusal refusal, uint64_t newest,
                      const char *text)
{
    tcp_say(c, (struct tcp_frame){.what = TCP_REFUSED, .offset = (uint64_t)refusal,
                                  .index = newest, .bytes = (uint32_t)strlen(text) + 1},
            text);
    c->state = TCP_ENDS;
    c->since_ns = c->link->now_ns;
    return true;
}

/* A free rank, one that was never taken if there is such a one; -1: none. */
static int free_rank(const struct tcp_link *link)
{
    int found = -1;

    for (int k = link->size - 1; k > 0; k--) {
        const struct tcp_peer *peer = &link->peers[k];
        if (!peer->generation &&
            (found < 0 || !peer->newest || link->peers[found].newest))
            found = k;
    }
    return found;
}

static void learn_address(struct tcp_connection *c, struct tcp_peer *peer,
                          uint64_t generation, uint16_t port)
{
    socklen_t length = sizeof peer->address;

    if (!port || peer->rank == 0 || peer->link->options.star ||
        getpeername(c->fd, (struct sockaddr *)&peer->address, &length) != 0)
        return;
    if (peer->address.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&peer->address)->sin6_port = port;
    else
        ((struct sockaddr_in *)&peer->address)->sin_port = port;
    peer->at = generation;
    peer->listens = true;
}

/* Somebody has connected to this rank. */
static bool greet(struct tcp_connection *c, const struct tcp_hello *hello)
{
    struct tcp_link *link = c->link;
    int rank = hello->rank;
    char text[TCP_TEXT];

    if (!link->met)             /* others know of it, and rank 0's answer is on its way */
        return turn_away(c, REFUSED_LATER, 0, "");
    if ((hello->star != 0) != link->options.star) {
        snprintf(text, sizeof text,
                 "its address %s star=1, and that of rank %d %s: all ranks need the same",
                 hello->star ? "says" : "does not say", link->rank,
                 hello->star ? "does not" : "does");
        return turn_away(c, REFUSED_NO, 0, text);
    }
    if (!hello->port && !hello->star)
        return false;
    if (hello->to_generation && hello->to_generation != link->generation)
        return turn_away(c, REFUSED_GONE, 0, "another process listens here");
    if (hello->to >= 0 && hello->to != link->rank) {
        snprintf(text, sizeof text, "rank %d listens here", link->rank);
        return turn_away(c, REFUSED_GONE, 0, text);
    }
    if (rank < 0 && link->rank == 0)
        rank = free_rank(link);
    if (rank < 0 || rank >= link->size || rank == link->rank) {
        snprintf(text, sizeof text,
                 hello->rank < 0 ? "all of the job's %d ranks are taken; ranks=N in rank "
                                   "0's address, or --locals of descant bsp control, "
                                   "makes room for more"
                                 : "it must have another rank, from 0 to %d",
                 hello->rank < 0 ? link->size : link->size - 1);
        return turn_away(c, hello->rank < 0 ? REFUSED_FULL : REFUSED_NO, 0, text);
    }
    struct tcp_peer *peer = &link->peers[rank];
    if (hello->generation < peer->newest)
        return turn_away(c, REFUSED_OLD, peer->newest, "a newer process has this rank");
    if (hello->generation == peer->newest && !tcp_is_there(peer))
        return turn_away(c, REFUSED_GONE, 0, "it was given up here, and must come anew");
    if (hello->generation != peer->newest && peer->generation) {
        tcp_goes(peer);
        return turn_away(c, REFUSED_LATER, 0, "");
    }
    learn_address(c, peer, hello->generation, hello->port);
    text_line(peer->host, sizeof peer->host, hello->name);
    say_hello(c, rank, hello->generation);
    opens(c, peer, hello->generation);
    return true;
}

/* The one to whom this rank has connected. */
static bool is_greeted(struct tcp_connection *c, const struct tcp_hello *hello)
{
    struct tcp_link *link = c->link;

    if (!link->met) {           /* rank 0 */
        if (hello->rank != 0 || hello->most < 2 || hello->most > TCP_RANKS ||
            hello->to < 1 || hello->to >= (int)hello->most)
            return false;
        link->size = (int)hello->most;
        link->rank = hello->to;
        if (!tcp_make_peers(link))
            return false;
        link->met = true;
        c->peer = &link->peers[0];
        c->peer->dialing = c;
    }
    struct tcp_peer *peer = c->peer;
    if (hello->rank != peer->rank || hello->generation < peer->newest)
        return false;
    if (hello->generation == peer->newest && !tcp_is_there(peer)) {
        peer->dialing = NULL;       /* it was given up here, and hears of it */
        c->peer = NULL;
        c->state = TCP_ENDS;
        c->bye = true;
        return true;
    }
    if (hello->generation != peer->newest && peer->generation) {
        tcp_goes(peer);             /* and drops this connection */
        peer->dial_ns = tcp_after(link, SOON_MS);
        return true;
    }
    text_line(peer->host, sizeof peer->host, hello->name);
    opens(c, peer, hello->generation);
    return true;
}

static bool hear_hello(struct tcp_connection *c, const struct tcp_frame *f,
                       const unsigned char *bytes)
{
    struct tcp_hello hello;
    char text[TCP_TEXT];

    if (f->bytes != sizeof hello || (c->state != TCP_LISTENS && c->state != TCP_GREETS))
        return false;
    memcpy(&hello, bytes, sizeof hello);
    hello.name[sizeof hello.name - 1] = 0;
    if (memcmp(hello.magic, magic, sizeof magic) != 0 || !hello.generation ||
        hello.generation > INT64_MAX)
        return false;
    if (hello.protocol != TCP_PROTOCOL) {
        snprintf(text, sizeof text,
                 "it has version %u of the protocol, and rank %d has version %d",
                 hello.protocol, c->link->rank, TCP_PROTOCOL);
        return turn_away(c, REFUSED_NO, 0, text);
    }
    return c->state == TCP_LISTENS ? greet(c, &hello) : is_greeted(c, &hello);
}

static bool hear_refused(struct tcp_connection *c, const struct tcp_frame *f,
                         const unsigned char *bytes)
{
    struct tcp_link *link = c->link;
    struct tcp_peer *peer = c->peer;
    char text[TCP_TEXT] = "";

    if (c->state != TCP_GREETS)
        return false;
    if (f->bytes)
        snprintf(text, sizeof text, "%.*s", (int)f->bytes, (const char *)bytes);
    if (f->offset == REFUSED_OLD && !link->met && f->index < INT64_MAX) {
        link->generation = f->index + 1;
    } else if (f->offset == REFUSED_OLD) {
        snprintf(link->why, sizeof link->why,
                 "a newer process has come to the job as rank %d", link->rank);
        link->failed = true;
    } else if (f->offset == REFUSED_NO && !link->met) {
        text_line(link->why, sizeof link->why, text);
        link->failed = true;
    } else if (f->offset == REFUSED_FULL && !link->met) {
        text_line(link->why, sizeof link->why, text);
        if (!link->full_ns)
            log_say(link->log, DESCANT_INFO,
                    "tcp: %s; rank 0 is asked again, as a host that went down may leave "
                    "one free", link->why);
        link->full_ns = link->full_ns ? link->full_ns : link->now_ns;
    } else if (f->offset == REFUSED_GONE && peer && tcp_is_there(peer)) {
        tcp_goes(peer);
    } else if (f->offset != REFUSED_LATER && peer) {
        peer->listens &= peer->rank == 0;
    }
    if (peer)
        tcp_dial_later(peer, false);
    if (peer && f->offset == REFUSED_LATER)     /* also of a peer that is not there yet */
        peer->dial_ns = tcp_after(link, SOON_MS);
    tcp_drop(c);
    return true;
}

/* --- PEER, and a star's ROOM --- */

/* Of a rank behind rank 0. */
static bool hear_far_place(struct tcp_peer *peer, const struct tcp_place *place)
{
    if (place->generation < peer->newest || !place->generation)
        return true;
    if (!place->turn) {
        peer->next_turn = 0;
        tcp_goes(peer);
        if (!peer->generation)
            part(peer);
        return true;
    }
    if (place->generation == peer->newest && !tcp_is_there(peer)) {
        peer->bye_turn = place->turn;   /* it was given up here, and hears of it */
        peer->link->peers[0].owes = true;
        return true;
    }
    if (place->generation > peer->newest)
        tcp_goes(peer);
    text_line(peer->host, sizeof peer->host, place->name);
    peer->at = place->generation;
    peer->next_turn = place->turn;
    peer->window = place->window;
    peer->next_goes_on = false;
    begin_turn(peer);
    return true;
}

static bool hear_place(struct tcp_connection *c, const struct tcp_frame *f,
                       const unsigned char *bytes)
{
    struct tcp_link *link = c->link;
    struct tcp_place place;

    if (c->state != TCP_OPEN || c->peer->rank != 0 || f->bytes != sizeof place)
        return false;
    memcpy(&place, bytes, sizeof place);
    place.name[sizeof place.name - 1] = 0;
    if (place.rank < 1 || place.rank >= link->size ||
        (link->options.star ? place.rank == link->rank : !place.port))
        return false;
    struct tcp_peer *peer = &link->peers[place.rank];
    if (link->options.star)
        return hear_far_place(peer, &place);
    if (place.rank >= link->rank || place.generation < peer->newest ||
        (place.generation == peer->newest && !tcp_is_there(peer)))
        return true;            /* the higher rank connects */
    struct sockaddr_storage at = link->meeting;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&at;
    struct sockaddr_in *four = (struct sockaddr_in *)&at;
    if (place.family == AF_INET6) {
        uint32_t scope = at.ss_family == AF_INET6 ? six->sin6_scope_id : 0;
        *six = (struct sockaddr_in6){.sin6_family = AF_INET6};
        memcpy(&six->sin6_addr, place.address, sizeof six->sin6_addr);
        if (IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))     /* by the way to rank 0 */
            six->sin6_scope_id = scope;
    } else if (place.family == AF_INET) {
        *four = (struct sockaddr_in){.sin_family = AF_INET};
        memcpy(&four->sin_addr, place.address, sizeof four->sin_addr);
    }
    if (at.ss_family == AF_INET6)
        six->sin6_port = place.port;
    else
        four->sin_port = place.port;
    if (peer->dialing)          /* to where the process before it was */
        tcp_drop(peer->dialing);
    peer->dialing = NULL;
    if (place.generation > peer->newest)
        tcp_goes(peer);
    peer->address = at;
    peer->at = place.generation;
    peer->listens = true;
    peer->dial_ns = link->now_ns;
    return true;
}

static struct tcp_place place_of(const struct tcp_peer *peer)
{
    struct tcp_place place = {.rank = peer->rank, .generation = peer->generation};
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&peer->address;
    const struct sockaddr_in *four = (const struct sockaddr_in *)&peer->address;

    if (peer->address.ss_family == AF_INET6) {
        place.port = six->sin6_port;
        place.family = IN6_IS_ADDR_LOOPBACK(&six->sin6_addr) ? 0 : AF_INET6;
        memcpy(place.address, &six->sin6_addr, sizeof six->sin6_addr);
    } else {
        place.port = four->sin_port;
        place.family = ntohl(four->sin_addr.s_addr) >> 24 == 127 ? 0 : AF_INET;
        memcpy(place.address, &four->sin_addr, sizeof four->sin_addr);
    }
    return place;
}

/* WAITS: it cannot be said yet. FULL: the connection has no room now. */
enum said { SAID, WAITS, FULL };

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
static enum said find_far_place(struct tcp_peer *to, struct tcp_peer *of,
                                struct tcp_place *place)
{
    struct tcp_pair *there = &of->pairs[to->rank], *back = &to->pairs[of->rank];

    *place = (struct tcp_place){.rank = of->rank, .generation = of->newest,
                                .window = tcp_window(to->link)};
    snprintf(place->name, sizeof place->name, "%s", of->host);
    if (!tcp_is_there(of))
        return there->held ? WAITS : SAID;
    if (!there->turn && !make_turn(to->link, there, back))
        return WAITS;
    place->turn = there->turn;
    return SAID;
}

static enum said say_place(struct tcp_connection *c, struct tcp_peer *of)
{
    struct tcp_place place;

    if (tcp_is_hub(c->link)) {
        if (tcp_is_there(of) && !of->connection)
            return SAID;                /* no: it will be, once it has a connection */
        if (find_far_place(c->peer, of, &place) == WAITS)
            return WAITS;
    } else {
        if (!tcp_is_there(of))
            return SAID;
        if (!of->listens)
            return WAITS;
        place = place_of(of);
    }
    const struct tcp_frame frame = {.what = TCP_PEER, .bytes = sizeof place};
    return tcp_say(c, frame, &place) ? SAID : FULL;
}

/* How much of what it has sent to another rank is held no more. */
static bool say_room(struct tcp_connection *c, int rank)
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

/* Rank 0 tells a rank of each other. */
static bool say_places(struct tcp_connection *c)
{
    struct tcp_link *link = c->link;
    struct tcp_peer *peer = c->peer;
    bool owes = false;

    for (int k = 1; k < link->size; k++) {
        bool *owed = &link->owes_place[peer->rank * link->size + k];
        enum said said = *owed ? say_place(c, &link->peers[k]) : SAID;
        *owed = said != SAID;
        if (said == FULL || (peer->pairs && !say_room(c, k)))
            return false;
        owes |= *owed;
    }
    peer->owes = owes;
    return true;
}

bool tcp_has_left(const struct tcp_link *link)
{
    for (int k = 1; link->options.star && k < link->size; k++)
        if (link->peers[k].bye_turn || tcp_is_there(&link->peers[k]))
            return false;
    return true;
}

static bool say_byes(struct tcp_connection *c)
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

bool tcp_meet_says(struct tcp_connection *c)
{
    if (!c->peer->owes)
        return true;
    return c->link->rank == 0 ? say_places(c) : say_byes(c);
}

/* --- connections --- */

/* A frame of, or on, a peer behind rank 0; those of an earlier turn say nothing. */
static bool hear_far(struct tcp_connection *c, const struct tcp_frame *f)
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
        comes(peer, peer->at);
        tcp_go_on(peer);
        return true;
    case TCP_BYE:
        peer->next_turn = next ? 0 : peer->next_turn;
        if (now && peer->generation)
            tcp_goes(peer);
        else if (now)
            part(peer);
        return true;
    case TCP_ROOM:
        if (now && f->total > peer->room)
            peer->room = f->total;
        return true;
    default:
        return false;
    }
}

bool tcp_meet_heard(struct tcp_connection *c, const struct tcp_frame *f,
                    const unsigned char *bytes)
{
    if (f->rank)
        return hear_far(c, f);
    switch ((enum tcp_what)f->what) {
    case TCP_HELLO:
        return hear_hello(c, f, bytes);
    case TCP_REFUSED:
        return hear_refused(c, f, bytes);
    case TCP_PEER:
        return hear_place(c, f, bytes);
    case TCP_GOES_ON:
        if (c->state == TCP_OPEN && !c->peer->goes_on) {
            tcp_go_on(c->peer);
            return true;
        }
        return false;
    case TCP_BYE:
        if (c->state != TCP_OPEN)
            return false;
        tcp_goes(c->peer);
        return true;
    default:
        return false;
    }
}

void tcp_dial_later(struct tcp_peer *peer, bool answers)
{
    peer->dialing = NULL;
    peer->dial_ns =
        tcp_after(peer->link, answers && tcp_is_there(peer) ? SOON_MS : TCP_AGAIN_MS);
}

void tcp_meet_connected(struct tcp_connection *c)
{
    struct tcp_link *link = c->link;
    struct tcp_peer *peer = c->peer;
    int error = tcp_error(c);

    c->since_ns = link->now_ns;
    if (!error && (!peer || tcp_mends(link, peer))) {
        c->state = TCP_GREETS;
        say_hello(c, peer ? peer->rank : 0, peer ? peer->generation : 0);
        return;
    }
    tcp_drop(c);
    if (!peer) {
        link->meet_error = error;
        return;
    }
    bool soon = !error && peer->tests < SOON_TESTS;
    peer->tests += soon;
    tcp_dial_later(peer, soon || error == ECONNREFUSED || error == ECONNRESET);
    if (error != ECONNREFUSED) {
        peer->refused_ns = 0;
    } else if (!tcp_is_there(peer)) {
        peer->listens &= peer->rank == 0;
    } else if (!peer->refused_ns) {
        peer->refused_ns = link->now_ns;
    } else if (link->now_ns - peer->refused_ns >= REFUSES_MS * TCP_MS) {
        tcp_goes(peer);
    }
}
