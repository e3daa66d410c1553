/* SPDX-License-Identifier: MIT */
/* Items for ranks by need, and units of a limit, which are dealt alike, in a stream of
 * their own. leases.c and lessee.c have the rules, this file their words:
 *
 *   ITEMS  to the coordinator: said when a rank wants items, has news, or begins its
 *          finish; to each coordinator of a later epoch; and again each dead / 4, until
 *          it is answered
 *   DEAL   from the coordinator: the answer; to all, once few items are left
 *
 * The lock guards `own`, which callers' threads share with the holder of the round
 * machine. All else belongs to that holder. */
#include "ranks/lead.h"
#include "ranks/fetch.h"

#include <string.h>

enum { AGAIN = 4 /* in the time `dead` */ };
#define FIXED_AHEAD_NS UINT64_C(60000000000)    /* nobody who is cut off is put out */
enum { TRAINED_WIDE = 1, HELD_WIDE = 2, OVER = 1, FINAL = 2, OF_UNITS = 4, CUT = 8,
       HUNGRY = 16, PRESSES = 16 };

struct stream {
    struct own_items own;
    struct leases leases;
    bool deals, was_member, soon;
    uint64_t epoch, said_epoch; /* of the leases; of the last ITEMS */
    int n_left;
};

struct ranks_deal {
    pthread_mutex_t lock;
    bool starved;               /* there was no memory; under the lock */
    struct stream of[DEAL_KINDS];
    struct ranks_feeder feeder; /* of the items' bytes, as words say; the holder's */
    int turn;                   /* the rank that is dealt to first */
    struct {
        struct ranks_items head;
        struct run runs[3 * LEASES_RUNS];
    } out;
    struct lease_items items;
    struct lease_deal deal;
};

_Static_assert(sizeof(struct ranks_items) <= 96, "RANKS_ITEMS_BYTES has room for it");
_Static_assert(sizeof(struct run) == sizeof(struct descant_items), "as a caller's");

descant_status ranks_deal_init(struct ranks *m)
{
    struct ranks_deal *d = m->deal = memory_take(sizeof *d);

    if (!d)
        return DESCANT_MEMORY;
    pthread_mutex_init(&d->lock, NULL);
    d->feeder.rank = -1;
    m->fetch = ranks_fetch_make(&d->lock);
    for (int kind = 0; kind < DEAL_KINDS; kind++)
        own_init(&d->of[kind].own, m->place.fixed ? FIXED_AHEAD_NS : m->dead_ns);
    return m->fetch ? DESCANT_OK : DESCANT_MEMORY;
}

void ranks_deal_fini(struct ranks *m)
{
    if (!m->deal)
        return;
    pthread_mutex_destroy(&m->deal->lock);
    ranks_fetch_fini(m->fetch);
    for (int kind = 0; kind < DEAL_KINDS; kind++) {
        own_fini(&m->deal->of[kind].own);
        leases_fini(&m->deal->of[kind].leases);
    }
    memory_give(m->deal);
}

/* Members that have come or gone since the last look. Where the link is fixed they can
 * only leave. A rank has memory for what others have once it deals. */
static bool look_members(struct ranks *m, struct stream *s)
{
    uint64_t epoch = ledger_view(m->ledger).epoch;
    uint64_t patience_ns = m->place.fixed ? 0 : m->dead_ns;
    bool good = s->leases.of || leases_init(&s->leases, m->place.size, patience_ns);

    if (!good)
        return false;
    if (!s->deals)
        leases_begin(&s->leases, m->now_ns);
    if (s->deals && epoch == s->epoch && s->n_left == m->lead->n_left)
        return true;
    s->deals = true;
    s->epoch = epoch;
    s->n_left = m->lead->n_left;
    for (int k = 0; k < m->place.size; k++)
        good &= leases_member(&s->leases, k,
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

static uint32_t flag_of(enum deal_kind kind)
{
    return kind == DEAL_UNITS ? OF_UNITS : 0;
}

static void say_items(struct ranks *m, enum deal_kind kind)
{
    struct ranks_deal *d = m->deal;
    const struct lease_items *items = &d->items;

    d->out.head = (struct ranks_items){
        .serial = items->serial, .grant = items->have, .want = items->want,
        .stock = items->stock, .end = items->end, .each = items->each,
        .fed = items->fed, .feeder = d->feeder.generation,
        .feeder_rank = d->feeder.rank,
        .flags = (items->trained.wide ? TRAINED_WIDE : 0) |
                 (items->held.wide ? HELD_WIDE : 0) | (items->cut ? CUT : 0) |
                 (items->presses ? PRESSES : 0) | flag_of(kind)};
    size_t n = put(d, put(d, put(d, 0, 0, &items->trained), 1, &items->held), 2,
                   &items->done);
    tell(m, m->coordinator, WORD_ITEMS, n);
}

static void say_deal(struct ranks *m, int rank, enum deal_kind kind)
{
    struct ranks_deal *d = m->deal;
    const struct lease_deal *deal = &d->deal;

    d->out.head = (struct ranks_items){
        .serial = deal->heard, .grant = deal->number, .end = deal->end,
        .stock = deal->most, .fed = deal->fed, .feeder = d->feeder.generation,
        .feeder_rank = d->feeder.rank,
        .flags = (deal->over ? OVER : 0) | (deal->final ? FINAL : 0) |
                 (deal->cut ? CUT : 0) | (deal->hungry ? HUNGRY : 0) | flag_of(kind)};
    size_t n = put(d, put(d, put(d, 0, 0, &deal->grant), 1, &deal->pending), 2,
                   &deal->done);
    tell(m, rank, WORD_DEAL, n);
}

/* The first process that is told: another one of its rank has other bytes, and reads
 * none. */
static void hear_feeder(struct ranks *m, const struct ranks_items *head)
{
    struct ranks_deal *d = m->deal;

    if (d->feeder.rank < 0)
        d->feeder.rank = head->feeder_rank;
    if (!d->feeder.generation && d->feeder.rank == head->feeder_rank)
        d->feeder.generation = head->feeder;
    pthread_mutex_lock(&d->lock);
    if (d->feeder.generation)
        *ranks_fetch_feeder(m->fetch) = d->feeder;
    pthread_mutex_unlock(&d->lock);
}

static void hear_items(struct ranks *m, int from, const struct ranks_items *head,
                       const char *at)
{
    struct ranks_deal *d = m->deal;
    struct stream *s = &d->of[head->flags & OF_UNITS ? DEAL_UNITS : DEAL_ITEMS];
    struct lease_items *items = &d->items;

    items->serial = head->serial;
    items->have = head->grant;
    items->want = head->want;
    items->stock = head->stock;
    items->end = head->end;
    items->each = head->each;
    items->fed = head->fed;
    items->cut = head->flags & CUT;
    items->presses = head->flags & PRESSES;
    at = take(&items->trained, at, head->n[0]);
    at = take(&items->held, at, head->n[1]);
    take(&items->done, at, head->n[2]);
    items->trained.wide = head->flags & TRAINED_WIDE;
    items->held.wide = head->flags & HELD_WIDE;
    if (m->leads && !(look_members(m, s) && leases_hear(&s->leases, from, items)))
        ranks_fail(m, DESCANT_MEMORY, "no memory for items");
}

static void hear_deal(struct ranks *m, const struct ranks_items *head, const char *at)
{
    struct ranks_deal *d = m->deal;
    struct stream *s = &d->of[head->flags & OF_UNITS ? DEAL_UNITS : DEAL_ITEMS];
    struct lease_deal deal = {.heard = head->serial, .number = head->grant,
                              .end = head->end, .most = head->stock,
                              .fed = head->fed, .cut = head->flags & CUT,
                              .hungry = head->flags & HUNGRY,
                              .over = head->flags & OVER,
                              .final = head->flags & FINAL};

    at = take(&deal.grant, at, head->n[0]);
    at = take(&deal.pending, at, head->n[1]);
    take(&deal.done, at, head->n[2]);
    pthread_mutex_lock(&d->lock);
    bool cut = deal.cut && !s->own.cut && s->own.end == UINT64_MAX;
    d->starved |= !own_hear(&s->own, &deal);
    pthread_mutex_unlock(&d->lock);
    if (cut && d->feeder.rank >= 0)
        log_say(&m->f.log, DESCANT_WARNING,
                "rank %d (%s), which read the input, has gone: the input ends here, and "
                "all do what they have", d->feeder.rank,
                ranks_host_name(m, d->feeder.rank));
    s->soon |= deal.heard == 0;         /* the dealer asks what this rank has */
    m->moved = true;
}

void ranks_deal_hear(struct ranks *m, int from, const struct ranks_word *word)
{
    const char *at = (const char *)(word + 1);
    struct ranks_items head;

    memcpy(&head, at, sizeof head);
    if (!m->deal)
        return;
    hear_feeder(m, &head);
    if (word->what == WORD_ITEMS)
        hear_items(m, from, &head, at + sizeof head);
    else
        hear_deal(m, &head, at + sizeof head);
}

/* --- the coordinator --- */

/* The process that reads the items' bytes is no member: it has died, left, or was cut off
 * for so long. One that was never heard of is waited for as long. */
static bool has_no_reader(const struct ranks *m, const struct stream *s)
{
    const struct ranks_feeder *feeder = &m->deal->feeder;

    if (!s->leases.fed || feeder->rank < 0)
        return false;
    if (m->place.fixed)
        return m->lead->peers[feeder->rank].left;
    return feeder->generation ? m->members[feeder->rank] != feeder->generation
                              : !m->members[feeder->rank] &&
                                    m->now_ns - s->leases.since_ns > m->dead_ns;
}

static void deal_all(struct ranks *m, enum deal_kind kind)
{
    struct ranks_deal *d = m->deal;
    struct stream *s = &d->of[kind];

    if (!look_members(m, s))
        ranks_fail(m, DESCANT_MEMORY, "no memory for items");
    if (has_no_reader(m, s))
        leases_cut(&s->leases, m->now_ns);
    int first = s->leases.fed ? d->turn : 0;
    for (int k = 0; k < m->place.size; k++) {
        int rank = (first + k) % m->place.size;
        if (!leases_deal(&s->leases, rank, &d->deal, m->now_ns))
            continue;
        say_deal(m, rank, kind);
        if (d->deal.grant.n)
            d->turn = (rank + 1) % m->place.size;
    }
}

/* A mean has the work of all but those whose vectors are not finite; a state, its
 * source's. */
void ranks_deal_final(struct ranks *m, int source)
{
    bool good = true;

    for (int kind = 0; m->deal && kind < DEAL_KINDS; kind++) {
        struct stream *s = &m->deal->of[kind];
        if (!s->deals)
            continue;
        leases_final(&s->leases);
        for (int k = 0; k < m->place.size; k++)
            if (m->list[k].seq &&
                (source < 0 ? !m->lead->peers[k].offer.bad : k == source))
                good &= leases_final_of(&s->leases, k);
        deal_all(m, (enum deal_kind)kind);
    }
    if (!good)
        ranks_fail(m, DESCANT_MEMORY, "no memory for items");
}

/* --- a turn --- */

void ranks_deal_soon(struct ranks *m)
{
    struct ranks_deal *d = m->deal;

    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    for (int kind = 0; kind < DEAL_KINDS; kind++) {
        d->of[kind].soon |= d->of[kind].own.begun;
        own_finish(&d->of[kind].own);
    }
    pthread_mutex_unlock(&d->lock);
}

void ranks_deal_ended(struct ranks *m)
{
    struct ranks_deal *d = m->deal;

    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    for (int kind = 0; kind < DEAL_KINDS; kind++)
        d->starved |= !own_ended(&d->of[kind].own);
    pthread_mutex_unlock(&d->lock);
}

void ranks_deal_forget(struct ranks *m)
{
    struct ranks_deal *d = m->deal;

    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    for (int kind = 0; kind < DEAL_KINDS; kind++)
        own_forget(&d->of[kind].own);
    pthread_mutex_unlock(&d->lock);
}

/* A word, or its answer, may be lost. */
static bool is_lost(const struct ranks *m, const struct own_items *own)
{
    return !m->place.fixed && own->heard < own->serial &&
           m->now_ns - own->said_ns > m->dead_ns / AGAIN;
}

/* A rank that takes no items says what it has, which is nothing, where it is asked. */
static void tell_own(struct ranks *m, enum deal_kind kind)
{
    struct ranks_deal *d = m->deal;
    struct stream *s = &d->of[kind];
    const struct ledger_view view = ledger_view(m->ledger);

    pthread_mutex_lock(&d->lock);
    if (!d->feeder.generation)
        d->feeder = *ranks_fetch_feeder(m->fetch);
    if (s->was_member && !view.member)
        own_drop(&s->own);
    s->was_member = view.member;
    bool due = s->own.begun && (s->said_epoch != view.epoch || is_lost(m, &s->own) ||
                                own_due(&s->own, m->now_ns));
    due = view.member && (due || s->soon);
    if (due)
        d->starved |= !own_tell(&s->own, &d->items, m->now_ns);
    bool starved = d->starved;
    pthread_mutex_unlock(&d->lock);
    s->soon &= !due;
    s->said_epoch = view.epoch;
    if (starved)
        ranks_fail(m, DESCANT_MEMORY, "no memory for items");
    else if (due)
        say_items(m, kind);
}

void ranks_deal_turn(struct ranks *m)
{
    for (int kind = 0; m->deal && m->started && kind < DEAL_KINDS; kind++) {
        m->deal->of[kind].deals &= m->leads;
        tell_own(m, (enum deal_kind)kind);
        if (m->leads)
            deal_all(m, (enum deal_kind)kind);
    }
    if (m->deal && m->started)
        ranks_fetch_turn(m, m->fetch, &m->deal->of[DEAL_ITEMS].own);
}

const struct own_items *ranks_deal_own(const struct ranks *m, enum deal_kind kind)
{
    return &m->deal->of[kind].own;
}

const struct leases *ranks_deal_leases(const struct ranks *m, enum deal_kind kind)
{
    const struct stream *s = &m->deal->of[kind];
    return s->deals ? &s->leases : NULL;
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

static struct run run_of(const struct descant_items *items)
{
    return (struct run){items->from, items->to};
}

/* The job's own list counts for a rank that has come late. */
static bool begin(struct fabric *f, enum deal_kind kind, const struct fabric_work *work)
{
    struct ranks_deal *d = enter(f);
    const struct run *done = (const struct run *)(const void *)work->done;
    bool good = own_begin(&d->of[kind].own, done, f->joined ? 0 : work->n, work->each,
                          work->waits);

    pthread_mutex_unlock(&d->lock);
    return good;
}

/* Before begin. The trainer that reads tells the others of itself in its words. Another
 * process that has come for its rank tells that the first one has gone. */
static bool feed(struct fabric *f, int rank, size_t most)
{
    struct ranks *m = ranks_of(f);
    struct ranks_deal *d = enter(f);
    bool good = ranks_fetch_feed(m, m->fetch, rank, most);

    if (good)
        own_feed(&d->of[DEAL_ITEMS].own);
    d->of[DEAL_ITEMS].own.cut |= rank == f->rank && f->joined;
    pthread_mutex_unlock(&d->lock);
    return good;
}

static enum deal_bytes put_item(struct fabric *f, const void *bytes, size_t n)
{
    struct ranks_deal *d = enter(f);
    enum deal_bytes got =
        ranks_fetch_put(ranks_of(f)->fetch, &d->of[DEAL_ITEMS].own, bytes, n);
    leave(d, true);
    return got;
}

static enum deal_bytes get_item(struct fabric *f, uint64_t item,
                                const struct deal_room *room)
{
    struct ranks_deal *d = enter(f);
    enum deal_bytes got =
        ranks_fetch_get(ranks_of(f)->fetch, &d->of[DEAL_ITEMS].own, item, room);
    leave(d, true);
    return got;
}

static void set_end(struct fabric *f, enum deal_kind kind, uint64_t end)
{
    struct ranks_deal *d = enter(f);
    own_end(&d->of[kind].own, end);
    leave(d, true);
}

static bool take_items(struct fabric *f, enum deal_kind kind, uint64_t most,
                       struct descant_items *items)
{
    struct ranks_deal *d = enter(f);
    struct run run;
    bool good, some = own_take(&d->of[kind].own, most, &run, &good);

    leave(d, good);
    *items = (struct descant_items){run.from, run.to};
    return some;
}

static void done(struct fabric *f, enum deal_kind kind, const struct descant_items *items)
{
    struct ranks_deal *d = enter(f);
    leave(d, own_done(&d->of[kind].own, run_of(items)));
}

static void give_back(struct fabric *f, enum deal_kind kind,
                      const struct descant_items *items)
{
    struct ranks_deal *d = enter(f);
    leave(d, own_back(&d->of[kind].own, run_of(items)));
}

static void brings(struct fabric *f)
{
    struct ranks_deal *d = enter(f);
    bool good = own_brings(&d->of[DEAL_ITEMS].own);
    leave(d, own_brings(&d->of[DEAL_UNITS].own) && good);
}

static void merged(struct fabric *f)
{
    struct ranks_deal *d = enter(f);
    bool good = own_merged(&d->of[DEAL_ITEMS].own);
    leave(d, own_merged(&d->of[DEAL_UNITS].own) && good);
}

static void lost(struct fabric *f)
{
    struct ranks_deal *d = enter(f);
    for (int kind = 0; kind < DEAL_KINDS; kind++)
        own_lost(&d->of[kind].own);
    leave(d, true);
}

static size_t known(struct fabric *f, struct descant_items *out, size_t room)
{
    struct ranks_deal *d = enter(f);
    struct runs all = {0};

    leave(d, own_known(&d->of[DEAL_ITEMS].own, &all));
    for (size_t k = 0; k < all.n && k < room; k++)
        out[k] = (struct descant_items){all.at[k].from, all.at[k].to};
    size_t n = all.n;
    runs_fini(&all);
    return n;
}

static void rest(struct fabric *f)
{
    struct ranks_deal *d = enter(f);
    for (int kind = 0; kind < DEAL_KINDS; kind++)
        d->of[kind].own.alone = true;
    leave(d, true);
}

const struct fabric_deal ranks_deals = {
    .begin = begin,
    .feed = feed,
    .put = put_item,
    .get = get_item,
    .end = set_end,
    .take = take_items,
    .done = done,
    .back = give_back,
    .brings = brings,
    .merged = merged,
    .lost = lost,
    .known = known,
    .rest = rest,
};
