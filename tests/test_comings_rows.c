/* SPDX-License-Identifier: MIT */
/* Rounds of rows among ranks that come late, leave, die, fall silent and come back, over
 * a simulated link. ranks_world_rows.c counts each part. */
#include "comings.h"
#include "harness/suite.h"

#include <string.h>

enum { WAYS = 5 }; /* in which a rank goes */

static void open_of(int ranks, int founders, bool elastic)
{
    open_world(ranks, founders);
    w.rows = true;
    w.elastic = elastic;
    found();
}

/* All who train have the same rows, and go on. */
static void go_on(int trainers)
{
    uint64_t before = world_rows_rounds(&w), rounds[WORLD_MOST];
    int n = 0;

    for (int k = 0; k < w.options.ranks; k++)
        rounds[k] = w.trainers[k].rows.rounds;
    run(2);
    ck_assert_uint_gt(world_rows_rounds(&w), before + 20);
    for (int k = 0; k < w.options.ranks; k++) {
        if (w.trainers[k].state != TRAINER_TRAINS)
            continue;
        n++;
        ck_assert_uint_gt(w.trainers[k].rows.rounds, rounds[k] + 20);
    }
    ck_assert_int_eq(n, trainers);
}

START_TEST(founders_exchange_rows)
{
    for (int n = 1; n <= 5; n++) {
        open_of(n, n, n % 2);
        go_on(n);
        for (int k = 0; k < n; k++)
            ck_assert_uint_eq(w.trainers[k].rows.lost + w.trainers[k].rows.states, 0);
        world_close(&w);
    }
}
END_TEST

/* It takes the rows, and gives its own. */
START_TEST(one_comes_later)
{
    open_of(4, 2, _i);
    go_on(2);
    world_come(&w, 3);
    run(0.3);
    ck_assert_uint_eq(w.trainers[3].rows.states, 1);
    go_on(3);
    world_come(&w, 2);
    run(0.6);
    go_on(4);
    for (int k = 0; k < 4; k++)
        ck_assert_uint_eq(w.trainers[k].rows.lost, 0);
    world_close(&w);
}
END_TEST

START_TEST(one_comes_at_once)
{
    open_of(3, 2, _i);
    run(0.005);
    world_come(&w, 2);
    run(0.3);
    go_on(3);
    world_close(&w);
}
END_TEST

/* At many moments of a round, which is open most of the time. */
START_TEST(any_goes_in_a_round)
{
    int way = _i % WAYS, who = (_i / WAYS + way) % 3;

    for (int at = 0; at < 4; at += pick(1, 3, 3)) {
        open_of(3, 3, at % 2);
        go_on(3);
        w.step_ns = 300000;
        run(0.1 + 0.00013 * at);
        w.step_ns = 10000000;
        double now = world_now(&w);
        if (way == 0)
            world_fault(&w, SIMULATED_DIE, now, 0, who, 0, 0);
        else if (way == 1)
            world_fault(&w, SIMULATED_VANISH, now, 0, who, 0, 0);
        else if (way == 2)
            world_leave(&w, who);
        else
            world_fault(&w, way == 3 ? SIMULATED_PAUSE : SIMULATED_PART, now, 9, who, 1,
                        0);
        run(way == 0 ? 0.1 : 3);
        uint64_t before = world_rows_rounds(&w);
        run(1);
        ck_assert_uint_gt(world_rows_rounds(&w), before + 20);
        if (way < 3)
            world_come(&w, who);
        run(way < 3 ? 1 : 10);
        go_on(3);
        ck_assert_uint_gt(w.trainers[who].rows.states, 0);
        world_close(&w);
    }
}
END_TEST

/* Two that do not hear each other, and the coordinator, which hears both. */
START_TEST(two_are_cut_from_each_other)
{
    open_of(3, 3, true);
    go_on(3);
    world_fault(&w, SIMULATED_CUT, world_now(&w), 20, 1, 2, 0);
    run(25);
    go_on(3);
    world_close(&w);
}
END_TEST

static struct link_type lying;
static bool loses; /* what is wanted */

static struct link *meet(struct link_entry *entry, struct link_place *place)
{
    struct link *link = link_simulated.meet(entry, place);

    link->type = &lying;
    return link;
}

static bool lose_wants(struct link *link, const void *p, size_t bytes,
                       const struct link_message *message)
{
    struct link_message lost = *message;

    if (message->tag == TAG_WANT && loses)
        lost.tag = LINK_TAGS - 1; /* nobody receives it */
    return link_simulated.send(link, p, bytes, &lost);
}

static void come_lying(int rank)
{
    lying = link_simulated;
    lying.meet = meet;
    lying.send = lose_wants;
    loses = false;
    w.over = &lying;
    world_come(&w, rank);
    w.over = NULL;
}

/* For `dead` the others wait, then they do not for twice as long; once another process
 * has its rank that one is a member. */
START_TEST(a_newcomer_that_takes_no_rows_is_not_waited_for)
{
    open_of(3, 2, _i);
    go_on(2);
    come_lying(2);
    loses = true;
    uint64_t before = world_rows_rounds(&w);
    run(0.9);
    ck_assert_uint_lt(world_rows_rounds(&w), before + 5);
    run(1.5);
    ck_assert_uint_gt(world_rows_rounds(&w), before + 50);
    run(5);
    ck_assert_uint_gt(world_rows_rounds(&w), before + 200);
    world_come(&w, 2);
    run(1);
    go_on(3);
    world_close(&w);
}
END_TEST

/* It was cut off, and takes the others' rows when their epoch ends. The next one's
 * coordinator does not know at first which rows are the job's. */
START_TEST(nobody_is_a_member_without_rows)
{
    for (int at = 0; at < 12; at += pick(1, 3, 5)) {
        open_of(4, 3, true);
        go_on(3);
        world_fault(&w, SIMULATED_DIE, world_now(&w), 0, 0, 0, 0);
        run(0.1);
        world_come(&w, 0); /* rank 1 leads */
        come_lying(3);
        run(0.5);
        go_on(4);
        world_fault(&w, SIMULATED_PART, world_now(&w), 3, 3, 1, 0);
        run(2.9);
        loses = true;
        run(0.3);
        ck_assert_uint_eq(ranks_of(w.trainers[3].f)->base.held.epoch, 0);
        world_fault(&w, SIMULATED_DIE, world_now(&w), 0, 2, 0, 0);
        run(0.0001 * at);
        world_fault(&w, SIMULATED_CUT, world_now(&w), 3, 0, 1, 0);
        run(2.5);
        loses = false;
        run(4);
        go_on(3);
        world_close(&w);
    }
}
END_TEST

/* A newcomer has the rows, and its state comes so much later. Returns after which time
 * rounds of rows did not wait for it. */
static double delay_state(double seconds)
{
    open_of(3, 2, true);
    run(1);
    world_come(&w, 2);
    do
        run(0.0001);
    while (ranks_of(w.trainers[2].f)->base.held.number < 10);
    double began = world_now(&w);
    uint64_t rounds = world_rows_rounds(&w);
    world_fault(&w, SIMULATED_CUT, began, seconds, 1, 2, 0);
    do
        run(0.0001);
    while (world_rows_rounds(&w) == rounds);
    return world_now(&w) - began;
}

/* Whenever it is a member it has the rows of the last round. */
START_TEST(a_slow_newcomer_is_a_member_with_the_rows)
{
    double waits = delay_state(2);

    world_close(&w);
    ck_assert(waits > 1 && waits < 1.3);
    for (int at = 0; at < 30; at += FEWER) {
        delay_state(waits - 0.0001 * at);
        run(1);
        go_on(3);
        world_close(&w);
    }
}
END_TEST

static int calls[WORLD_MOST]; /* to a round of rows, by whom they are for */

static bool count_calls(struct link *link, const void *p, size_t bytes,
                        const struct link_message *message)
{
    struct ranks_word word;

    if (message->tag == TAG_WORD && bytes >= sizeof word) {
        memcpy(&word, p, sizeof word);
        calls[message->rank] += word.what == WORD_ROWS_CALL;
    }
    return link_simulated.send(link, p, bytes, message);
}

/* For `dead` nobody vouches for the deaths, so that the dead stay members. Other processes
 * have their ranks. */
START_TEST(the_next_process_of_a_rank_is_no_member)
{
    open_world(3, 3);
    w.rows = w.elastic = true;
    lying = link_simulated;
    lying.meet = meet;
    lying.send = count_calls;
    w.over = &lying;
    found();
    go_on(3);
    world_fault(&w, SIMULATED_DIE, world_now(&w), 0, 1, 0, 0);
    world_fault(&w, SIMULATED_DIE, world_now(&w), 0, 2, 0, 0);
    run(0.001);
    world_come(&w, 1);
    world_come(&w, 2);
    memset(calls, 0, sizeof calls);
    run(0.9);
    ck_assert_uint_eq(ledger_view(ranks_of(w.trainers[0].f)->ledger).epoch, 1);
    ck_assert_int_eq(calls[1] + calls[2], 0);
    world_close(&w);
}
END_TEST

/* Its rows are the last ones, and are being copied. */
START_TEST(a_rank_that_leaves_takes_no_other_rows)
{
    open_of(3, 3, true);
    go_on(3);
    struct ranks *m = ranks_of(w.trainers[1].f);
    while (m->rows && !ranks_rows_quiet(m))
        run(0.001);
    const struct ledger_version held = m->base.held;
    const struct ranks_word lack = {
        .what = WORD_ROWS_LACK, .ledger.version = {held.epoch, held.number + 1}};
    ranks_rows_takes(w.trainers[1].f);
    ranks_rows_hear(m, &lack);
    ck_assert(ledger_same(m->base.held, held) && !m->base.wanted.epoch);
    world_close(&w);
}
END_TEST

/* The highest that a word may have: the next one would be none. */
START_TEST(a_number_that_is_heard_is_no_round_s)
{
    open_of(3, 3, true);
    go_on(3);
    struct ranks *m = ranks_of(w.trainers[0].f);
    uint64_t epoch = ledger_view(m->ledger).epoch, before = world_rows_rounds(&w);
    const struct ranks_word word = {
        .what = WORD_ROWS_NONE, .protocol = RANKS_PROTOCOL, .stands = epoch, .source = -1,
        .ledger = {.generation = m->peers[1].generation,
                   .version = {epoch, (UINT64_C(1) << 39) - 1}}};
    w.lied_to = true;
    w.liar = 1;
    m->hear(m, 1, &word, sizeof word);
    ck_assert_uint_eq(w.refused, 1);
    run(3);
    ck_assert_uint_gt(world_rows_rounds(&w), before + 20);
    world_close(&w);
}
END_TEST

/* Only ranks 0 and 1 hear that a round is taken. */
static bool lose_takes(struct link *link, const void *p, size_t bytes,
                       const struct link_message *message)
{
    struct link_message lost = *message;
    struct ranks_word word;

    if (loses && message->tag == TAG_WORD && bytes >= sizeof word && message->rank > 1) {
        memcpy(&word, p, sizeof word);
        lost.tag = word.what == WORD_ROWS_TAKE ? LINK_TAGS - 1 : lost.tag;
    }
    return link_simulated.send(link, p, bytes, &lost);
}

/* Rank 1 loses the part that it has given when it is cut off. Later a round that it has
 * taken is given up by all that go on: it loses that round's part, and the open one. */
START_TEST(each_part_is_lost_once)
{
    open_world(5, 5);
    w.rows = w.elastic = true;
    lying = link_simulated;
    lying.meet = meet;
    lying.send = lose_takes;
    loses = false;
    w.over = &lying;
    found();
    go_on(5);
    const struct trainer_rows *rows = &w.trainers[1].rows;
    world_fault(&w, SIMULATED_PART, world_now(&w), 3, 1, 1, 0);
    run(6);
    go_on(5);
    ck_assert_uint_eq(rows->lost, 1);
    loses = true;
    run(0.2);
    ck_assert(!ledger_same(ranks_of(w.trainers[1].f)->base.held,
                           ranks_of(w.trainers[2].f)->base.held));
    world_fault(&w, SIMULATED_PART, world_now(&w), 3, 0, 1, 0);
    world_fault(&w, SIMULATED_PART, world_now(&w), 3, 1, 1, 0);
    loses = false;
    run(6);
    go_on(5);
    ck_assert_uint_eq(rows->lost, 3);
    world_close(&w);
}
END_TEST

START_TEST(a_donor_dies)
{
    for (int at = 0; at < 8; at += pick(1, 3, 5)) {
        open_of(4, 3, at % 2);
        go_on(3);
        world_come(&w, 3);
        run(0.0005 * at);
        world_fault(&w, SIMULATED_DIE, world_now(&w), 0, at % 3, 0, 0);
        run(3);
        go_on(3);
        world_close(&w);
    }
}
END_TEST

int main(void)
{
    TCase *all = new_case("rows", 60);
    tcase_add_test(all, founders_exchange_rows);
    tcase_add_loop_test(all, one_comes_later, 0, 2);
    tcase_add_loop_test(all, one_comes_at_once, 0, 2);
    tcase_add_loop_test(all, any_goes_in_a_round, 0, pick(3, 2, 1) * WAYS);
    tcase_add_test(all, two_are_cut_from_each_other);
    tcase_add_loop_test(all, a_newcomer_that_takes_no_rows_is_not_waited_for, 0, 2);
    tcase_add_test(all, nobody_is_a_member_without_rows);
    tcase_add_test(all, a_slow_newcomer_is_a_member_with_the_rows);
    tcase_add_test(all, the_next_process_of_a_rank_is_no_member);
    tcase_add_test(all, a_rank_that_leaves_takes_no_other_rows);
    tcase_add_test(all, a_number_that_is_heard_is_no_round_s);
    tcase_add_test(all, each_part_is_lost_once);
    tcase_add_test(all, a_donor_dies);
    return run_cases(all, NULL);
}
