/* SPDX-License-Identifier: MIT */
/* Every fabric while trainers come, leave and die. _i is the row. */
#include "fabric_suite.h"

START_TEST(leaving_lets_the_others_finish)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job_form(&job);
    int last = job.row->size - 1;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (last > 0) {
        fill_all(&job, 1);
        begin_all(&job, (struct exchange){.weight = 1});
        uint32_t epoch = job.peers[0].f->epoch;
        peer_close(&job, last);
        finish(&job);
        for (int k = 0; k < last; k++) {
            check_mean(&job, &job.peers[k], weight, last, 1);
            ck_assert_int_eq(job.peers[k].f->members, last);
            ck_assert_uint_ne(job.peers[k].f->epoch, epoch);
            if (job.world)
                ck_assert_uint_eq(job.peers[k].f->restarts, 1);
        }
    }
    job_fini(&job);
}
END_TEST

START_TEST(round_waits_for_the_living_only)
{
    struct job job;
    job_init(&job, _i, 1000, true);
    job_form(&job);
    int last = job.row->size - 1;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (last > 0) {
        fill_all(&job, 1);
        for (int k = 0; k < last; k++)
            peer_begin(&job, k, (struct exchange){.weight = 1});
        ck_assert(!drive(&job, -1, 0.02));
        struct fabric_part part;
        ck_assert_int_eq(job.row->type->poll(job.peers[last].f, &part), FABRIC_CALLED);
        peer_close(&job, last);
        finish(&job);
        check_mean(&job, &job.peers[0], weight, last, 1);
    }
    job_fini(&job);
}
END_TEST

START_TEST(joiner_gets_state_and_takes_part)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job_form(&job);
    int size = job.row->size;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    if (takes_joiners(&job)) {
        fill_all(&job, 1);
        peer_open(&job, size);
        peer_start(&job, size);
        peer_begin(&job, size, (struct exchange){.kind = EXCHANGE_STATE});
        ck_assert(!drive(&job, -1, 0.02));      /* nobody has begun */
        begin_all(&job, (struct exchange){.weight = 1, .note = 77});
        ck_assert(drive(&job, size, WALL_S));
        struct peer *joiner = &job.peers[size];
        ck_assert(joiner->kind == EXCHANGE_STATE && !joiner->own);
        ck_assert_uint_eq(joiner->note, 77);
        int source = (int)joiner->outer[0] - 100;
        ck_assert(source >= 0 && source < size);
        ck_assert_float_eq(joiner->outer[job.n], (float)(200 + source));
        for (size_t i = 0; i < job.n; i++)
            if (joiner->got[i] != (at_float(joiner, i) ? value(source, i, 1) : 0))
                ck_abort_msg("float %zu is not the source's", i);
        ck_assert(job.peers[0].open);           /* the round waits for it */
        peer_fill(&job, size, 1);
        peer_begin(&job, size, (struct exchange){.weight = 1});
        finish(&job);
        for (int k = 0; k <= size; k++) {
            check_mean(&job, &job.peers[k], weight, size + 1, 1);
            ck_assert_int_eq(job.peers[k].f->members, size + 1);
        }
    }
    job_fini(&job);
}
END_TEST

/* Whatever the members show of themselves: the centre is the state of now. */
START_TEST(joiner_gets_the_centre)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job.start.center = true;
    job.start.collective = false;
    job.start.n_outer = 0;
    job_form(&job);
    int size = job.row->size;
    if (takes_joiners(&job)) {
        fill_all(&job, 1);
        begin_all(&job, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = 0.5});
        finish(&job);
        peer_open(&job, size);
        peer_start(&job, size);
        peer_begin(&job, size, (struct exchange){.kind = EXCHANGE_STATE});
        finish(&job);
        ck_assert_int_eq(job.peers[size].kind, EXCHANGE_STATE);
        ck_assert_mem_eq(job.peers[size].got, job.peers[size].f->center,
                         job.n * sizeof(float));
    }
    job_fini(&job);
}
END_TEST

/* While one waits to join, the members are called. */
START_TEST(members_are_called_while_one_waits_to_join)
{
    struct job job;
    struct fabric_part part;
    job_init(&job, _i, 1000, _i % 2);
    job_form(&job);
    int size = job.row->size;
    if (takes_joiners(&job)) {
        fill_all(&job, 1);
        ck_assert_int_eq(job.row->type->poll(job.peers[0].f, &part), FABRIC_WAITING);
        peer_again(&job, size, 1);
        ck_assert_int_eq(job.row->type->poll(job.peers[0].f, &part), FABRIC_CALLED);
        peer_close(&job, size);
    }
    job_fini(&job);
}
END_TEST

/* A joiner that takes the centre while a member gives its state: it has that before it goes on. */
static void begin_joining_a_centre(struct job *job, int row, bool in_place)
{
    job_init(job, row, 70000, in_place);
    job->start.center = true;
    job->start.collective = false;
    job->start.n_outer = 0;
    job_form(job);
    fill_all(job, 1);
    if (takes_joiners(job))
        peer_again(job, job->row->size, 1);
}

static void begin_reload(struct job *job)
{
    int last = job->row->size - 1;
    peer_begin(job, last, (struct exchange){.kind = EXCHANGE_STATE});
    for (int k = 0; k < last; k++)
        peer_begin(job, k, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = 0.5});
}

START_TEST(a_state_that_is_given_reaches_a_joiner)
{
    struct job job;
    begin_joining_a_centre(&job, _i, _i % 2);
    int size = job.row->size;
    struct peer *joiner = &job.peers[size];
    if (takes_joiners(&job)) {
        while (joiner->parts == 0)
            if (!peer_turn(&job, joiner) && job.world)
                sim_world_advance(job.world, sim_world_next(job.world));
        begin_reload(&job);
        joiner->open = false;
        finish(&job);               /* without it */
        joiner->open = true;
        finish(&job);
        check_taken(&job, size, size - 1, 1);
    }
    job_fini(&job);
}
END_TEST

/* A trainer dies and comes again when all others are at their end: it goes on from them. */
static void end_with_a_newcomer(int row, bool collective, bool in_place)
{
    struct job job;
    job_init(&job, row, 70000, in_place);
    job.start.collective = collective;
    job.start.center = !collective;
    job_form(&job);
    int last = job.row->size - 1;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    if (last > 0 && takes_joiners(&job)) {
        fill_all(&job, 1);
        if (!collective)
            memset(job.peers[0].f->center, 0, job.n * sizeof(float));
        for (int k = 0; k < last; k++)
            begin_final(&job, k);
        ck_assert(!drive(&job, -1, 0.02));
        int again = job.world ? last + 1 : last;    /* there it comes before the other goes */
        if (again != last)
            peer_again(&job, again, 1);
        peer_close(&job, last);
        if (again == last)
            peer_again(&job, again, 1);
        weight[last] = again == last;
        ck_assert(drive(&job, again, WALL_S));
        ck_assert(job.peers[again].f->joined);
        if (collective)
            check_taken(&job, again, (int)job.peers[again].outer[0] - 100, 1);
        else                                /* the centre, which it leaves as it is */
            ck_assert(!job.peers[again].own && job.peers[again].got[3] == 0);
        ck_assert(job.peers[0].open);
        begin_final(&job, again);
        finish(&job);
        if (collective)
            check_mean(&job, &job.peers[0], weight, again + 1, 1);
        else
            ck_assert_float_eq(job.peers[0].f->center[3], 0);
    }
    job_fini(&job);
}

START_TEST(a_newcomer_joins_those_at_their_end)
{
    for (int mode = 0; mode < 4; mode++)
        end_with_a_newcomer(_i, mode < 2, mode % 2);
}
END_TEST

/* The only member admits a joiner, and comes to its end before that has looked. */
START_TEST(who_admits_may_come_to_its_end)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job_form(&job);
    int size = job.row->size, last = size - 1;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    if (takes_joiners(&job)) {
        fill_all(&job, 1);
        for (int k = 0; k < last; k++)
            begin_final(&job, k);
        for (int k = size; k < size + 2; k++) {
            peer_again(&job, k, 1);
            while (peer_turn(&job, &job.peers[k]))
                ;
        }
        peer_begin(&job, last, (struct exchange){.weight = 1});
        while (peer_turn(&job, &job.peers[last]))
            ;
        begin_final(&job, last);
        for (int j = 0; j < 50 * WALL_S && job.peers[size].open && job.peers[size + 1].open; j++)
            drive(&job, size, 0.02);
        int first = job.peers[size].open ? size + 1 : size, other = 2 * size + 1 - first;
        ck_assert(!job.peers[first].open);
        ck_assert(!job.world || !drive(&job, other, 0.02));
        for (int j = 0; j < 2; j++) {
            int k = j ? other : first;
            ck_assert(drive(&job, k, WALL_S));
            check_taken(&job, k, (int)job.peers[k].outer[0] - 100, 1);
            ck_assert(job.peers[k].f->joined);
            begin_final(&job, k);
        }
        finish(&job);
        for (int k = 0; k < size + 2 && size + 2 <= 9; k++)
            check_mean(&job, &job.peers[k], weight, size + 2, 1);
    }
    job_fini(&job);
}
END_TEST

/* Slots in the order of ranks, or the other way round: then the source does not lead. */
static void state_without_its_source(int row, bool center, bool reversed, int turns)
{
    struct job job;
    job_init(&job, row, 140000, false);
    int size = job.row->size;
    job.start.collective = !center;
    job.start.center = center;
    for (int k = 0; k < size; k++)
        peer_open(&job, reversed ? size - 1 - k : k);
    for (int k = 0; k < size; k++) {
        peer_start(&job, k);
        peer_fill(&job, k, 0);
    }
    begin_all(&job, (struct exchange){.kind = EXCHANGE_STATE});
    for (int turn = 0; turn < turns; turn++)
        for (int k = 0; k < size; k++)
            if (job.peers[k].open)
                peer_turn(&job, &job.peers[k]);
    if (job.world)
        sim_world_advance(job.world, sim_world_next(job.world));
    for (int k = 1; k < size; k++)      /* they hold the part of rank 0, and have not said so */
        if (job.world)
            peer_turn(&job, &job.peers[k]);
    if (size > 1 && job.peers[0].open) {
        peer_close(&job, 0);
        for (int spin = 0; spin < 1000; spin++)     /* those who do not lead first */
            for (int k = reversed ? 1 : size - 1; k != (reversed ? size : 0);
                 k += reversed ? 1 : -1)
                if (job.peers[k].open)
                    peer_turn(&job, &job.peers[k]);
        finish(&job);
        int source = job.peers[1].own;  /* or all was done when it died */
        for (int k = 1 + source; k < size; k++)
            check_taken(&job, k, source, 0);
        for (size_t i = 0; center && i < job.n; i++)
            if (job.peers[1].f->center[i] !=
                (at_float(&job.peers[1], i) ? value(source, i, 0) : 0))
                ck_abort_msg("float %zu of the centre is not the source's", i);
    }
    job_fini(&job);
}

START_TEST(the_source_of_a_state_dies)
{
    if (rows[_i].fixed)         /* nobody dies there alone */
        return;
    for (int turns = 1; turns <= 6; turns++)
        for (int mode = 0; mode < 4; mode++)
            state_without_its_source(_i, mode % 2, mode / 2, turns);
}
END_TEST

START_TEST(elastic_goes_on_without_the_caller_of_a_state)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job.start.center = true;
    job.start.collective = false;
    job_form(&job);
    int last = job.row->size - 1;
    if (last > 0) {
        fill_all(&job, 1);
        peer_begin(&job, last, (struct exchange){.kind = EXCHANGE_STATE, .priority = 9});
        while (peer_turn(&job, &job.peers[last]))
            ;
        peer_close(&job, last);
        for (int k = 0; k < last; k++)
            peer_begin(&job, k, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = 0.5});
        finish(&job);
        for (int k = 0; k < last; k++) {
            ck_assert_int_gt(job.peers[k].parts, 0);
            ck_assert_int_eq(job.peers[k].kind, EXCHANGE_ELASTIC);
        }
    }
    job_fini(&job);
}
END_TEST

/* --- what only the simulation can show --- */

static int row_of(const struct fabric_type *type, int size)
{
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].type == type && rows[i].size == size)
            return i;
    return -1;
}

START_TEST(source_killed_before_all_have_pulled)
{
    struct job job;
    job_init(&job, row_of(&fabric_sim, 3), 1000, false);
    job_form(&job);
    fill_all(&job, 1);
    begin_all(&job, (struct exchange){.kind = EXCHANGE_STATE});
    sim_world_advance(job.world, sim_world_next(job.world));
    ck_assert(peer_turn(&job, &job.peers[1]));          /* holds the part of rank 0 */
    sim_world_kill(job.world, job.peers[0].f);
    job.peers[0].open = false;
    finish(&job);
    ck_assert(job.peers[1].own && !job.peers[2].own);
    ck_assert_float_eq(job.peers[2].got[7], value(1, 7, 1));
    ck_assert_uint_eq(job.peers[2].f->restarts, 1);
    job_fini(&job);
}
END_TEST

START_TEST(a_joiner_takes_no_state_of_before)
{
    struct job job;
    begin_joining_a_centre(&job, row_of(&fabric_sim, 2), false);
    sim_world_advance(job.world, sim_world_next(job.world));        /* it may pull now */
    begin_reload(&job);
    ck_assert(!peer_turn(&job, &job.peers[2]));
    finish(&job);
    check_taken(&job, 2, 1, 1);
    job_fini(&job);
}
END_TEST

START_TEST(source_of_a_joiner_killed)
{
    struct job job;
    job_init(&job, row_of(&fabric_sim, 2), 1000, false);
    job_form(&job);
    fill_all(&job, 1);
    peer_open(&job, 2);
    peer_start(&job, 2);
    peer_fill(&job, 2, 1);
    peer_begin(&job, 2, (struct exchange){.kind = EXCHANGE_STATE});
    peer_begin(&job, 0, (struct exchange){.weight = 1});
    for (int k = 0; k < 2; k++) {
        sim_world_kill(job.world, job.peers[k].f);
        job.peers[k].open = false;
    }
    finish(&job);                       /* nobody is left: it is the source itself */
    ck_assert(job.peers[2].own);
    job_fini(&job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("members");
    TCase *all = tcase_create("comings and goings");
    tcase_set_timeout(all, 60);
    tcase_add_loop_test(all, leaving_lets_the_others_finish, 0, N_ROWS);
    tcase_add_loop_test(all, round_waits_for_the_living_only, 0, N_ROWS);
    tcase_add_loop_test(all, joiner_gets_state_and_takes_part, 0, N_ROWS);
    tcase_add_loop_test(all, joiner_gets_the_centre, 0, N_ROWS);
    tcase_add_loop_test(all, members_are_called_while_one_waits_to_join, 0, N_ROWS);
    tcase_add_loop_test(all, a_state_that_is_given_reaches_a_joiner, 0, N_ROWS);
    tcase_add_loop_test(all, a_newcomer_joins_those_at_their_end, 0, N_ROWS);
    tcase_add_loop_test(all, who_admits_may_come_to_its_end, 0, N_ROWS);
    tcase_add_loop_test(all, the_source_of_a_state_dies, 0, N_ROWS);
    tcase_add_loop_test(all, elastic_goes_on_without_the_caller_of_a_state, 0, N_ROWS);
    suite_add_tcase(suite, all);
    TCase *sim = tcase_create("simulation");
    tcase_set_timeout(sim, 60);
    tcase_add_test(sim, source_killed_before_all_have_pulled);
    tcase_add_test(sim, a_joiner_takes_no_state_of_before);
    tcase_add_test(sim, source_of_a_joiner_killed);
    suite_add_tcase(suite, sim);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
