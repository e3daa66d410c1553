/* SPDX-License-Identifier: MIT */
/* Chunks that a dead trainer held are trained again. On one machine the next trainer in
 * its seat does so, first of all, or an heir when the data has nothing new. Between
 * machines the job deals them to others, as it deals all chunks, by need: only a chunk of
 * which all examples were trained is called done. A limit on examples is a counter on the
 * board, or between machines dealt by need, too.
 *
 * These are the functions that the feed calls (run/feed.h, struct feed_claims): claim,
 * past_end and failed in the feed's thread, the others in any thread. They translate: a
 * place of the feed is a field `claimed` of the seat, and an error of reading stops the
 * run for all trainers. */
#include "train/claims.h"

#include <math.h>

#define RELAXED memory_order_relaxed
#define MOMENT_S 0.05           /* until the feed looks whether the run is stopped */

/* A chunk that this seat's dead trainer held goes to that place of the feed. The one that
 * lies there comes first, so none is overwritten. A chunk that moves is in both places
 * for a moment, and lost by no death. An heir of the dead trainer may have been
 * quicker. */
static bool claim_old(struct claims *c, int place, uint64_t *chunk)
{
    _Atomic uint64_t *claimed = c->seat->claimed;
    uint64_t held = 0;

    while (c->old && !held) {
        int k = c->old >> place & 1 ? place : __builtin_ctz(c->old);
        c->old &= ~(UINT32_C(1) << k);
        held = atomic_load_explicit(&claimed[k], memory_order_acquire);
        uint64_t was = held;
        atomic_store_explicit(&claimed[place], held, memory_order_release);
        if (!held || k == place ||
            atomic_compare_exchange_strong_explicit(&claimed[k], &was, 0,
                                                    memory_order_acq_rel,
                                                    memory_order_relaxed))
            continue;
        board_release(c->seat, place);
        held = 0;
    }
    *chunk = held - 1;
    return held;
}

/* The next chunk for a place of the feed: one that this seat's dead trainer held, then a
 * new one, then one of another dead trainer. heirs_only leaves out new ones. */
static bool claim(void *of, int place, uint64_t *chunk)
{
    struct claims *c = of;

    if (claim_old(c, place, chunk))
        return true;
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

static void give_up(void *of, int place, bool done)
{
    const struct claims *c = of;
    (void)done;
    board_release(c->seat, place);
}

static bool take(void *of, int place, uint64_t *chunk)
{
    struct claims *c = of;
    uint64_t item = DESCANT_NO_ITEM;
    descant_status status = descant_deal_take(c->deals, MOMENT_S, &item);

    *chunk = FEED_NO_CHUNK;
    if (status == DESCANT_TIMEOUT)
        return true;
    if (status != DESCANT_OK)
        failed(of, descant_last_error());
    if (item == DESCANT_NO_ITEM)
        return false;
    c->dealt[place] = item;
    *chunk = board_part(c->board, item);
    return true;
}

static void end_at(void *of, uint64_t chunk)
{
    const struct claims *c = of;
    board_ended(c->board, chunk);
    descant_deal_end(c->deals, chunk);
}

static void give_back(void *of, int place, bool done)
{
    const struct claims *c = of;
    if (done)
        descant_deal_done(c->deals, c->dealt[place]);
    else
        descant_deal_back(c->deals, c->dealt[place]);
}

static size_t grant(void *of, size_t n, struct feed_grant *grant)
{
    const struct claims *c = of;

    *grant = (struct feed_grant){.begins = -1, .ends = -1};
    if (!c->limit)
        return n;
    grant->from = atomic_fetch_add_explicit(&c->board->granted, n, RELAXED);
    if (grant->from >= c->limit)
        return 0;
    uint64_t left = c->limit - grant->from;
    n = n > left ? (size_t)left : n;
    grant->begins = (double)grant->from / (double)c->limit;
    grant->ends = (double)(grant->from + n) / (double)c->limit;
    return n;
}

/* Where the job deals chunks, it deals the limit, too. */
static size_t spend(void *of, size_t n, struct feed_grant *grant)
{
    struct claims *c = of;
    struct descant_items units = {0};
    descant_status status = descant_deal_spend(c->deals, 0, n, &units);

    if (status == DESCANT_TIMEOUT)
        return FEED_LATER;
    if (status != DESCANT_OK)
        failed(of, descant_last_error());
    if (status != DESCANT_OK || units.from == DESCANT_NO_ITEM)
        return 0;
    uint64_t far = atomic_load_explicit(&c->board->granted, RELAXED);
    while (far < units.to && !atomic_compare_exchange_weak_explicit(
                                 &c->board->granted, &far, units.to, RELAXED, RELAXED))
        continue;
    grant->from = units.from;
    grant->begins = (double)units.from / (double)c->limit;
    grant->ends = (double)units.to / (double)c->limit;
    return (size_t)(units.to - units.from);
}

static void spent(void *of, uint64_t from, size_t n)
{
    const struct claims *c = of;
    descant_deal_spent(c->deals, &(struct descant_items){from, from + n}, true);
}

/* The share of the limit that is handed out; negative: there is no limit. */
static double granted(void *of)
{
    const struct claims *c = of;
    double n = (double)atomic_load_explicit(&c->board->granted, RELAXED);
    return c->limit ? fmin(n / (double)c->limit, 1) : -1;
}

/* The claims of the seat's former trainer stay in the seat until this feed's places take
 * them, one by one: should this trainer die before that, another one finds them. */
const struct feed_claims *claims_begin(struct claims *c)
{
    c->calls = (struct feed_claims){
        claim, past_end, failed, give_up, grant, NULL, granted, c};
    c->old = 0;
    if (c->deals) {
        c->calls.claim = take;
        c->calls.past_end = end_at;
        c->calls.give_up = give_back;
    }
    if (c->deals && c->limit) {
        c->calls.grant = spend;
        c->calls.spent = spent;
    }
    for (int k = 0; k < BOARD_CHUNKS; k++)
        if (atomic_load_explicit(&c->seat->claimed[k], memory_order_acquire))
            c->old |= UINT32_C(1) << k;
    return &c->calls;
}
