/* SPDX-License-Identifier: MIT */
/* The time and the CPU of bare TCP for the traffic of a mean between two hosts, BYTES each
 * way at once: duplex RANK HOST PORT BYTES [RUNS [CONNECTIONS]]. Rank 0 listens at HOST,
 * rank 1 connects. The bytes are shared out to the connections. Of each, a thread writes,
 * a thread reads, and the reader is woken for every 256 KiB. Rank 0 prints a JSON object
 * with the median time of a run, and the process's CPU in it. */
#define _GNU_SOURCE
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WARM = 1, MAX_RUNS = 101, MAX_LINES = 16, LOW = 256 << 10 };

static char *out, *in;

static struct line {
    int fd;
    size_t from, to;            /* of the bytes */
    pthread_t writer, reader;
} lines[MAX_LINES];

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double wall_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static double cpu_ms(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-3;
}

static void meet(int rank, const char *host, const char *port, int n_lines)
{
    struct addrinfo *at, hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_INET};
    int one = 1;
    if (getaddrinfo(host, port, &hints, &at))
        fail(host);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (rank == 0 && (bind(listener, at->ai_addr, at->ai_addrlen) ||
                      listen(listener, n_lines)))
        fail(port);
    for (int i = 0; i < n_lines; i++) {
        int *s = &lines[i].fd;
        *s = rank == 0 ? accept(listener, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
        while (rank > 0 && connect(*s, at->ai_addr, at->ai_addrlen)) {
            close(*s);
            usleep(20000);      /* rank 0 is not there yet */
            *s = socket(AF_INET, SOCK_STREAM, 0);
        }
    }
    freeaddrinfo(at);
}

static void *write_all(void *of)
{
    const struct line *line = of;
    for (size_t done = line->from; done < line->to; ) {
        ssize_t n = send(line->fd, out + done, line->to - done, 0);
        if (n <= 0)
            fail("send");
        done += (size_t)n;
    }
    return NULL;
}

static void *read_all(void *of)
{
    const struct line *line = of;
    for (size_t done = line->from; done < line->to; ) {
        size_t left = line->to - done;
        int low = left < LOW ? (int)left : LOW;
        struct pollfd readable = {.fd = line->fd, .events = POLLIN};
        setsockopt(line->fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
        if (poll(&readable, 1, -1) != 1)
            fail("poll");
        ssize_t n = recv(line->fd, in + done, left, MSG_DONTWAIT);
        if (n <= 0)
            fail("recv");
        done += (size_t)n;
    }
    return NULL;
}

static void move_all(int n_lines)
{
    for (int i = 0; i < n_lines; i++)
        if (pthread_create(&lines[i].writer, NULL, write_all, &lines[i]) ||
            (i > 0 && pthread_create(&lines[i].reader, NULL, read_all, &lines[i])))
            fail("a thread");
    read_all(&lines[0]);
    for (int i = 0; i < n_lines; i++) {
        pthread_join(lines[i].writer, NULL);
        if (i > 0)
            pthread_join(lines[i].reader, NULL);
    }
}

int main(int argc, char **argv)
{
    double wall[MAX_RUNS], cpu[MAX_RUNS];
    int runs = argc > 5 ? atoi(argv[5]) : 5, n_lines = argc > 6 ? atoi(argv[6]) : 1;
    if (argc < 5 || runs < 1 || runs > MAX_RUNS || n_lines < 1 || n_lines > MAX_LINES)
        return 2;
    size_t bytes = strtoull(argv[4], NULL, 10);
    out = malloc(bytes);
    in = malloc(bytes);
    if (!out || !in)
        fail("memory");
    memset(out, 1, bytes);
    memset(in, 1, bytes);
    meet(atoi(argv[1]), argv[2], argv[3], n_lines);
    for (int i = 0; i < n_lines; i++) {
        lines[i].from = bytes / (size_t)n_lines * (size_t)i;
        lines[i].to = i + 1 < n_lines ? bytes / (size_t)n_lines * (size_t)(i + 1) : bytes;
    }
    for (int i = -WARM; i < runs; i++) {
        double from_ms = wall_ms(), spent_ms = cpu_ms();
        move_all(n_lines);
        if (i >= 0) {
            wall[i] = wall_ms() - from_ms;
            cpu[i] = cpu_ms() - spent_ms;
        }
    }
    qsort(wall, (size_t)runs, sizeof *wall, by_value);
    qsort(cpu, (size_t)runs, sizeof *cpu, by_value);
    if (argv[1][0] == '0')
        printf("{\"peer\":\"TCP\",\"connections\":%d,\"bytes\":%zu,\"ms\":%.3f,"
               "\"cpu_ms\":%.2f}\n", n_lines, bytes, wall[runs / 2], cpu[runs / 2]);
    return 0;
}
