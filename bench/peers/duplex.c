/* SPDX-License-Identifier: MIT */
/* The time and the CPU of bare TCP for the traffic of a mean between two hosts, BYTES each
 * way at once: duplex RANK HOST PORT BYTES [RUNS]. Rank 0 listens at HOST, rank 1 connects.
 * A thread writes, a thread reads, and the reader is woken for every 256 KiB. Rank 0
 * prints a JSON object with the median time of a run, and the process's CPU in it. */
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

enum { WARM = 1, MAX_RUNS = 101, LOW = 256 << 10 };

static char *out, *in;
static size_t bytes;
static int line;

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

static int meet(int rank, const char *host, const char *port)
{
    struct addrinfo *at, hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_INET};
    int one = 1;
    if (getaddrinfo(host, port, &hints, &at))
        fail(host);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (rank == 0) {
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(s, at->ai_addr, at->ai_addrlen) || listen(s, 1))
            fail(port);
        s = accept(s, NULL, NULL);
    } else {
        while (connect(s, at->ai_addr, at->ai_addrlen)) {
            close(s);
            usleep(20000);      /* rank 0 is not there yet */
            s = socket(AF_INET, SOCK_STREAM, 0);
        }
    }
    freeaddrinfo(at);
    return s;
}

static void *write_all(void *unused)
{
    for (size_t done = 0; done < bytes; ) {
        ssize_t n = send(line, out + done, bytes - done, 0);
        if (n <= 0)
            fail("send");
        done += (size_t)n;
    }
    return unused;
}

static void read_all(void)
{
    for (size_t done = 0; done < bytes; ) {
        int low = bytes - done < LOW ? (int)(bytes - done) : LOW;
        struct pollfd readable = {.fd = line, .events = POLLIN};
        setsockopt(line, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
        if (poll(&readable, 1, -1) != 1)
            fail("poll");
        ssize_t n = recv(line, in + done, bytes - done, MSG_DONTWAIT);
        if (n <= 0)
            fail("recv");
        done += (size_t)n;
    }
}

int main(int argc, char **argv)
{
    double wall[MAX_RUNS], cpu[MAX_RUNS];
    int runs = argc > 5 ? atoi(argv[5]) : 5;
    pthread_t writer;
    if (argc < 5 || runs < 1 || runs > MAX_RUNS)
        return 2;
    bytes = strtoull(argv[4], NULL, 10);
    out = malloc(bytes);
    in = malloc(bytes);
    if (!out || !in)
        fail("memory");
    memset(out, 1, bytes);
    memset(in, 1, bytes);
    line = meet(atoi(argv[1]), argv[2], argv[3]);
    for (int i = -WARM; i < runs; i++) {
        double from_ms = wall_ms(), spent_ms = cpu_ms();
        if (pthread_create(&writer, NULL, write_all, NULL))
            fail("a thread");
        read_all();
        pthread_join(writer, NULL);
        if (i >= 0) {
            wall[i] = wall_ms() - from_ms;
            cpu[i] = cpu_ms() - spent_ms;
        }
    }
    qsort(wall, (size_t)runs, sizeof *wall, by_value);
    qsort(cpu, (size_t)runs, sizeof *cpu, by_value);
    if (argv[1][0] == '0')
        printf("{\"peer\":\"TCP\",\"bytes\":%zu,\"ms\":%.3f,\"cpu_ms\":%.2f}\n", bytes,
               wall[runs / 2], cpu[runs / 2]);
    return 0;
}
