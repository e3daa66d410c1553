/* SPDX-License-Identifier: MIT */
/* What a trainer's synchronisation cost and reached. Every field is a relaxed atomic: figures
 * order nothing. Written by whoever holds the round machine (stall_ns and copy_ns by workers, by
 * addition), read by descant_stats at any time from any thread. */
#ifndef STATS_H
#define STATS_H

#include "base/base.h"

enum { STATS_BUCKETS = 16 * 64 };

struct stats {
    _Atomic uint64_t rounds, stall_ns, copy_ns, shadow_cpu_ns;
    _Atomic uint64_t gap_sum, gap_max, age_steps, age_ns;
    _Atomic double distance;
    _Atomic uint32_t gaps[STATS_BUCKETS];   /* 16 to each power of two */
};

void stats_add(_Atomic uint64_t *counter, uint64_t n);
void stats_round(struct stats *s, uint64_t gap, uint64_t age_steps, uint64_t age_ns,
                 double distance);

/* The gap below which the share q of all rounds lie, within 1/16. */
double stats_gap(const struct stats *s, double q);

#endif
