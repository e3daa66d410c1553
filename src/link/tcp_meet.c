/* SPDX-License-Identifier: MIT */
/* The link over TCP: the processes that are there, and the connections between them.
 *
 * In a star ranks above 0 do so only with rank 0, and with each other as tcp_star.c says.
 * Elsewhere:
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

/* Of the link, and of the one beside it: no rank of one job comes to another's. */
static const char magics[2][8] = {"descant", "beside"};

/* --- HELLO --- */

static void say_hello(struct tcp_connection *c, int to, uint64_t generation)
{
    struct tcp_link *link = c->link;
    struct tcp_hello hello = {.protocol = TCP_PROTOCOL, .most = (uint32_t)link->size,
                              .rank = link->rank, .to = to, .port = link->port,
                              .star = link->options.star,
                              .generation = link->generation,
                              .to_generation = generation};

    memcpy(hello.magic, magics[link->options.beside], sizeof hello.magic);
    snprintf(hello.name, sizeof hello.name, "%s", link->name);
    tcp_say(c, (struct tcp_frame){.what = TCP_HELLO, .bytes = sizeof hello}, &hello);
}

static bool turn_away(struct tcp_connection *c, enum refusal refusal, uint64_t newest,
                      const char *text)
{
    tcp_say(c, (struct tcp_frame){.what = TCP_REFUSED, .offset = (uint32_t)refusal,
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
                 "its address %s star=1, and that of %s %s: all ranks need the same",
                 hello->star ? "says" : "does not say",
                 tcp_name_of(link, link->rank).text, hello->star ? "does not" : "does");
        return turn_away(c, REFUSED_NO, 0, text);
    }
    if (!hello->port && !hello->star)
        return false;
    if (hello->to_generation && hello->to_generation != link->generation)
        return turn_away(c, REFUSED_GONE, 0, "another process listens here");
    if (hello->to >= 0 && hello->to != link->rank) {
        snprintf(text, sizeof text, "%s listens here",
                 tcp_name_of(link, link->rank).text);
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
    tcp_opens(c, peer, hello->generation);
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
    tcp_opens(c, peer, hello->generation);
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
    if (memcmp(hello.magic, magics[c->link->options.beside], sizeof hello.magic) != 0 ||
        !hello.generation || hello.generation > INT64_MAX)
        return false;
    if (hello.protocol != TCP_PROTOCOL) {
        snprintf(text, sizeof text,
                 "it has version %u of the protocol, and %s has version %d",
                 hello.protocol, tcp_name_of(c->link, c->link->rank).text, TCP_PROTOCOL);
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
                 "a newer process has come to the job as %s",
                 tcp_name_of(link, link->rank).text);
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
        text_line(link->why, sizeof link->why, text);
        if (link->options.star && peer->rank == 0 && *link->why)
            log_say(link->log, DESCANT_WARNING, "tcp: the hub refuses this process: %s",
                    link->why);
        *link->why = 0;
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

/* --- PEER --- */

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
        return tcp_hear_far_place(peer, &place);
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

static enum said say_place(struct tcp_connection *c, struct tcp_peer *of)
{
    struct tcp_place place;

    if (tcp_is_hub(c->link)) {
        if (tcp_is_there(of) && !of->connection)
            return SAID;                /* no: it will be, once it has a connection */
        if (!tcp_find_far_place(c->peer, of, &place))
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
        if (said == FULL || (peer->pairs && !tcp_say_room(c, k)))
            return false;
        owes |= *owed;
    }
    peer->owes = owes;
    return true;
}

bool tcp_meet_says(struct tcp_connection *c)
{
    if (!c->peer->owes)
        return true;
    return c->link->rank == 0 ? say_places(c) : tcp_say_byes(c);
}

/* --- connections --- */

bool tcp_meet_heard(struct tcp_connection *c, const struct tcp_frame *f,
                    const unsigned char *bytes)
{
    if (f->rank)
        return tcp_hear_far(c, f);
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
