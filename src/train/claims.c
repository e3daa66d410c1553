/* SPDX-License-Identifier: MIT */
/* Chunks that a dead trainer held are trained again: first of all by the next trainer in
 * its seat, or by an heir when the data has nothing new.
 *
 * These are the functions that the feed calls (run/feed.h, struct feed_claims): claim,
 * past_end and failed in the feed's thread, the others in any thread. They translate: a
 * place of the feed is a field `claimed` of the seat, and an error of reading stops the
 * run for all trainers. */
#include "train/claims.h"

#include <math.h>

#define RELAXED memory_order_relaxed

/* The next chunk for a place of the feed: one that this seat's dead trainer held, then a
 * new one, then one of another dead trainer. heirs_only leaves out new ones. */
static bool claim(void *of, int place, uint64_t *chunk)
{
    struct claims *c = of;

    if (c->n_old) {
        *chunk = c->old[--c->n_old];
        atomic_store_explicit(&c->seat->claimed[place], *chunk + 1, memory_order_release);
        return true;
    }
    return (!c->heirs_only && board_claim(c->board, c->seat, place, chunk)) ||
           board_inherit(c->board, c->seat, place, chunk);
}

static void past_end(void *of, uint64_t chunk)
{
    const struct claims *c = of;
    board_ended(c->board, chunk);
}

static void failed(void *of, const char *why)
{
    const struct claims *c = of;
    board_stop(c->board, STOP_FAILED, "trainer %d: %s", c->rank, why);
}

static void give_up(void *of, int place)
{
    const struct claims *c = of;
    board_release(c->seat, place);
}

/* Each host counts for all hosts, as each grants as much; of the rest at the end each has
 * its part. */
static size_t grant(void *of, size_t n, double *place)
{
    const struct claims *c = of;

    *place = -1;
    if (!c->limit)
        return n;
    uint64_t hosts = board_hosts(c->board);
    uint64_t host = atomic_load_explicit(&c->board->host, RELAXED);
    uint64_t before = atomic_fetch_add_explicit(&c->board->granted, n * hosts, RELAXED);
    if (before >= c->limit)
        return 0;
    uint64_t left = (c->limit - before + hosts - 1 - host) / hosts;
    n = n > left ? (size_t)left : n;
    *place = ((double)before + 0.5 * (double)(n * hosts)) / (double)c->limit;
    return n;
}

/* The share of the limit that is handed out, by all hosts; negative: there is no
 * limit. */
static double granted(void *of)
{
    const struct claims *c = of;
    double n = (double)atomic_load_explicit(&c->board->granted, RELAXED);
    return c->limit ? fmin(n / (double)c->limit, 1) : -1;
}

/* Takes the claims of the seat's former trainer out of the seat, since this feed's places
 * are not that one's. Until they are claimed again, one by one, they are known here
 * alone: a death in that time loses them. */
const struct feed_claims *claims_begin(struct claims *c)
{
    c->calls = (struct feed_claims){claim, past_end, failed, give_up, grant, granted, c};
    c->n_old = 0;
    for (int k = 0; k < BOARD_CHUNKS; k++) {
        uint64_t held = atomic_exchange_explicit(&c->seat->claimed[k], 0,
                                                 memory_order_acq_rel);
        if (held)
            c->old[c->n_old++] = held - 1;
    }
    return &c->calls;
}
