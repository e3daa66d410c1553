/* SPDX-License-Identifier: MIT */
/* A rank's own items. */
#include "ranks/leases.h"

#define NEWS_NS UINT64_C(250000000)     /* news wait so long for more */
#define HUNGRY_NS UINT64_C(5000000)

enum {
    WANT_MOST = 1 << 16,
    WINDOWS = 10,                       /* of the rate, in `ahead` */
    TOLD_MOST = LEASES_RUNS / 2         /* runs */
};

void own_init(struct own_items *o, uint64_t ahead_ns)
{
    *o = (struct own_items){
        .end = UINT64_MAX, .most = UINT64_MAX, .ahead_ns = ahead_ns, .want = 1};
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

/* The lowest item that is not done, and not this rank's already. */
static bool take_rest(const struct own_items *o, uint64_t *item)
{
    const struct runs *const not[] = {&o->done, &o->told, &o->fresh, &o->brought,
                                      &o->trained, &o->open};
    uint64_t at = 0, before;

    do {
        before = at;
        for (size_t k = 0; k < sizeof not / sizeof *not; k++)
            at = runs_gap(not[k], at).from;
    } while (at != before);
    *item = at < o->end ? at : UINT64_MAX;
    return at < o->end;
}

bool own_take(struct own_items *o, uint64_t *item, bool *good)
{
    bool waits = !o->most && o->open.n > 0 && !o->over, some = false;

    *item = UINT64_MAX;
    *good = true;
    if (o->alone) {
        some = take_rest(o, item);
    } else if (o->stock.n && !waits) {
        *item = o->stock.at[0].from;
        some = true;
    }
    if (some) {
        *good = runs_add(&o->open, *item, *item + 1) &&
                runs_remove(&o->stock, *item, *item + 1);
        o->took++;
        o->news = true;
        return *good;
    }
    o->hungry |= !waits && o->most;
    o->ended |= o->over;
    return o->alone || o->ended;
}

static bool move(struct own_items *o, uint64_t item, struct runs *to)
{
    if (!runs_has(&o->open, item))
        return true;
    o->news = true;
    return runs_add(to, item, item + 1) && runs_remove(&o->open, item, item + 1);
}

bool own_done(struct own_items *o, uint64_t item)
{
    return move(o, item, &o->trained);
}

bool own_back(struct own_items *o, uint64_t item)
{
    o->news = true;
    return runs_remove(&o->open, item, item + 1);
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

/* How many may be in stock. The last ones are taken one at a time. */
static uint64_t room(const struct own_items *o)
{
    return o->most ? o->most : !o->open.n;
}

static uint64_t lacks(const struct own_items *o)
{
    uint64_t stock = runs_count(&o->stock), most = room(o);

    most = o->want < most ? o->want : most;
    return o->over || o->ended || o->alone || stock >= most ? 0 : most - stock;
}

/* A new stock is asked for when half of it is left. */
bool own_due(const struct own_items *o, uint64_t now_ns)
{
    uint64_t since = now_ns - o->said_ns, lack = lacks(o), stock = runs_count(&o->stock);

    if (!o->begun)
        return false;
    if (!o->said_ns || stock > room(o))
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

    if (o->hungry && o->want < WANT_MOST)
        o->want *= 2;
    o->hungry = false;
    if (o->rate_ns && since < o->ahead_ns / WINDOWS)
        return;
    double want = 1 + (double)took * (double)o->ahead_ns / (double)since;
    uint64_t least = o->rate_ns ? o->want / 2 : o->want;
    o->want = want < WANT_MOST ? (uint64_t)want : (uint64_t)WANT_MOST;
    o->want = o->want < least ? least : o->want;
    o->rate_ns = now_ns;
    o->rate_took = o->took;
}

static void put(struct lease_list *list, const struct runs *set)
{
    for (size_t k = 0; k < set->n; k++) {
        struct run *last = &list->at[LEASES_RUNS - 1];
        if (list->n < LEASES_RUNS) {
            list->at[list->n++] = set->at[k];
            continue;
        }
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
    bool good = trim(o) & tell_fresh(o);
    *items = (struct lease_items){.serial = ++o->serial, .have = o->have,
                                  .want = lacks(o), .end = o->end,
                                  .stock = runs_count(&o->stock)};
    put(&items->trained, &o->trained);
    put(&items->trained, &o->brought);
    put(&items->trained, &o->fresh);
    put(&items->held, &o->stock);
    put(&items->held, &o->open);
    put(&items->done, &o->told);
    for (size_t k = 0; k < o->done.n && items->done.n < LEASES_RUNS; k++)
        items->done.at[items->done.n++] = o->done.at[k];
    o->asked = items->want > 0;
    o->news = o->fresh.n > 0;
    return good;
}

bool own_hear(struct own_items *o, const struct lease_deal *deal)
{
    bool good = runs_join(&o->done, deal->done.at, deal->done.n);

    if (deal->heard >= o->told_serial)
        good &= pour(&o->done, &o->told);
    if (deal->number > o->have) {
        if (!o->ended)          /* else the next word gives it back */
            good &= runs_join(&o->stock, deal->grant.at, deal->grant.n);
        o->have = deal->number;
        o->news = true;
    }
    own_end(o, deal->end);
    o->asked &= !deal->over && !deal->grant.n;
    o->over = deal->over && !o->stock.n;
    o->most = deal->most;
    return good;
}
