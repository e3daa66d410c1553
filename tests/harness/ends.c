/* SPDX-License-Identifier: MIT */
/* Two ends of TLS, and a wire. */
#include "harness/ends.h"
#include "harness/certificates.h"
#include "harness/folder.h"
#include "harness/heard.h"
#include "harness/processes.h"
#include "link/secret.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

struct tls_side sides[2];

void find_tls_module(void)
{
    char path[PATH_MAX];
    find_self();
    snprintf(path, sizeof path, "%s", self);
    setenv("DESCANT_TLS_MODULE", dirname(dirname(path)), 1);
}

const char *secret_file(const char *name)
{
    char line[SECRET_LINE + 1];
    ck_assert(secret_make(line));
    put_file(in_folder(name), line, SECRET_LINE);
    ck_assert_int_eq(chmod(in_folder(name), 0600), 0);
    return in_folder(name);
}

struct tls *open_files(const struct tls_files *files)
{
    struct tls *tls = NULL;
    heard = (struct heard_lines){.least = DESCANT_ERROR};
    ck_assert_msg(tls_open(&tls, files, &listening) == DESCANT_OK, "%s", heard.text);
    return tls;
}

void open_secrets(const char *a, const char *b)
{
    sides[0].tls = open_files(&(struct tls_files){.secret = a});
    sides[1].tls = open_files(&(struct tls_files){.secret = b});
}

void open_same(void)
{
    const char *secret = secret_file("secret");
    open_secrets(secret, secret);
}

struct tls *open_named(const char *name, const char *authority)
{
    char cert[60], key[60], ca[60];
    snprintf(cert, sizeof cert, "%s.crt", name);
    snprintf(key, sizeof key, "%s.key", name);
    snprintf(ca, sizeof ca, "%s.crt", authority);
    return open_files(&(struct tls_files){
        .cert = in_folder(cert), .key = in_folder(key), .ca = in_folder(ca)});
}

void close_ends(void)
{
    for (int k = 0; k < 2; k++)
        if (sides[k].tls)
            sides[k].tls->type->close(sides[k].tls);
    memset(sides, 0, sizeof sides);
    remove_folder();
}

void begin_on(int dialled, int accepted, const char *name)
{
    sides[DIALLED].fd = dialled;
    sides[ACCEPTED].fd = accepted;
    for (int k = 0; k < 2; k++) {
        struct tls_side *e = &sides[k];
        ck_assert_int_eq(fcntl(e->fd, F_SETFL, O_NONBLOCK), 0);
        e->state = TLS_WANTS_READ;
        e->peer =
            e->tls->type->begin(e->tls, e->fd, k == DIALLED, k == DIALLED ? name : NULL);
        ck_assert_ptr_nonnull(e->peer);
    }
}

void begin_pair(void)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    begin_on(pair[0], pair[1], NULL);
}

void begin_tcp(int buffer)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t room = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0),
        dialled = socket(AF_INET, SOCK_STREAM, 0);
    if (buffer > 0)
        for (int k = 0; k < 2; k++) {
            setsockopt(k ? listener : dialled, SOL_SOCKET, SO_SNDBUF, &buffer,
                       sizeof buffer);
            setsockopt(k ? listener : dialled, SOL_SOCKET, SO_RCVBUF, &buffer,
                       sizeof buffer);
        }
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&at, &room), 0);
    ck_assert_int_eq(connect(dialled, (struct sockaddr *)&at, sizeof at), 0);
    int accepted = accept(listener, NULL, NULL);
    ck_assert_int_ge(accepted, 0);
    close(listener);
    begin_on(dialled, accepted, NULL);
}

void end_one(int k)
{
    struct tls_side *e = &sides[k];
    e->tls->type->end(e->peer);
    e->peer = NULL;
    if (e->fd >= 0)
        close(e->fd);
    e->fd = -1;
}

void end_both(void)
{
    end_one(DIALLED);
    end_one(ACCEPTED);
}

bool is_over(int state)
{
    return state == TLS_DONE || state == TLS_FAILED;
}

int step_end(int k)
{
    struct tls_side *e = &sides[k];
    if (!is_over(e->state))
        e->state = e->tls->type->handshake(e->peer);
    /* as a caller would, so that the other one reads the end */
    if (e->state == TLS_FAILED)
        shutdown(e->fd, SHUT_WR);
    return e->state;
}

void do_handshake(void)
{
    for (int turn = 0; turn < TURNS; turn++) {
        int over = 0;
        for (int k = 0; k < 2; k++)
            over += is_over(step_end(k));
        if (over == 2)
            return;
    }
    ck_abort_msg("the handshake does not end: %d, %d", sides[0].state, sides[1].state);
}

void need_handshake(void)
{
    do_handshake();
    for (int k = 0; k < 2; k++)
        ck_assert_msg(sides[k].state == TLS_DONE, "end %d: %s", k, sides[k].peer->why);
}

ssize_t put_bytes(int k, const void *bytes, size_t n)
{
    const struct iovec part = {(void *)(uintptr_t)bytes, n};
    ssize_t took = sides[k].tls->type->write(sides[k].peer, &part, 1);
    int left = took > 0 ? (int)sides[k].tls->type->write(sides[k].peer, NULL, 0) : 0;
    return left == TLS_FAILED ? left : took;
}

ssize_t get_bytes(int k, void *into, size_t n)
{
    return sides[k].tls->type->read(sides[k].peer, into, n);
}

/* Loopback may take a moment. */
void wait_bytes(int k)
{
    struct pollfd fd = {.fd = sides[k].fd, .events = POLLIN};
    ck_assert_int_eq(poll(&fd, 1, 20000), 1);
}

void expect_text(int from, const char *text)
{
    char got[100] = "";
    ck_assert_int_eq(put_bytes(from, text, strlen(text)), (ssize_t)strlen(text));
    wait_bytes(!from);
    ssize_t n = get_bytes(!from, got, sizeof got);
    ck_assert_msg(n == (ssize_t)strlen(text), "%zd: %s", n, sides[!from].peer->why);
    ck_assert_str_eq(got, text);
    ck_assert_int_eq(get_bytes(!from, got, sizeof got), TLS_WANTS_READ);
}

void why_has(int k, const char *words)
{
    const char *why = sides[k].peer->why;
    ck_assert_msg(strstr(why, words) != NULL, "end %d does not say '%s' but '%s'", k,
                  words, why);
}

void end_says(int k, const char *words)
{
    ck_assert_int_eq(sides[k].state, TLS_FAILED);
    why_has(k, words);
}

/* --- a wire of the test's own --- */

struct tls_wire wire;

void begin_wire(void)
{
    int pairs_of[2][2];
    memset(wire.n, 0, sizeof wire.n);
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs_of[k]), 0);
        wire.fd[k] = pairs_of[k][1];
    }
    begin_on(pairs_of[0][0], pairs_of[1][0], NULL);
}

size_t carry_bytes(int k, size_t most)
{
    unsigned char *to = wire.bytes[k] + wire.n[k];
    size_t room = sizeof wire.bytes[k] - wire.n[k];
    size_t want = most - wire.n[k] < room ? most - wire.n[k] : room;
    ssize_t got = want > 0 ? recv(wire.fd[k], to, want, MSG_DONTWAIT) : -1;
    if (got <= 0)
        return 0;
    send(wire.fd[!k], to, (size_t)got, MSG_NOSIGNAL);
    wire.n[k] += (size_t)got;
    return (size_t)got;
}

void close_wire(void)
{
    for (int k = 0; k < 2; k++)
        if (wire.fd[k] >= 0)
            close(wire.fd[k]);
    wire.fd[0] = wire.fd[1] = -1;
    end_both();
}

void run_wire(size_t most_dialled, size_t most_accepted, size_t at_a_time)
{
    for (int turn = 0; turn < TURNS; turn++) {
        int before[2] = {sides[0].state, sides[1].state};
        size_t moved = 0;
        for (int k = 0; k < 2; k++) {
            size_t most = k == DIALLED ? most_dialled : most_accepted;
            step_end(k);
            moved += carry_bytes(k, most - wire.n[k] < at_a_time ? most
                                                                 : wire.n[k] + at_a_time);
        }
        if (moved == 0 && before[0] == sides[0].state && before[1] == sides[1].state)
            return;
    }
    ck_abort_msg("the wire does not come to rest");
}

void make_certificates(void)
{
    make_certificate("ca", NULL, 100);
    make_certificate("foreign-ca", NULL, 100);
    make_certificate("one", "ca", 10);
    make_certificate("two", "ca", 10);
    make_certificate("old", "ca", -1);
    make_certificate("foreign", "foreign-ca", 10);
}
