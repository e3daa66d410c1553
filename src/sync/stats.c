/* SPDX-License-Identifier: MIT */
/* Counters, and a histogram of sync gaps whose buckets grow with the value: exact below 16, then
 * sixteen to each power of two. One writer a field (additions apart), any number of readers. */
#include "sync/stats.h"

#include <math.h>

void stats_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static size_t bucket_of(uint64_t value)
{
    if (value < 16)
        return (size_t)value;
    unsigned power = 63 - (unsigned)__builtin_clzll(value);
    return (power - 3) * 16 + ((value >> (power - 4)) & 15);
}

static double bucket_low(size_t bucket)
{
    if (bucket < 16)
        return (double)bucket;
    return ldexp(16 + (double)(bucket % 16), (int)(bucket / 16) - 1);
}

void stats_round(struct stats *s, uint64_t gap, uint64_t age_steps, uint64_t age_ns,
                 double distance)
{
    stats_add(&s->rounds, 1);
    stats_add(&s->gap_sum, gap);
    if (gap > atomic_load_explicit(&s->gap_max, memory_order_relaxed))
        atomic_store_explicit(&s->gap_max, gap, memory_order_relaxed);
    atomic_store_explicit(&s->age_steps, age_steps, memory_order_relaxed);
    atomic_store_explicit(&s->age_ns, age_ns, memory_order_relaxed);
    atomic_store_explicit(&s->distance, distance, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->gaps[bucket_of(gap)], 1, memory_order_relaxed);
}

double stats_gap(const struct stats *s, double q)
{
    uint64_t total = 0, seen = 0;
    for (size_t i = 0; i < STATS_BUCKETS; i++)
        total += atomic_load_explicit(&s->gaps[i], memory_order_relaxed);
    for (size_t i = 0; i < STATS_BUCKETS; i++) {
        seen += atomic_load_explicit(&s->gaps[i], memory_order_relaxed);
        if (total > 0 && (double)seen >= q * (double)total)
            return bucket_low(i);
    }
    return 0;
}
