/* SPDX-License-Identifier: MIT */
/* The cost of elastic exchanges over MPI: elastic JOB PLAN BYTES EXCHANGES. Each rank
 * makes so many exchanges, one after another, and tells the CPU and the time of one:
 * JSON lines. The start and the end are not counted. */
#include <descant.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static uint64_t rounds(struct descant *job)
{
    struct descant_stats s;
    if (descant_stats(job, &s) != DESCANT_OK)
        exit(1);
    return s.rounds;
}

/* In a shadow plan a step does not wait. */
static void exchange(struct descant *job, uint64_t n)
{
    for (uint64_t until = rounds(job) + n; rounds(job) < until;) {
        if (descant_step(job) != DESCANT_OK)
            exit(1);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

int main(int argc, char **argv)
{
    struct descant_options o = descant_options_default();
    struct descant_members who;
    struct descant *job;
    float *w;
    if (argc != 5)
        return 2;
    size_t n = strtoull(argv[3], NULL, 10) / sizeof *w;
    uint64_t exchanges = strtoull(argv[4], NULL, 10);
    o.job = argv[1];
    o.plan = argv[2];
    if (descant_open(&job, &o) || !(w = descant_alloc(job, "w", n)) ||
        descant_start(job) || descant_members(job, &who)) {
        fprintf(stderr, "elastic: %s\n", descant_last_error());
        return 1;
    }
    for (size_t i = 0; i < n; i++)
        w[i] = (float)(who.rank + (int)(i % 100));
    exchange(job, 2);
    double began = seconds(), cpu = cpu_s();
    exchange(job, exchanges);
    printf("{\"bench\":\"elastic\",\"rank\":%d,\"ms\":%.3f,\"cpu_us\":%.0f}\n", who.rank,
           1e3 * (seconds() - began) / (double)exchanges,
           1e6 * (cpu_s() - cpu) / (double)exchanges);
    fflush(stdout);
    return descant_finish(job, DESCANT_FINAL_LOCAL) || (descant_close(job), 0);
}
