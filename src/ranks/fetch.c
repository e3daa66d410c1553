/* SPDX-License-Identifier: MIT */
/* The bytes of items, on their way from the rank that reads them to those that are dealt
 * them.
 *
 * A rank fetches the items that it has, those in work first, then those in stock, up to
 * AHEAD of them, so that its threads find bytes where they ask for them. It wants pieces,
 * some at once, and an answer has in it how large the item is: the first wants of an item
 * guess that it is as large as the item before. The reader keeps nothing of a transfer:
 * each want names its piece, and its answer is a copy.
 *
 *   1. An item's bytes stay in the store until the item is done, so another rank can
 *      fetch them when the first one has died.
 *   2. Where the store is full, nobody has asked for more than it has given, and some
 *      rank has found no item for twice `dead`, no item may ever be done: the steps that
 *      the plan counts up to its next exchange need more items than there is room for,
 *      of this rank or of one that others wait for. Then the store lets the oldest items
 *      go that some rank has. They are lost if that rank dies, which the log says once.
 *   3. A want of an item that is not in the store has an empty answer, which says whether
 *      the item is done: an item that was dealt twice may be. Nor does a rank
 *      wait for bytes once the input is cut (leases.h, rule 6), but for those of its own
 *      store.
 *   4. A rank that takes no answers, for it is paused or its link is slow, holds up
 *      nobody: an answer of a quarter of a second is parked (messages.c bounds how many
 *      are).
 *
 * Ended messages and turns are the work of the holder of the round machine. */
#include "ranks/fetch.h"

#include "ranks/store.h"

#include <string.h>

enum { AHEAD = LEASES_AHEAD, LANES = 8, SERVED = 8 };
#define PIECE ((size_t)1 << 18)
#define SLOW_NS UINT64_C(250000000)
#define FIXED_STARVED_NS UINT64_C(1000000000)   /* rule 2, where nobody dies */

/* An item's size in an answer where another rank has done the item. */
#define ITEM_DONE UINT64_MAX

struct fetch_want {
    uint64_t item, at, ticket;
};

/* Its bytes follow. */
struct fetch_answer {
    uint64_t item, at, ticket;          /* as wanted */
    uint64_t size;                      /* of the item; 0: it is not here; ITEM_DONE */
};

struct fetched {
    bool used, none, done;              /* none: no rank has its bytes; done: nor needs
                                           them */
    uint64_t item, ticket;              /* answers of another ticket are not taken */
    unsigned char *bytes;
    size_t size, asked, got;            /* size 0: not known yet */
};

struct fetch_lane {
    struct ranks_request request;
};

struct served_fetch {
    struct ranks_request request;
    bool asks;                          /* an answer is on its way */
    uint64_t answered_ns;
};

struct ranks_fetch {
    pthread_mutex_t *lock;
    struct ranks_feeder feeder;
    size_t most;
    struct store store;                 /* of the rank that reads */
    /* of the others: */
    struct fetched items[AHEAD];
    struct runs had;                    /* whose bytes the caller has got */
    uint64_t urgent;                    /* the item that a caller waits for */
    uint64_t tickets;
    size_t guess;
    struct ranks_requests wants, serves;
    struct fetch_lane *lanes[LANES];
    struct served_fetch *served[SERVED];
    bool reads, asks;          /* this rank reads; is another */
    bool full;                          /* the last item had no room */
    bool lets_go;                       /* rule 2: has happened */
    uint64_t fed_ns;                    /* rule 2 does not hold since then */
};

/* --- the reader --- */

static struct ranks_fetch *fetch_of(const struct ranks *m)
{
    return m->fetch;
}

/* An item's last piece counts as all of it. Returns the bytes of the answer. */
static size_t fill_answer(struct ranks_fetch *f, const struct fetch_want *want,
                          struct fetch_answer *out)
{
    const struct stored *it = store_look(&f->store, want->item);
    size_t n = 0;

    *out = (struct fetch_answer){
        .item = want->item, .at = want->at, .ticket = want->ticket};
    if (!it) {
        out->size = store_was_done(&f->store, want->item) ? ITEM_DONE : 0;
        return sizeof *out;
    }
    out->size = it->n;
    if (want->at < it->n) {
        n = it->n - want->at < PIECE ? it->n - (size_t)want->at : PIECE;
        memcpy(out + 1, it->bytes + want->at, n);
    }
    if (want->at + n == it->n)
        store_given(&f->store, want->item);
    return sizeof *out + n;
}

static void go_on(struct ranks *m, unsigned slot)
{
    struct ranks_fetch *f = fetch_of(m);
    struct served_fetch *s = f->served[slot];
    struct ranks_request *r = &s->request;
    bool slow = r->send.busy && !m->place.fixed && m->now_ns - s->answered_ns >= SLOW_NS;

    if (r->receive.busy || (r->send.busy && !slow))
        return;
    if (slow && !(s = ranks_request_park(m, &f->serves, r)))
        return;
    f->served[slot] = s;
    r = &s->request;
    r->receive.rank = LINK_ANY;
    ranks_receive_any(m, &r->receive, r->in, sizeof(struct fetch_want), TAG_FETCH);
}

static void wanted(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct ranks_fetch *f = fetch_of(m);
    struct served_fetch *s = op->of;

    op->busy = false;
    if (!ended->failed && ended->bytes == sizeof(struct fetch_want)) {
        s->request.send.rank = ended->from;
        pthread_mutex_lock(f->lock);
        size_t n = fill_answer(f, s->request.in, s->request.out);
        pthread_mutex_unlock(f->lock);
        s->answered_ns = m->now_ns;
        ranks_send_op(m, &s->request.send, s->request.out, n, TAG_FETCHED);
    } else if (!ended->failed) {
        ranks_refuse(m, ended->from, "it wants no bytes of an item");
    }
    go_on(m, op->slot);
}

static void served(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct served_fetch *s = op->of;

    (void)ended;
    op->busy = false;
    if (s->request.parked)
        ranks_request_release(&fetch_of(m)->serves, &s->request);
    else
        go_on(m, op->slot);
}

/* Rule 2. A rank that has died is known to have, and its items are dealt to others,
 * before that. */
static void let_go(struct ranks *m, struct ranks_fetch *f, const struct own_items *own)
{
    bool hungry = own->starves || own->others_starve || !own->took;
    bool starves = f->full && !f->store.fresh && hungry;
    uint64_t starved_ns = m->place.fixed ? FIXED_STARVED_NS : 2 * m->dead_ns;
    uint64_t item, after_ns = f->lets_go ? 0 : starved_ns;

    if (!starves)
        f->fed_ns = m->now_ns;
    if (!starves || m->now_ns - f->fed_ns < after_ns || !store_let_go(&f->store, &item))
        return;
    if (!f->lets_go)
        log_say(&m->f.log, DESCANT_WARNING,
                "the input's %zu bytes are all with trainers, whose steps are in no "
                "common model yet: the oldest are let go, and are lost if their trainer "
                "dies; more memory for the input, or more frequent rounds, help",
                f->store.bytes);
    f->lets_go = true;
}

enum deal_bytes ranks_fetch_put(struct ranks_fetch *f, struct own_items *own,
                                const void *bytes, size_t n)
{
    if (!f->reads || own->cut)
        return DEAL_NONE;
    if (n > f->most)
        return DEAL_LARGER;
    store_done(&f->store, &own->done);
    f->full = !store_has_room(&f->store, n);
    if (f->full) {
        own->presses = true;
        return DEAL_LATER;
    }
    if (!store_put(&f->store, bytes, n))
        return DEAL_STARVED;
    own_put(own);
    return DEAL_HERE;
}

/* --- the others --- */

static struct fetched *find(struct ranks_fetch *f, uint64_t item)
{
    for (int k = 0; k < AHEAD; k++)
        if (f->items[k].used && f->items[k].item == item)
            return &f->items[k];
    return NULL;
}

static void drop(struct fetched *it)
{
    memory_give(it->bytes);
    *it = (struct fetched){0};
}

static void begin_again(struct ranks_fetch *f, struct fetched *it, uint64_t item)
{
    drop(it);
    *it = (struct fetched){.used = true, .item = item, .ticket = ++f->tickets};
}

/* The answers of a ticket come in order, as the wants left. Another order, or size, is a
 * lie, and a want that has failed is missing: the item is fetched anew. */
static bool take_piece(struct ranks_fetch *f, struct fetched *it,
                       const struct fetch_answer *answer, size_t n)
{
    if (!answer->size || answer->size == ITEM_DONE) {
        it->none = true;
        it->done = answer->size == ITEM_DONE;
        return true;
    }
    if (answer->size > f->most || (it->size && answer->size != it->size))
        return false;
    it->size = answer->size;
    f->guess = it->size;
    if (answer->at >= it->size)
        return n == 0;
    size_t left = it->size - (size_t)answer->at;
    if (answer->at != it->got || n != (left < PIECE ? left : PIECE))
        return false;
    if (!it->bytes && !(it->bytes = memory_take(it->size)))
        return false;
    memcpy(it->bytes + it->got, answer + 1, n);
    it->got += n;
    return true;
}

static void answered(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct ranks_fetch *f = fetch_of(m);
    const struct ranks_request *r = op->of;
    const struct fetch_answer *answer = r->in;
    const struct fetch_want *want = r->out;

    op->busy = false;
    pthread_mutex_lock(f->lock);
    bool good = !ended->failed && ended->bytes >= sizeof *answer;
    struct fetched *it = find(f, good ? answer->item : want->item);
    bool its = it && it->ticket == (good ? answer->ticket : want->ticket);
    if (its && !(good && take_piece(f, it, answer, ended->bytes - sizeof *answer)))
        begin_again(f, it, it->item);
    pthread_mutex_unlock(f->lock);
}

static void asked(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)m;
    (void)ended;
    op->busy = false;
}

/* A place for one more item; for the urgent one that of the highest item. */
static struct fetched *place_for(struct ranks_fetch *f, uint64_t item)
{
    struct fetched *last = &f->items[0];

    for (int k = 0; k < AHEAD; k++) {
        if (!f->items[k].used)
            return &f->items[k];
        if (f->items[k].item > last->item)
            last = &f->items[k];
    }
    if (item != f->urgent)
        return NULL;
    drop(last);
    return last;
}

static bool begin_item(struct ranks_fetch *f, uint64_t item)
{
    struct fetched *it = find(f, item) ? NULL : place_for(f, item);

    if (it)
        begin_again(f, it, item);
    return it || find(f, item);
}

/* Chooses the items to fetch: such as are in work, then such as are in stock. */
static void choose(struct ranks_fetch *f, const struct own_items *own)
{
    bool room = true;

    for (int k = 0; k < AHEAD; k++) {
        uint64_t item = f->items[k].item;
        bool its = runs_has(&own->open, item) || runs_has(&own->stock, item);
        if (f->items[k].used && (!its || runs_has(&f->had, item)))
            drop(&f->items[k]);
    }
    if (runs_has(&own->open, f->urgent) && !runs_has(&f->had, f->urgent))
        begin_item(f, f->urgent);
    for (size_t k = 0; k < own->open.n && room; k++)
        for (uint64_t i = own->open.at[k].from; i < own->open.at[k].to && room; i++)
            room = runs_has(&f->had, i) || begin_item(f, i);
    for (size_t k = 0; k < own->stock.n && room; k++)
        for (uint64_t i = own->stock.at[k].from; i < own->stock.at[k].to && room; i++)
            room = begin_item(f, i);
}

static bool is_idle(const struct ranks_request *r)
{
    return !r->send.busy && !r->receive.busy;
}

/* The next item of which a piece is to be wanted: the lowest. */
static struct fetched *next_want(struct ranks_fetch *f)
{
    struct fetched *found = NULL;

    for (int k = 0; k < AHEAD; k++) {
        struct fetched *it = &f->items[k];
        size_t size = it->size ? it->size : f->guess ? f->guess : 1;
        if (it->used && !it->none && it->asked < size &&
            (!found || it->item < found->item))
            found = it;
    }
    return found;
}

static void ask(struct ranks *m, struct ranks_fetch *f)
{
    for (int k = 0; k < LANES; k++) {
        struct ranks_request *r = &f->lanes[k]->request;
        struct fetched *it = is_idle(r) ? next_want(f) : NULL;
        if (!it)
            continue;
        struct fetch_want *want = r->out;
        *want = (struct fetch_want){it->item, it->asked, it->ticket};
        it->asked += PIECE;
        r->send.rank = r->receive.rank = f->feeder.rank;
        ranks_receive_any(m, &r->receive, r->in, sizeof(struct fetch_answer) + PIECE,
                          TAG_FETCHED);
        ranks_send_op(m, &r->send, r->out, sizeof *want, TAG_FETCH);
        m->moved = true;
    }
}

/* The process that reads is there, as far as this rank knows. */
static bool is_there(const struct ranks *m, const struct ranks_fetch *f)
{
    const struct ranks_feeder *feeder = &f->feeder;
    return feeder->generation &&
           (m->place.fixed || m->peers[feeder->rank].generation == feeder->generation);
}

/* What is given back, and dealt again, is fetched again. Where memory lacks, the next
 * turn does it. */
static void forget_had(struct ranks_fetch *f, const struct own_items *own)
{
    struct run gap = runs_gap(&own->open, 0);

    for (; f->had.n && gap.from < gap.to; gap = runs_gap(&own->open, gap.to)) {
        runs_remove(&f->had, gap.from, gap.to);
        if (gap.to == UINT64_MAX)
            break;
    }
}

static enum deal_bytes hand_out(const void *bytes, size_t n, const struct deal_room *room)
{
    *room->n = n;
    if (n > room->most)
        return DEAL_LARGER;
    if (n)
        memcpy(room->bytes, bytes, n);
    return DEAL_HERE;
}

enum deal_bytes ranks_fetch_get(struct ranks_fetch *f, const struct own_items *own,
                                uint64_t item, const struct deal_room *room)
{
    if (!runs_has(&own->open, item) || runs_has(&f->had, item))
        return DEAL_WRONG;
    if (f->reads) {
        const struct stored *it = store_look(&f->store, item);
        bool was_done = store_was_done(&f->store, item);
        enum deal_bytes got = it         ? hand_out(it->bytes, it->n, room)
                              : was_done ? hand_out(NULL, 0, room)
                                         : DEAL_NONE;
        if (got == DEAL_HERE)
            store_given(&f->store, item);
        return got;
    }
    struct fetched *it = find(f, item);
    bool whole = it && it->size && it->got == it->size;
    bool none = (it && it->none) || own->cut;
    bool was_done = (it && it->done) || (none && runs_has(&own->done, item));
    enum deal_bytes got = whole      ? hand_out(it->bytes, it->size, room)
                          : was_done ? hand_out(NULL, 0, room)
                          : none     ? DEAL_NONE
                                     : DEAL_LATER;
    if (!whole)
        f->urgent = item;
    if (got == DEAL_HERE && !runs_add(&f->had, item, item + 1))
        return DEAL_STARVED;
    if (got == DEAL_HERE && it)
        drop(it);
    return got;
}

/* --- a turn --- */

/* Any thread may make the records, under the lock; messages are the holder's alone, and
 * begin without the lock, since a peer that breaks the protocol is given up in there. */
void ranks_fetch_turn(struct ranks *m, struct ranks_fetch *f, struct own_items *own)
{
    pthread_mutex_lock(f->lock);
    bool serves = f->reads, asks = f->asks;
    if (serves) {
        store_done(&f->store, &own->done);
        let_go(m, f, own);
    } else if (asks) {
        forget_had(f, own);
        choose(f, own);
        if (is_there(m, f) && !own->cut && !m->leaving_ns)
            ask(m, f);
    }
    pthread_mutex_unlock(f->lock);
    for (unsigned k = 0; serves && k < SERVED; k++)
        go_on(m, k);
}

bool ranks_fetch_quiet(const struct ranks_fetch *f)
{
    for (int k = 0; k < LANES && f->lanes[k]; k++)
        if (!is_idle(&f->lanes[k]->request))
            return false;
    for (int k = 0; k < SERVED && f->served[k]; k++)
        if (f->served[k]->request.send.busy)
            return false;
    return true;
}

/* --- memory --- */

struct ranks_fetch *ranks_fetch_make(pthread_mutex_t *lock)
{
    struct ranks_fetch *f = memory_take(sizeof *f);

    if (f)
        f->lock = lock;
    if (f)
        f->feeder.rank = -1;
    return f;
}

bool ranks_fetch_feed(struct ranks *m, struct ranks_fetch *f, int rank, size_t most)
{
    bool had = true, mine = rank == m->f.rank && !m->f.joined;

    f->serves = (struct ranks_requests){
        .record = sizeof(struct served_fetch), .in_bytes = sizeof(struct fetch_want),
        .out_bytes = sizeof(struct fetch_answer) + PIECE, .sent = served,
        .received = wanted};
    f->wants = (struct ranks_requests){
        .record = sizeof(struct fetch_lane), .out_bytes = sizeof(struct fetch_want),
        .in_bytes = sizeof(struct fetch_answer) + PIECE, .sent = asked,
        .received = answered};
    for (unsigned k = 0; had && k < SERVED && mine; k++)
        had = f->served[k] || (f->served[k] = ranks_request_make(&f->serves, k));
    for (unsigned k = 0; had && k < LANES && !mine; k++)
        had = f->lanes[k] || (f->lanes[k] = ranks_request_make(&f->wants, k));
    if (!had)
        return false;
    f->most = f->store.most = most;
    f->feeder.rank = rank;
    if (mine)
        f->feeder.generation = m->place.generation;
    f->reads = mine;
    f->asks = !mine;
    return true;
}

struct ranks_feeder *ranks_fetch_feeder(struct ranks_fetch *f)
{
    return &f->feeder;
}

void ranks_fetch_fini(struct ranks_fetch *f)
{
    if (!f)
        return;
    for (int k = 0; k < AHEAD; k++)
        drop(&f->items[k]);
    for (int k = 0; k < LANES; k++)
        memory_give(f->lanes[k]);
    for (int k = 0; k < SERVED; k++)
        memory_give(f->served[k]);
    ranks_requests_fini(&f->serves);
    runs_fini(&f->had);
    store_fini(&f->store);
    memory_give(f);
}
