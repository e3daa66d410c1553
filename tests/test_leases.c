/* SPDX-License-Identifier: MIT */
/* Runs beside plain sets, and the rules of leases (ranks/leases.h) in worlds of 2 to 8 ranks
 * whose words are late or lost, whose dealer changes, and whose ranks die and come. Nothing
 * may count as done that is in no result, and nothing may be left out; where nobody dies or
 * is cut off, nothing is done twice. */
#include "base/runs.h"
#include "harness/suite.h"
#include "ranks/leases.h"
#include "ranks/store.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* --- runs --- */

enum { SMALL = 40, OPERATIONS = 400, SETS = 300 };

static void same(const struct runs *s, const bool *plain)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < SMALL; i++) {
        ck_assert_int_eq(runs_has(s, i), plain[i]);
        n += plain[i];
        uint64_t gap = i, end;
        while (gap < SMALL && plain[gap])
            gap++;
        for (end = gap; end < SMALL && !plain[end];)
            end++;
        struct run found = runs_gap(s, i);
        ck_assert_uint_eq(found.from, gap);
        ck_assert_uint_eq(found.to, end < SMALL ? end : UINT64_MAX);
    }
    ck_assert_uint_eq(runs_count(s), n);
    for (size_t k = 0; k < s->n; k++)
        ck_assert(s->at[k].from < s->at[k].to && (!k || s->at[k - 1].to < s->at[k].from));
}

START_TEST(runs_are_as_plain_sets)
{
    struct rng rng;
    rng_init(&rng, (uint64_t)_i + 1);
    struct runs s = {0};
    bool plain[SMALL] = {0};
    for (int k = 0; k < OPERATIONS; k++) {
        uint64_t from = rng_next(&rng) % SMALL, to = rng_next(&rng) % (SMALL + 1);
        bool adds = rng_next(&rng) % 2;
        ck_assert(adds ? runs_add(&s, from, to) : runs_remove(&s, from, to));
        for (uint64_t i = from; i < to; i++)
            plain[i] = adds;
        same(&s, plain);
    }
    runs_fini(&s);
}
END_TEST

/* --- leases --- */

enum { RANKS = 8, WORDS = 64, MOST = 200, STEP_NS = 1000000, PATIENCE_NS = 100000000,
       AHEAD_NS = 1000000000,
       AGAIN_NS = 200000000,
       ITEM_STEPS = 40, TALK_STEPS = 250, FEW_ITEMS = 4, EACH = 6, DEATH_STEPS = 60, CALM_STEPS = 400000 };

struct word {
    bool is_deal;
    uint64_t epoch, due_ns;
    struct lease_items items;
    struct lease_deal deal;
};

struct side {
    bool alive, member, ended, exchanging;
    uint64_t generation, epoch;         /* that this rank knows; it says ITEMS anew in each */
    uint64_t busy_until, ended_ns, takes;
    struct run item;                    /* items in work; from UINT64_MAX: none */
    uint64_t slow;
    struct own_items own;
    struct leases leases;
    bool deals;
    bool in_work[MOST], brought[MOST];
};

static struct world {
    struct rng rng;
    int n;
    uint64_t items, now_ns, epoch;
    uint64_t each;                      /* items that are taken at once, at most */
    bool together;                      /* after each take a rank waits for all others' */
    bool knows_end, faults, was_fault, changes;     /* changes: of the dealer, now and then */
    bool fed;                           /* items have bytes, which rank 0's first process reads */
    uint64_t read, reader;              /* so many so far; its generation */
    int dealer;
    struct side of[RANKS];
    struct word words[RANKS][RANKS][WORDS];     /* from, to: in order */
    int n_words[RANKS][RANKS];
    bool truth[MOST];                   /* in some result */
    unsigned done[MOST];
} w;

static const struct run NOTHING = {UINT64_MAX, UINT64_MAX};

static bool is_idle(const struct side *s)
{
    return s->item.from == UINT64_MAX;
}

static uint64_t below(uint64_t n)
{
    return rng_next(&w.rng) % n;
}

static void begin_side(int k)
{
    struct side *s = &w.of[k];
    static uint64_t generations;
    *s = (struct side){.alive = true, .generation = ++generations, .item = NOTHING,
                       .slow = 1 + (below(3) ? 0 : below(20))};
    own_init(&s->own, AHEAD_NS);
    ck_assert(own_begin(&s->own, NULL, 0, w.each, w.together));
    if (w.knows_end)
        own_end(&s->own, w.items);
    if (w.fed)
        own_feed(&s->own);
    if (w.fed && k == 0 && !w.reader)
        w.reader = s->generation;
    ck_assert(leases_init(&s->leases, w.n, PATIENCE_NS));
}

static void end_side(int k)
{
    struct side *s = &w.of[k];
    own_fini(&s->own);
    leases_fini(&s->leases);
    s->alive = s->member = false;
    for (int i = 0; i < w.n; i++)
        w.n_words[i][k] = w.n_words[k][i] = 0;
}

/* Another epoch: all that live are members; words under way are lost for it. */
static void next_epoch(void)
{
    w.epoch++;
    for (int k = 0; k < w.n; k++)
        w.of[k].member = w.of[k].alive;
    if (w.changes)
        w.dealer = (int)below((uint64_t)w.n);
    for (int k = 0; k < w.n && (!w.of[w.dealer].alive || (w.faults && !below(4))); k++)
        if (w.of[k].alive)
            w.dealer = k;
}

static void send(int from, int to, const struct word *word)
{
    int n = w.n_words[from][to];
    if (n == WORDS || (w.faults && !below(10)))
        return;
    w.words[from][to][n] = *word;
    w.words[from][to][n].due_ns = w.now_ns + below(30) * STEP_NS;
    w.n_words[from][to]++;
}

static void hear(int from, int to, const struct word *word)
{
    struct side *s = &w.of[to];
    if (word->epoch != w.epoch || !s->member)
        return;
    if (word->is_deal)
        ck_assert(own_hear(&s->own, &word->deal));
    else if (to == w.dealer && s->deals)
        ck_assert(leases_hear(&s->leases, from, &word->items));
}

static void move_words(void)
{
    for (int from = 0; from < w.n; from++)
        for (int to = 0; to < w.n; to++)
            while (w.n_words[from][to] && w.words[from][to][0].due_ns <= w.now_ns) {
                struct word word = w.words[from][to][0];
                int n = --w.n_words[from][to];
                memmove(w.words[from][to], w.words[from][to] + 1,
                        (size_t)n * sizeof word);
                hear(from, to, &word);
            }
}

static void deal(int k)
{
    struct side *s = &w.of[k];
    static struct word word;
    if (!s->deals)
        leases_begin(&s->leases, w.now_ns);
    s->deals = true;
    for (int i = 0; i < w.n; i++)
        ck_assert(leases_member(&s->leases, i, w.of[i].member ? w.of[i].generation : 0));
    if (w.fed && !(w.of[0].member && w.of[0].generation == w.reader))
        leases_cut(&s->leases, w.now_ns);
    for (int i = 0; i < w.n; i++)
        if (leases_deal(&s->leases, i, &word.deal, w.now_ns)) {
            word.is_deal = true;
            word.epoch = w.epoch;
            send(k, i, &word);
        }
}

static bool waits_for_others(const struct side *s)
{
    for (int k = 0; w.together && k < w.n; k++)
        if (w.of[k].alive && !w.of[k].ended && w.of[k].takes < s->takes)
            return true;
    return false;
}

/* Takes an item, is at it for a while, and brings it to an exchange now and then. */
static void work(int k)
{
    struct side *s = &w.of[k];
    bool good;
    if (!is_idle(s) && w.now_ns >= s->busy_until) {
        ck_assert(own_done(&s->own, s->item));
        for (uint64_t i = s->item.from; i < s->item.to; i++)
            s->in_work[i] = true;
        s->item = NOTHING;
        s->ended_ns = w.now_ns;
    }
    if (is_idle(s) && !s->ended && !waits_for_others(s) &&
        own_take(&s->own, w.each, &s->item, &good)) {
        ck_assert(good);
        s->takes++;
        s->ended = is_idle(s);
        ck_assert(s->ended || (s->item.from < s->item.to &&
                               s->item.to - s->item.from <= w.each));
        s->busy_until = w.now_ns + (1 + below(ITEM_STEPS)) * s->slow * STEP_NS;
        ck_assert(s->ended || !w.fed || s->item.to <= w.read);
        if (!s->ended && s->item.to > w.items) {        /* past the end */
            own_end(&s->own, s->item.from > w.items ? s->item.from : w.items);
            ck_assert(own_back(&s->own, s->item));
            s->item = NOTHING;
        }
    }
    if (below(60))
        return;
    if (s->exchanging) {
        ck_assert(own_merged(&s->own));
        for (uint64_t i = 0; i < w.items; i++)
            if (s->brought[i]) {
                w.truth[i] = true;
                w.done[i]++;
                s->brought[i] = s->in_work[i] = false;
            }
    } else {
        ck_assert(own_brings(&s->own));
        memcpy(s->brought, s->in_work, sizeof s->brought);
    }
    s->exchanging = !s->exchanging;
}

static void talk(int k)
{
    struct side *s = &w.of[k];
    static struct word word;
    bool again = s->own.heard < s->own.serial && w.now_ns - s->own.said_ns > AGAIN_NS;
    if (s->epoch == w.epoch && !again && !own_due(&s->own, w.now_ns))
        return;
    s->epoch = w.epoch;
    ck_assert(own_tell(&s->own, &word.items, w.now_ns));
    word.is_deal = false;
    word.epoch = w.epoch;
    send(k, w.dealer, &word);
}

static void fault(void)
{
    int k = (int)below((uint64_t)w.n), alive = 0;
    for (int i = 0; i < w.n; i++)
        alive += w.of[i].alive;
    w.was_fault = true;
    switch (below(3)) {
    case 0:
        if (!w.of[k].alive || alive == 1)
            break;
        end_side(k);
        next_epoch();
        break;
    case 1:
        if (w.of[k].alive)
            break;
        begin_side(k);
        next_epoch();
        break;
    default:                            /* it is out of the members for an epoch */
        if (!w.of[k].alive || alive == 1)
            break;
        w.of[k].member = false;
        w.of[k].deals = false;
        own_drop(&w.of[k].own);
        w.epoch++;
        if (k == w.dealer)
            for (int i = 0; i < w.n; i++)
                if (w.of[i].member)
                    w.dealer = i;
        if (w.of[w.dealer].member)
            break;
        next_epoch();
    }
}

/* One more item than was there, now and then; the end is known once all are read. */
static void read_item(void)
{
    struct side *s = &w.of[0];
    if (!w.fed || !s->alive || s->generation != w.reader || below(3))
        return;
    if (w.read < w.items) {
        own_put(&s->own);
        w.read++;
    }
    if (w.read == w.items)
        own_end(&s->own, w.items);
}

static void step(void)
{
    w.now_ns += STEP_NS;
    read_item();
    move_words();
    for (int k = 0; k < w.n; k++) {
        if (!w.of[k].alive)
            continue;
        work(k);
        if (!w.of[k].member)
            continue;
        if (k == w.dealer)
            deal(k);
        else
            w.of[k].deals = false;
        talk(k);
    }
    if (w.faults && !below(400))
        fault();
    if ((w.faults || w.changes) && !below(300))
        next_epoch();
}

static void nothing_is_done_that_is_not(void)
{
    for (int k = 0; k < w.n; k++)
        for (uint64_t i = 0; w.of[k].alive && i < w.items; i++)
            ck_assert_msg(!runs_has(&w.of[k].own.done, i) || w.truth[i],
                          "item %d is done, says rank %d", (int)i, k);
}

/* Once all have ended one of them does the rest, alone. */
static void end_alone(void)
{
    struct side *s = &w.of[w.dealer];
    struct run item;
    bool good;
    w.changes = false;
    for (int k = 0; k < w.n; k++)       /* a word more */
        w.of[k].own.news = true;
    for (int k = 0; k < TALK_STEPS; k++)
        step();
    leases_final(&s->leases);
    for (int k = 0; k < w.n; k++)
        ck_assert(leases_final_of(&s->leases, k));
    ck_assert_uint_eq(s->leases.pending.n, 0);
    for (int k = 0; k < TALK_STEPS; k++)
        step();
    own_finish(&s->own);
    s->own.alone = true;
    own_end(&s->own, w.items);
    while (own_take(&s->own, w.each, &item, &good) && item.from != UINT64_MAX) {
        ck_assert_msg(w.was_fault, "item %d was left", (int)item.from);
        ck_assert(own_done(&s->own, item));
        for (uint64_t i = item.from; i < item.to; i++)
            w.truth[i] = true;
    }
}

static bool all_ended(void)
{
    for (int k = 0; k < w.n; k++) {
        const struct own_items *o = &w.of[k].own;
        if (w.of[k].alive && (!w.of[k].ended || o->trained.n || o->brought.n || o->fresh.n ||
                              o->told.n || !is_idle(&w.of[k])))
            return false;
    }
    return true;
}

/* Nobody has more than one item in work when another one finds that all are dealt. */
static void all_end_together(uint64_t seed)
{
    uint64_t first = UINT64_MAX, last = 0, longest = 0;
    for (int k = 0; k < w.n; k++) {
        struct side *s = &w.of[k];
        first = s->ended_ns < first ? s->ended_ns : first;
        last = s->ended_ns > last ? s->ended_ns : last;
        longest = s->slow > longest ? s->slow : longest;
    }
    uint64_t most = (ITEM_STEPS * longest + TALK_STEPS) * STEP_NS;
    ck_assert_msg(last <= first + most, "seed %d: the last ends %g s after the first",
                  (int)seed, (double)(last - first) * 1e-9);
}

enum trouble { NONE, CHANGES, DEATH, FAULTS };

/* After a while, before anybody ends; who is left does all. */
static void one_dies(void)
{
    int dies = (int)below((uint64_t)w.n);
    for (int k = 0; k < DEATH_STEPS; k++)
        step();
    for (int k = 0; k < w.n; k++)
        ck_assert(!w.of[k].ended);
    end_side(dies);
    next_epoch();
}

/* Where the reader has died the input ends with what it had told. */
static uint64_t end_of_input(void)
{
    const struct leases *l = &w.of[w.dealer].leases;
    return l->cut ? l->end : w.items;
}

static void a_world(uint64_t seed, enum trouble trouble, bool fed)
{
    bool faults = trouble == FAULTS;

    rng_init(&w.rng, seed);
    w.n = 1 + (trouble == DEATH) + (int)below(RANKS - 1);
    w.items = trouble == DEATH ? MOST : below(MOST);
    w.each = seed % 2 ? 1 : 1 + below(EACH);
    w.together = trouble == NONE && seed % 3 == 0;
    w.knows_end = below(2) && !fed;
    w.fed = fed;
    w.read = w.reader = 0;
    w.faults = faults;
    w.was_fault = false;
    w.changes = trouble == CHANGES;
    w.now_ns = STEP_NS;
    w.dealer = 0;
    memset(w.truth, 0, sizeof w.truth);
    memset(w.done, 0, sizeof w.done);
    memset(w.n_words, 0, sizeof w.n_words);
    for (int k = 0; k < w.n; k++)
        begin_side(k);
    next_epoch();
    for (int k = 0; faults && k < 3000; k++) {
        step();
        nothing_is_done_that_is_not();
    }
    w.faults = false;
    if (trouble == DEATH)
        one_dies();
    next_epoch();
    int k = 0;
    for (; k < CALM_STEPS && !all_ended(); k++)
        step();
    ck_assert_msg(k < CALM_STEPS, "seed %d does not end", (int)seed);
    nothing_is_done_that_is_not();
    if (trouble == NONE && !w.together && w.knows_end && w.items >= FEW_ITEMS * (uint64_t)w.n)
        all_end_together(seed);
    ck_assert(!fed || trouble >= DEATH || w.read == w.items);
    w.items = fed ? end_of_input() : w.items;
    end_alone();
    for (uint64_t i = 0; i < w.items; i++) {
        ck_assert_msg(w.truth[i], "seed %d: item %d is left out", (int)seed, (int)i);
        ck_assert_msg(trouble >= DEATH || w.done[i] == 1, "seed %d: item %d was done %u times",
                      (int)seed, (int)i, w.done[i]);
    }
    for (int i = 0; i < w.n; i++)
        if (w.of[i].alive)
            end_side(i);
}

START_TEST(each_item_is_done_once)
{
    for (int k = 0; k < pick(SETS, 60, 8); k++)
        a_world((uint64_t)(_i * SETS + k + 1), NONE, _i > 1);
}
END_TEST

/* Words that are under way then are lost. */
START_TEST(another_dealer_knows_what_all_have)
{
    for (int k = 0; k < pick(SETS, 60, 8); k++)
        a_world((uint64_t)(_i * SETS + k + 1), CHANGES, _i > 1);
}
END_TEST

START_TEST(others_do_what_a_dead_one_had)
{
    for (int k = 0; k < pick(SETS, 60, 8); k++)
        a_world((uint64_t)(_i * SETS + k + 1), DEATH, _i > 1);
}
END_TEST

START_TEST(nothing_is_left_out)
{
    for (int k = 0; k < pick(SETS, 60, 8); k++)
        a_world((uint64_t)(_i * SETS + k + 1), FAULTS, _i > 1);
}
END_TEST

/* Where few are left a rank has what it takes at once, and not less. */
START_TEST(small_items_are_dealt_each_at_a_time)
{
    struct leases l;
    struct lease_deal deal;
    const struct lease_items asks = {.serial = 1, .want = 10, .end = 39, .each = 10};
    ck_assert(leases_init(&l, 2, 0));
    leases_begin(&l, 1);
    for (int k = 0; k < 2; k++)
        ck_assert(leases_member(&l, k, 1) && leases_hear(&l, k, &asks));
    ck_assert(leases_deal(&l, 0, &deal, 2));
    ck_assert_uint_eq(deal.most, 0);
    ck_assert_uint_eq(deal.grant.n, 1);
    ck_assert_uint_eq(deal.grant.at[0].to, 10);
    leases_fini(&l);
}
END_TEST

/* Of a run that is not this rank's in whole, as after it has forgotten all, none is done. */
START_TEST(what_was_not_taken_is_not_done)
{
    struct own_items o;
    struct lease_deal deal = {.number = 1, .end = 8, .most = 8, .grant = {{{0, 8}}, 1, false}};
    struct run run;
    bool good;
    own_init(&o, AHEAD_NS);
    ck_assert(own_begin(&o, NULL, 0, 4, false) && own_hear(&o, &deal));
    ck_assert(own_take(&o, 4, &run, &good) && good && run.from == 0 && run.to == 4);
    ck_assert(own_done(&o, (struct run){0, 6}) && own_done(&o, (struct run){6, 7}));
    ck_assert_uint_eq(o.trained.n, 0);
    ck_assert(own_done(&o, run) && runs_count(&o.trained) == 4 && !o.open.n);
    own_fini(&o);
}
END_TEST

START_TEST(a_slow_rank_wants_what_it_takes_at_once)
{
    static struct lease_items items;
    struct own_items o;
    own_init(&o, AHEAD_NS);
    ck_assert(own_begin(&o, NULL, 0, 10, false));
    for (uint64_t k = 1; k < 10; k++) {
        ck_assert(own_tell(&o, &items, k * 10 * AHEAD_NS));
        ck_assert_uint_eq(items.want, 10);
    }
    own_fini(&o);
}
END_TEST

/* --- the store --- */

enum { STORE_MOST = 1000, STORE_ITEMS = 300, STORE_STEPS = 2000 };

static struct plain_store {
    bool here[STORE_ITEMS], given[STORE_ITEMS], done[STORE_ITEMS];
    size_t n[STORE_ITEMS], next;
} plain_store;

static void same_store(const struct store *s)
{
    const struct plain_store *p = &plain_store;
    size_t bytes = 0, fresh = 0;
    for (size_t i = 0; i < STORE_ITEMS; i++) {
        const struct stored *it = store_look(s, i);
        ck_assert(p->here[i] == (it != NULL) && (!it || (it->n == p->n[i] &&
                  it->given == p->given[i] && it->bytes[it->n - 1] == (unsigned char)i)));
        ck_assert(store_was_done(s, i) == (i < p->next && !p->here[i] && p->done[i]));
        bytes += p->here[i] ? p->n[i] : 0;
        fresh += p->here[i] && !p->given[i] ? p->n[i] : 0;
    }
    ck_assert(s->bytes == bytes && s->fresh == fresh && s->next == p->next);
    ck_assert(store_has_room(s, 300) == (!bytes || bytes + 300 <= STORE_MOST));
}

static void store_step(struct store *s, struct rng *rng, struct runs *done)
{
    struct plain_store *p = &plain_store;
    unsigned char bytes[STORE_MOST];
    size_t i = rng_next(rng) % (p->next + 1) % STORE_ITEMS, n = 1 + rng_next(rng) % (STORE_MOST / 2);
    uint64_t item, lowest = 0;
    switch (rng_next(rng) % 4) {
    case 0:
        if (p->next == STORE_ITEMS || !store_has_room(s, n))
            break;
        memset(bytes, (int)p->next, n);
        ck_assert(store_put(s, bytes, n));
        p->here[p->next] = true;
        p->n[p->next++] = n;
        break;
    case 1:
        store_given(s, i);
        p->given[i] |= p->here[i];
        break;
    case 2:
        if (!p->given[i])
            break;
        ck_assert(runs_add(done, i, i + 1));
        ck_assert(store_done(s, done) == p->here[i]);
        p->done[i] |= p->here[i];
        p->here[i] = false;
        break;
    default:
        while (lowest < STORE_ITEMS && !(p->here[lowest] && p->given[lowest]))
            lowest++;
        if (rng_next(rng) % 20)
            break;
        ck_assert(store_let_go(s, &item) == (lowest < STORE_ITEMS));
        if (lowest < STORE_ITEMS) {
            ck_assert_uint_eq(item, lowest);
            p->here[lowest] = false;
        }
    }
}

START_TEST(a_store_is_as_a_plain_one)
{
    struct store s = {.most = STORE_MOST};
    struct runs done = {0};
    struct rng rng;
    rng_init(&rng, (uint64_t)_i + 1);
    memset(&plain_store, 0, sizeof plain_store);
    for (int k = 0; k < STORE_STEPS; k++) {
        store_step(&s, &rng, &done);
        same_store(&s);
    }
    ck_assert_uint_gt(plain_store.next, 20);
    store_fini(&s);
    runs_fini(&done);
}
END_TEST

int main(void)
{
    TCase *sets = new_case("runs", 60), *worlds = new_case("worlds", 120);
    tcase_add_loop_test(sets, runs_are_as_plain_sets, 0, 20);
    tcase_add_loop_test(sets, a_store_is_as_a_plain_one, 0, 20);
    tcase_add_loop_test(worlds, each_item_is_done_once, 0, 4);
    tcase_add_loop_test(worlds, another_dealer_knows_what_all_have, 0, 4);
    tcase_add_loop_test(worlds, others_do_what_a_dead_one_had, 0, 4);
    tcase_add_loop_test(worlds, nothing_is_left_out, 0, 4);
    tcase_add_test(worlds, small_items_are_dealt_each_at_a_time);
    tcase_add_test(worlds, what_was_not_taken_is_not_done);
    tcase_add_test(worlds, a_slow_rank_wants_what_it_takes_at_once);
    return run_cases(sets, worlds, NULL);
}
