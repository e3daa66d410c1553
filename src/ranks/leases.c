/* SPDX-License-Identifier: MIT */
/* The dealer. */
#include "ranks/leases.h"

struct lessee {
    uint64_t generation;        /* 0: no member */
    bool told;                  /* what it has is known */
    bool asks, tell;            /* it waits for items; it is to have a word */
    uint64_t want, stock, heard;
    uint64_t have, given;       /* numbers of grants: the last that it has taken; that
                                   was given */
    bool wide, trained_wide;    /* its lists have items of others */
    bool recalled;              /* it was asked, or told `most`, and has not answered */
    struct runs trained, held, grant;
};

bool leases_init(struct leases *l, int size, uint64_t patience_ns)
{
    *l = (struct leases){.size = size, .patience_ns = patience_ns, .end = UINT64_MAX};
    l->of = memory_take_array((size_t)size, sizeof *l->of);
    return l->of;
}

static void forget(struct lessee *of)
{
    runs_fini(&of->trained);
    runs_fini(&of->held);
    runs_fini(&of->grant);
    *of = (struct lessee){0};
}

void leases_fini(struct leases *l)
{
    for (int k = 0; l->of && k < l->size; k++)
        forget(&l->of[k]);
    memory_give(l->of);
    runs_fini(&l->done);
    runs_fini(&l->busy);
    runs_fini(&l->pending);
}

void leases_begin(struct leases *l, uint64_t now_ns)
{
    for (int k = 0; k < l->size; k++)
        forget(&l->of[k]);
    l->members = 0;
    l->since_ns = now_ns;
    l->final = false;
    runs_fini(&l->pending);
    runs_fini(&l->busy);
    runs_join(&l->busy, l->done.at, l->done.n);
    l->changed = true;
}

/* --- what a member has --- */

/* Items that are done stay busy. */
static bool free_set(struct leases *l, const struct runs *set)
{
    bool good = true;

    for (size_t k = 0; k < set->n; k++) {
        struct run gap = runs_gap(&l->done, set->at[k].from);
        for (; gap.from < set->at[k].to; gap = runs_gap(&l->done, gap.to))
            good &= runs_remove(&l->busy, gap.from,
                                gap.to < set->at[k].to ? gap.to : set->at[k].to);
    }
    return good;
}

static bool take_all(struct leases *l, const struct lessee *of)
{
    bool good = runs_join(&l->busy, of->trained.at, of->trained.n);
    good &= runs_join(&l->busy, of->held.at, of->held.n);
    good &= runs_join(&l->busy, of->grant.at, of->grant.n);
    return good;
}

/* Wide lists have items of others, which stay theirs. */
static bool free_all(struct leases *l, struct lessee *of)
{
    bool good = free_set(l, &of->trained);

    good &= free_set(l, &of->held);
    good &= free_set(l, &of->grant);
    l->changed = true;
    for (int k = 0; of->wide && k < l->size; k++)
        if (&l->of[k] != of)
            good &= take_all(l, &l->of[k]);
    return good;
}

static bool set_list(struct runs *set, const struct lease_list *list)
{
    runs_fini(set);
    return runs_join(set, list->at, list->n);
}

static bool take_done(struct leases *l, const struct run *done, size_t n)
{
    bool good = runs_join(&l->done, done, n);
    good &= runs_join(&l->busy, done, n);
    return good;
}

bool leases_member(struct leases *l, int rank, uint64_t generation)
{
    struct lessee *of = &l->of[rank];

    if (of->generation == generation)
        return true;
    bool good = free_all(l, of);
    l->members += (generation != 0) - (of->generation != 0);
    forget(of);
    of->generation = generation;
    return good;
}

static void tell_all(struct leases *l)
{
    for (int k = 0; k < l->size; k++)
        l->of[k].tell |= l->of[k].generation != 0;
}

/* Items from here on are not dealt. */
static uint64_t bound(const struct leases *l)
{
    return l->fed && l->fed - 1 < l->end ? l->fed - 1 : l->end;
}

static void cut(struct leases *l)
{
    if (l->cut)
        return;
    l->cut = l->changed = true;
    l->end = bound(l);
    tell_all(l);
}

/* A word that comes late says nothing. A rank that has told nothing yet has nothing that
 * this dealer gave. */
bool leases_hear(struct leases *l, int rank, const struct lease_items *items)
{
    struct lessee *of = &l->of[rank];

    if (!of->generation || (of->told && items->serial <= of->heard))
        return true;
    bool good = free_all(l, of);
    of->given = items->have > of->given ? items->have : of->given;
    of->have = items->have;
    if (of->have == of->given)
        runs_fini(&of->grant);
    good &= set_list(&of->trained, &items->trained);
    good &= set_list(&of->held, &items->held);
    good &= take_done(l, items->done.at, items->done.n);
    good &= take_all(l, of);
    of->trained_wide = items->trained.wide;
    of->wide = items->trained.wide || items->held.wide;
    uint64_t held = runs_count(&of->held);
    of->stock = items->stock < held ? items->stock : held;
    uint64_t each = items->each < LEASES_WANT ? items->each : (uint64_t)LEASES_WANT;
    l->each = each > l->each ? each : l->each;
    of->want = items->want < LEASES_WANT ? items->want : LEASES_WANT;
    of->heard = items->serial;
    of->asks = items->want > 0;
    of->tell |= !of->asks || items->presses;
    of->told = true;
    of->recalled = false;
    if (items->end < l->end)
        tell_all(l);
    l->end = items->end < l->end ? items->end : l->end;
    l->fed = items->fed > l->fed ? items->fed : l->fed;
    if (items->cut)
        cut(l);
    return good;
}

void leases_final(struct leases *l)
{
    runs_fini(&l->pending);
    for (int k = 0; k < l->size && !l->final; k++)
        l->final = l->of[k].told;
    if (l->final)
        tell_all(l);
}

/* The last run of a list may be the wide one: those items are done twice then. */
bool leases_final_of(struct leases *l, int rank)
{
    const struct lessee *of = &l->of[rank];
    return runs_join(&l->pending, of->trained.at,
                     of->trained.n - (of->trained_wide && of->trained.n));
}

/* --- dealing --- */

/* UINT64_MAX: the end is not known. */
static uint64_t count_free(const struct leases *l)
{
    uint64_t end = bound(l), n = end;

    for (size_t k = 0; n != UINT64_MAX && k < l->busy.n; k++) {
        const struct run *run = &l->busy.at[k];
        if (run->from < end)
            n -= (run->to < end ? run->to : end) - run->from;
    }
    return n;
}

static void count(struct leases *l)
{
    if (!l->changed)
        return;
    l->changed = false;
    l->n_left = l->n_free = count_free(l);
    l->all_told = true;
    for (int k = 0; k < l->size; k++) {
        const struct lessee *of = &l->of[k];
        if (!of->generation)
            continue;
        l->all_told &= of->told;
        if (l->n_free != UINT64_MAX)
            l->n_left += of->stock + runs_count(&of->grant);
    }
}

/* Those that have not told what they have are to do so. */
static void ask_all(struct leases *l)
{
    for (int k = 0; k < l->size; k++) {
        struct lessee *of = &l->of[k];
        if (of->generation && !of->told && !of->recalled)
            of->tell = of->recalled = true;
    }
}

/* Some member may have what this dealer does not know of. */
static bool is_early(struct leases *l, uint64_t now_ns)
{
    count(l);
    return now_ns - l->since_ns < l->patience_ns && !l->all_told;
}

void leases_cut(struct leases *l, uint64_t now_ns)
{
    if (is_early(l, now_ns))
        ask_all(l);
    else if (l->fed)
        cut(l);
}

/* All that have more than `most` in stock are to give it back. */
static void recall(struct leases *l, uint64_t most)
{
    for (int k = 0; k < l->size; k++) {
        struct lessee *of = &l->of[k];
        if (of->generation && of->stock > most && !of->recalled)
            of->tell = of->recalled = true;
    }
}

static void grant(struct leases *l, struct lessee *of, uint64_t n)
{
    struct run gap = runs_gap(&l->busy, 0);

    uint64_t end = bound(l);
    of->given++;
    l->changed = true;
    for (; n && gap.from < end && of->grant.n < LEASES_RUNS;
         gap = runs_gap(&l->busy, gap.from)) {
        uint64_t to = gap.to < end ? gap.to : end;
        to = to - gap.from > n ? gap.from + n : to;
        /* without memory the item stays free, and this rank's grant is smaller */
        if (!runs_add(&l->busy, gap.from, to))
            return;
        if (!runs_add(&of->grant, gap.from, to)) {
            runs_remove(&l->busy, gap.from, to);
            return;
        }
        n -= to - gap.from;
    }
}

void lease_list_add(struct lease_list *list, const struct runs *set)
{
    for (size_t k = 0; k < set->n && list->n < LEASES_RUNS; k++)
        list->at[list->n++] = set->at[k];
}

static bool is_hungry(const struct leases *l)
{
    bool hungry = false;

    for (int k = 0; l->fed && !l->n_free && k < l->size; k++)
        hungry |= l->of[k].generation && l->of[k].asks;
    return hungry;
}

/* A rank that asks while nothing is free waits until others have given theirs back, or
 * have gone. One whose grant is on its way may have lost it, and is told it again. */
bool leases_deal(struct leases *l, int rank, struct lease_deal *deal, uint64_t now_ns)
{
    struct lessee *of = &l->of[rank];

    if (!of->generation || !(of->asks || of->tell))
        return false;
    count(l);
    uint64_t each = l->each ? l->each : 1;
    uint64_t most =
        l->n_left == UINT64_MAX ? UINT64_MAX : l->n_left / (2 * (uint64_t)l->members);
    most = most < each ? 0 : most;
    bool ends = bound(l) == l->end;
    uint64_t least = most ? most : each;
    bool asks = of->asks && !of->grant.n;
    bool early = is_early(l, now_ns);
    bool waits = asks && (early || (!l->n_free && (l->n_left || !ends)));
    bool over = asks && !l->n_left && ends;
    if (waits && early)
        ask_all(l);
    else if (waits)
        recall(l, most);
    if (waits && !of->tell)
        return false;
    if (asks && !waits && !over)
        grant(l, of, of->want < least ? of->want : least);
    of->asks = waits;
    of->tell = false;
    *deal = (struct lease_deal){.heard = of->heard, .number = of->given, .end = l->end,
                                .over = over, .most = most, .final = l->final,
                                .fed = l->fed, .cut = l->cut,
                                .hungry = is_hungry(l)};
    lease_list_add(&deal->grant, &of->grant);
    lease_list_add(&deal->done, &l->done);
    lease_list_add(&deal->pending, &l->pending);
    return true;
}
