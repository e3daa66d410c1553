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

/* seconds: of training */
struct train_figures figures_gather(const struct trainer *t, double seconds);
/* that the run has been training */
double figures_seconds(const struct trainer *t);

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
