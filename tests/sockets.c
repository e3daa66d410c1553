/* SPDX-License-Identifier: MIT */
/* Sockets that are made up (sockets.h). A descriptor from SOCKETS_FIRST on is an index into one
 * table; all others are the kernel's, and so are all calls outside of a run. epoll is
 * level-triggered, and there is one. */
#include "sockets.h"
#include "base/base.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BACKLOG = 16 };

enum kind { FREE, EPOLL, TIMER, BELL, LISTENER, STREAM };
enum stage { NEW, QUEUED, HANGS, CONNECTED };

struct made {
    enum kind kind;
    enum stage stage;
    bool watched, eof, reset, shut;
    int error;
    uint32_t events;
    void *ptr;                  /* of epoll */
    size_t read_most, room;
    size_t low;                 /* bytes that make it readable */
    uint8_t *in;                /* (in_room), kept for the next run; bytes in [at, n) */
    size_t at, n, in_room;
};

static struct made table[SOCKETS];
static struct sockets_calls calls;
static enum sockets_dial dials;
static bool runs;
static int unknown;
static uint64_t paced;
static uint64_t now_ns;

/* The kernel's. */
int __real_epoll_create1(int flags);
int __real_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int __real_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout);
int __real_timerfd_create(int clock, int flags);
int __real_timerfd_settime(int fd, int flags, const struct itimerspec *at,
                           struct itimerspec *was);
int __real_eventfd(unsigned value, int flags);
int __real_socket(int domain, int type, int protocol);
int __real_bind(int fd, const struct sockaddr *at, socklen_t n);
int __real_listen(int fd, int backlog);
int __real_getsockname(int fd, struct sockaddr *at, socklen_t *n);
int __real_getpeername(int fd, struct sockaddr *at, socklen_t *n);
int __real_setsockopt(int fd, int level, int option, const void *value, socklen_t n);
int __real_getsockopt(int fd, int level, int option, void *value, socklen_t *n);
int __real_accept4(int fd, struct sockaddr *at, socklen_t *n, int flags);
int __real_connect(int fd, const struct sockaddr *at, socklen_t n);
int __real_shutdown(int fd, int how);
int __real_close(int fd);
ssize_t __real_read(int fd, void *into, size_t n);
ssize_t __real_write(int fd, const void *from, size_t n);
ssize_t __real_readv(int fd, const struct iovec *parts, int n);
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
int __real_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *most,
                 const sigset_t *signals);
int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found);
void __real_freeaddrinfo(struct addrinfo *found);
uint64_t __real_clock_now_ns(void);

int __wrap_epoll_create1(int flags);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout);
int __wrap_timerfd_create(int clock, int flags);
int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *at,
                           struct itimerspec *was);
int __wrap_eventfd(unsigned value, int flags);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_bind(int fd, const struct sockaddr *at, socklen_t n);
int __wrap_listen(int fd, int backlog);
int __wrap_getsockname(int fd, struct sockaddr *at, socklen_t *n);
int __wrap_getpeername(int fd, struct sockaddr *at, socklen_t *n);
int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t n);
int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *n);
int __wrap_accept4(int fd, struct sockaddr *at, socklen_t *n, int flags);
int __wrap_connect(int fd, const struct sockaddr *at, socklen_t n);
int __wrap_shutdown(int fd, int how);
int __wrap_close(int fd);
ssize_t __wrap_read(int fd, void *into, size_t n);
ssize_t __wrap_write(int fd, const void *from, size_t n);
ssize_t __wrap_readv(int fd, const struct iovec *parts, int n);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *most,
                 const sigset_t *signals);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found);
void __wrap_freeaddrinfo(struct addrinfo *found);
uint64_t __wrap_clock_now_ns(void);

/* --- the table --- */

static struct made *at(int fd)
{
    if (fd < SOCKETS_FIRST || fd >= SOCKETS_FIRST + SOCKETS)
        return NULL;
    if (table[fd - SOCKETS_FIRST].kind == FREE)
        abort();                /* closed, and used */
    return &table[fd - SOCKETS_FIRST];
}

static int make(enum kind kind, enum stage stage)
{
    for (int i = 0; i < SOCKETS; i++)
        if (table[i].kind == FREE) {
            table[i] = (struct made){.kind = kind, .stage = stage, .in = table[i].in,
                                     .in_room = table[i].in_room, .read_most = SIZE_MAX,
                                     .low = 1,
                                     .room = SIZE_MAX};
            return SOCKETS_FIRST + i;
        }
    errno = EMFILE;
    return -1;
}

void sockets_begin(const struct sockets_calls *of)
{
    paced = 0;
    calls = *of;
    dials = SOCKETS_COME;
    now_ns = UINT64_C(1000000000000);
    runs = true;
}

int sockets_end(void)
{
    int left = 0;

    for (int i = 0; i < SOCKETS; i++) {
        left += table[i].kind != FREE && table[i].stage != QUEUED;
        table[i].kind = FREE;
    }
    runs = false;
    return left;
}

void *sockets_timer(void)
{
    for (int i = 0; i < SOCKETS; i++)
        if (table[i].kind == TIMER && table[i].watched)
            return table[i].ptr;
    return NULL;
}

void sockets_pass(uint64_t ns)
{
    now_ns += ns;
}

void sockets_dial(enum sockets_dial how)
{
    dials = how;
}

uint64_t sockets_paced(void)
{
    return paced;
}

void sockets_unknown(int times)
{
    unknown = times;
}

int sockets_stranger(void)
{
    int queued = 0;
    bool listens = false;

    for (int i = 0; i < SOCKETS; i++) {
        queued += table[i].kind == STREAM && table[i].stage == QUEUED;
        listens |= table[i].kind == LISTENER;
    }
    return listens && queued < BACKLOG ? make(STREAM, QUEUED) : -1;
}

int sockets_nth(unsigned k)
{
    int n = 0, streams[SOCKETS];

    for (int i = 0; i < SOCKETS; i++)
        if (table[i].kind == STREAM && table[i].stage != NEW)
            streams[n++] = SOCKETS_FIRST + i;
    return n ? streams[k % (unsigned)n] : -1;
}

void sockets_hang_up(int fd, bool reset)
{
    at(fd)->eof = true;
    at(fd)->reset |= reset;
}

void sockets_connect(int fd)
{
    if (at(fd)->stage == HANGS)
        at(fd)->stage = CONNECTED;
}

void sockets_put(int fd, const void *bytes, size_t n)
{
    struct made *s = at(fd);

    if (s->eof)
        return;
    if (s->at == s->n)
        s->at = s->n = 0;
    if (s->n + n > s->in_room) {
        s->in_room = 2 * (s->n + n);
        s->in = realloc(s->in, s->in_room);
        if (!s->in)
            abort();
    }
    memcpy(s->in + s->n, bytes, n);
    s->n += n;
}

size_t sockets_low(int fd)
{
    return at(fd)->low;
}

void sockets_limit(int fd, size_t read_most, size_t room)
{
    at(fd)->read_most = read_most;
    at(fd)->room = room;
}

/* --- epoll, time --- */

int __wrap_epoll_create1(int flags)
{
    return runs ? make(EPOLL, NEW) : __real_epoll_create1(flags);
}

int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
    struct made *s = at(fd);

    if (!s)
        return __real_epoll_ctl(epoll, op, fd, event);
    s->watched = op != EPOLL_CTL_DEL;
    s->events = event->events;
    s->ptr = event->data.ptr;
    return 0;
}

static bool has_queued(void)
{
    for (int i = 0; i < SOCKETS; i++)
        if (table[i].kind == STREAM && table[i].stage == QUEUED)
            return true;
    return false;
}

static uint32_t events_of(const struct made *s)
{
    if (s->kind == LISTENER)
        return has_queued() ? EPOLLIN : 0;
    if (s->kind != STREAM || s->stage == HANGS)
        return 0;
    if (s->error)
        return EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP;
    return (s->n - s->at >= s->low || s->eof ? EPOLLIN : 0) | (s->room ? EPOLLOUT : 0) |
           (s->reset || (s->eof && s->shut) ? EPOLLHUP : 0) | (s->reset ? EPOLLERR : 0);
}

int __wrap_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout)
{
    int n = 0;

    if (!at(epoll))
        return __real_epoll_wait(epoll, events, most, timeout);
    for (int i = 0; i < SOCKETS && n < most; i++) {
        struct made *s = &table[i];
        uint32_t is = s->kind != FREE && s->watched
                          ? events_of(s) & (s->events | EPOLLERR | EPOLLHUP)
                          : 0;
        if (is)
            events[n++] = (struct epoll_event){.events = is, .data.ptr = s->ptr};
    }
    return n;
}

int __wrap_timerfd_create(int clock, int flags)
{
    return runs ? make(TIMER, NEW) : __real_timerfd_create(clock, flags);
}

int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *when,
                           struct itimerspec *was)
{
    return at(fd) ? 0 : __real_timerfd_settime(fd, flags, when, was);
}

int __wrap_eventfd(unsigned value, int flags)
{
    return runs ? make(BELL, NEW) : __real_eventfd(value, flags);
}

ssize_t __wrap_read(int fd, void *into, size_t n)
{
    if (!at(fd))
        return __real_read(fd, into, n);
    memset(into, 0, n);         /* a timer: it may have rung */
    return (ssize_t)n;
}

ssize_t __wrap_write(int fd, const void *from, size_t n)
{
    return at(fd) ? (ssize_t)n : __real_write(fd, from, n);
}

int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *most,
                 const sigset_t *signals)
{
    if (n == 0 || !at(fds->fd))
        return __real_ppoll(fds, n, most, signals);
    sockets_pass((uint64_t)most->tv_sec * 1000000000 + (uint64_t)most->tv_nsec);
    calls.rests();
    return 0;
}

uint64_t __wrap_clock_now_ns(void)
{
    return runs ? now_ns : __real_clock_now_ns();
}

/* --- sockets --- */

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void tell_address(int fd, struct sockaddr *into, socklen_t *n)
{
    struct sockaddr_in is = loopback((uint16_t)(1000 + fd - SOCKETS_FIRST));

    memcpy(into, &is, sizeof is);
    *n = sizeof is;
}

int __wrap_socket(int domain, int type, int protocol)
{
    return runs ? make(STREAM, NEW) : __real_socket(domain, type, protocol);
}

int __wrap_bind(int fd, const struct sockaddr *to, socklen_t n)
{
    return at(fd) ? 0 : __real_bind(fd, to, n);
}

int __wrap_listen(int fd, int backlog)
{
    if (!at(fd))
        return __real_listen(fd, backlog);
    at(fd)->kind = LISTENER;
    return 0;
}

int __wrap_getsockname(int fd, struct sockaddr *into, socklen_t *n)
{
    if (!at(fd))
        return __real_getsockname(fd, into, n);
    tell_address(fd, into, n);
    return 0;
}

int __wrap_getpeername(int fd, struct sockaddr *into, socklen_t *n)
{
    if (!at(fd))
        return __real_getpeername(fd, into, n);
    errno = ENOTCONN;
    if (at(fd)->reset)
        return -1;
    tell_address(fd, into, n);
    return 0;
}

int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t n)
{
    if (at(fd) && level == SOL_SOCKET && option == SO_MAX_PACING_RATE && n == sizeof paced)
        memcpy(&paced, value, sizeof paced);
    if (at(fd) && level == SOL_SOCKET && option == SO_RCVLOWAT)
        at(fd)->low = (size_t)*(const int *)value;
    return at(fd) ? 0 : __real_setsockopt(fd, level, option, value, n);
}

int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *n)
{
    if (!at(fd))
        return __real_getsockopt(fd, level, option, value, n);
    memcpy(value, &at(fd)->error, sizeof at(fd)->error);
    at(fd)->error = 0;
    return 0;
}

int __wrap_accept4(int fd, struct sockaddr *from, socklen_t *n, int flags)
{
    if (!at(fd))
        return __real_accept4(fd, from, n, flags);
    for (int i = 0; i < SOCKETS; i++)
        if (table[i].kind == STREAM && table[i].stage == QUEUED) {
            table[i].stage = CONNECTED;
            return SOCKETS_FIRST + i;
        }
    errno = EAGAIN;
    return -1;
}

int __wrap_connect(int fd, const struct sockaddr *to, socklen_t n)
{
    struct made *s = at(fd);

    if (!s)
        return __real_connect(fd, to, n);
    s->stage = dials == SOCKETS_HANG ? HANGS : CONNECTED;
    s->error = dials == SOCKETS_REFUSED_LATER ? ECONNREFUSED
               : dials == SOCKETS_RESET       ? ECONNRESET
                                              : 0;
    errno = dials == SOCKETS_REFUSED ? ECONNREFUSED : EINPROGRESS;
    return -1;
}

int __wrap_shutdown(int fd, int how)
{
    if (!at(fd))
        return __real_shutdown(fd, how);
    at(fd)->shut |= how != SHUT_RD;
    return 0;
}

int __wrap_close(int fd)
{
    struct made *s = at(fd);

    if (!s)
        return __real_close(fd);
    if (s->kind == STREAM)
        calls.closed(fd);
    s->kind = FREE;
    return 0;
}

ssize_t __wrap_readv(int fd, const struct iovec *parts, int n)
{
    struct made *s = at(fd);

    if (!s)
        return __real_readv(fd, parts, n);
    size_t most = s->n - s->at < s->read_most ? s->n - s->at : s->read_most, all = 0;
    errno = s->reset ? ECONNRESET : EAGAIN;
    if (most == 0 || s->reset)
        return s->eof && !s->reset ? 0 : -1;
    for (int i = 0; i < n; i++) {
        size_t k = parts[i].iov_len < most - all ? parts[i].iov_len : most - all;
        if (k)
            memcpy(parts[i].iov_base, s->in + s->at, k);
        s->at += k;
        all += k;
    }
    return (ssize_t)all;
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct made *s = at(fd);
    size_t all = 0;

    if (!s)
        return __real_sendmsg(fd, message, flags);
    errno = s->reset ? ECONNRESET : s->shut ? EPIPE : EAGAIN;
    if (s->reset || s->shut || s->room == 0)
        return -1;
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        const struct iovec *part = &message->msg_iov[i];
        size_t k = part->iov_len < s->room ? part->iov_len : s->room;
        if (k)
            calls.sent(fd, part->iov_base, k);
        s->room -= s->room == SIZE_MAX ? 0 : k;
        all += k;
        if (k < part->iov_len)
            break;
    }
    return (ssize_t)all;
}

int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found)
{
    static struct sockaddr_in address;
    static struct addrinfo info;

    if (!runs)
        return __real_getaddrinfo(host, port, hints, found);
    if (unknown > 0 && unknown--)
        return EAI_NONAME;
    address = loopback(7000);
    info = (struct addrinfo){.ai_family = AF_INET, .ai_addrlen = sizeof address,
                             .ai_addr = (struct sockaddr *)&address};
    *found = &info;
    return 0;
}

void __wrap_freeaddrinfo(struct addrinfo *found)
{
    if (!runs)
        __real_freeaddrinfo(found);
}
