/* SPDX-License-Identifier: MIT */
/* Ranks that come late, leave, die, fall silent and come back, over a simulated link. */
#include "comings.h"
#include "harness/suite.h"
#include "ranks/elastic.h"

#include <math.h>

static double dead_s = 1;

static void open_of(int ranks, int founders)
{
    open_world(ranks, founders);
    w.dead_s = dead_s;
    found();
}

/* All who train are members of one epoch, and go on. */
static void go_on(int trainers)
{
    uint64_t before = world_rounds(&w);
    int n = 0;

    run(2);
    ck_assert_uint_gt(world_rounds(&w), before + 20);
    for (int k = 0; k < w.options.ranks; k++)
        n += w.trainers[k].state == TRAINER_TRAINS;
    ck_assert_int_eq(n, trainers);
    for (int k = 0; k < w.options.ranks; k++)
        if (w.trainers[k].state == TRAINER_TRAINS) {
            const struct ranks *m = ranks_of(w.trainers[k].f);
            ck_assert_msg(ledger_view(m->ledger).member, "rank %d is no member", k);
            int members = atomic_load(&w.trainers[k].f->members);
            ck_assert_int_eq(members, trainers);
            ck_assert_uint_gt(w.trainers[k].rounds, 20);
        }
}

static void shut(void)
{
    world_close(&w);
}

START_TEST(founders_train)
{
    for (int n = 1; n <= 5; n++) {
        open_of(n, n);
        go_on(n);
        shut();
    }
}
END_TEST

START_TEST(one_comes_later)
{
    open_of(4, 2);
    go_on(2);
    world_come(&w, 3);
    go_on(3);
    ck_assert(w.trainers[3].f->joined);
    ck_assert_int_eq(w.trainers[0].n_notes[DESCANT_EVENT_JOINED], 1);
    world_come(&w, 2);
    go_on(4);
    ck_assert(!w.trainers[0].f->joined);
    shut();
}
END_TEST

/* A later rank comes first. Where the first ranks own rows, it waits for them, and joins them;
 * else it counts as one of those that begin. */
START_TEST(a_later_rank_comes_first)
{
    open_world(4, 2);
    w.numbered = _i;
    world_come(&w, 3);
    world_come(&w, 0);
    run(0.5);
    ck_assert_int_eq(w.trainers[0].states > 0, !_i);
    world_come(&w, 1);
    go_on(3);
    ck_assert(!w.trainers[0].f->joined);
    ck_assert_int_eq(w.trainers[1].f->joined, !_i);
    ck_assert_int_eq(w.trainers[3].f->joined, _i);
    shut();
}
END_TEST

/* The same at other times, also together with the first ones. */
START_TEST(later_ranks_come_at_any_time)
{
    static const int orders[][4] = {{3, 2, 0, 1}, {0, 3, 1, 2}, {1, 3, 0, 2}, {3, 0, 2, 1}};
    for (int k = 0; k < pick(40, 15, 6); k++) {
        open_world(4, 3);
        w.numbered = true;
        rng_init(&w.rng, (uint64_t)k);
        for (int i = 0; i < 4; i++) {
            world_come(&w, orders[k % 4][i]);
            run((double)(rng_next(&w.rng) % 1000) * (k % 3 ? 1e-6 : 1e-3));
        }
        go_on(4);
        shut();
    }
}
END_TEST

/* It waits for messages, and for no clock. */
START_TEST(one_is_there_at_once)
{
    dead_s = 100;
    open_of(3, 2);
    dead_s = 1;
    go_on(2);
    world_come(&w, 2);
    run(0.1);
    ck_assert_uint_gt(w.trainers[2].states, 0);
    go_on(3);
    shut();
}
END_TEST

/* Over links that take a second for a model, a newcomer that comes at any moment of a round trains
 * within 1.3 times the time of its bytes. */
enum { MODEL = 1 << 21 /* floats */ };

static double time_of_a_newcomer(bool elastic, double moment)
{
    const struct simulated_options options = {.ranks = 8, .seed = 7, .latency_ns = 100000,
                                              .jitter_ns = 50000,
                                              .bytes_per_s = MODEL * sizeof(float)};
    world_open(&w, &options, 2);
    w.dead_s = 10;
    w.n = MODEL;
    w.elastic = elastic;
    found();
    run(4 + moment);
    world_come(&w, 2);
    double came = world_now(&w);
    while (w.trainers[2].states == 0) {
        run(0.01);
        ck_assert(world_now(&w) - came < 30);
    }
    double took = world_now(&w) - came;
    uint64_t before = world_rounds(&w);
    run(4);
    ck_assert_int_eq(atomic_load(&w.trainers[0].f->members), 3);
    ck_assert_uint_gt(world_rounds(&w), before);
    ck_assert_uint_gt(w.trainers[2].exchanges, 1);
    shut();
    return took;
}

START_TEST(a_newcomer_trains_soon)
{
    double bytes_s = _i ? 1 : 2;        /* the centre; G as the vector, and as outer[0] */
    for (double moment = 0; moment < 2; moment += pick(9, 9, 20) / 10.0) {
        double took = time_of_a_newcomer(_i, moment);
        ck_assert_msg(took < 1.3 * bytes_s, "%.2f times the bytes' time at %.2f", took / bytes_s,
                      moment);
    }
}
END_TEST

START_TEST(any_of_three_dies)
{
    for (int dead = 0; dead < 3; dead++) {
        open_of(3, 3);
        go_on(3);
        world_fault(&w, dead % 2 ? SIMULATED_VANISH : SIMULATED_DIE, world_now(&w), 0, dead, 0, 0);
        run(dead % 2 ? 5 : 0.1);
        go_on(2);
        ck_assert_int_eq(w.trainers[(dead + 1) % 3].n_notes[DESCANT_EVENT_LOST], 1);
        world_come(&w, dead);
        run(0.2);
        go_on(3);
        shut();
    }
}
END_TEST

START_TEST(one_leaves)
{
    for (int k = 0; k < 3; k++) {
        open_of(3, 3);
        go_on(3);
        world_leave(&w, k);
        go_on(2);
        ck_assert_int_eq(w.trainers[k].state, TRAINER_AWAY);
        ck_assert_int_eq(w.trainers[(k + 1) % 3].n_notes[DESCANT_EVENT_LOST], 0);
        ck_assert_int_eq(w.trainers[(k + 1) % 3].n_notes[DESCANT_EVENT_UNFINISHED], 1);
        shut();
    }
}
END_TEST

START_TEST(all_leave)
{
    open_of(4, 4);
    go_on(4);
    for (int k = 0; k < 4; k++)
        world_leave(&w, k);
    run(5);
    for (int k = 0; k < 4; k++)
        ck_assert_int_eq(w.trainers[k].state, TRAINER_AWAY);
    shut();
}
END_TEST

/* The others go on meanwhile, and it is a member again afterwards. */
static void one_is_away(enum simulated_fault_kind kind)
{
    for (int k = 0; k < 3; k++) {
        open_of(3, 3);
        go_on(3);
        world_fault(&w, kind, world_now(&w), 20, k, 1, 0);
        run(5);
        uint64_t before = world_rounds(&w);
        run(2);
        ck_assert_uint_gt(world_rounds(&w), before + 20);
        run(20);
        go_on(3);
        shut();
    }
}

START_TEST(one_pauses_and_comes_back)
{
    one_is_away(SIMULATED_PAUSE);
}
END_TEST

START_TEST(one_is_cut_off_and_comes_back)
{
    one_is_away(SIMULATED_PART);
}
END_TEST

/* The coordinator is started again while the other member is paused: that one takes the
 * former process for dead once it has heard the new one for `dead`. */
START_TEST(a_pause_vouches_for_nobody)
{
    open_of(2, 2);
    run(1);
    double now = world_now(&w);
    world_fault(&w, SIMULATED_DIE, now, 0, 0, 0, 0);
    run(0.05);
    world_come(&w, 0);
    world_fault(&w, SIMULATED_PAUSE, now + 0.1, 3, 1, 0, 0);
    run(3.5);
    ck_assert_uint_eq(ledger_view(ranks_of(w.trainers[1].f)->ledger).epoch, 1);
    run(2);
    ck_assert_uint_gt(ledger_view(ranks_of(w.trainers[1].f)->ledger).epoch, 16);
    go_on(2);
    shut();
}
END_TEST

/* A rank dies in the midst of a round, whose end one of the others has seen: the third
 * takes the result, and loses nothing of its work by taking a state. */
START_TEST(a_result_is_fetched)
{
    uint64_t fetched = 0;

    for (int at = 0; at < 200; at += FEWER) {
        open_of(3, 3);
        run(0.1);
        world_fault(&w, SIMULATED_DIE, world_now(&w) + at * 50e-6, 0, 2, 0, 0);
        run(1);
        fetched += w.fetched;
        for (int k = 0; k < 2; k++)
            ck_assert_uint_eq(w.trainers[k].states, 1);
        shut();
    }
    ck_assert_uint_gt(fetched, 0);
}
END_TEST

/* Longer than `dead`, and no piece of it comes sooner: its members hear each other all the
 * same. */
START_TEST(a_round_is_long)
{
    const struct simulated_options slow = {.ranks = 3, .seed = 7, .latency_ns = 100000,
                                           .bytes_per_s = 1e5};
    world_open(&w, &slow, 3);
    w.n = 200000;
    for (int k = 0; k < 3; k++)
        world_come(&w, k);
    run(120);
    for (int k = 0; k < 3; k++) {
        ck_assert_uint_gt(w.trainers[k].rounds, 1);
        ck_assert_int_eq(w.trainers[k].n_notes[DESCANT_EVENT_LOST], 0);
    }
    shut();
}
END_TEST

/* An encoded round is made again without one that has died, or its result is fetched:
 * what its members owe is of the one that counts. */
START_TEST(a_debt_is_of_one_round)
{
    for (int at = 0; at < 200; at += FEWER) {
        open_of(3, 0);
        w.wire = WIRE_Q8;
        w.founders = 3;
        for (int k = 0; k < 3; k++)
            world_come(&w, k);
        run(0.1);
        world_fault(&w, SIMULATED_DIE, world_now(&w) + at * 50e-6, 0, 2, 0, 0);
        run(0.2);
        shut();
    }
}
END_TEST

static bool is_fetching_result(const struct ranks *m)
{
    struct ledger_view view = ledger_view(m->ledger);

    return view.wanted.epoch && m->round.ours && !m->round.active &&
           m->round.wire != WIRE_F32 &&
           m->round.series == ledger_series_of(view.wanted) &&
           m->round.base == ledger_series_of(view.held);
}

enum { DEBTS = 9000 /* floats, so that rounds last */ };

/* What a rank owes once it has fetched the result of an encoded round whose end it did
 * not see. gives_up: it has given up the exchange meanwhile. False: no rank fetches one. */
static bool debt_of_fetched(int at, bool gives_up, float *owed)
{
    struct ranks *m = NULL;
    bool fetched = false;

    open_of(3, 0);
    w.wire = WIRE_Q8;
    w.n = DEBTS;
    w.founders = 3;
    for (int k = 0; k < 3; k++)
        world_come(&w, k);
    run(0.1);
    world_fault(&w, SIMULATED_DIE, world_now(&w) + at * 10e-6, 0, 2, 0, 0);
    for (int i = 0; i < 400 && !m; i++) {
        run(20e-6);
        for (int k = 0; k < 2; k++)
            if (is_fetching_result(ranks_of(w.trainers[k].f)))
                m = ranks_of(w.trainers[k].f);
    }
    if (m) {
        const struct exchange x = m->x;
        uint64_t wanted = m->round.series;
        if (gives_up)
            ck_assert_int_eq(ranks_begin(&m->f, &x), DESCANT_OK);
        for (int i = 0; i < 1000 && !fetched; i++) {
            run(20e-6);
            fetched = ledger_series_of(ledger_view(m->ledger).held) == wanted;
        }
        ck_assert(fetched);
        memcpy(owed, m->owed, w.n * sizeof *owed);
    }
    shut();
    return fetched;
}

/* The round counts, also where its result is nobody's any more. */
START_TEST(a_debt_is_of_the_round_that_counts)
{
    static float kept[DEBTS], given_up[DEBTS];
    int fetched = 0;

    for (int at = 0; at < 80; at += pick(1, 3, 7)) {
        if (!debt_of_fetched(at, false, kept))
            continue;
        ck_assert(debt_of_fetched(at, true, given_up));
        ck_assert_mem_eq(kept, given_up, sizeof kept);
        fetched++;
    }
    ck_assert_int_gt(fetched, 0);
}
END_TEST

/* Whoever gives a state gives up what it had arrived with, and arrives with another
 * vector, upon the same version: no piece of both comes to one state. */
START_TEST(a_giver_begins_anew)
{
    const struct simulated_options slow = {.ranks = 3, .seed = 7, .latency_ns = 100000,
                                           .bytes_per_s = 1e8};

    for (int at = 0; at < 20; at += FEWER) {
        world_open(&w, &slow, 2);
        w.n = 200000;
        w.hasty = true;
        w.verbose = getenv("VERBOSE") != NULL;
        world_come(&w, 0);
        world_come(&w, 1);
        run(0.1);
        world_come(&w, 2);
        run(at / 2 * 3e-3);
        world_finish(&w, at % 2);
        run(0.2);
        ck_assert_uint_gt(w.trainers[2].states, 0);
        shut();
    }
}
END_TEST

/* Whoever brings a state for all gives it up once its round is under way: the others get
 * all of it. */
START_TEST(a_reload_is_given_up)
{
    for (int at = 0; at < 20; at += FEWER) {
        const struct simulated_options slow = {.ranks = 3, .seed = 7, .latency_ns = 100000,
                                               .bytes_per_s = 1e8};
        world_open(&w, &slow, 3);
        w.n = 200000;
        w.hasty = true;
        for (int k = 0; k < 3; k++)
            world_come(&w, k);
        run(0.1);
        world_reload(&w, 1);
        run(at * 2e-3);
        world_finish(&w, 1);
        run(0.2);
        shut();
    }
}
END_TEST

/* A rank is cut off in the midst of a round, of whose end it does not hear, and reloads. The
 * rank's arrival is in that round, and its state is not. */
START_TEST(a_reload_is_not_taken_for_the_arrival_before_it)
{
    for (int at = 0; at < 40; at += FEWER) {
        open_of(3, 3);
        run(0.1069 + at * 10e-6);
        world_fault(&w, SIMULATED_PART, world_now(&w), 3, 1, 1, 0);
        world_reload(&w, 1);
        run(6);
        for (int k = 0; k < 3; k++)
            ck_assert_uint_eq(w.trainers[k].lineage, 1);
        shut();
    }
}
END_TEST

START_TEST(one_that_differs_is_told)
{
    open_of(3, 2);
    go_on(2);
    w.manifest = "plan y\n";
    world_come(&w, 2);
    run(1);
    ck_assert_int_eq(w.trainers[2].state, TRAINER_DEAD);
    ck_assert_ptr_nonnull(strstr(w.said, "plan y"));
    go_on(2);
    w.manifest = "plan x\n";
    world_come(&w, 2);
    go_on(3);
    shut();
}
END_TEST

START_TEST(all_finish)
{
    open_of(3, 3);
    go_on(3);
    world_finish(&w, 1);
    run(2);
    uint64_t before = world_rounds(&w);
    run(1);
    ck_assert_uint_gt(world_rounds(&w), before + 20);
    world_finish(&w, 0);
    world_finish(&w, 2);
    run(1);
    for (int k = 0; k < 3; k++)
        ck_assert_msg(w.trainers[k].finished && !w.trainers[k].open, "rank %d", k);
    shut();
}
END_TEST

/* Rank 2 was cut off. It has arrived, and the state of a version that it has missed is on
 * its way, when it begins another exchange: a reload, or its last. */
static void begin_another_as_a_state_comes(bool reload)
{
    open_of(3, 3);
    w.hasty = true;
    run(1);
    world_fault(&w, SIMULATED_PART, world_now(&w), 2, 2, 1, 0);
    run(2);
    const struct ranks *m = ranks_of(w.trainers[2].f);
    uint64_t states = w.trainers[2].states, pieces = ranks_versions_pieces(m);
    while (ranks_versions_pieces(m) == pieces)
        run(10e-6);
    ck_assert(ledger_view(m->ledger).wanted.epoch);
    (reload ? world_reload : world_finish)(&w, 2);
    run(0.2);
    ck_assert_uint_eq(w.trainers[2].states, states + reload);
}

START_TEST(a_reload_is_not_undone_by_a_state_on_its_way)
{
    begin_another_as_a_state_comes(true);
    for (int k = 0; k < 3; k++)
        ck_assert_uint_eq(w.trainers[k].lineage, 1);
    shut();
}
END_TEST

START_TEST(a_last_exchange_is_not_ended_by_a_state_on_its_way)
{
    begin_another_as_a_state_comes(false);
    ck_assert(w.trainers[2].finished && w.trainers[2].open);
    world_finish(&w, 0);
    world_finish(&w, 1);
    run(1);
    ck_assert(!w.trainers[2].open);
    shut();
}
END_TEST

/* --- one that lies --- */

enum { LIES = 200 };

static int lies;                /* asks for a state that never comes, still to be made */

static void ignore(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)m;
    (void)op;
    (void)ended;
}

static bool ask_too_much(struct link *link, const void *p, size_t bytes,
                         const struct link_message *message)
{
    static struct ranks_op op = {.ended = ignore};
    static union {
        struct ask ask;
        char bytes[LINK_WORD];
    } lie;
    struct link_message more = *message;

    more.op = &op;
    if (message->tag == TAG_ASK)
        memcpy(&lie, p, bytes);
    lie.ask.state = UINT64_MAX;
    for (; message->tag == TAG_ASK && lies > 0; lies--)
        if (!link_simulated.send(link, &lie, bytes, &more))
            return false;
    return link_simulated.send(link, p, bytes, message);
}

static struct link_type lying;

static struct link *meet(struct link_entry *entry, struct link_place *place)
{
    struct link *link = link_simulated.meet(entry, place);

    link->type = &lying;
    return link;
}

static void open_elastic_with_a_liar(int asks)
{
    open_of(3, 0);
    w.elastic = true;
    w.founders = 2;
    lying = link_simulated;
    lying.meet = meet;
    lying.send = ask_too_much;
    lies = asks;
    world_come(&w, 0);
    world_come(&w, 1);
    w.over = &lying;
    world_come(&w, 2);
}

START_TEST(asks_that_wait_hold_nobody_up)
{
    open_elastic_with_a_liar(40);
    run(2);
    ck_assert_int_eq(lies, 0);
    for (int k = 0; k < 3; k++) {
        uint64_t before = w.exchanges;
        run(1);
        ck_assert_uint_gt(w.exchanges, before + 300);
    }
    shut();
}
END_TEST

START_TEST(asks_that_wait_are_bounded)
{
    long live = memory_live();

    open_elastic_with_a_liar(LIES);
    world_run(&w, 2);
    ck_assert_int_eq(lies, 0);
    ck_assert_msg(strstr(w.why, "rank 2") && strstr(w.why, "it has held up 64 messages"), "%s",
                  w.why);
    *w.why = 0;
    uint64_t before = w.exchanges;
    run(2);
    ck_assert_uint_gt(w.exchanges, before + 300);
    shut();
    ck_assert_int_eq(memory_live(), live);
}
END_TEST

static bool loses;

static bool lose_arrivals(struct link *link, const void *p, size_t bytes,
                          const struct link_message *message)
{
    const struct ranks_word *word = p;
    struct link_message lost = *message;

    if (loses && message->tag == TAG_WORD && word->what == WORD_HERE && word->ledger.arrival)
        lost.tag = LINK_TAGS - 1;           /* nobody receives it */
    return link_simulated.send(link, p, bytes, &lost);
}

/* Rank 1 brings a state for all, for which rank 2 never arrives, so that pieces of the
 * state that it holds wait. Rank 2 wants so many of them. */
static void open_with_a_liar_that_wants(int wants)
{
    static struct ranks_op op = {.ended = ignore};
    static struct {
        struct ledger_version version;
        uint64_t transfer;
        uint32_t which, piece;
    } want = {.transfer = 1, .which = VERSION_STATE};

    dead_s = 100;
    open_of(4, 0);
    dead_s = 1;
    w.rows = true;
    w.founders = 3;
    lying = link_simulated;
    lying.meet = meet;
    lying.send = lose_arrivals;
    loses = false;
    world_come(&w, 0);
    world_come(&w, 1);
    w.over = &lying;
    world_come(&w, 2);
    w.over = NULL;
    run(1);
    loses = true;
    run(0.2);
    world_reload(&w, 1);
    run(0.2);
    struct ranks *m = ranks_of(w.trainers[2].f);
    want.version = ledger_view(m->ledger).held;
    for (int i = 0; i < wants; i++)
        ck_assert(link_simulated.send(m->link, &want, sizeof want,
                                      &(struct link_message){1, TAG_WANT, 0, &op}));
    world_run(&w, 0.2);
}

/* The newcomer takes its rows of rank 1. */
START_TEST(wants_that_wait_hold_nobody_up)
{
    open_with_a_liar_that_wants(40);
    world_come(&w, 3);
    run(1);
    ck_assert_uint_gt(w.trainers[3].rows.states, 0);
    shut();
}
END_TEST

START_TEST(wants_that_wait_are_bounded)
{
    long live = memory_live();

    open_with_a_liar_that_wants(LIES);
    ck_assert_msg(strstr(w.why, "rank 2") && strstr(w.why, "it has held up 64 messages"), "%s",
                  w.why);
    shut();
    ck_assert_int_eq(memory_live(), live);
}
END_TEST

/* --- one that does not take its state --- */

static bool lose_wants(struct link *link, const void *p, size_t bytes,
                       const struct link_message *message)
{
    struct link_message lost = *message;

    if (message->tag == TAG_WANT)
        lost.tag = LINK_TAGS - 1;           /* nobody receives it */
    return link_simulated.send(link, p, bytes, &lost);
}

/* Rounds of the two go on without it, and with it once another process of it takes. */
static void need_rounds_without_2(void)
{
    uint64_t before = world_rounds(&w);

    run(0.9);
    ck_assert_uint_lt(world_rounds(&w), before + 5);
    run(0.6);
    ck_assert_uint_gt(world_rounds(&w), before + 5);
    before = world_rounds(&w);
    run(3);
    ck_assert_uint_gt(world_rounds(&w), before + 100);
    ck_assert_uint_eq(w.trainers[2].states, 0);
    ck_assert_int_eq(w.trainers[2].state, TRAINER_TRAINS);
    ck_assert(!ledger_view(ranks_of(w.trainers[2].f)->ledger).member);
}

START_TEST(a_newcomer_that_takes_nothing_is_put_out)
{
    open_of(3, 2);
    go_on(2);
    lying = link_simulated;
    lying.meet = meet;
    lying.send = lose_wants;
    w.over = &lying;
    world_come(&w, 2);
    need_rounds_without_2();
    w.over = NULL;
    world_come(&w, 2);
    go_on(3);
    shut();
}
END_TEST

/* Whoever has missed a round of them hears so; the others go on as if it had not come. */
START_TEST(gradients_are_no_state)
{
    open_of(3, 0);
    w.gradients = true;
    w.founders = 2;
    world_come(&w, 0);
    world_come(&w, 1);
    go_on(2);
    uint64_t before = world_rounds(&w);
    world_come(&w, 2);
    run(0.5);
    ck_assert_int_eq(w.trainers[2].state, TRAINER_DEAD);
    ck_assert_msg(strstr(w.said, "rank 2 has no part in round"), "%s", w.said);
    ck_assert_uint_gt(world_rounds(&w), before + 20);
    go_on(2);
    shut();
}
END_TEST

START_TEST(gradients_are_missed)
{
    open_of(3, 0);
    w.gradients = true;
    w.founders = 3;
    for (int k = 0; k < 3; k++)
        world_come(&w, k);
    go_on(3);
    world_fault(&w, SIMULATED_PART, world_now(&w), 5, 1, 1, 0);
    run(8);
    ck_assert_int_eq(w.trainers[1].state, TRAINER_DEAD);
    ck_assert_msg(strstr(w.said, "rank 1 has no part in round"), "%s", w.said);
    go_on(2);
    shut();
}
END_TEST

/* --- words --- */

/* Rank 2 hears nothing for a while, and so many words are on their way to it that no more
 * go. */
static void stop_hearing(double for_s)
{
    const struct ranks_word alive = {.what = WORD_ALIVE};

    world_fault(&w, SIMULATED_PAUSE, world_now(&w), for_s, 2, 0, 0);
    for (bool more = true; more; run(0.01))     /* some go into the link meanwhile */
        for (more = false; ranks_tell(ranks_of(w.trainers[0].f), 2, alive, NULL, 0);)
            more = true;
}

/* It pauses, or is cut off, as a long word of it is on its way: it keeps the room that the word
 * was given, and the others hear each other. */
START_TEST(a_word_of_one_that_pauses_holds_up_no_others)
{
    enum { STEPS = 4 };
    const struct ranks_word long_word = {.what = WORD_AGREE_HAVE, .agree = 1, .kind = AGREE_MEAN,
                                         .n = AGREE_BYTES};
    static const char bytes[AGREE_BYTES];

    for (int k = 0; k < 2 * few(STEPS, 1); k++) {
        open_of(4, 4);
        go_on(4);
        for (int to = 0; to < 2; to++)
            ck_assert(ranks_tell(ranks_of(w.trainers[2].f), to, long_word, bytes, sizeof bytes));
        world_fault(&w, k % 2 ? SIMULATED_PAUSE : SIMULATED_PART,
                    world_now(&w) + 5e-5 * (k / 2), 8, 2, 1, 0);
        run(4);
        uint64_t before = world_rounds(&w);
        run(1);
        ck_assert_uint_gt(world_rounds(&w), before + 10);
        run(5);
        go_on(4);
        shut();
    }
}
END_TEST

/* The last rank's arrivals may be lost. */
static void open_elastic(int ranks)
{
    dead_s = 100;
    open_of(ranks, 0);
    dead_s = 1;
    w.elastic = true;
    w.founders = ranks;
    lying = link_simulated;
    lying.meet = meet;
    lying.send = lose_arrivals;
    loses = false;
    for (int k = 0; k < ranks; k++) {
        w.over = k == ranks - 1 ? &lying : NULL;
        world_come(&w, k);
    }
    run(1);
}

/* Rank 2 owns no slice of the centre, so that rank 1 arrives with its state meanwhile. */
START_TEST(a_call_is_not_lost)
{
    open_elastic(4);
    stop_hearing(5);
    world_reload(&w, 1);
    run(6);
    for (int k = 0; k < 4; k++)
        ck_assert_uint_eq(w.trainers[k].lineage, 1);
    shut();
}
END_TEST

/* Rank 2 has arrived for a state that is given up before rank 3 has. */
START_TEST(a_void_is_not_lost)
{
    open_elastic(4);
    loses = true;
    world_reload(&w, 1);
    run(1);
    ck_assert_int_eq(ranks_of(w.trainers[2].f)->stage, STAGE_ARRIVED);
    stop_hearing(5);
    struct ranks *m = ranks_of(w.trainers[1].f);
    const struct exchange x = {
        .kind = EXCHANGE_ELASTIC, .in = &m->copy, .n = w.n, .alpha = 0.3};
    ck_assert_int_eq(ranks_begin(&m->f, &x), DESCANT_OK);
    run(6);
    uint64_t before = w.trainers[2].exchanges;
    run(1);
    ck_assert_uint_gt(w.trainers[2].exchanges, before + 20);
    shut();
}
END_TEST

/* Rank 0 vanishes while it takes the manifest of rank 3, which goes to the next leader. */
START_TEST(a_manifest_goes_to_each_leader)
{
    static char manifest[3000];

    memset(manifest, 'x', sizeof manifest - 1);
    for (int at = 0; at < 40; at += FEWER) {
        open_of(4, 0);
        w.manifest = manifest;
        w.founders = 3;
        for (int k = 0; k < 3; k++)
            world_come(&w, k);
        run(0.2);
        world_come(&w, 3);
        world_fault(&w, SIMULATED_VANISH, world_now(&w) + at * 50e-6, 0, 0, 0, 0);
        run(6);
        go_on(3);
        shut();
    }
}
END_TEST

/* Rank 2 brings a state, which comes to rank 0, and not to rank 1: rank 0 is cut off, and
 * rank 2 leaves. Rank 1's vectors are the state of the next round, and it owes what it
 * owed. */
START_TEST(a_rank_that_lends_its_vectors_owes_still)
{
    float owed[WORLD_FLOATS];
    double owes = 0;

    open_of(3, 0);
    w.founders = 3;
    w.wire = WIRE_Q8;
    found();
    run(0.5);
    const struct ranks *m = ranks_of(w.trainers[1].f), *from = ranks_of(w.trainers[2].f);
    world_reload(&w, 2);
    while (m->round.kind != EXCHANGE_STATE ||
           ledger_same(ledger_view(m->ledger).held, ledger_view(from->ledger).held))
        run(10e-6);
    uint64_t held = ledger_view(m->ledger).held.number, states = w.trainers[1].states;
    memcpy(owed, m->owed, sizeof owed);
    for (int i = 0; i < WORLD_FLOATS; i++)
        owes += fabs((double)owed[i]);
    ck_assert(owes > 0);
    world_fault(&w, SIMULATED_PART, world_now(&w), 9, 0, 1, 0);
    world_leave(&w, 2);
    run(4);
    ck_assert_int_eq(w.trainers[2].state, TRAINER_AWAY);
    ck_assert_uint_gt(ledger_view(m->ledger).held.number, held + 3);
    ck_assert_uint_eq(w.trainers[1].states, states);
    ck_assert_mem_eq(owed, m->owed, sizeof owed);
    shut();
}
END_TEST

/* --- slices of the centre --- */

START_TEST(each_float_is_in_one_slice)
{
    static struct ranks m;

    for (int size = 1; size <= 20; size++)
        for (size_t n = 1; n <= 500; n += 1 + n / 20)
            for (size_t at = 0; at < n; at++) {
                m.place.size = size;
                m.n = n;
                int slice = ranks_center_slice(&m, at);
                ck_assert(slice >= 0 && slice < size);
                ck_assert(ranks_slice_at(n, size, slice) <= at);
                ck_assert(at < ranks_slice_at(n, size, slice + 1));
                ck_assert_int_eq(ranks_center_slice(&m, n), size - 1);
                ck_assert_int_eq(ranks_center_slice(&m, UINT64_MAX), size - 1);
            }
}
END_TEST

/* A peer that has been given up has no more that can be refused. */
START_TEST(a_peer_is_given_up_once)
{
    open_of(3, 3);
    go_on(3);
    struct ranks *m = ranks_of(w.trainers[0].f);
    ranks_refuse(m, 2, "a first time");
    ck_assert_msg(strstr(w.why, "a first time"), "%s", w.why);
    *w.why = 0;
    ranks_refuse(m, 2, "a second time");
    ck_assert_str_eq(w.why, "");
    shut();
}
END_TEST

START_TEST(worlds_of_faults)
{
    run_first_faults("");
    run_first_faults("-q -f");
}
END_TEST

/* Each failed once: a state that was brought twice, over the work of others; no member
 * that could give the newest version's state; a donor that had vanished; a member with old
 * rows; a result by a reference that had changed; a newcomer that was outrun for ever; a
 * part that was lost twice; a debt that was forgiven to a rank whose vectors were the
 * state; a newcomer that knew an epoch of a job that had ended; a state that was brought
 * twice, for an exchange before it had arrived with its seq; a newcomer with rows of a job
 * that had ended; a leaver that dissolved the job of one that it did not hear; two epochs
 * of one number, after deaths that were vouched for in both; a newcomer that had forgotten
 * its rows, and took a version; work of several rounds that was lost to a state of another
 * reload; rows without the parts of the process before; a state that was brought twice, for
 * an arrival before it had been taken back; a rank at its end that was called for ever; a
 * round that its coordinator ended, and had given up at that moment for a newcomer. Under
 * a quorum: a round that had lost a part, and for which its member waited for ever; a base
 * of a leaver that had the list alone; a reload taken for a base, by a member that had had
 * its list before. The same over a fixed link, where no word is said again: a donor that
 * began to bring a state for all; a member that was told to take what it had; a version that
 * its coordinator did not ask for again; a coordinator without its version's state. */
static const char *const rare[] = {"132025", "236894", "38427",  "60872",  "82939",
                                   "20444",  "544647", "631821", "807060", "767234",
                                   "531035", "993704", "993733", "3845",   "2033873",
                                   "32714",  "36315",  "184522", "270018", "222737",
                                   "193140", "208498", "625253", "450035", "357136",
                                   "708067", "392430", "664041", "15158", "6024 -q", "14214 -q",
                                   "339 -q", "278 -q -f", "270 -q -f", "1626 -q -f",
                                   "163 -q -f -d"};

START_TEST(rare_worlds)
{
    run_faults(rare[_i]);
}
END_TEST

int main(void)
{
    TCase *all = new_case("ranks", 60);
    tcase_add_test(all, founders_train);
    tcase_add_test(all, one_comes_later);
    tcase_add_loop_test(all, a_later_rank_comes_first, 0, 2);
    tcase_add_test(all, later_ranks_come_at_any_time);
    tcase_add_test(all, one_is_there_at_once);
    tcase_add_loop_test(all, a_newcomer_trains_soon, 0, 2);
    tcase_add_test(all, any_of_three_dies);
    tcase_add_test(all, one_leaves);
    tcase_add_test(all, all_leave);
    tcase_add_test(all, one_pauses_and_comes_back);
    tcase_add_test(all, one_is_cut_off_and_comes_back);
    tcase_add_test(all, a_pause_vouches_for_nobody);
    tcase_add_test(all, a_result_is_fetched);
    tcase_add_test(all, a_round_is_long);
    tcase_add_test(all, a_debt_is_of_one_round);
    tcase_add_test(all, a_debt_is_of_the_round_that_counts);
    tcase_add_test(all, a_giver_begins_anew);
    tcase_add_test(all, a_reload_is_given_up);
    tcase_add_test(all, a_reload_is_not_taken_for_the_arrival_before_it);
    tcase_add_test(all, a_rank_that_lends_its_vectors_owes_still);
    tcase_add_test(all, one_that_differs_is_told);
    tcase_add_test(all, all_finish);
    tcase_add_test(all, a_reload_is_not_undone_by_a_state_on_its_way);
    tcase_add_test(all, a_last_exchange_is_not_ended_by_a_state_on_its_way);
    tcase_add_test(all, a_peer_is_given_up_once);
    tcase_add_test(all, each_float_is_in_one_slice);
    tcase_add_test(all, asks_that_wait_hold_nobody_up);
    tcase_add_test(all, asks_that_wait_are_bounded);
    tcase_add_test(all, wants_that_wait_hold_nobody_up);
    tcase_add_test(all, wants_that_wait_are_bounded);
    tcase_add_test(all, a_newcomer_that_takes_nothing_is_put_out);
    tcase_add_test(all, gradients_are_no_state);
    tcase_add_test(all, gradients_are_missed);
    tcase_add_test(all, a_word_of_one_that_pauses_holds_up_no_others);
    tcase_add_test(all, a_call_is_not_lost);
    tcase_add_test(all, a_void_is_not_lost);
    tcase_add_test(all, a_manifest_goes_to_each_leader);
    tcase_add_test(all, worlds_of_faults);
    tcase_add_loop_test(all, rare_worlds, 0, few(N(rare), 5));
    return run_cases(all, NULL);
}
