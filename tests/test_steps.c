/* SPDX-License-Identifier: MIT */
/* The steps of docs/shm.md in every bad order: several trainers of one process, polled by hand,
 * and stopped or killed at a step of their own (shm_hook). A death inside a poll is a jump out
 * of it and a close; one that nobody has seen is written into the roster. */
#include "harness/heard.h"
#include "harness/suite.h"
#include "shm/shm.h"

#include <check.h>
#include <setjmp.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N = 300000, MOST = 4, TURNS = 200000 };

static struct fabric *f[MOST];
static struct extent extents[MOST];
static struct vector in[MOST];
static struct { enum exchange_kind kind; float value; bool own; int parts; } got[MOST];
static bool open_now[MOST];
static char name[64];
static bool collective, center;
static jmp_buf out;

static void set_up(void)
{
    static int number;
    snprintf(name, sizeof name, "steps-%d-%d", (int)getpid(), number++);
    collective = true;
    center = false;
    shm_hook = NULL;
}

static struct shm *shm_at(int k)
{
    return (struct shm *)f[k];
}

static struct shm_board *board_now(int k)
{
    return shm_at(k)->board;
}

static struct roster *roster_now(int k)
{
    return roster_of(shm_at(k));
}

static unsigned slot_of(int k)
{
    return shm_at(k)->meet.slot;
}

static descant_status try_open(int k, int size)
{
    const struct fabric_options options = {.address = name, .rank = k, .size = size,
                                           .start_s = 5, .log = &listening};
    return fabric_shm.open(&f[k], &options);
}

static void come(int k, int size, float value)
{
    const struct fabric_start start = {.manifest = "steps\n", .n = N, .room = N, .threads = 1,
                                       .collective = collective, .center = center};
    ck_assert_int_eq(try_open(k, size), DESCANT_OK);
    ck_assert_int_eq(fabric_shm.start(f[k], &start), DESCANT_OK);
    for (size_t i = 0; i < N; i++)
        f[k]->contribution[i] = value;
}

static void begin(int k, struct exchange x)
{
    extents[k] = (struct extent){0, N, f[k]->contribution};
    in[k] = (struct vector){N, 1, &extents[k]};
    x.in = &in[k];
    x.n = N;
    x.weight = 1;
    memset(&got[k], 0, sizeof got[k]);
    ck_assert_int_eq(fabric_shm.begin(f[k], &x), DESCANT_OK);
    open_now[k] = true;
}

static const struct exchange state = {.kind = EXCHANGE_STATE}, mean = {.kind = EXCHANGE_MEAN},
                             elastic = {.kind = EXCHANGE_ELASTIC, .alpha = 0.5};

static enum fabric_progress turn(int k)
{
    struct fabric_part part;
    enum fabric_progress progress = fabric_shm.poll(f[k], &part);

    ck_assert_msg(progress != FABRIC_FAILED, "trainer %d failed: %s", k, heard.text);
    if (progress == FABRIC_PART) {
        got[k].kind = part.kind;
        got[k].value = part.out[part.n - 1];
        got[k].own = part.own;
        got[k].parts++;
    }
    open_now[k] = open_now[k] && progress != FABRIC_DONE;
    return progress;
}

static void until_waiting(int k)
{
    while (open_now[k] && turn(k) != FABRIC_WAITING)
        ;
}

/* All that have something open; false: it does not end. */
static bool drive(void)
{
    for (int turns = 0; turns < TURNS; turns++) {
        bool any = false;
        for (int k = 0; k < MOST; k++)
            if (open_now[k] && turn(k) != FABRIC_DONE)
                any = true;
        if (!any)
            return true;
    }
    return false;
}

static void leave(int k)
{
    fabric_shm.close(f[k]);
    f[k] = NULL;
    open_now[k] = false;
}

static void leave_all(void)
{
    shm_hook = NULL;
    for (int k = 0; k < MOST; k++)
        if (f[k])
            leave(k);
    ck_assert_int_eq(memory_live(), 0);
}

/* Trainers 0 .. n-1 in slots of these numbers, with values 1, 2, .. */
static void form(int n)
{
    for (int k = 0; k < n; k++) {
        come(k, n, (float)(k + 1));
        ck_assert_uint_eq(slot_of(k), (unsigned)k);
    }
    for (int k = 0; k < n; k++)
        begin(k, state);
    ck_assert(drive());
}

static void begin_all(int n, struct exchange x)
{
    for (int k = 0; k < n; k++)
        if (f[k])
            begin(k, x);
}

/* --- closing --- */

static void admit_meanwhile(enum step step, unsigned slot)
{
    if (step != STEP_CLOSE || slot != 1)
        return;
    shm_hook = NULL;
    until_waiting(2);               /* admits, and arrives */
}

/* The leader has looked who is a member; then somebody is admitted, into a lower slot. */
START_TEST(a_round_waits_for_who_is_admitted_while_it_is_closed)
{
    form(3);
    leave(0);
    come(0, 3, 30);
    begin(1, mean);
    begin(2, mean);
    while (!has_arrived(board_now(1), 1, word_tag(load_word(board_now(1)))))
        turn(1);
    begin(0, state);                /* too late for the one, in time for the other */
    shm_hook = admit_meanwhile;
    turn(1);
    shm_hook = NULL;
    while (open_now[0])
        for (int k = 0; k < 3; k++)
            if (open_now[k])
                turn(k);
    ck_assert(open_now[1] && open_now[2]);
    begin(0, mean);
    ck_assert(drive());
    for (int k = 0; k < 3; k++) {
        ck_assert_float_eq_tol(got[k].value, 35.0f / 3, 1e-5f);
        ck_assert_uint_eq(f[k]->restarts, 0);
    }
    leave_all();
}
END_TEST

static void die_and_come_again(enum step step, unsigned slot)
{
    if (step != STEP_CLOSING || slot != 0)
        return;
    shm_hook = NULL;
    leave(2);
    come(3, 3, -1);
}

/* Dead and come again between the leader's look and REDUCE: the slot is not used again. */
START_TEST(no_slot_is_taken_while_a_round_is_closed)
{
    form(3);
    begin_all(3, mean);
    for (int k = 2; k >= 0; k--)
        turn(k);
    shm_hook = die_and_come_again;
    turn(0);
    ck_assert_ptr_null(f[2]);
    ck_assert_uint_ne(slot_of(3), 2);
    for (int k = 1; open_now[1] && got[1].parts == 0 && k < 100; k++)
        turn(1);
    ck_assert(drive());
    ck_assert_float_eq(got[0].value, 1.5f);
    ck_assert_float_eq(got[1].value, 1.5f);
    leave_all();
}
END_TEST

static enum step fatal;         /* of trainer 0 */

static void jump(enum step step, unsigned slot)
{
    if (step == fatal && slot == 0) {
        shm_hook = NULL;
        longjmp(out, 1);
    }
}

START_TEST(a_leader_dies_while_it_closes)
{
    form(3);
    begin_all(3, mean);
    for (int k = 2; k >= 0; k--)
        turn(k);
    fatal = STEP_CLOSING;
    shm_hook = jump;
    if (!setjmp(out))
        turn(0);
    ck_assert(load_word(board_now(1)) & PHASE_CLOSING);
    until_waiting(1);
    leave(0);
    ck_assert(drive());
    ck_assert_float_eq(got[1].value, 2.5f);
    ck_assert_float_eq(got[2].value, 2.5f);
    leave_all();
}
END_TEST

static void close_meanwhile(enum step step, unsigned slot)
{
    if (step == STEP_SEAT && slot == 2) {
        shm_hook = jump;
        if (!setjmp(out))
            turn(0);
    }
}

/* Who closes may be giving back the pages of the slot. */
START_TEST(who_takes_a_slot_waits_for_who_closes)
{
    form(3);
    leave(2);
    begin_all(2, mean);
    turn(1);
    turn(0);
    uint64_t word = load_word(board_now(0));
    fatal = STEP_CLOSING;
    shm_hook = close_meanwhile;
    come(3, 3, 1);
    ck_assert(load_word(board_now(0)) & PHASE_CLOSING);
    ck_assert_uint_ne(slot_of(3), 2);
    atomic_store(&board_now(0)->word, word);        /* the leader had not closed */
    ck_assert(drive());
    leave_all();
}
END_TEST

/* --- slots --- */

START_TEST(pages_of_the_dead_come_back)
{
    struct stat before, after;

    form(3);
    ck_assert_int_eq(fstat(shm_at(0)->meet.arena.fd, &before), 0);
    leave(2);
    _Atomic uint32_t *touching = &own_slot(shm_at(1))->touching[TOUCH_POLL];
    *touching = 3;
    for (int r = 0; r < 4; r++) {
        begin_all(2, mean);
        ck_assert(drive());
    }
    ck_assert_int_eq(life_state(slot_life(roster_now(0), 2)), LIFE_DEAD);
    ck_assert_int_eq(fstat(shm_at(0)->meet.arena.fd, &after), 0);
    ck_assert_int_eq(before.st_blocks, after.st_blocks);
    *touching = 0;
    for (int r = 0; r < 20; r++) {
        begin_all(2, mean);
        ck_assert(drive());
    }
    ck_assert_int_eq(life_state(slot_life(roster_now(0), 2)), LIFE_FREE);
    ck_assert_int_eq(fstat(shm_at(0)->meet.arena.fd, &after), 0);
    ck_assert_int_ge(before.st_blocks - after.st_blocks, N * 4 / 512);
    leave_all();
}
END_TEST

START_TEST(a_slot_that_is_touched_is_not_taken)
{
    form(3);
    leave(2);
    _Atomic uint32_t *touching = &own_slot(shm_at(1))->touching[TOUCH_POLL];
    *touching = 3;
    come(3, 3, 1);
    ck_assert_uint_eq(slot_of(3), 3);
    leave(3);
    *touching = TOUCH_ALL;
    uint64_t before = clock_now_ns();
    ck_assert_int_eq(try_open(3, 3), DESCANT_TIMEOUT);
    ck_assert_uint_lt(clock_now_ns() - before, 30000000000u);
    ck_assert_ptr_nonnull(strstr(heard.text, "in the midst of a change"));
    *touching = 0;
    come(2, 3, 1);
    ck_assert_uint_eq(slot_of(2), 2);
    leave_all();
}
END_TEST

/* Slot 5 is somebody who died before anybody watched it: alive in the roster. */
START_TEST(who_died_unseen_is_buried_by_the_next_joiner)
{
    form(2);
    struct roster *roster = roster_now(0);
    atomic_store(&roster->slots[5].life, life_make(7, LIFE_MEMBER));
    atomic_fetch_or(&roster->members, slot_bit(5));
    roster->slots[5].rank = 5;
    begin_all(2, mean);
    for (int k = 0; k < 100; k++)
        turn(k % 2);
    ck_assert(open_now[0] && open_now[1]);
    come(2, 2, 1);
    ck_assert_int_eq(life_state(slot_life(roster, 5)), LIFE_DEAD);
    ck_assert(drive());
    ck_assert_float_eq(got[0].value, 1.5f);
    leave_all();
}
END_TEST

/* Slot 5 died between the look at its life and the setting of its bit. */
START_TEST(a_bit_without_an_owner_is_taken_back)
{
    form(2);
    struct roster *roster = roster_now(0);
    atomic_store(&roster->slots[5].life, life_make(7, LIFE_DEAD));
    atomic_fetch_or(&roster->members, slot_bit(5));
    begin_all(2, mean);
    ck_assert(drive());
    ck_assert_float_eq(got[0].value, 1.5f);
    leave_all();
}
END_TEST

START_TEST(a_group_forms_beside_a_bit_without_an_owner)
{
    come(0, 1, 3);
    struct roster *roster = roster_now(0);
    atomic_store(&roster->slots[5].life, life_make(7, LIFE_DEAD));
    atomic_fetch_or(&roster->members, slot_bit(5));
    begin(0, state);
    ck_assert(drive());
    ck_assert(got[0].own);
    leave_all();
}
END_TEST

/* NaN of a slot's trainer that has died is not held against the next. */
START_TEST(who_takes_a_slot_is_not_bad_for_it)
{
    form(3);
    f[2]->contribution[0] = __builtin_nanf("");
    begin_all(3, mean);
    while (!(atomic_load(&board_now(0)->bad)))
        for (int k = 2; k >= 0 && !atomic_load(&board_now(0)->bad); k--)
            turn(k);
    leave(2);
    come(2, 3, 9);
    ck_assert_uint_eq(slot_of(2), 2);
    begin(2, state);
    while (open_now[2])
        for (int k = 0; k < 3; k++)
            if (open_now[k])
                turn(k);
    begin(2, mean);
    ck_assert(drive());
    for (int k = 0; k < 3; k++) {
        ck_assert(!f[k]->own_bad);
        ck_assert_float_eq(got[k].value, 4);
    }
    leave_all();
}
END_TEST

/* --- states, the centre --- */

START_TEST(a_joiner_looks_whether_its_source_lives)
{
    collective = _i;
    form(3);
    come(3, 3, 9);
    begin(3, state);
    if (collective)
        begin_all(3, mean);
    for (int k = 0; collective && k < 3; k++)
        turn(k);
    while (got[3].parts == 0)
        turn(3);
    ck_assert_float_eq(got[3].value, 1);
    leave(0);
    while (open_now[3])
        for (int k = 1; k < 4; k++)
            if (open_now[k])
                turn(k);
    ck_assert_int_eq(got[3].parts, 2);
    ck_assert_float_eq(got[3].value, 2);
    leave_all();
}
END_TEST

/* Members 0 and 1 begin a round in which 0 gives 7, and it closes. */
static void reload_meanwhile(enum step step, unsigned slot)
{
    if (step != STEP_PULL || slot != 2)
        return;
    shm_hook = NULL;
    for (size_t i = 0; i < N; i++)
        f[0]->contribution[i] = 7;
    begin(0, state);
    begin(1, elastic);
    while (!(load_word(board_now(0)) & PHASE_REDUCE))
        for (int k = 0; k < 2; k++)
            turn(k);
}

/* It closes between the joiner's look at the round and its pull. */
START_TEST(a_joiner_does_not_miss_a_reload)
{
    collective = false;
    center = true;
    form(2);
    come(2, 2, 9);
    begin(2, state);
    shm_hook = reload_meanwhile;
    until_waiting(2);
    ck_assert(drive());
    ck_assert_ptr_null(shm_hook);
    ck_assert_float_eq(got[2].value, 7);
    ck_assert_float_eq(f[2]->center[0], 7);
    leave_all();
}
END_TEST

/* Until k has a state, which is the job's and not its own. */
static void takes_state(int k, float value)
{
    while (open_now[k])
        for (int other = 0; other < MOST; other++)
            if (open_now[other])
                turn(other);
    ck_assert(!got[k].own);
    ck_assert_float_eq(got[k].value, value);
}

static void arrive_meanwhile(enum step step, unsigned slot)
{
    if (step != STEP_LOOK || slot != 1)
        return;
    shm_hook = NULL;
    until_waiting(0);
}

/* The only member admits a newcomer just after the newcomer has looked for members. */
START_TEST(a_newcomer_that_is_admitted_late_brings_no_state)
{
    form(1);
    come(1, 1, 9);
    begin(1, state);
    begin(0, mean);
    uint32_t tag = word_tag(load_word(board_now(0)));
    shm_hook = arrive_meanwhile;
    turn(1);
    ck_assert_ptr_null(shm_hook);
    takes_state(1, 1);
    begin(1, mean);
    ck_assert(drive());
    ck_assert_float_eq(got[0].value, 5);
    ck_assert_uint_eq(word_tag(load_word(board_now(0))), tag + 1);
    leave_all();
}
END_TEST

/* Trainer 0 admits a newcomer and dies, before trainer 1 has seen that the first state is done. */
START_TEST(a_newcomer_brings_no_state_where_a_member_has_just_got_one)
{
    come(0, 2, 1);
    come(1, 2, 2);
    begin_all(2, state);
    turn(0);
    uint32_t tag = word_tag(load_word(board_now(0)));
    while (open_now[0]) {
        turn(0);
        if (word_tag(load_word(board_now(0))) == tag)
            turn(1);
    }
    ck_assert(own_life(shm_at(1)) == LIFE_WAITING);
    come(2, 2, 9);
    begin(2, state);
    begin(0, mean);
    until_waiting(0);
    leave(0);
    until_waiting(2);
    turn(1);
    begin(1, mean);
    takes_state(2, 2);
    begin(2, mean);
    ck_assert(drive());
    ck_assert_float_eq(got[1].value, 5.5f);
    leave_all();
}
END_TEST

static void arrive_at_the_end(enum step step, unsigned slot)
{
    if (step != STEP_RETIRE || slot != 0)
        return;
    shm_hook = NULL;
    until_waiting(1);
}

/* The only member has said that it is at its end, and is not out of the group yet. */
START_TEST(a_newcomer_takes_the_state_of_a_member_that_is_about_to_finish)
{
    struct exchange last = mean;

    last.final = true;
    form(1);
    come(1, 1, 9);
    begin(1, state);
    begin(0, mean);
    until_waiting(0);
    shm_hook = arrive_at_the_end;
    begin(0, last);
    ck_assert_ptr_null(shm_hook);
    takes_state(1, 1);
    begin(1, last);
    ck_assert(drive());
    ck_assert_float_eq(got[0].value, 5);
    leave_all();
}
END_TEST

static void lose_the_source(enum step step, unsigned slot)
{
    if (step == STEP_PULLED && slot == 2) {
        shm_hook = NULL;
        leave(0);
    }
}

/* The last of the others says that it has it, and the source dies with half of the centre. */
START_TEST(a_state_is_not_done_before_its_source)
{
    collective = false;
    center = true;
    form(3);
    begin_all(3, state);
    for (int k = 2; k >= 0; k--)
        turn(k);
    while (!(load_word(board_now(0)) & PHASE_REDUCE))
        turn(0);
    turn(0);
    for (int k = 1; k < 3; k++)
        while (!got[k].parts)
            turn(k);
    until_waiting(1);
    shm_hook = lose_the_source;
    turn(2);
    ck_assert_ptr_null(f[0]);
    ck_assert(drive());
    ck_assert(got[1].own && got[2].value == 2);
    ck_assert(f[2]->center[0] == 2 && f[2]->center[N - 1] == 2);
    leave_all();
}
END_TEST

START_TEST(the_lock_of_a_dead_trainer_is_taken_over)
{
    collective = false;
    center = true;
    form(2);
    begin(0, elastic);
    fatal = STEP_LOCKED;
    shm_hook = jump;
    if (!setjmp(out))
        until_waiting(0);
    begin(1, elastic);
    int chunks = (N + ELASTIC_CHUNK - 1) / ELASTIC_CHUNK;
    while (got[1].parts < chunks - 1)
        turn(1);
    while (turn(1) != FABRIC_WAITING)       /* the last is held by a living trainer */
        ck_assert_int_lt(got[1].parts, chunks);
    leave(0);
    ck_assert(drive());
    ck_assert_int_eq(got[1].parts, chunks);
    leave_all();
}
END_TEST

int main(void)
{
    TCase *all = new_case("steps", 60);
    tcase_add_checked_fixture(all, set_up, NULL);
    tcase_add_test(all, a_round_waits_for_who_is_admitted_while_it_is_closed);
    tcase_add_test(all, no_slot_is_taken_while_a_round_is_closed);
    tcase_add_test(all, a_leader_dies_while_it_closes);
    tcase_add_test(all, who_takes_a_slot_waits_for_who_closes);
    tcase_add_test(all, pages_of_the_dead_come_back);
    tcase_add_test(all, a_slot_that_is_touched_is_not_taken);
    tcase_add_test(all, who_died_unseen_is_buried_by_the_next_joiner);
    tcase_add_test(all, a_bit_without_an_owner_is_taken_back);
    tcase_add_test(all, a_group_forms_beside_a_bit_without_an_owner);
    tcase_add_test(all, who_takes_a_slot_is_not_bad_for_it);
    tcase_add_loop_test(all, a_joiner_looks_whether_its_source_lives, 0, 2);
    tcase_add_test(all, a_joiner_does_not_miss_a_reload);
    tcase_add_test(all, a_newcomer_that_is_admitted_late_brings_no_state);
    tcase_add_test(all, a_newcomer_brings_no_state_where_a_member_has_just_got_one);
    tcase_add_test(all, a_newcomer_takes_the_state_of_a_member_that_is_about_to_finish);
    tcase_add_test(all, a_state_is_not_done_before_its_source);
    tcase_add_test(all, the_lock_of_a_dead_trainer_is_taken_over);
    return run_cases(all, NULL);
}
