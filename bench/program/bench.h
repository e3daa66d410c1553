/* SPDX-License-Identifier: MIT */
/* The program "descant-bench", which "descant bench" runs: a table of benchmarks, and
 * what they share. Trainers are processes forked before any of them opens a job. */
#ifndef BENCH_H
#define BENCH_H

#include "cli/cli.h"

/* argv as main has it. */
int bench_main(int argc, char **argv, FILE *out, FILE *err);

cli_command bench_step, bench_exchange, bench_overlap, bench_segment;
#ifdef DESCANT_TRAIN
cli_command bench_train, bench_parse, bench_modules;
#endif

enum { BENCH_MAX_TRAINERS = 64, BENCH_MAX_WORKERS = 64 };

struct bench_meeting;           /* in memory that all trainers share */

struct bench {
    int trainers;
    const char *name;           /* a job name that no other run has */
    struct bench_meeting *meeting;
    FILE *err;
};

/* The work of a trainer; result is its own, of the size that bench_run was told. Returns
 * false after a failure, which it has said on bench->err. */
typedef bool bench_trainer(struct bench *bench, int rank, const void *how, void *result);

/* Forks, runs, collects results[trainers]. False if a trainer failed; then all are ended.
 */
bool bench_run(struct bench *bench, bench_trainer *trainer, const void *how,
               void *results, size_t size);

/* All `threads` of all trainers wait here for each other, spinning a little, then asleep.
 */
bool bench_barrier(struct bench *bench, int threads);
double *bench_shared(struct bench *bench);      /* one figure that all trainers see */

/* n threads run `work`, each on its own of the `size` bytes at each; returns when all
 * have ended. False if one could not be started. */
bool bench_threads(int n, void *(*work)(void *), void *each, size_t size);

/* A trainer's job on shm: its name is the run's with name_tail behind it (another one for
 * each job of a run), its replica n floats, small and random. sync_cpu 0: the default. */
struct bench_job {
    const char *name_tail, *plan;
    int64_t workers;
    double sync_cpu;
    size_t n;
};

/* Opens it and starts it. *job may be half open after a failure; close it, NULL too. */
bool bench_open(struct bench *bench, int rank, const struct bench_job *how,
                struct descant **job, float **w);

/* The options of a benchmark, read into a struct that has the defaults; false when there
 * is nothing to run: help was asked for, or what is wrong has been said. *status is to be
 * returned. */
bool bench_options(const struct cli *cli, const struct option *table, size_t n,
                   void *into, int *status);

double bench_percentile(double *values, size_t n, double share);    /* sorts them */

/* Of the ratios of n pairs of runs, every other pair in the other order. The first of a
 * pair gains or loses by that, so each order has a median, and the middle is the mean of
 * the two, by multiplication; the quartiles are without what the order does. */
enum { BENCH_MAX_PAIRS = 101 };
struct bench_ratio {
    double middle, low, high;
};
struct bench_ratio bench_pairs(const double *ratio, size_t n);
void bench_fill(float *memory, size_t n, uint64_t seed);            /* small, random */

uint64_t bench_ticks(void);             /* the time-stamp counter, or nanoseconds */
double bench_ns_per_tick(void);

#endif
