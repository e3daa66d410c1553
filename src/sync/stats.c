/* SPDX-License-Identifier: MIT */
/* Counters, and histograms whose buckets grow with the value: exact below 16, then
 * sixteen to each power of two. One writer a field (additions apart), any number of
 * readers. */
#include "sync/stats.h"

#include <math.h>

void stats_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void count(_Atomic uint32_t *histogram, uint64_t value)
{
    unsigned power = value < 16 ? 3 : 63 - (unsigned)__builtin_clzll(value);
    size_t bucket =
        value < 16 ? (size_t)value : (power - 3) * 16 + ((value >> (power - 4)) & 15);
    atomic_fetch_add_explicit(&histogram[bucket], 1, memory_order_relaxed);
}

void stats_round(struct stats *s, const struct stats_merge *merge)
{
    stats_add(&s->rounds, 1);
    stats_add(&s->gap_sum, merge->gap);
    stats_add(&s->merged, merge->merged);
    if (merge->gap > atomic_load_explicit(&s->gap_max, memory_order_relaxed))
        atomic_store_explicit(&s->gap_max, merge->gap, memory_order_relaxed);
    atomic_store_explicit(&s->age_steps, merge->age_steps, memory_order_relaxed);
    atomic_store_explicit(&s->age_ns, merge->age_ns, memory_order_relaxed);
    atomic_store_explicit(&s->distance, merge->distance, memory_order_relaxed);
    atomic_store_explicit(&s->outer_rate, merge->outer_rate, memory_order_relaxed);
    atomic_store_explicit(&s->outer_momentum, merge->outer_momentum,
                          memory_order_relaxed);
    atomic_store_explicit(&s->outer_cosine, merge->outer_cosine, memory_order_relaxed);
    count(s->gaps, merge->gap);
    count(s->exchanges, merge->exchange_ns);
}

double stats_below(const _Atomic uint32_t *histogram, double q)
{
    uint64_t total = 0, seen = 0;
    for (size_t i = 0; i < STATS_BUCKETS; i++)
        total += atomic_load_explicit(&histogram[i], memory_order_relaxed);
    for (size_t i = 0; i < STATS_BUCKETS; i++) {
        seen += atomic_load_explicit(&histogram[i], memory_order_relaxed);
        if (total > 0 && (double)seen >= q * (double)total)
            return i < 16 ? (double)i
                          : ldexp(16 + (double)(i % 16), (int)(i / 16) - 1);
    }
    return 0;
}
