/* SPDX-License-Identifier: MIT */
/* Items for ranks by need. leases.c and lessee.c have the rules, this file their words:
 *
 *   ITEMS  to the coordinator: said when a rank wants items, has news, or begins its
 *          finish; to each coordinator of a later epoch; and again each dead / 4, until
 *          it is answered
 *   DEAL   from the coordinator: the answer; to all, once few items are left
 *
 * The lock guards `own`, which callers' threads share with the holder of the round
 * machine. All else belongs to that holder. */
#include "ranks/lead.h"
#include "ranks/leases.h"

#include <string.h>

enum { AGAIN = 4 /* in the time `dead` */ };
#define FIXED_AHEAD_NS UINT64_C(60000000000)    /* nobody who is cut off is put out */
enum { TRAINED_WIDE = 1, HELD_WIDE = 2, OVER = 1, FINAL = 2 };

struct ranks_deal {
    pthread_mutex_t lock;
    struct own_items own;
    bool starved;               /* there was no memory; under the lock */
    struct leases leases;
    bool deals, was_member, soon;
    uint64_t epoch, said_epoch; /* of the leases; of the last ITEMS */
    int n_left;
    struct {
        struct ranks_items head;
        struct run runs[3 * LEASES_RUNS];
    } out;
    struct lease_items items;
    struct lease_deal deal;
};

_Static_assert(sizeof(struct ranks_items) <= 64, "RANKS_ITEMS_BYTES has room for it");
_Static_assert(sizeof(struct run) == sizeof(struct descant_items), "as a caller's");

descant_status ranks_deal_init(struct ranks *m)
{
    struct ranks_deal *d = m->deal = memory_take(sizeof *d);

    if (!d)
        return DESCANT_MEMORY;
    pthread_mutex_init(&d->lock, NULL);
    own_init(&d->own, m->place.fixed ? FIXED_AHEAD_NS : m->dead_ns);
    uint64_t patience_ns = m->place.fixed ? 0 : m->dead_ns;
    bool good = !m->lead || leases_init(&d->leases, m->place.size, patience_ns);
    return good ? DESCANT_OK : DESCANT_MEMORY;
}

void ranks_deal_fini(struct ranks *m)
{
    if (!m->deal)
        return;
    pthread_mutex_destroy(&m->deal->lock);
    own_fini(&m->deal->own);
    leases_fini(&m->deal->leases);
    memory_give(m->deal);
}

/* Members that have come or gone since the last look. Where the link is fixed they can
 * only leave. */
static bool look_members(struct ranks *m)
{
    struct ranks_deal *d = m->deal;
    uint64_t epoch = ledger_view(m->ledger).epoch;
    bool good = true;

    if (!d->deals)
        leases_begin(&d->leases, m->now_ns);
    if (d->deals && epoch == d->epoch && d->n_left == m->lead->n_left)
        return true;
    d->deals = true;
    d->epoch = epoch;
    d->n_left = m->lead->n_left;
    for (int k = 0; k < m->place.size; k++)
        good &= leases_member(&d->leases, k,
                              m->place.fixed ? !m->lead->peers[k].left : m->members[k]);
    return good;
}

/* --- words --- */

static size_t put(struct ranks_deal *d, size_t at, int k, const struct lease_list *list)
{
    d->out.head.n[k] = list->n;
    memcpy(d->out.runs + at, list->at, list->n * sizeof *list->at);
    return at + list->n;
}

static const char *take(struct lease_list *list, const char *at, uint32_t n)
{
    list->n = n;
    list->wide = false;
    memcpy(list->at, at, n * sizeof *list->at);
    return at + n * sizeof *list->at;
}

static bool tell(struct ranks *m, int rank, enum ranks_what what, size_t n)
{
    struct ranks_deal *d = m->deal;
    return ranks_tell(m, rank, (struct ranks_word){.what = what}, &d->out,
                      sizeof d->out.head + n * sizeof *d->out.runs);
}

static void say_items(struct ranks *m)
{
    struct ranks_deal *d = m->deal;
    const struct lease_items *items = &d->items;

    d->out.head = (struct ranks_items){
        .serial = items->serial, .grant = items->have, .want = items->want,
        .stock = items->stock, .end = items->end,
        .flags = (items->trained.wide ? TRAINED_WIDE : 0) |
                 (items->held.wide ? HELD_WIDE : 0)};
    size_t n = put(d, put(d, put(d, 0, 0, &items->trained), 1, &items->held), 2,
                   &items->done);
    tell(m, m->coordinator, WORD_ITEMS, n);
}

static void say_deal(struct ranks *m, int rank)
{
    struct ranks_deal *d = m->deal;
    const struct lease_deal *deal = &d->deal;

    d->out.head = (struct ranks_items){
        .serial = deal->heard, .grant = deal->number, .end = deal->end,
        .stock = deal->most,
        .flags = (deal->over ? OVER : 0) | (deal->final ? FINAL : 0)};
    size_t n = put(d, put(d, put(d, 0, 0, &deal->grant), 1, &deal->pending), 2,
                   &deal->done);
    tell(m, rank, WORD_DEAL, n);
}

static void hear_items(struct ranks *m, int from, const struct ranks_items *head,
                       const char *at)
{
    struct ranks_deal *d = m->deal;
    struct lease_items *items = &d->items;

    items->serial = head->serial;
    items->have = head->grant;
    items->want = head->want;
    items->stock = head->stock;
    items->end = head->end;
    at = take(&items->trained, at, head->n[0]);
    at = take(&items->held, at, head->n[1]);
    take(&items->done, at, head->n[2]);
    items->trained.wide = head->flags & TRAINED_WIDE;
    items->held.wide = head->flags & HELD_WIDE;
    if (m->leads && !(look_members(m) && leases_hear(&d->leases, from, items)))
        ranks_fail(m, DESCANT_MEMORY, "no memory for items");
}

static void hear_deal(struct ranks *m, const struct ranks_items *head, const char *at)
{
    struct ranks_deal *d = m->deal;
    struct lease_deal deal = {.heard = head->serial, .number = head->grant,
                              .end = head->end, .most = head->stock,
                              .over = head->flags & OVER,
                              .final = head->flags & FINAL};

    at = take(&deal.grant, at, head->n[0]);
    at = take(&deal.pending, at, head->n[1]);
    take(&deal.done, at, head->n[2]);
    pthread_mutex_lock(&d->lock);
    d->starved |= !own_hear(&d->own, &deal);
    pthread_mutex_unlock(&d->lock);
    d->soon |= deal.heard == 0;         /* the dealer asks what this rank has */
    m->moved = true;
}

void ranks_deal_hear(struct ranks *m, int from, const struct ranks_word *word)
{
    const char *at = (const char *)(word + 1);
    struct ranks_items head;

    memcpy(&head, at, sizeof head);
    if (!m->deal)
        return;
    if (word->what == WORD_ITEMS)
        hear_items(m, from, &head, at + sizeof head);
    else
        hear_deal(m, &head, at + sizeof head);
}

/* --- the coordinator --- */

static void deal_all(struct ranks *m)
{
    struct ranks_deal *d = m->deal;

    if (!look_members(m))
        ranks_fail(m, DESCANT_MEMORY, "no memory for items");
    for (int k = 0; k < m->place.size; k++)
        if (leases_deal(&d->leases, k, &d->deal, m->now_ns))
            say_deal(m, k);
}

/* A mean has the work of all but those whose vectors are not finite; a state, its
 * source's. */
void ranks_deal_final(struct ranks *m, int source)
{
    struct ranks_deal *d = m->deal;
    bool good = true;

    if (!d || !d->deals)
        return;
    leases_final(&d->leases);
    for (int k = 0; k < m->place.size; k++)
        if (m->list[k].seq && (source < 0 ? !m->lead->peers[k].offer.bad : k == source))
            good &= leases_final_of(&d->leases, k);
    if (!good)
        ranks_fail(m, DESCANT_MEMORY, "no memory for items");
    deal_all(m);
}

/* --- a turn --- */

void ranks_deal_soon(struct ranks *m)
{
    struct ranks_deal *d = m->deal;

    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->soon |= d->own.begun;
    own_finish(&d->own);
    pthread_mutex_unlock(&d->lock);
}

void ranks_deal_ended(struct ranks *m)
{
    struct ranks_deal *d = m->deal;

    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->starved |= !own_ended(&d->own);
    pthread_mutex_unlock(&d->lock);
}

void ranks_deal_forget(struct ranks *m)
{
    struct ranks_deal *d = m->deal;

    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    own_forget(&d->own);
    pthread_mutex_unlock(&d->lock);
}

/* A word, or its answer, may be lost. */
static bool is_lost(const struct ranks *m)
{
    const struct own_items *own = &m->deal->own;
    return !m->place.fixed && own->heard < own->serial &&
           m->now_ns - own->said_ns > m->dead_ns / AGAIN;
}

/* A rank that takes no items says what it has, which is nothing, where it is asked. */
static void tell_own(struct ranks *m)
{
    struct ranks_deal *d = m->deal;
    const struct ledger_view view = ledger_view(m->ledger);

    pthread_mutex_lock(&d->lock);
    if (d->was_member && !view.member)
        own_drop(&d->own);
    d->was_member = view.member;
    bool due = view.member &&
               (d->soon || (d->own.begun && (d->said_epoch != view.epoch || is_lost(m) ||
                                             own_due(&d->own, m->now_ns))));
    if (due)
        d->starved |= !own_tell(&d->own, &d->items, m->now_ns);
    bool starved = d->starved;
    pthread_mutex_unlock(&d->lock);
    d->soon &= !due;
    d->said_epoch = view.epoch;
    if (starved)
        ranks_fail(m, DESCANT_MEMORY, "no memory for items");
    else if (due)
        say_items(m);
}

void ranks_deal_turn(struct ranks *m)
{
    struct ranks_deal *d = m->deal;

    if (!d || !m->started)
        return;
    d->deals &= m->leads;
    tell_own(m);
    if (m->leads)
        deal_all(m);
}

const struct own_items *ranks_deal_own(const struct ranks *m)
{
    return &m->deal->own;
}

const struct leases *ranks_deal_leases(const struct ranks *m)
{
    return m->deal->deals ? &m->deal->leases : NULL;
}

/* --- the table --- */

static struct ranks_deal *enter(struct fabric *f)
{
    struct ranks_deal *d = ranks_of(f)->deal;
    pthread_mutex_lock(&d->lock);
    return d;
}

static void leave(struct ranks_deal *d, bool good)
{
    d->starved |= !good;
    pthread_mutex_unlock(&d->lock);
}

/* The job's own list counts for a rank that has come late. */
static bool begin(struct fabric *f, const struct descant_items *done, size_t n,
                  bool waits)
{
    struct ranks_deal *d = enter(f);
    const struct run *runs = (const struct run *)(const void *)done;
    bool good = own_begin(&d->own, runs, f->joined ? 0 : n, waits);

    pthread_mutex_unlock(&d->lock);
    return good;
}

static void set_end(struct fabric *f, uint64_t end)
{
    struct ranks_deal *d = enter(f);
    own_end(&d->own, end);
    leave(d, true);
}

static bool take_item(struct fabric *f, uint64_t *item)
{
    struct ranks_deal *d = enter(f);
    bool good, some = own_take(&d->own, item, &good);
    leave(d, good);
    return some;
}

static void done(struct fabric *f, uint64_t item)
{
    struct ranks_deal *d = enter(f);
    leave(d, own_done(&d->own, item));
}

static void give_back(struct fabric *f, uint64_t item)
{
    struct ranks_deal *d = enter(f);
    leave(d, own_back(&d->own, item));
}

static void brings(struct fabric *f)
{
    struct ranks_deal *d = enter(f);
    leave(d, own_brings(&d->own));
}

static void merged(struct fabric *f)
{
    struct ranks_deal *d = enter(f);
    leave(d, own_merged(&d->own));
}

static void lost(struct fabric *f)
{
    struct ranks_deal *d = enter(f);
    own_lost(&d->own);
    leave(d, true);
}

static size_t known(struct fabric *f, struct descant_items *out, size_t room)
{
    struct ranks_deal *d = enter(f);
    struct runs all = {0};

    leave(d, own_known(&d->own, &all));
    for (size_t k = 0; k < all.n && k < room; k++)
        out[k] = (struct descant_items){all.at[k].from, all.at[k].to};
    size_t n = all.n;
    runs_fini(&all);
    return n;
}

static void rest(struct fabric *f)
{
    struct ranks_deal *d = enter(f);
    d->own.alone = true;
    leave(d, true);
}

const struct fabric_deal ranks_deals = {
    .begin = begin,
    .end = set_end,
    .take = take_item,
    .done = done,
    .back = give_back,
    .brings = brings,
    .merged = merged,
    .lost = lost,
    .known = known,
    .rest = rest,
};
