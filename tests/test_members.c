/* SPDX-License-Identifier: MIT */
/* Every fabric while trainers come, leave and die. _i is the row. */
#include "harness/fabrics.h"
#include "harness/suite.h"
#include "harness/values.h"

enum { TURNS = 1000 };

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
        ck_assert(drive(&job, size, BOUND_S));
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

/* Whatever the members show of themselves: the centre is the state of now, and the newcomer's own
 * vector begins with it. */
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
        if (job.row->free) {                    /* the centre came once */
            const struct ranks *m = ranks_of(job.peers[size].f);
            size_t room = ranks_piece_room(m), most = ranks_piece_most((size_t)m->place.size);
            size_t each = room < most ? room : most, pieces = (job.n + each - 1) / each;
            ck_assert_uint_eq(ranks_versions_pieces(m), 1 + pieces);
        }
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
        enum fabric_progress progress = FABRIC_WAITING;
        for (int turn = 0; turn < TURNS && progress != FABRIC_CALLED; turn++) {
            progress = job.row->type->poll(job.peers[0].f, &part);
            drive(&job, size, 0);
        }
        ck_assert_int_eq(progress, FABRIC_CALLED);
        peer_close(&job, size);
    }
    job_fini(&job);
}
END_TEST

/* A joiner that takes the centre while a member gives its state: it has that before it goes on. */
static void begin_joining_a_centre(struct job *job, int row, size_t n, bool in_place)
{
    job_init(job, row, n, in_place);
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

/* So much time passes, with nothing open. */
static void pass(struct job *job, double seconds)
{
    uint64_t until = loopback_now(job->ranks) + (uint64_t)(seconds * 1e9);
    while (loopback_now(job->ranks) < until)
        for (int k = 0; k < MOST; k++)
            if (job->peers[k].f && !peer_turn(job, &job->peers[k]))
                job->row->type->wait(job->peers[k].f, loopback_now(job->ranks) + 1000000);
}

/* A member whose exchange was done when the state came, and a newcomer of before, whose first
 * exchanges are as early as can be, get it by one of their next. */
static void finish_a_reload(struct job *job)
{
    int size = job->row->size;
    drive(job, -1, 0.1);
    for (int more = 0; more < 2 && !job->peers[size].open; more++) {
        bool all = true;
        if (job->row->free)
            pass(job, 0.5);
        for (int k = 0; k <= size; k++) {
            const struct peer *peer = &job->peers[k];
            bool has = peer->kind == EXCHANGE_STATE && peer->got[0] == value(size - 1, 0, 1);
            if (peer->open || has || k == size - 1)
                continue;
            all = false;
            peer_begin(job, k, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = 0.5});
        }
        if (all)
            break;
        drive(job, -1, 0.1);
    }
    finish(job);
}

START_TEST(a_state_that_is_given_reaches_a_joiner)
{
    struct job job;
    begin_joining_a_centre(&job, _i, 70000, _i % 2);
    int size = job.row->size;
    struct peer *joiner = &job.peers[size];
    if (takes_joiners(&job)) {
        while (joiner->parts == 0)
            if (!peer_turn(&job, joiner))
                drive(&job, size, 0);
        begin_reload(&job);
        if (!job.row->free) {
            joiner->open = false;
            finish(&job);           /* without it */
            joiner->open = true;
        }
        finish_a_reload(&job);
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
            for (int k = 0; k <= last; k++)
                memset(job.peers[k].f->center, 0, job.n * sizeof(float));
        for (int k = 0; k < last; k++)
            begin_final(&job, k);
        ck_assert(!drive(&job, -1, 0.02));
        int again = job.row->free ? last + 1 : last;    /* there it comes before the other goes */
        if (again != last) {
            peer_again(&job, again, 1);
            drive(&job, again, 0.02);
        }
        peer_close(&job, last);
        if (again == last)
            peer_again(&job, again, 1);
        weight[last] = again == last;
        ck_assert(drive(&job, again, BOUND_S));
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
        for (int j = 0; j < 50 * BOUND_S && job.peers[size].open && job.peers[size + 1].open; j++)
            drive(&job, size, 0.02);
        int first = job.peers[size].open ? size + 1 : size, other = 2 * size + 1 - first;
        ck_assert(!job.peers[first].open);
        for (int j = 0; j < 2; j++) {
            int k = j ? other : first;
            ck_assert(drive(&job, k, BOUND_S));
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
    if (rows[_i].fixed || rows[_i].free)    /* nobody dies there alone; below */
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

/* --- ranks of which any may die, at any moment --- */

enum { MOMENTS = 24, SHORT_N = 9000 };

static const int free_rows[] = {1, 2, 3, 4, 5};

static int size_of_free(int i)
{
    ck_assert(rows[free_rows[i]].free);
    return rows[free_rows[i]].size;
}

static void turns_of_all(struct job *job, int turns)
{
    for (int turn = 0; turn < turns; turn++)
        for (int k = 0; k < MOST; k++)
            if (job->peers[k].open)
                peer_turn(job, &job->peers[k]);
}

static void peer_kill(struct job *job, int k)
{
    loopback_kill(job->ranks, job->peers[k].f);
    job->peers[k].f = NULL;
    peer_close(job, k);
}

/* It goes on from the state that it has, which is rank 0's or rank 1's. */
static int adopt(struct job *job, int k, int moment)
{
    const struct peer *peer = &job->peers[k];
    const float *first = at_float(peer, 0);
    int source = (peer->own ? *first : peer->got[0]) == value(0, 0, 1) ? 0 : 1;
    ck_assert_int_eq(peer->kind, EXCHANGE_STATE);
    for (size_t i = 0; i < job->n; i++) {
        float *p = at_float(peer, i), w = p ? value(source, i, 1) : 0;
        if ((peer->own ? p ? *p : 0 : peer->got[i]) != w)
            ck_abort_msg("rank %d, moment %d: float %zu is not rank %d's", k, moment, i, source);
        if (p)
            *p = w;
    }
    return source;
}

/* Those who have a state begin the next round, by which it comes to the others, or theirs to them. */
static void source_goes(int row, bool center, bool dies, int moment)
{
    struct job job;
    int has[MOST] = {0};
    job_init(&job, row, SHORT_N, moment % 2);
    job.start.collective = !center;
    job.start.center = center;
    job_form(&job);
    fill_all(&job, 1);
    begin_all(&job, (struct exchange){.kind = EXCHANGE_STATE});
    turns_of_all(&job, moment);
    if (dies)
        peer_kill(&job, 0);
    else
        peer_close(&job, 0);
    for (int more = 0; !drive(&job, -1, 0.5); more++) {
        ck_assert_int_lt(more, 10);
        for (int k = 1; k < job.row->size; k++)
            if (!job.peers[k].open) {
                has[k] = job.peers[k].kind == EXCHANGE_STATE ? adopt(&job, k, moment) : has[k];
                peer_begin(&job, k, (struct exchange){.weight = 1});
            }
    }
    for (int k = 1; k < job.row->size; k++) {
        has[k] = job.peers[k].kind == EXCHANGE_STATE ? adopt(&job, k, moment) : has[k];
        ck_assert_int_eq(has[k], has[1]);
    }
    job_fini(&job);
}

START_TEST(the_source_goes_before_all_have_its_state)
{
    for (int moment = 0; moment < MOMENTS && size_of_free(_i) > 1; moment++)
        for (int mode = 0; mode < 4; mode++)
            if (mode < 2 || size_of_free(_i) > 2)       /* one of two does not go on alone */
                source_goes(free_rows[_i], mode % 2, mode / 2, moment);
}
END_TEST

/* A newcomer that has begun to take what was, when another state is given to all. */
START_TEST(a_joiner_takes_no_state_of_before)
{
    int size = size_of_free(_i);
    for (int moment = 0; moment < MOMENTS; moment++) {
        struct job job;
        begin_joining_a_centre(&job, free_rows[_i], SHORT_N, moment % 2);
        for (int turn = 0; turn < moment && job.peers[size].parts == 0; turn++)
            drive(&job, size, 0);
        begin_reload(&job);
        finish_a_reload(&job);
        check_taken(&job, size, size - 1, 1);
        job_fini(&job);
    }
}
END_TEST

/* Whoever gives a newcomer its state may die; another goes on with that. */
START_TEST(the_source_of_a_joiner_dies)
{
    int size = size_of_free(_i);
    for (int moment = 0; moment < MOMENTS && size > 2; moment++) {
        struct job job;
        int dead = moment % size;
        job_init(&job, free_rows[_i], SHORT_N, false);
        job_form(&job);
        fill_all(&job, 1);
        peer_again(&job, size, 1);
        begin_all(&job, (struct exchange){.weight = 1});
        turns_of_all(&job, moment);
        peer_kill(&job, dead);
        for (int more = 0; !drive(&job, size, 0.5); more++) {
            ck_assert_int_lt(more, 10);
            for (int k = 0; k < size; k++)      /* it is over: the next is called */
                if (k != dead && !job.peers[k].open)
                    peer_begin(&job, k, (struct exchange){.weight = 1});
        }
        ck_assert(job.peers[size].f->joined);
        int source = (int)job.peers[size].outer[0] - 100;
        ck_assert(source >= 0 && source < size);
        check_taken(&job, size, source, 1);
        for (int more = 0, in = 0; in != size; more++) {
            ck_assert_int_lt(more, 10);
            drive(&job, -1, 0.5);
            in = 0;
            for (int k = 0; k <= size; k++)
                if (k != dead && !job.peers[k].open) {
                    in += job.peers[k].members == size;
                    peer_begin(&job, k, (struct exchange){.weight = 1});
                }
        }
        finish(&job);
        job_fini(&job);
    }
}
END_TEST

int main(void)
{
    TCase *all = new_case("comings and goings", 60);
    add_thirds(all, leaving_lets_the_others_finish, ROWS_WITHOUT_SHM);
    add_thirds(all, round_waits_for_the_living_only, ROWS_WITHOUT_SHM);
    add_thirds(all, joiner_gets_state_and_takes_part, ROWS_WITHOUT_SHM);
    add_thirds(all, joiner_gets_the_centre, ROWS_WITHOUT_SHM);
    add_thirds(all, members_are_called_while_one_waits_to_join, ROWS_WITHOUT_SHM);
    add_thirds(all, a_state_that_is_given_reaches_a_joiner, ROWS_WITHOUT_SHM);
    add_thirds(all, a_newcomer_joins_those_at_their_end, ROWS_WITHOUT_SHM);
    add_thirds(all, who_admits_may_come_to_its_end, ROWS_WITHOUT_SHM);
    add_thirds(all, the_source_of_a_state_dies, ROWS_WITHOUT_SHM);
    add_thirds(all, elastic_goes_on_without_the_caller_of_a_state, ROWS_WITHOUT_SHM);
    TCase *ranks = new_case("ranks", 60);
    tcase_add_loop_test(ranks, the_source_goes_before_all_have_its_state, 0, 5);
    tcase_add_loop_test(ranks, a_joiner_takes_no_state_of_before, 0, 5);
    tcase_add_loop_test(ranks, the_source_of_a_joiner_dies, 0, 5);
    return run_cases(all, ranks, NULL);
}
