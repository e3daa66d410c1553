/* SPDX-License-Identifier: MIT */
/* What TLS costs: 64 MiB over loopback, plain and by TLS in turns, both ends in one
 * thread. One JSON object: MB a second of each, of its sending and of its receiving calls
 * alone, and the ratio of the pairs: median, least and greatest. Seconds are of this
 * thread's CPU, so that other programs of the machine do not count. */
#include "base/base.h"
#include "link/secret.h"
#include "link/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BYTES = 64 << 20, PIECE = 1 << 20, PAIRS = 15 };

struct speed {
    double all, send, receive;  /* MB a second */
};

static struct tls *tls;
static unsigned char *out, *in;

static bool connect_ends(int fd[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t room = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    bool good = listener >= 0 && bind(listener, (struct sockaddr *)&at, room) == 0 &&
                listen(listener, 1) == 0 &&
                getsockname(listener, (struct sockaddr *)&at, &room) == 0;

    fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    good = good && connect(fd[0], (struct sockaddr *)&at, room) == 0;
    fd[1] = good ? accept(listener, NULL, NULL) : -1;
    close(listener);
    return fd[1] >= 0;
}

static bool shake(struct tls_peer *peer[2])
{
    int done = 0;

    while (done < 2) {
        done = 0;
        for (int k = 0; k < 2; k++) {
            int result = tls->type->handshake(peer[k]);
            if (result == TLS_FAILED)
                fprintf(stderr, "tls: %s\n", peer[k]->why);
            if (result == TLS_FAILED)
                return false;
            done += result == TLS_DONE;
        }
    }
    return true;
}

static ssize_t send_some(int fd, struct tls_peer *peer, const void *p, size_t n)
{
    const struct iovec part = {(void *)(uintptr_t)p, n};
    return peer ? tls->type->write(peer, &part, n > 0)
                : n > 0 ? send(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
}

static ssize_t receive_some(int fd, struct tls_peer *peer, void *p, size_t n)
{
    return peer ? tls->type->read(peer, p, n) : recv(fd, p, n, MSG_DONTWAIT);
}

static double rate(uint64_t ns)
{
    return BYTES / 1e6 / ((double)ns * 1e-9);
}

/* All bytes from one end to the other. */
static bool move(const int fd[2], struct tls_peer *const peer[2], struct speed *speed)
{
    size_t sent = 0, got = 0;
    uint64_t sending = 0, receiving = 0;

    memset(in, 0, BYTES);
    while (got < BYTES) {
        uint64_t began = clock_thread_cpu_ns();
        size_t n = BYTES - sent < PIECE ? BYTES - sent : PIECE;
        ssize_t took = send_some(fd[0], peer[0], out + sent, n);
        uint64_t between = clock_thread_cpu_ns();
        n = BYTES - got < PIECE ? BYTES - got : PIECE;
        ssize_t came = receive_some(fd[1], peer[1], in + got, n);
        sending += between - began;
        receiving += clock_thread_cpu_ns() - between;
        if (took == TLS_FAILED || came == TLS_FAILED || came == 0)
            return false;
        sent += sent < BYTES && took > 0 ? (size_t)took : 0;
        got += came > 0 ? (size_t)came : 0;
    }
    *speed = (struct speed){rate(sending + receiving), rate(sending), rate(receiving)};
    return memcmp(out, in, BYTES) == 0;
}

static bool run(bool secure, struct speed *speed)
{
    int fd[2];
    struct tls_peer *peer[2] = {NULL, NULL};
    bool good = connect_ends(fd);

    for (int k = 0; k < 2 && good && secure; k++)
        good = (peer[k] = tls->type->begin(tls, fd[k], k == 0, NULL)) != NULL;
    good = good && (!secure || shake(peer)) && move(fd, peer, speed);
    for (int k = 0; k < 2; k++) {
        tls->type->end(peer[k]);
        close(fd[k]);
    }
    return good;
}

/* With a secret in a file, which is removed. The module lies in the folder above this
 * program's. */
static bool open_tls(void)
{
    char line[SECRET_LINE + 1], path[] = "/tmp/descant-bench-XXXXXX", self[PATH_MAX] = "";
    int fd = mkstemp(path);

    if (realpath("/proc/self/exe", self) && !getenv("DESCANT_TLS_MODULE"))
        setenv("DESCANT_TLS_MODULE", dirname(dirname(self)), 1);
    bool good = fd >= 0 && secret_make(line) &&
                write(fd, line, SECRET_LINE) == SECRET_LINE &&
                tls_open(&tls, &(struct tls_files){.secret = path}, NULL) == DESCANT_OK;
    if (fd >= 0)
        unlink(path);
    close(fd);
    return good;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x)
{
    qsort(x, PAIRS, sizeof *x, by_value);
    return x[PAIRS / 2];
}

int main(void)
{
    static const char *const names[2][3] = {
        {"plain_mb_s", "plain_send_mb_s", "plain_receive_mb_s"},
        {"tls_mb_s", "tls_send_mb_s", "tls_receive_mb_s"},
    };
    struct speed speed[2];
    double of[2][3][PAIRS], ratio[PAIRS];
    struct json json;
    bool good = open_tls();

    if (!good) {
        fprintf(stderr, "tls: %s\n", descant_last_error());
        return 0;               /* there may be no OpenSSL */
    }
    out = memory_take(BYTES);
    in = memory_take(BYTES);
    for (size_t i = 0; out && i < BYTES; i++)
        out[i] = (unsigned char)(i * 31 + (i >> 8));
    good = out && in && run(false, &speed[0]) && run(true, &speed[1]);   /* warms up */
    for (int k = 0; k < PAIRS && good; k++) {
        int first = k % 2;
        good = run(first, &speed[first]) && run(!first, &speed[!first]);
        for (int i = 0; i < 2; i++) {
            of[i][0][k] = speed[i].all;
            of[i][1][k] = speed[i].send;
            of[i][2][k] = speed[i].receive;
        }
        ratio[k] = speed[1].all / speed[0].all;
    }
    if (good) {
        json_begin(&json, stdout);
        json_text(&json, "bench", "tls");
        json_text(&json, "library", tls->type->name);
        json_int(&json, "bytes", BYTES);
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 3; j++)
                json_real(&json, names[i][j], median(of[i][j]));
        json_real(&json, "ratio", median(ratio));
        json_real(&json, "ratio_least", ratio[0]);
        json_real(&json, "ratio_most", ratio[PAIRS - 1]);
        json_end(&json);
    }
    memory_give(out);
    memory_give(in);
    tls->type->close(tls);
    return !good;
}
