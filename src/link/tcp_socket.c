/* SPDX-License-Identifier: MIT */
/* The link over TCP: connections. Sockets do not block. A bulk frame's bytes are read
 * into their receive and written from their sender's memory; everything else goes through
 * two buffers. The kernel is given little more than it can send at once
 * (TCP_NOTSENT_LOWAT), so that words do not wait behind bulk in its queue.
 *
 * A socket that is closed with bytes unread resets its connection, and the other end may
 * lose what it was told last. So an end that refuses another one, or whose handshake has
 * failed, sends no more, and reads until the other end closes: of a stranger so many
 * bytes (SWALLOW_MOST) at most, and for so long as tcp_meet.c says.
 *
 * Bulk that is given up while one of its frames leaves goes on as zeros, since the frame
 * has said how long it is; its receiver throws them away, or waits for a message that
 * does not come (link.h, 10). */
#include "link/tcp_parts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bulk leaves from where workers train, and that race is deliberate (kernels.h). So
 * ThreadSanitizer, which looks at the bytes of a sendmsg, does not see this one. */
#ifdef __SANITIZE_THREAD__
#define sendmsg(fd, message, flags) syscall(SYS_sendmsg, fd, message, flags)
#endif

#define PACED_MOST 1e18             /* bytes a second: more is no limit */

enum {
    IDLE_S = 5, PROBES = 3,     /* an idle one that does not answer breaks */
    FAR_IDLE_S = 1,             /* to a hub (tcp_star.c, gone); a NAT on the way keeps its
                                   entry by it, too */
    UNSENT = 2 * TCP_CHUNK,     /* bytes that the kernel has not sent, about; half of them
                                   are left when it asks for more */
    READ_MOST = 4 << 20,        /* of one connection at a time */
    PACED_LEAST = 1 << 20,      /* bytes a second */
    TALK = 1024,                /* bytes of a frame that is not of messages */
    SWALLOW_MOST = 64 << 10     /* bytes of a stranger that was refused */
};

static const unsigned char zeros[16 << 10];

/* --- opening --- */

static void set(int fd, int level, int option, int value)
{
    setsockopt(fd, level, option, &value, sizeof value);
}

static void look_at(struct tcp_connection *c, bool out)
{
    struct epoll_event event = {.events = EPOLLIN | (out ? (uint32_t)EPOLLOUT : 0),
                                .data.ptr = c};

    if (c->polled_out == out)
        return;
    c->polled_out = out;
    epoll_ctl(c->link->epoll, EPOLL_CTL_MOD, c->fd, &event);
}

/* The kernel spaces the bytes. Below PACED_LEAST a word would wait too long behind bulk,
 * so there the caller alone keeps to the rate, by the time between exchanges. */
static void pace(const struct tcp_link *link, int fd)
{
    uint64_t rate = link->rate > PACED_LEAST ? (uint64_t)link->rate : PACED_LEAST;

    if (link->rate > 0 && link->rate < PACED_MOST)
        setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

static struct tcp_connection *add(struct tcp_link *link, int fd, enum tcp_state state,
                                  const char *name)
{
    struct tcp_connection *c = fd >= 0 ? memory_take(sizeof *c) : NULL;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};

    if (c && link->tls)
        c->tls = link->tls->type->begin(link->tls, fd, state == TCP_CONNECTING, name);
    if (!c || (link->tls && !c->tls) ||
        epoll_ctl(link->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        if (c && c->tls)
            c->tls->type->end(c->tls);
        memory_give(c);
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    c->link = link;
    c->fd = fd;
    c->shakes = c->tls != NULL;
    c->in = c->first_in;
    c->out = c->first_out;
    c->in_room = sizeof c->first_in;
    c->out_room = sizeof c->first_out;
    c->state = state;
    c->since_ns = link->now_ns;
    c->next = link->connections;
    link->connections = c;
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, TCP_BREAKS_MS);
    pace(link, fd);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE,
        link->options.star && link->rank != 0 ? FAR_IDLE_S : IDLE_S);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES);
    return c;
}

struct tcp_connection *tcp_accept(struct tcp_link *link)
{
    struct tcp_connection *c =
        add(link, accept4(link->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC),
            TCP_LISTENS, NULL);

    if (c)
        tcp_counts(c, true);
    return c;
}

void tcp_counts(struct tcp_connection *c, bool strange)
{
    c->link->n_strangers += (int)strange - (int)c->strange;
    c->strange = strange;
}

struct tcp_connection *tcp_connect(struct tcp_link *link,
                                   const struct sockaddr_storage *address,
                                   const char *name)
{
    socklen_t length = address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                      : sizeof(struct sockaddr_in);
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct tcp_connection *c = add(link, fd, TCP_CONNECTING, name);

    if (!c)
        return NULL;
    if ((link->from.ss_family == address->ss_family &&
         bind(c->fd, (const struct sockaddr *)&link->from, length) != 0) ||
        (connect(c->fd, (const struct sockaddr *)address, length) != 0 &&
         errno != EINPROGRESS))
        c->error = errno;
    look_at(c, true);
    return c;
}

int tcp_error(struct tcp_connection *c)
{
    int error = c->error;
    socklen_t length = sizeof error;

    if (!error && getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
        error = errno;
    return error;
}

void tcp_drop(struct tcp_connection *c)
{
    if (c->tls)
        c->tls->type->end(c->tls);
    c->tls = NULL;
    if (c->fd >= 0)
        close(c->fd);           /* which takes it out of epoll, too */
    c->fd = -1;
    tcp_counts(c, false);
    c->broken = true;
    tcp_pass_drop(c);
    c->chunk = NULL;
    c->chunk_left = c->left = 0;
    c->stream = NULL;
}

void tcp_free(struct tcp_connection *c)
{
    tcp_drop(c);
    if (c->in != c->first_in)
        memory_give(c->in);
    if (c->out != c->first_out)
        memory_give(c->out);
    memory_give(c);
}

bool tcp_is_known(struct tcp_connection *c)
{
    unsigned char *in = memory_take(TCP_IN), *out = memory_take(TCP_OUT);

    if (!in || !out) {
        memory_give(in);
        memory_give(out);
        return false;
    }
    memcpy(in, c->in, c->in_n);
    memcpy(out, c->out, c->out_n);
    c->in = in;
    c->out = out;
    c->in_room = TCP_IN;
    c->out_room = TCP_OUT;
    return true;
}

/* The other end's address. */
static const char *from(const struct tcp_connection *c, char text[80])
{
    struct sockaddr_storage address;
    const struct sockaddr_in *four = (const struct sockaddr_in *)&address;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&address;
    char host[INET6_ADDRSTRLEN] = "?";
    socklen_t length = sizeof address;

    if (getpeername(c->fd, (struct sockaddr *)&address, &length) != 0)
        return "?";
    bool is_six = address.ss_family == AF_INET6;
    inet_ntop(address.ss_family, is_six ? (const void *)&six->sin6_addr
                                        : (const void *)&four->sin_addr,
              host, sizeof host);
    snprintf(text, 80, is_six ? "[%s]:%u" : "%s:%u", host,
             ntohs(is_six ? six->sin6_port : four->sin_port));
    return text;
}

bool tcp_shake(struct tcp_connection *c)
{
    int is = c->tls->type->handshake(c->tls);
    char text[80];

    look_at(c, is == TLS_WANTS_WRITE);
    c->shakes = is != TLS_DONE;
    if (is == TLS_FAILED && c->strange)
        snprintf(c->why, sizeof c->why, "%s: %.160s", from(c, text), c->tls->why);
    else if (is == TLS_FAILED)
        snprintf(c->why, sizeof c->why, "%s", c->tls->why);
    return is == TLS_DONE;
}

void tcp_linger(struct tcp_connection *c)
{
    if (c->tls)
        c->tls->type->end(c->tls);
    c->tls = NULL;
    c->shakes = false;
    c->in_at = c->in_n = c->out_at = c->out_n = 0;
    c->state = TCP_ENDS;
    c->since_ns = c->link->now_ns;
    look_at(c, false);
    shutdown(c->fd, SHUT_WR);
    c->shut = true;
}

/* --- out --- */

bool tcp_say(struct tcp_connection *c, struct tcp_frame frame, const void *bytes)
{
    if (c->broken || c->out_room - c->out_n < sizeof frame + frame.bytes ||
        c->chunk_left)
        return false;
    memcpy(c->out + c->out_n, &frame, sizeof frame);
    if (frame.bytes)
        memcpy(c->out + c->out_n + sizeof frame, bytes, frame.bytes);
    c->out_n += sizeof frame + frame.bytes;
    return true;
}

static size_t write_of(struct tcp_connection *c, struct tcp_peer *peer)
{
    c->to = peer;
    return tcp_write(peer, c->out + c->out_n, c->out_room - c->out_n, &c->chunk,
                     &c->chunk_left, &c->chunk_of);
}

/* A hub's own frames and those that it passes on take turns. */
static size_t write_or_pass(struct tcp_connection *c)
{
    size_t n = 0;

    for (int i = 0; i < 2 && !n && !c->chunk_left; i++) {
        c->turn = !c->turn;
        n = c->turn ? tcp_pass_on(c, c->out + c->out_n, c->out_room - c->out_n)
                    : write_of(c, c->peer);
    }
    return n;
}

/* The streams with rank 0 and with the ranks behind it take turns. */
static size_t write_far(struct tcp_connection *c)
{
    struct tcp_link *link = c->link;
    size_t n = 0;

    for (int i = 0; i < link->size && !n; i++) {
        c->turn = (c->turn + 1) % link->size;
        if (link->peers[c->turn].connection == c)
            n = write_of(c, &link->peers[c->turn]);
    }
    return n;
}

static size_t write_next(struct tcp_connection *c)
{
    if (!c->link->options.star)
        return write_of(c, c->peer);
    return tcp_is_hub(c->link) ? write_or_pass(c) : write_far(c);
}

static void gather(struct tcp_connection *c, tcp_says *says)
{
    size_t n;

    if (c->out_at == c->out_n)
        c->out_at = c->out_n = 0;
    if (c->bye && tcp_say(c, (struct tcp_frame){.what = TCP_BYE}, NULL))
        c->bye = false;
    if (c->state != TCP_OPEN || c->peer->connection != c || !says(c))
        return;
    while (!c->chunk_left && (n = write_next(c)))
        c->out_n += n;
}

static void account(struct tcp_connection *c, size_t n)
{
    size_t of_out = c->out_n - c->out_at < n ? c->out_n - c->out_at : n;

    c->out_at += of_out;
    n -= of_out;
    c->chunk_left -= n;
    if (c->chunk)
        c->chunk += n;
    if (c->writes && !c->chunk_left)
        tcp_pass_written(c);
}

/* As sendmsg, and errno; also what TLS has not sent so far is to leave. */
static ssize_t put(struct tcp_connection *c, struct iovec *parts)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

    if (!c->tls)
        return sendmsg(c->fd, &message, MSG_NOSIGNAL);
    bool none = !parts[0].iov_len && !parts[1].iov_len;
    errno = 0;
    ssize_t n = c->tls->type->write(c->tls, parts, none ? 0 : 2);
    if (n >= 0)
        return none ? 0 : n;
    errno = n == TLS_WANTS_WRITE ? EAGAIN : errno ? errno : EPIPE;
    return -1;
}

void tcp_flush(struct tcp_connection *c, tcp_says *says)
{
    if (c->shakes || c->full)
        return;
    while (!c->broken && c->state != TCP_CONNECTING) {
        if (!c->chunk_left)
            gather(c, says);
        size_t tail = c->chunk || c->chunk_left < sizeof zeros ? c->chunk_left
                                                               : sizeof zeros;
        struct iovec parts[] = {
            {c->out + c->out_at, c->out_n - c->out_at},
            {(void *)(uintptr_t)(c->chunk ? c->chunk : zeros), tail}};
        bool none = !parts[0].iov_len && !tail;
        if (none && !(c->tls && c->tls->unsent))
            break;
        ssize_t n = put(c, parts);
        if (none && n == 0)
            break;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == ENOBUFS)) {
            c->full = true;
            look_at(c, true);
            return;
        }
        if (n < 0) {
            c->error = errno;
            tcp_drop(c);
            return;
        }
        account(c, (size_t)n);
    }
    if (c->broken || c->state == TCP_CONNECTING)
        return;
    look_at(c, false);
    if (c->state == TCP_ENDS && !c->shut) {
        if (c->tls)
            c->tls->type->shutdown(c->tls);
        shutdown(c->fd, SHUT_WR);
    }
    c->shut = c->state == TCP_ENDS;
}

/* --- in --- */

static bool is_of_messages(const struct tcp_frame *f)
{
    return f->what >= TCP_WORD && f->what <= TCP_TAKEN;
}

/* How many of its bytes must be in the buffer before it is looked at; SIZE_MAX: it is no
 * frame. */
static size_t needs(const struct tcp_frame *f)
{
    if (f->what >= TCP_KINDS)
        return SIZE_MAX;
    if (f->what == TCP_BULK)
        return 0;
    return f->bytes <= TALK ? f->bytes : SIZE_MAX;
}

static void take_bulk(struct tcp_connection *c, const unsigned char *p, size_t n)
{
    if (c->into && p)
        memcpy(c->into, p, n);
    if (c->into)
        c->into += n;
    c->left -= n;
    if (c->stream)
        tcp_came(c->from, c->stream, n);
    if (c->reads && !c->left)
        tcp_pass_read(c);
}

static void refuse(struct tcp_connection *c, const char *why)
{
    char text[80];

    if (c->peer)
        log_say(c->link->log, DESCANT_WARNING,
                "tcp: %s (%s) breaks the protocol: %s; its messages are ignored",
                tcp_name_of(c->link, c->peer->rank).text, from(c, text), why);
    c->bad = true;
    tcp_drop(c);
}

/* A frame that a hub has passed on is out of order: its connection stays. The rank that
 * sent it is treated as if it had said BYE. */
static void refuse_far(struct tcp_connection *c, const struct tcp_frame *f,
                       const char *why, tcp_heard *heard)
{
    struct tcp_peer *peer = &c->link->peers[f->rank];
    const struct tcp_frame bye = {.what = TCP_BYE, .rank = f->rank, .turn = f->turn};

    log_say(c->link->log, DESCANT_WARNING,
            "tcp: %s breaks the protocol: %s; its messages are ignored",
            tcp_name_of(c->link, peer->rank).text, why);
    heard(c, &bye, NULL);
    peer->bye_turn = f->turn;
    c->peer->owes = true;
    c->stream = NULL;
    c->into = NULL;
}

/* A frame of messages for this rank. False: the connection is no good. */
static bool hear(struct tcp_connection *c, const struct tcp_frame *f,
                 const unsigned char *bytes, tcp_heard *heard)
{
    struct tcp_peer *peer = f->rank ? &c->link->peers[f->rank] : c->peer;
    const char *why = "a frame that is none";

    c->stream = NULL;
    c->into = NULL;
    bool far = f->rank && f->bytes <= TCP_PART;
    if (far && (peer->connection != c || peer->turn != f->turn))
        return true;                    /* of an earlier turn: thrown away */
    if (far && !peer->generation && f->what != TCP_TAKEN) {
        why = "a message before GOES_ON";
    } else if ((far || !f->rank) &&
               tcp_hear(peer, f, bytes, &c->stream, &c->into, &why)) {
        c->from = peer;
        return true;
    }
    if (far)
        refuse_far(c, f, why, heard);
    else
        refuse(c, why);
    return far;
}

/* Rank 0 of a star passes on frames that name another rank. A rank above 0 hears such
 * frames from rank 0 alone. */
static bool may_name(const struct tcp_connection *c, uint16_t rank)
{
    const struct tcp_link *link = c->link;

    return link->options.star && c->state == TCP_OPEN && rank < link->size &&
           (link->rank == 0 || (c->peer->rank == 0 && rank != link->rank));
}

/* The frame at in_at. False: its bytes are not all there, or it is the last. */
static bool take_frame(struct tcp_connection *c, tcp_heard *heard)
{
    struct tcp_frame f;
    const char *why = "bytes that are no frame";

    if (c->broken || c->state == TCP_ENDS || c->in_n - c->in_at < sizeof f)
        return false;
    memcpy(&f, c->in + c->in_at, sizeof f);
    size_t whole = needs(&f);
    if (whole == SIZE_MAX || (is_of_messages(&f) && c->state != TCP_OPEN) ||
        (f.rank && !may_name(c, f.rank))) {
        refuse(c, why);
        return false;
    }
    if (c->in_n - c->in_at - sizeof f < whole)
        return false;
    const unsigned char *bytes = c->in + c->in_at + sizeof f;
    c->in_at += sizeof f + whole;
    if (f.rank && tcp_is_hub(c->link)) {
        if (!tcp_pass(c, &f, bytes, &why)) {
            refuse(c, why);
            return false;
        }
    } else if (!is_of_messages(&f)) {
        why = "a frame out of turn";
        bool good = heard(c, &f, bytes) || c->broken;
        if (!good && f.rank)
            refuse_far(c, &f, why, heard);
        else if (!good)
            refuse(c, why);
        return !c->broken;
    } else if (!hear(c, &f, bytes, heard)) {
        return false;
    }
    if (f.what != TCP_BULK)
        return true;
    c->left = f.bytes;
    size_t here = c->in_n - c->in_at < c->left ? c->in_n - c->in_at : c->left;
    take_bulk(c, c->in + c->in_at, here);
    c->in_at += here;
    return !c->left;
}

/* As readv, and errno. */
static ssize_t get(struct tcp_connection *c, const struct iovec *parts, int n_parts)
{
    if (!c->tls)
        return readv(c->fd, parts, n_parts);
    const struct iovec *part = parts[0].iov_len ? &parts[0] : &parts[1];
    errno = 0;
    ssize_t n = c->tls->type->read(c->tls, part->iov_base, part->iov_len);
    if (n >= 0)
        return n;
    if (n == TLS_FAILED)
        snprintf(c->why, sizeof c->why, "%s", c->tls->why);
    errno = n != TLS_FAILED ? EAGAIN : errno && errno != EAGAIN ? errno : EPROTO;
    return -1;
}

/* Nothing can end before the frame's rest is here, so epoll does not wake for less. TLS
 * may have a part of a record. */
static void await_rest(struct tcp_connection *c)
{
    size_t held = c->tls ? TLS_RECORD : 0;
    int low = c->left > held ? (int)(c->left - held) : 1;

    if (c->broken || c->low == low)
        return;
    c->low = low;
    set(c->fd, SOL_SOCKET, SO_RCVLOWAT, low);
}

/* All bytes that TLS has decrypted are read, since no socket tells of them. */
static void read_all(struct tcp_connection *c, tcp_heard *heard)
{
    unsigned char *nowhere = c->link->nowhere;

    for (size_t all = 0;
         !c->broken && c->state != TCP_ENDS &&
         (all < READ_MOST || (c->tls && c->tls->pending));) {
        memmove(c->in, c->in + c->in_at, c->in_n - c->in_at);
        c->in_n -= c->in_at;
        c->in_at = 0;
        size_t part = c->into || c->left < TCP_IN ? c->left : TCP_IN;
        struct iovec parts[] = {{c->into ? c->into : nowhere, part},
                                {c->in + c->in_n, c->in_room - c->in_n}};
        int n_parts = c->left > part ? 1 : 2;
        ssize_t n = get(c, parts, n_parts);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            c->error = n < 0 ? errno : c->error;
            tcp_drop(c);
            return;
        }
        size_t came = (size_t)n, bulk = came < part ? came : part;
        bool full = c->tls ? c->tls->pending || came == (part ? part : parts[1].iov_len)
                           : came == part + (n_parts > 1 ? parts[1].iov_len : 0);
        all += came;
        if (bulk)
            take_bulk(c, NULL, bulk);
        c->in_n += came - bulk;
        while (!c->left && take_frame(c, heard))
            ;
        if (!full)
            return;             /* epoll tells of what comes after it */
    }
}

void tcp_read(struct tcp_connection *c, tcp_heard *heard)
{
    read_all(c, heard);
    await_rest(c);
}

void tcp_swallow(struct tcp_connection *c)
{
    const struct iovec part = {c->link->nowhere, TCP_IN};
    ssize_t n = get(c, &part, 1);

    c->swallowed += n > 0 ? (size_t)n : 0;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) ||
        (c->strange && c->swallowed > SWALLOW_MOST))
        tcp_drop(c);
}
