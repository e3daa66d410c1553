/* SPDX-License-Identifier: MIT */
/* The cost and the effect of a trainer's synchronisation. Every field is a relaxed
 * atomic: figures order nothing. The holder of the round machine writes them (workers add
 * to stall_ns and copy_ns); descant_stats reads them at any time from any thread. */
#ifndef STATS_H
#define STATS_H

#include "base/base.h"

enum { STATS_BUCKETS = 16 * 64 };

struct stats {
    _Atomic uint64_t rounds, stall_ns, copy_ns, shadow_cpu_ns, events_cpu_ns;
    _Atomic uint64_t gap_sum, gap_max, age_steps, age_ns;
    _Atomic uint64_t merged;            /* steps that results have */
    _Atomic double distance, outer_rate, outer_momentum, outer_cosine;
    /* histograms: 16 buckets to each power of two */
    _Atomic uint32_t gaps[STATS_BUCKETS];       /* steps */
    /* ns from a round's begin until its result is here */
    _Atomic uint32_t exchanges[STATS_BUCKETS];
};

struct stats_merge {
    uint64_t gap;                       /* steps since the last one */
    uint64_t merged;                    /* steps that its result has for the first time */
    uint64_t age_steps, age_ns;         /* since its round began */
    uint64_t exchange_ns;               /* of that, until the result was here */
    double distance;
    double outer_rate, outer_momentum, outer_cosine;    /* of a block */
};

void stats_add(_Atomic uint64_t *counter, uint64_t n);
void stats_round(struct stats *s, const struct stats_merge *merge);

/* The value below which the share q of a histogram lies, within 1/16. */
double stats_below(const _Atomic uint32_t *histogram, double q);

#endif
