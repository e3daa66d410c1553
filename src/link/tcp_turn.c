/* SPDX-License-Identifier: MIT */
/* The link over TCP: a turn. It reads the sockets that have something, sweeps away
 * connections that have broken or have waited too long, dials the peers that are due, and
 * writes all that can leave; then it sets the timer for the next thing that no socket
 * tells of. Strangers, connections that are no peer's so far, are few and short-lived. */
#include "link/tcp_parts.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    STRANGE_MS = 5000,          /* a stranger may be here for so long, */
    YIELDS_MS = 100,            /* or for so long where others wait */
    GREET_MS = 3000,            /* the most that a process may take to answer */
    ENDS_MS = 2000,
    UNMET = 3,                  /* so many handshakes with rank 0 fail */
    SAY_MS = 10000              /* between two lines about strangers */
};

static void say_strange(const struct tcp_connection *c)
{
    struct tcp_link *link = c->link;

    link->n_unsaid++;
    if (link->said_ns && link->now_ns - link->said_ns < SAY_MS * TCP_MS)
        return;
    link->said_ns = link->now_ns;
    log_say(link->log, DESCANT_WARNING,
            "tcp: %llu connection%s to this rank came from no rank of the job%s%s",
            (unsigned long long)link->n_unsaid, link->n_unsaid == 1 ? "" : "s",
            *c->why ? ", the last one from " : "", c->why);
    link->n_unsaid = 0;
}

/* The connection has sent no HELLO of a rank. One that came and went in silence is not
 * logged, since ranks make such connections, too, when the other rank's came first. */
static void left_strange(struct tcp_connection *c)
{
    if (c->state != TCP_LISTENS)
        return;
    c->state = TCP_ENDS;
    if (c->in_n || c->bad || *c->why ||
        c->link->now_ns - c->since_ns > YIELDS_MS * TCP_MS)
        say_strange(c);
}

/* How long a connection may be in its state, in ms; 0: as long as it is open. */
static unsigned patience(const struct tcp_connection *c)
{
    static const unsigned ms[] = {[TCP_CONNECTING] = GREET_MS, [TCP_GREETS] = GREET_MS,
                                  [TCP_LISTENS] = STRANGE_MS, [TCP_OPEN] = 0,
                                  [TCP_ENDS] = ENDS_MS};
    return ms[c->state];
}

/* The connection has ended since nothing came through, and not by its other end. */
static bool is_cut(int error)
{
    return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
           error == EHOSTDOWN || error == ENETDOWN;
}

/* It is of no use any more: neither to its peer, nor to meet rank 0. */
static void let_go(struct tcp_connection *c)
{
    struct tcp_link *link = c->link;
    struct tcp_peer *peer = c->peer;

    left_strange(c);
    if (peer && peer->connection == c) {
        tcp_lost(peer);
        peer->closed_ns = is_cut(c->error) ? 0 : link->now_ns;
        peer->dial_ns = link->now_ns;
        peer->tests = 0;
        if (c->bad)
            tcp_goes(peer);
    }
    if (peer && peer->dialing == c)
        tcp_dial_later(peer, c->state == TCP_GREETS);
    if (link->meeter == c) {
        link->meeter = NULL;
        if (*c->why && !link->met) {    /* not once: the other end may be going down */
            text_line(link->why, sizeof link->why, c->why);
            link->failed = ++link->n_unmet >= UNMET;
        }
    }
}

static void came_over(struct tcp_connection *c, uint32_t events)
{
    c->full = false;
    if (c->state == TCP_CONNECTING && (c->error || (events & (EPOLLOUT | EPOLLERR |
                                                               EPOLLHUP))))
        tcp_meet_connected(c);
    if (c->state == TCP_OPEN && (events & EPOLLERR))
        c->error = tcp_error(c);
    if (!c->broken && c->shakes && c->state != TCP_CONNECTING && !tcp_shake(c)) {
        if (*c->why) {          /* the other end is to hear why */
            let_go(c);
            tcp_linger(c);
        }
        return;
    }
    if (!c->broken && c->state == TCP_ENDS && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        tcp_swallow(c);
    else if (!c->broken && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) &&
             c->state != TCP_CONNECTING)
        tcp_read(c, tcp_meet_heard);
}

static void sweep(struct tcp_link *link)
{
    for (struct tcp_connection **at = &link->connections, *c; (c = *at);) {
        unsigned most = patience(c);
        if (most && link->now_ns - c->since_ns > most * TCP_MS)
            tcp_drop(c);
        if (!c->broken) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        let_go(c);
        tcp_free(c);
    }
}

static void hold(struct tcp_link *link, bool holds)
{
    struct epoll_event event = {.events = holds ? 0 : EPOLLIN,
                                .data.ptr = &link->listener};

    if (link->holds != holds)
        epoll_ctl(link->epoll, EPOLL_CTL_MOD, link->listener, &event);
    link->holds = holds;
}

static struct tcp_connection *oldest_stranger(const struct tcp_link *link)
{
    struct tcp_connection *oldest = NULL;

    for (struct tcp_connection *c = link->connections; c; c = c->next)
        if (c->strange && (!oldest || c->since_ns < oldest->since_ns))
            oldest = c;
    return oldest;
}

/* Among many strangers the oldest makes room, once a rank would have said HELLO: silent
 * connections keep no rank out for long. Later ones wait in the kernel's queue. */
static bool yields(struct tcp_link *link)
{
    struct tcp_connection *oldest = oldest_stranger(link);

    if (!oldest || link->now_ns - oldest->since_ns < YIELDS_MS * TCP_MS)
        return false;
    tcp_drop(oldest);
    left_strange(oldest);
    return true;
}

static bool make_room(struct tcp_link *link)
{
    return link->n_strangers < TCP_STRANGERS || yields(link);
}

/* The last accept has failed for lack of descriptors, or of memory. */
static bool lacks(void)
{
    return errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
}

static void accept_all(struct tcp_link *link)
{
    bool room;

    do
        errno = 0;
    while ((room = make_room(link)) && (tcp_accept(link) || (lacks() && yields(link))));
    hold(link, !room || lacks());
}

static void dial(struct tcp_link *link)
{
    for (int k = 0; link->met && !link->closing && k < link->size; k++) {
        struct tcp_peer *peer = &link->peers[k];
        bool wanted = tcp_mends(link, peer) ? !peer->gone : tcp_is_there(peer);
        if (k == link->rank || !wanted || !peer->listens || peer->connection ||
            peer->dialing || link->now_ns < peer->dial_ns)
            continue;
        peer->dialing = tcp_connect(link, &peer->address,
                                    k == 0 ? link->options.host : NULL);
        peer->dial_ns = tcp_after(link, TCP_AGAIN_MS);
        if (peer->dialing)
            peer->dialing->peer = peer;
    }
}

/* When a rank of a star whose connection was closed is gone; 0: it has one, or is cut
 * off. */
static uint64_t goes_at(const struct tcp_peer *peer)
{
    return tcp_is_hub(peer->link) && tcp_is_there(peer) && !peer->connection &&
                   peer->closed_ns
               ? peer->closed_ns + TCP_CLOSED_MS * TCP_MS
               : 0;
}

static void give_up_closed(struct tcp_link *link)
{
    for (int k = 1; tcp_is_hub(link) && k < link->size; k++) {
        uint64_t at = goes_at(&link->peers[k]);
        if (at && link->now_ns >= at)
            tcp_goes(&link->peers[k]);
    }
}

/* The next time at which something is due that no socket tells of. */
static uint64_t next_due(const struct tcp_link *link)
{
    uint64_t due = UINT64_MAX;

    for (int k = 1; tcp_is_hub(link) && k < link->size; k++) {
        uint64_t at = goes_at(&link->peers[k]);
        due = at && at < due ? at : due;
    }
    for (int k = 0; link->met && !link->closing && k < link->size; k++) {
        const struct tcp_peer *peer = &link->peers[k];
        bool wanted = tcp_mends(link, peer) ? !peer->gone : tcp_is_there(peer);
        if (k != link->rank && wanted && peer->listens && !peer->connection &&
            !peer->dialing && peer->dial_ns < due)
            due = peer->dial_ns;
    }
    for (const struct tcp_connection *c = link->connections; c; c = c->next) {
        unsigned ms = link->holds && c->strange ? YIELDS_MS : patience(c);
        if (ms && c->since_ns + ms * TCP_MS < due)
            due = c->since_ns + ms * TCP_MS;
    }
    uint64_t yields = tcp_after(link, YIELDS_MS);
    return link->holds && yields < due ? yields : due;
}

/* The timer and the bell only wake: how often they did is of no use. */
static bool hush(int fd)
{
    uint64_t n;

    return read(fd, &n, sizeof n) > 0;
}

static void set_timer(struct tcp_link *link, bool expired)
{
    uint64_t due = next_due(link);

    if (due == link->timer_ns && !expired)
        return;
    link->timer_ns = due;
    struct itimerspec at = {.it_value = {0, 0}};
    if (due != UINT64_MAX) {
        at.it_value.tv_sec = (time_t)(due / UINT64_C(1000000000));
        at.it_value.tv_nsec = (long)(due % UINT64_C(1000000000)) + 1;
    }
    timerfd_settime(link->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

void tcp_turn(struct tcp_link *link)
{
    enum { EVENTS = 64 };
    struct epoll_event events[EVENTS];
    bool expired = false;

    link->now_ns = clock_now_ns();
    int n = epoll_wait(link->epoll, events, EVENTS, 0);     /* the rest: the next turn */
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == &link->listener)
            accept_all(link);
        else if (events[i].data.ptr == link)
            expired = hush(link->timer);
        else if (events[i].data.ptr == &link->bell)
            hush(link->bell);
        else if (!((struct tcp_connection *)events[i].data.ptr)->broken)
            came_over(events[i].data.ptr, events[i].events);
    }
    sweep(link);
    dial(link);
    give_up_closed(link);
    do {
        link->again = false;
        for (struct tcp_connection *c = link->connections; c; c = c->next) {
            if (c->state == TCP_CONNECTING && c->error)
                tcp_meet_connected(c);
            tcp_flush(c, tcp_meet_says);
        }
    } while (link->again);
    sweep(link);
    if (link->holds)
        accept_all(link);
    set_timer(link, expired);
}

bool tcp_leaves(struct tcp_link *link)
{
    bool left = true;

    link->closing = true;
    for (int k = link->size - 1; k >= 0; k--) {     /* in a star rank 0 is the last */
        struct tcp_peer *peer = &link->peers[k];
        bool waits = tcp_has_words(peer) ||
                     (k == 0 && link->rank > 0 && !tcp_has_left(link));
        if (tcp_is_there(peer) && !(peer->connection && waits))
            tcp_forget(peer);
        left &= !peer->connection || tcp_is_far(peer);
    }
    for (const struct tcp_connection *c = link->connections; c; c = c->next)
        left &= c->state != TCP_ENDS;
    return left;
}
