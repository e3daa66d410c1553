/* SPDX-License-Identifier: MIT */
/* The link over TCP: its table. Everything moves in collect: send and receive note what
 * is to be done, and collect reads and writes all sockets that are ready (tcp_turn). A
 * sleep waits for epoll alone, which knows the sockets, a timer, and a bell.
 *
 * The bell: send, receive and wake set `stirs` and ring if a thread sleeps; a sleeper
 * counts itself before it looks at `stirs`. Both are sequentially consistent, so one of
 * the two sees the other (Dekker's rule), and no message waits for a sleep to end. */
#include "link/tcp_parts.h"

#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define S UINT64_C(1000000000)

enum { WAIT_MS = 100, CLOSE_S = 5, SAY_S = 5 };

static struct tcp_link *of(const struct link *link)
{
    return (struct tcp_link *)(uintptr_t)link;
}

/* --- memory --- */

static void destroy(struct tcp_link *link)
{
    for (int k = 0; link->peers && k < link->size; k++)
        tcp_give_up(&link->peers[k], LINK_PEER);
    while (link->connections) {
        struct tcp_connection *c = link->connections;
        link->connections = c->next;
        tcp_free(c);
    }
    for (int k = 0; link->peers && k < link->size; k++)
        tcp_pass_clear(&link->peers[k]);
    for (int k = 0; link->peers && k < link->size; k++)
        memory_give(link->peers[k].pairs);
    if (link->tls)
        link->tls->type->close(link->tls);
    for (int tag = 0; tag < LINK_TAGS; tag++)
        while (link->any[tag]) {
            struct tcp_receive *r = link->any[tag];
            link->any[tag] = r->next;
            memory_give(r);
        }
    const int files[] = {link->listener, link->timer, link->bell, link->epoll};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i] >= 0)
            close(files[i]);
    memory_give(link->ended);
    memory_give(link->told);
    memory_give(link->news);
    memory_give(link->told_news);
    memory_give(link->owes_place);
    memory_give(link->names);
    memory_give(link->peers);
    memory_give(link);
}

static bool look_at(struct tcp_link *link, int fd, void *what)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    return fd >= 0 && epoll_ctl(link->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* A time, so that the newer of two processes has the higher one. */
static uint64_t make_generation(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * S + (uint64_t)now.tv_nsec;
}

static int inside(const struct tcp_link *link, int rank)
{
    return tcp_turned(link, rank, 1);
}

static int outside(const struct tcp_link *link, int rank)
{
    return tcp_turned(link, rank, -1);
}

static struct tcp_link *create(const struct link_entry *entry)
{
    struct tcp_link *link = memory_take(sizeof *link);

    if (!link)
        return NULL;
    link->link.type = &link_tcp;
    link->log = entry->log;
    link->options = *(const struct tcp_options *)entry->context;
    link->rank = !link->options.star ? entry->rank
                 : entry->hub        ? 0
                 : entry->rank >= 0  ? entry->rank + 1
                                     : -1;
    link->generation = make_generation();
    link->rate = entry->rate;
    link->lazy = entry->lazy;
    link->now_ns = clock_now_ns();
    link->listener = -1;
    link->epoll = epoll_create1(EPOLL_CLOEXEC);
    link->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    link->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (gethostname(link->name, sizeof link->name - 1) != 0)
        snprintf(link->name, sizeof link->name, "unknown");
    if (link->epoll >= 0 && look_at(link, link->timer, link) &&
        look_at(link, link->bell, &link->bell))
        return link;
    destroy(link);
    return NULL;
}

/* --- meeting --- */

static bool fails(struct link_entry *entry, descant_status status, const char *format,
                  ...)
    __attribute__((format(printf, 3, 4)));

static bool fails(struct link_entry *entry, descant_status status, const char *format,
                  ...)
{
    char text[LOG_LINE];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    entry->status = log_fail(entry->log, status, "%s", text);
    return false;
}

static void rest(struct tcp_link *link, uint64_t most_ns)
{
    struct pollfd at = {.fd = link->epoll, .events = POLLIN};
    struct timespec time = {.tv_sec = (time_t)(most_ns / S),
                            .tv_nsec = (long)(most_ns % S)};

    ppoll(&at, 1, &time, NULL);
}

/* The next address of rank 0, of those that its name has. */
static void take_next(struct tcp_link *link)
{
    link->meeting = link->meetings[link->next_meeting];
    link->next_meeting = (link->next_meeting + 1) % link->n_meetings;
}

/* NULL, or why rank 0's name has no address. */
static const char *find_meetings(struct tcp_link *link)
{
    const struct tcp_options *o = &link->options;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(o->host, o->port, &hints, &found);

    if (error)
        return error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error);
    for (struct addrinfo *a = found; a && link->n_meetings < TCP_MEETINGS; a = a->ai_next)
        if (a->ai_family == AF_INET || a->ai_family == AF_INET6)
            memcpy(&link->meetings[link->n_meetings++], a->ai_addr, a->ai_addrlen);
    freeaddrinfo(found);
    return link->n_meetings ? NULL : "it has no address of IPv4 or IPv6";
}

/* TCP's loopback is this machine's own. */
static bool is_local(const struct sockaddr_storage *address)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;

    return address->ss_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&six->sin6_addr)
                                          : ntohl(four->sin_addr.s_addr) >> 24 == 127;
}

/* The interface's address of that family, of IPv6 rather one that all networks know. */
static bool address_of(const char *interface, int family, struct sockaddr_storage *into)
{
    struct ifaddrs *all = NULL;
    bool found = false;

    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *a = all; a; a = a->ifa_next) {
        if (!a->ifa_addr || a->ifa_addr->sa_family != family ||
            strcmp(a->ifa_name, interface) != 0)
            continue;
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(void *)a->ifa_addr;
        if (found && (family == AF_INET || IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)))
            continue;
        memcpy(into, a->ifa_addr,
               family == AF_INET6 ? sizeof *six : sizeof(struct sockaddr_in));
        found = true;
    }
    freeifaddrs(all);
    return found;
}

/* Only addresses of rank 0 that this rank can come to from its interface are tried. */
static bool keep_reachable(struct tcp_link *link, struct link_entry *entry)
{
    const struct tcp_options *o = &link->options;
    struct sockaddr_storage from;
    int n = 0;

    for (int i = 0; i < link->n_meetings; i++)
        if (!*o->interface || is_local(&link->meetings[i]) ||
            address_of(o->interface, link->meetings[i].ss_family, &from))
            link->meetings[n++] = link->meetings[i];
    link->n_meetings = n;
    return n || fails(entry, DESCANT_BAD_ADDRESS,
                      "tcp: this machine has no interface %s with an address of the kind "
                      "that %s has: name another one with interface=", o->interface,
                      o->host);
}

/* Again until `until`: a name server may not know of a host that has just come. */
static bool look_up(struct tcp_link *link, struct link_entry *entry, uint64_t until)
{
    const char *host = link->options.host, *why;
    bool said = false;

    while ((why = find_meetings(link)) != NULL) {
        if (clock_now_ns() >= until)
            return fails(entry, DESCANT_BAD_ADDRESS,
                         "tcp: the host %s of the job's address is not known: %s", host,
                         why);
        if (!said)
            log_say(link->log, DESCANT_WARNING,
                    "tcp: the host %s of the job's address is not known: %s; it is "
                    "looked up again for %g s", host, why, entry->start_s);
        said = true;
        rest(link, TCP_AGAIN_MS * TCP_MS);
    }
    if (!keep_reachable(link, entry))
        return false;
    take_next(link);
    return true;
}

/* Beyond this machine ranks need a secret or certificates, or `insecure`. */
static bool secure(struct tcp_link *link, struct link_entry *entry)
{
    const struct tcp_options *o = &link->options;
    const struct tls_files files = {
        *o->secret ? o->secret : NULL, *o->cert ? o->cert : NULL,
        *o->key ? o->key : NULL, *o->ca ? o->ca : NULL};

    if (files.secret || files.cert) {
        entry->status = tls_open(&link->tls, &files, link->log);
        return entry->status == DESCANT_OK;
    }
    return o->insecure || is_local(&link->meeting) ||
           fails(entry, DESCANT_BAD_ADDRESS,
                 "tcp: %s is beyond this machine, and other machines may reach port %s: "
                 "make a secret for all ranks with `descant secret > FILE`, and add "
                 ",secret=FILE to the address; or add ,insecure=1 in a network that you "
                 "trust", o->host, o->port);
}

static socklen_t length_of(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
}

/* errno, or 0 */
static int listen_at(struct tcp_link *link, const struct sockaddr_storage *address)
{
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    int yes = 1, error;

    link->listener = socket(address->ss_family,
                            SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (link->listener < 0)
        return errno;
    setsockopt(link->listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(link->listener, (const struct sockaddr *)address, length_of(address)) == 0 &&
        listen(link->listener, SOMAXCONN) == 0 &&
        getsockname(link->listener, (struct sockaddr *)&bound, &length) == 0 &&
        look_at(link, link->listener, &link->listener)) {
        link->port = bound.ss_family == AF_INET6
                         ? ((struct sockaddr_in6 *)&bound)->sin6_port
                         : ((struct sockaddr_in *)&bound)->sin_port;
        return 0;
    }
    error = errno;
    close(link->listener);
    link->listener = -1;
    return error;
}

/* Listens at the first of the job's addresses that is one of this machine. If that port
 * is taken, a rank 0 is there already, or another job. */
static int listen_for_all(struct tcp_link *link)
{
    int error = 0;

    for (int i = 0; i < link->n_meetings; i++) {
        error = listen_at(link, &link->meeting);
        if (!error || error == EADDRINUSE)
            return error;
        take_next(link);
    }
    return error;
}

/* Listens for ranks above this one, at one of the ports given, or at one that the kernel
 * chooses: at the interface's address or at all of the machine's, since it is not known
 * by which of them other ranks reach it; in a job that stays on this machine, at its
 * loopback alone. In a star it listens nowhere, as nobody connects to it. */
static bool listen_anywhere(struct tcp_link *link, struct link_entry *entry)
{
    const struct tcp_options *o = &link->options;
    bool local = is_local(&link->meeting), six = link->meeting.ss_family == AF_INET6;
    struct sockaddr_storage any = {.ss_family = link->meeting.ss_family};
    int error = EADDRINUSE;

    if (*o->interface && !local && !address_of(o->interface, any.ss_family, &any))
        return fails(entry, DESCANT_BAD_ADDRESS,
                     "tcp: the interface %s has lost its address", o->interface);
    link->from = any;
    if (!*o->interface || local)
        link->from.ss_family = 0;
    if (o->star)
        return true;
    if (six && local)
        ((struct sockaddr_in6 *)&any)->sin6_addr = in6addr_loopback;
    else if (local)
        ((struct sockaddr_in *)&any)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int port = o->first_port; port <= o->last_port; port++) {
        *(six ? &((struct sockaddr_in6 *)&any)->sin6_port
              : &((struct sockaddr_in *)&any)->sin_port) = htons((uint16_t)port);
        error = listen_at(link, &any);
        if (error != EADDRINUSE)
            break;
    }
    if (!error)
        return true;
    return fails(entry, DESCANT_SYSTEM, "tcp: cannot listen%s%s: %s%s",
                 *o->ports ? " at a port of " : "", o->ports, strerror(error),
                 *o->ports ? "; name other ports with ports=" : "");
}

/* Takes rank 0's next address. Others come to this rank by the same family. */
static bool try_next(struct tcp_link *link, struct link_entry *entry)
{
    int family = link->meeting.ss_family;

    take_next(link);
    if (link->meeting.ss_family == family)
        return true;
    if (link->listener >= 0)
        close(link->listener);      /* which takes it out of epoll, too */
    link->listener = -1;
    return listen_anywhere(link, entry);
}

static bool become_first(struct tcp_link *link)
{
    link->rank = 0;
    link->size = (int)link->options.most;
    link->met = tcp_make_peers(link);
    return link->met;
}

/* All ranks are taken, and not only because rank 0 does not know yet that a host went
 * down: it does once its connection has broken, and the host that is up again says that
 * nobody listens there. */
static bool stays_full(const struct tcp_link *link, uint64_t until)
{
    return link->full_ns && (link->now_ns >= until || link->now_ns - link->full_ns >
                                                          2 * TCP_BREAKS_MS * TCP_MS);
}

/* Comes to rank 0, which answers with this rank's number. */
static bool come(struct tcp_link *link, struct link_entry *entry, uint64_t until)
{
    const struct tcp_options *o = &link->options;
    uint64_t began = clock_now_ns(), next = began, say = began + SAY_S * S;
    const char *why = "", *first = o->star ? "the hub" : "rank 0";

    link->now_ns = began;               /* the first try is made at once */
    while (!link->met && !link->failed) {
        if (!link->meeter && link->now_ns >= next) {
            if (next > began && !try_next(link, entry))
                return false;
            link->meeter = tcp_connect(link, &link->meeting, o->host);
            next = tcp_after(link, link->full_ns ? TCP_AGAIN_MS : WAIT_MS);
        }
        rest(link, WAIT_MS * TCP_MS / 2);
        tcp_turn(link);
        why = *link->why ? link->why : link->meet_error ? strerror(link->meet_error) : "";
        if (link->now_ns >= say && !link->met)
            log_say(link->log, DESCANT_INFO, "tcp: waiting for %s at %s:%s%s%s", first,
                    o->host, o->port, *why ? ": " : "", why);
        say = link->now_ns >= say ? say + SAY_S * S : say;
        link->failed |= !link->met && stays_full(link, until);
        if (link->now_ns < until || link->met || link->failed)
            continue;
        entry->timed_out = true;
        return fails(entry, DESCANT_TIMEOUT,
                     "tcp: %s has not answered at %s:%s within %g s%s%s; see that it "
                     "runs, and that no firewall blocks port %s", first,
                     o->host, o->port, entry->start_s, *why ? ": " : "", why, o->port);
    }
    return link->met ||
           fails(entry, DESCANT_BAD_RANK, "tcp: %s at %s:%s refuses this rank: %s", first,
                 o->host, o->port, link->why);
}

static bool meet_all(struct tcp_link *link, struct link_entry *entry)
{
    const struct tcp_options *o = &link->options;
    uint64_t until = clock_now_ns() + (uint64_t)(entry->start_s * 1e9);
    int error;

    if (!look_up(link, entry, until) || !secure(link, entry))
        return false;
    bool comes = entry->joins || o->star;
    if (link->rank > 0 || (link->rank < 0 && comes))
        return listen_anywhere(link, entry) && come(link, entry, until);
    error = listen_for_all(link);
    if (link->rank == 0 && error)
        return fails(entry, DESCANT_BAD_ADDRESS,
                     "tcp: rank 0 cannot listen at %s:%s: %s; give an address of "
                     "rank 0's machine, and a free port",
                     o->host, o->port, strerror(error));
    if (!error)
        return become_first(link) || fails(entry, DESCANT_MEMORY, "tcp: %s", link->why);
    return listen_anywhere(link, entry) && come(link, entry, until);
}

static void fill_place(const struct tcp_link *link, struct link_place *place)
{
    int rank = outside(link, link->rank);

    *place = (struct link_place){.rank = rank, .size = link->size,
                                 .star = link->options.star,
                                 .generation = link->generation, .wakes = true,
                                 .host = rank, .host_number = rank,
                                 .hosts = link->size, .local_size = 1, .most_local = 1,
                                 .names = (const char(*)[LINK_NAME_ROOM])link->names};
    snprintf(place->job, sizeof place->job, "tcp-%s", link->options.port);
    snprintf(place->version, sizeof place->version, "TCP");
    snprintf(place->about, sizeof place->about, "%s is at %.60s:%s",
             link->options.star ? "the hub" : "rank 0", link->options.host,
             link->options.port);
}

static struct link *meet(struct link_entry *entry, struct link_place *place)
{
    struct tcp_link *link = create(entry);

    if (!link) {
        fails(entry, DESCANT_SYSTEM, "tcp: no memory or descriptors: %s",
              strerror(errno));
        return NULL;
    }
    if (!meet_all(link, entry)) {
        destroy(link);
        return NULL;
    }
    fill_place(link, place);
    return &link->link;
}

static struct link *beside(const struct link *any, struct link_entry *entry,
                           struct link_place *place)
{
    const struct tcp_link *link = of(any);
    struct tcp_options options = link->options;
    struct link_entry with = *entry;
    int port = options.rows_port ? (int)options.rows_port : atoi(options.port) + 1;

    if (port > UINT16_MAX) {
        fails(entry, DESCANT_BAD_ADDRESS,
              "tcp: there is no port after %s: give rows=PORT", options.port);
        return NULL;
    }
    snprintf(options.port, sizeof options.port, "%d", port);
    options.most = link->size;
    options.beside = true;
    with.context = &options;
    with.rank = outside(link, link->rank);
    struct link *made = meet(&with, place);
    entry->status = with.status;
    return made;
}

/* --- messages --- */

static void stir(struct tcp_link *link)
{
    static const uint64_t one = 1;

    atomic_store(&link->stirs, true);
    if (atomic_load(&link->sleepers) > 0 && write(link->bell, &one, sizeof one) < 0)
        return;                 /* it has rung so often that it rings anyway */
}

static bool fail_at_once(struct tcp_link *link, const struct link_message *message)
{
    tcp_ended(link, (struct link_ended){.op = message->op,
                                        .from = inside(link, message->rank),
                                        .failed = true});
    return !link->failed;
}

/* The peer that a message can be with; NULL: it is not there. */
static struct tcp_peer *peer_of(struct tcp_link *link, int rank)
{
    struct tcp_peer *peer = &link->peers[inside(link, rank)];
    return peer->told ? peer : NULL;
}

static bool send_to(struct link *any, const void *p, size_t bytes,
                    const struct link_message *message)
{
    struct tcp_link *link = of(any);
    struct tcp_peer *peer = peer_of(link, message->rank);

    stir(link);
    return peer ? tcp_send(peer, p, bytes, message) : fail_at_once(link, message);
}

static bool receive_from(struct link *any, void *p, size_t bytes,
                         const struct link_message *message)
{
    struct tcp_link *link = of(any);

    stir(link);
    if (message->rank == LINK_ANY)
        return tcp_receive_any(link, p, bytes, message);
    struct tcp_peer *peer = peer_of(link, message->rank);
    return peer ? tcp_receive(peer, p, bytes, message) : fail_at_once(link, message);
}

static void tell_ended(struct tcp_link *link, struct link_news *news)
{
    struct link_ended *told = link->told;
    int room = link->told_room;

    for (int i = 0; i < link->n_ended; i++)
        link->ended[i].from = outside(link, link->ended[i].from);
    news->ended = link->told = link->ended;
    news->n_ended = link->n_ended;
    link->told_room = link->ended_room;
    link->ended = told;
    link->ended_room = room;
    link->n_ended = 0;
}

static void tell_peers(struct tcp_link *link, struct link_news *news)
{
    struct link_peer *told = link->told_news;
    int room = link->told_news_room;

    for (int i = 0; i < link->n_news; i++) {
        link->peers[link->news[i].rank].told = true;
        link->news[i].rank = outside(link, link->news[i].rank);
    }
    news->peers = link->told_news = link->news;
    news->n_peers = link->n_news;
    link->told_news_room = link->news_room;
    link->news = told;
    link->news_room = room;
    link->n_news = 0;
}

static bool collect(struct link *any, struct link_news *news)
{
    struct tcp_link *link = of(any);

    atomic_store(&link->stirs, false);
    tcp_turn(link);
    *news = (struct link_news){.now_ns = link->now_ns};
    if (link->failed)
        return false;
    if (link->n_ended)
        tell_ended(link, news);
    if (link->n_news)
        tell_peers(link, news);
    return true;
}

static void sleep_for(struct link *any, uint64_t most_ns, uint64_t until_ns)
{
    struct tcp_link *link = of(any);
    uint64_t now = until_ns ? clock_now_ns() : 0;

    if (until_ns && until_ns <= now)
        return;
    if (until_ns && until_ns - now < most_ns)
        most_ns = until_ns - now;
    atomic_fetch_add(&link->sleepers, 1);
    if (!atomic_load(&link->stirs))
        rest(link, most_ns);
    atomic_fetch_sub(&link->sleepers, 1);
}

static void wake(struct link *any)
{
    stir(of(any));
}

static bool forget(struct link *any, int rank, uint64_t below)
{
    struct tcp_link *link = of(any);

    stir(link);
    rank = inside(link, rank);
    if (rank == link->rank)
        return true;
    if (below == LINK_PEER) {
        tcp_forget(&link->peers[rank]);
        return true;
    }
    if (rank == LINK_ANY && below > link->below)
        link->below = below;
    for (int k = 0; k < link->size; k++) {
        struct tcp_peer *peer = &link->peers[k];
        if (rank != LINK_ANY && k != rank)
            continue;
        if (below > peer->below)
            peer->below = below;
        tcp_give_up(peer, below);
    }
    return true;
}

static const char *why(const struct link *link)
{
    return of(link)->why;
}

static bool close_link(struct link *any, bool together)
{
    struct tcp_link *link = of(any);
    uint64_t until = clock_now_ns() + CLOSE_S * S;

    (void)together;
    while (!tcp_leaves(link) && link->now_ns < until) {
        rest(link, WAIT_MS * S / 1000);
        tcp_turn(link);
    }
    destroy(link);
    return true;
}

const struct link_type link_tcp = {
    .version = LINK_VERSION,
    .name = "tcp",
    .meet = meet,
    .beside = beside,
    .send = send_to,
    .receive = receive_from,
    .collect = collect,
    .sleep = sleep_for,
    .wake = wake,
    .forget = forget,
    .why = why,
    .close = close_link,
};
