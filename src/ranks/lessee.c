/* SPDX-License-Identifier: MIT */
/* A rank's own items. */
#include "ranks/leases.h"

#define NEWS_NS UINT64_C(250000000)     /* news wait so long for more */
#define HUNGRY_NS UINT64_C(5000000)
#define PUT_NS UINT64_C(20000000)       /* so does an item that was read */

enum {
    WINDOWS = 10,                       /* of the rate, in `ahead` */
    TOLD_MOST = LEASES_RUNS / 2         /* runs */
};

void own_init(struct own_items *o, uint64_t ahead_ns)
{
    *o = (struct own_items){
        .end = UINT64_MAX, .most = UINT64_MAX, .ahead_ns = ahead_ns, .want = 1,
        .each = 1};
}

void own_feed(struct own_items *o)
{
    o->fed = o->fed ? o->fed : 1;
}

void own_put(struct own_items *o)
{
    o->fed++;
    o->puts = true;
}

bool own_begin(struct own_items *o, const struct run *done, size_t n, uint64_t each,
               bool waits)
{
    o->each = o->want = each < LEASES_WANT ? each : LEASES_WANT;
    o->waits = waits;
    o->begun = runs_join(&o->done, done, n);
    return o->begun;
}

void own_finish(struct own_items *o)
{
    runs_fini(&o->stock);
    o->ended = true;
}

void own_forget(struct own_items *o)
{
    own_fini(o);
    own_drop(o);
    o->have = 0;
}

void own_fini(struct own_items *o)
{
    runs_fini(&o->stock);
    runs_fini(&o->open);
    runs_fini(&o->trained);
    runs_fini(&o->brought);
    runs_fini(&o->fresh);
    runs_fini(&o->told);
    runs_fini(&o->done);
    runs_fini(&o->pending);
}

bool own_known(const struct own_items *o, struct runs *known)
{
    const struct runs *const all[] = {&o->done, &o->told, &o->fresh, &o->brought,
                                      &o->trained};
    bool good = true;

    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        good &= runs_join(known, all[k]->at, all[k]->n);
    return good;
}

/* The lowest items that are not done, and not this rank's already. */
static struct run find_rest(const struct own_items *o)
{
    const struct runs *const not[] = {&o->done, &o->told, &o->fresh, &o->brought,
                                      &o->trained, &o->open};
    uint64_t at = 0, to = o->end, before;

    if (o->fed && o->fed - 1 < to)
        to = o->fed - 1;

    do {
        before = at;
        for (size_t k = 0; k < sizeof not / sizeof *not; k++)
            at = runs_gap(not[k], at).from;
    } while (at != before);
    for (size_t k = 0; k < sizeof not / sizeof *not; k++) {
        struct run gap = runs_gap(not[k], at);
        to = gap.to < to ? gap.to : to;
    }
    return (struct run){at, to};
}

/* The last items are taken one at a time. A rank with threads that wait for each other in
 * their steps takes one more, lest the thread with an item wait for one without. */
static bool is_held_up(const struct own_items *o)
{
    return !o->most && o->open.n > 0 && !o->waits && !o->over;
}

bool own_take(struct own_items *o, uint64_t most, struct run *run, bool *good)
{
    struct run found = {0};

    *good = true;
    if (o->alone)
        found = find_rest(o);
    else if (o->stock.n && !is_held_up(o))
        found = o->stock.at[0];
    bool some = found.from < found.to;
    o->starves = !some && !is_held_up(o);
    if (some) {
        uint64_t n = found.to - found.from < most ? found.to - found.from : most;
        *run = (struct run){found.from, found.from + n};
        *good = runs_add(&o->open, run->from, run->to) &&
                runs_remove(&o->stock, run->from, run->to);
        o->took += n;
        o->news = true;
        return *good;
    }
    *run = (struct run){UINT64_MAX, UINT64_MAX};
    o->hungry |= o->starves && o->most;
    o->ended |= o->over;
    return o->alone || o->ended;
}

static bool move(struct own_items *o, struct run run, struct runs *to)
{
    if (runs_gap(&o->open, run.from).from < run.to)
        return true;
    o->news = true;
    return runs_add(to, run.from, run.to) && runs_remove(&o->open, run.from, run.to);
}

bool own_done(struct own_items *o, struct run run)
{
    return move(o, run, &o->trained);
}

bool own_back(struct own_items *o, struct run run)
{
    o->news = true;
    return runs_remove(&o->open, run.from, run.to);
}

static bool pour(struct runs *to, struct runs *from)
{
    bool good = runs_join(to, from->at, from->n);

    if (good)
        runs_fini(from);
    return good;
}

bool own_brings(struct own_items *o)
{
    return pour(&o->brought, &o->trained);
}

bool own_merged(struct own_items *o)
{
    o->news |= o->brought.n > 0;
    return pour(&o->fresh, &o->brought);
}

void own_lost(struct own_items *o)
{
    o->news |= o->trained.n || o->brought.n;
    runs_fini(&o->trained);
    runs_fini(&o->brought);
}

bool own_ended(struct own_items *o)
{
    return pour(&o->done, &o->pending);
}

void own_end(struct own_items *o, uint64_t end)
{
    o->news |= end < o->end;
    o->end = end < o->end ? end : o->end;
    runs_remove(&o->stock, o->end, UINT64_MAX);     /* makes no run more */
}

void own_drop(struct own_items *o)
{
    runs_fini(&o->stock);
    o->over = false;
    o->most = UINT64_MAX;
}

/* How many may be in stock. In the end only for a take that waits: a thread that takes
 * items may wait, in a step, for another rank, which waits for items. */
static uint64_t room(const struct own_items *o)
{
    return o->most ? o->most : o->starves ? o->each : 0;
}

static uint64_t lacks(const struct own_items *o)
{
    uint64_t stock = runs_count(&o->stock), most = room(o);

    most = o->want < most ? o->want : most;
    most = o->fed && most > LEASES_AHEAD ? (uint64_t)LEASES_AHEAD : most;
    bool takes = o->begun && !o->over && !o->ended && !o->alone;
    return takes && stock < most ? most - stock : 0;
}

/* A new stock is asked for when half of it is left. */
bool own_due(const struct own_items *o, uint64_t now_ns)
{
    uint64_t since = now_ns - o->said_ns, lack = lacks(o), stock = runs_count(&o->stock);

    if (!o->begun)
        return false;
    if (!o->said_ns || stock > room(o) ||
        ((o->puts || o->presses) && since >= PUT_NS))
        return true;
    if (lack >= stock && lack && !o->asked)
        return since >= HUNGRY_NS;
    return o->news && !o->told.n && since >= (o->most ? NEWS_NS : HUNGRY_NS);
}

/* As many as were taken in `ahead`; twice as many where that was too few, as at the
 * start. */
static void look_rate(struct own_items *o, uint64_t now_ns)
{
    uint64_t since = now_ns - o->rate_ns, took = o->took - o->rate_took;

    if (o->hungry && o->want < LEASES_WANT)
        o->want *= 2;
    o->hungry = false;
    if (o->rate_ns && since < o->ahead_ns / WINDOWS)
        return;
    double want = 1 + (double)took * (double)o->ahead_ns / (double)since;
    uint64_t least = o->rate_ns ? o->want / 2 : o->want;
    o->want = want < LEASES_WANT ? (uint64_t)want : (uint64_t)LEASES_WANT;
    least = least > o->each ? least : o->each;
    o->want = o->want < least ? least : o->want;
    o->rate_ns = now_ns;
    o->rate_took = o->took;
}

static void add_wide(struct lease_list *list, const struct runs *set)
{
    uint32_t had = list->n;

    lease_list_add(list, set);
    for (size_t k = list->n - had; k < set->n; k++) {
        struct run *last = &list->at[LEASES_RUNS - 1];
        last->from = set->at[k].from < last->from ? set->at[k].from : last->from;
        last->to = set->at[k].to > last->to ? set->at[k].to : last->to;
        list->wide = true;
    }
}

/* Into the word of the next serial. */
static bool tell_fresh(struct own_items *o)
{
    bool good = true;

    while (good && o->fresh.n && o->told.n < TOLD_MOST) {
        o->told_serial = o->serial + 1;
        struct run run = o->fresh.at[0];
        good = runs_add(&o->told, run.from, run.to) &&
               runs_remove(&o->fresh, run.from, run.to);
    }
    return good;
}

/* Gives the highest items back. */
static bool trim(struct own_items *o)
{
    uint64_t keep = room(o), from = 0;

    for (size_t k = 0; k < o->stock.n; k++) {
        uint64_t n = o->stock.at[k].to - o->stock.at[k].from;
        from = o->stock.at[k].from + (n < keep ? n : keep);
        keep -= n < keep ? n : keep;
        if (!keep)
            break;
    }
    return keep > 0 || runs_remove(&o->stock, from, UINT64_MAX);
}

bool own_tell(struct own_items *o, struct lease_items *items, uint64_t now_ns)
{
    look_rate(o, now_ns);
    o->said_ns = now_ns;
    bool good = trim(o);
    good &= tell_fresh(o);
    *items = (struct lease_items){.serial = ++o->serial, .have = o->have,
                                  .want = lacks(o), .end = o->end,
                                  .each = o->each,
                                  .fed = o->fed, .cut = o->cut,
                                  .presses = o->presses,
                                  .stock = runs_count(&o->stock)};
    add_wide(&items->trained, &o->trained);
    add_wide(&items->trained, &o->brought);
    add_wide(&items->trained, &o->fresh);
    add_wide(&items->held, &o->stock);
    add_wide(&items->held, &o->open);
    lease_list_add(&items->done, &o->told);
    lease_list_add(&items->done, &o->done);
    o->asked = items->want > 0;
    o->puts = o->presses = false;
    o->news = o->fresh.n > 0;
    return good;
}

/* What is known to be done is not done again: the dealer may lack it. */
static bool take_grant(struct own_items *o, struct run run)
{
    bool good = true;

    for (uint64_t at = run.from; at < run.to;) {
        struct run gap = runs_gap(&o->done, at);
        uint64_t from = gap.from < run.to ? gap.from : run.to;
        uint64_t to = gap.to < run.to ? gap.to : run.to;
        good &= runs_add(&o->fresh, at, from);
        good &= o->ended || runs_add(&o->stock, from, to);
        at = to;
    }
    return good;
}

/* The next word gives a grant back that came too late. */
bool own_hear(struct own_items *o, const struct lease_deal *deal)
{
    bool good = runs_join(&o->done, deal->done.at, deal->done.n);

    o->heard = deal->heard;
    if (deal->heard >= o->told_serial)
        good &= pour(&o->done, &o->told);
    if (deal->final) {
        runs_fini(&o->pending);
        good &= runs_join(&o->pending, deal->pending.at, deal->pending.n);
    }
    for (uint32_t k = 0; deal->number > o->have && k < deal->grant.n; k++)
        good &= take_grant(o, deal->grant.at[k]);
    o->news |= deal->number > o->have;
    o->have = deal->number > o->have ? deal->number : o->have;
    own_end(o, deal->end);
    o->fed = deal->fed > o->fed ? deal->fed : o->fed;
    o->cut |= deal->cut;
    o->others_starve = deal->hungry;
    o->asked &= !deal->over && !deal->grant.n;
    o->over = deal->over && !o->stock.n;
    o->most = deal->most;
    return good;
}
