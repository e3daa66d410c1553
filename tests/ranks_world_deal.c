/* SPDX-License-Identifier: MIT */
/* Items that the trainers of a world are dealt: each is at one for a while, and brings those
 * that it has done to its next exchange. So:
 *
 *   1 nothing counts as done, with anybody, that no trainer had in an exchange that merged
 *   2 once the faults have ended, each item that the dealer takes for done or for somebody's
 *     is in some exchange, or with somebody who lives: none is left out
 *   3 items are done then (faults.c looks)
 *   4 where items have bytes each trainer gets the right ones, of items that were read, and
 *     none is lost as long as the one that reads is there */
#include "ranks/leases.h"
#include "ranks_world.h"

#include <string.h>

enum { ITEM_NS = 200000000, UNITS = 3, LOOK_NS = 20000000, LARGEST = 600000, KEPT = 64 << 20 };

#define CALM_S 1.0

static void move(bool *to, bool *from)
{
    for (int i = 0; i < WORLD_ITEMS; i++) {
        to[i] |= from[i];
        from[i] = false;
    }
}

void world_deal_start(struct ranks_world *w, int rank)
{
    struct trainer_deal *d = &w->trainers[rank].deal;

    *d = (struct trainer_deal){.item = -1};
}

void world_deal_begins(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];

    if (!w->deals)
        return;
    ranks_deals.brings(t->f);
    move(t->deal.brought, t->deal.trained);
    t->deal.missed = atomic_load_explicit(&t->f->missed, memory_order_relaxed);
}

void world_deal_merges(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];

    if (!w->deals ||
        t->deal.missed != atomic_load_explicit(&t->f->missed, memory_order_relaxed))
        return;
    for (int i = 0; i < WORLD_ITEMS; i++) {
        w->items_twice += t->deal.brought[i] && w->items[i];
        w->n_items += t->deal.brought[i] && !w->items[i];
    }
    move(w->items, t->deal.brought);
    ranks_deals.merged(t->f);
}

/* A state replaces what it has trained. */
void world_deal_loses(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];

    if (!w->deals || !t->deal.begun)
        return;
    memset(t->deal.trained, 0, sizeof t->deal.trained);
    memset(t->deal.brought, 0, sizeof t->deal.brought);
    ranks_deals.lost(t->f);
}

static size_t bytes_of(uint64_t item)
{
    return item % 97 == 5 ? LARGEST - (size_t)item : 1 + (size_t)(item * 131 % 700);
}

static const unsigned char *fill(uint64_t item)
{
    static unsigned char bytes[LARGEST];
    for (size_t k = 0; k < bytes_of(item); k++)
        bytes[k] = (unsigned char)(item + k + k / 300);
    return bytes;
}

static void read_item(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];
    enum deal_bytes put = ranks_deals.put(t->f, fill(w->read), bytes_of(w->read));

    w->read += put == DEAL_HERE;
    t->deal.reads = (put == DEAL_HERE || put == DEAL_LATER) && w->read < WORLD_ITEMS;
    if (w->read == WORLD_ITEMS)
        ranks_deals.end(t->f, DEAL_ITEMS, WORLD_ITEMS);
}

/* False: they have not come. */
static bool get_bytes(struct ranks_world *w, int rank)
{
    static unsigned char bytes[LARGEST];
    struct world_trainer *t = &w->trainers[rank];
    uint64_t item = (uint64_t)t->deal.item;
    size_t n = 0;
    enum deal_bytes got =
        ranks_deals.get(t->f, item, &(struct deal_room){bytes, sizeof bytes, &n});

    if (item >= w->read)
        world_fail(w, rank, "it has item %d, which was not read", (int)item);
    if (got == DEAL_HERE && n == 0 && !w->items[item])
        world_fail(w, rank, "item %d is in no exchange", (int)item);
    if (got == DEAL_HERE && n && (n != bytes_of(item) || memcmp(bytes, fill(item), n) != 0))
        world_fail(w, rank, "item %d has other bytes", (int)item);
    if (got == DEAL_NONE && !ranks_deal_own(ranks_of(t->f), DEAL_ITEMS)->cut)
        world_fail(w, rank, "item %d is lost", (int)item);
    w->n_lost += got == DEAL_NONE;
    return got != DEAL_LATER;
}

static uint64_t each_of(const struct ranks_world *w)
{
    return w->kind == DEAL_UNITS ? UNITS : 1;
}

void world_deal_turn(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];
    struct trainer_deal *d = &t->deal;
    uint64_t now = simulated_now(w->link);
    struct descant_items items;

    if (!w->deals || !t->states)
        return;
    if (!d->begun && w->fed) {
        ranks_deals.feed(t->f, 0, KEPT);
        d->reads = rank == 0;
    }
    if (!d->begun) {
        ranks_deals.begin(t->f, w->kind, &(struct fabric_work){.each = each_of(w)});
        if (!w->fed)
            ranks_deals.end(t->f, w->kind, WORLD_ITEMS);
        d->begun = true;
    }
    w->cut |= w->fed && ranks_deal_own(ranks_of(t->f), w->kind)->cut;
    if (d->reads)
        read_item(w, rank);
    if (d->wants && get_bytes(w, rank)) {
        d->wants = false;
        d->until_ns = now + (uint64_t)(rng_uniform(&w->rng) * ITEM_NS);
    }
    if (d->item >= 0 && !d->wants && now >= d->until_ns) {
        items = (struct descant_items){(uint64_t)d->item, (uint64_t)d->to};
        ranks_deals.done(t->f, w->kind, &items);
        for (; d->item < d->to; d->item++)
            d->trained[d->item] = true;
        d->item = -1;
    }
    if (d->item >= 0 || t->finishes || d->over ||
        !ranks_deals.take(t->f, w->kind, each_of(w), &items))
        return;
    d->over = items.from == DESCANT_NO_ITEM;
    d->item = d->over ? -1 : (int)items.from;
    d->to = (int)items.to;
    d->wants = w->fed && !d->over;
    d->until_ns = now + (uint64_t)(rng_uniform(&w->rng) * ITEM_NS);
}

uint64_t world_deal_due(const struct ranks_world *w, int rank)
{
    const struct trainer_deal *d = &w->trainers[rank].deal;
    if (w->deals && (d->reads || d->wants))
        return simulated_now(w->link) + LOOK_NS;
    return w->deals && d->item >= 0 ? d->until_ns : 0;
}

static bool is_lists(const struct own_items *o, uint64_t i)
{
    return runs_has(&o->stock, i) || runs_has(&o->open, i) || runs_has(&o->trained, i) ||
           runs_has(&o->brought, i) || runs_has(&o->fresh, i) || runs_has(&o->told, i);
}

static bool somebody_has(const struct ranks_world *w, uint64_t i)
{
    for (int k = 0; k < w->options.ranks; k++)
        if (w->trainers[k].f && simulated_lives(w->link, k) &&
            is_lists(ranks_deal_own(ranks_of(w->trainers[k].f), w->kind), i))
            return true;
    return false;
}

/* The dealer takes it for somebody's, and nobody has it. */
static bool is_left_out(const struct ranks_world *w, uint64_t i)
{
    for (int k = 0; k < w->options.ranks; k++) {
        const struct world_trainer *t = &w->trainers[k];
        bool lives = t->f && t->states && simulated_lives(w->link, k);
        const struct leases *leases = lives ? ranks_deal_leases(ranks_of(t->f), w->kind) : NULL;
        if (leases && runs_has(&leases->busy, i) && !w->items[i] && !somebody_has(w, i))
            return true;
    }
    return false;
}

void world_deal_check(struct ranks_world *w)
{
    for (int k = 0; w->deals && k < w->options.ranks; k++) {
        const struct world_trainer *t = &w->trainers[k];
        if (!t->f || !t->states || !simulated_lives(w->link, k))
            continue;
        const struct own_items *own = ranks_deal_own(ranks_of(t->f), w->kind);
        for (uint64_t i = 0; i < WORLD_ITEMS; i++)
            if (runs_has(&own->done, i) && !w->items[i])
                world_fail(w, k, "item %d counts as done", (int)i);
    }
}

/* What a grant that is on its way has is left out for a moment. */
void world_deal_check_calm(struct ranks_world *w)
{
    bool left_out[WORLD_ITEMS];

    if (!w->deals)
        return;
    for (uint64_t i = 0; i < WORLD_ITEMS; i++)
        left_out[i] = is_left_out(w, i);
    world_run(w, CALM_S);
    for (uint64_t i = 0; i < WORLD_ITEMS; i++)
        if (left_out[i] && is_left_out(w, i))
            world_fail(w, 0, "item %d is left out", (int)i);
}
