/* SPDX-License-Identifier: MIT */
/* The bytes of items: kept by the rank that reads them (store.h), fetched by the others,
 * ahead of their callers. deal.c stands on this. */
#ifndef RANKS_FETCH_H
#define RANKS_FETCH_H

#include "ranks/leases.h"
#include "ranks/ranks.h"

/* The rank that reads. generation 0: its process is not known yet. */
struct ranks_feeder {
    int rank;                           /* -1: items have no bytes, as far as is known */
    uint64_t generation;
};

struct ranks_fetch;

/* lock: guards this, and the rank's own items; callers' threads have it in feed, put and
 * get, the holder of the round machine takes it in turn. NULL: no memory. */
struct ranks_fetch *ranks_fetch_make(pthread_mutex_t *lock);
void ranks_fetch_fini(struct ranks_fetch *f);

/* This rank's items have bytes, of that rank, of which `most` are kept, and are here of
 * one item at most. False: no memory. */
bool ranks_fetch_feed(struct ranks *m, struct ranks_fetch *f, int rank, size_t most);

struct ranks_feeder *ranks_fetch_feeder(struct ranks_fetch *f);

enum deal_bytes ranks_fetch_put(struct ranks_fetch *f, struct own_items *own,
                                const void *bytes, size_t n);
enum deal_bytes ranks_fetch_get(struct ranks_fetch *f, const struct own_items *own,
                                uint64_t item, const struct deal_room *room);

void ranks_fetch_turn(struct ranks *m, struct ranks_fetch *f, struct own_items *own);
/* Nothing is under way. */
bool ranks_fetch_quiet(const struct ranks_fetch *f);

#endif
