/* SPDX-License-Identifier: MIT */
/* The figures of the progress line, the log and the summary. */
#ifndef MONITOR_H
#define MONITOR_H

#include "run/evaluate.h"
#include "train/trainer.h"

#include <math.h>

/* The training between two looks. */
struct window {
    struct metrics seen;        /* at the second, */
    uint64_t at_ns;             /* at this time */
    double per_s;
    double loss, entropy;       /* as they were before, where there were no examples */
};

void window_look(struct window *w, const struct trainer *t);    /* moves it up to now */

/* Since the start; means over the seats that are taken. */
struct figures {
    double gap, gap_max, stall_s, copy_s, age_s, distance, shadow_cpu_s, bytes, rounds;
    double exchange_s;                              /* 99 of 100 took less */
    double merges, merged_steps;                    /* of all seats together */
    double rows_sent, rows_waiting, rows_age_s;     /* of the one that exchanges them */
    uint64_t lines, bad, steps;
    int trainers;
    /* of the plan bsp, all of it */
    uint64_t supersteps, gradients, lag, stale, not_finite;
};

struct figures figures_gather(const struct trainer *t);
/* that the run has been training */
double figures_seconds(const struct trainer *t);
/* A share of the workers' time. */
double figures_stall(const struct trainer *t, const struct figures *f);

/* A figure of merges; NaN where there was none. */
static inline double merged(double figure, double rounds)
{
    return rounds > 0 ? figure : (double)NAN;
}

/* Example-level parallelism (ShadowSync): examples that are worked on at the same time.
 */
static inline int64_t train_elp(const struct trainer *t)
{
    return t->options->batch * t->options->workers * t->size;
}

static inline void put(_Atomic double *to, double x)
{
    atomic_store_explicit(to, x, memory_order_relaxed);
}

static inline double get(const _Atomic double *from)
{
    return atomic_load_explicit(from, memory_order_relaxed);
}

#endif
