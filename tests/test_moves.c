/* SPDX-License-Identifier: MIT */
/* Slices that come and go (moves.h): who is to have which; and worlds in which ranks come, leave
 * and die while all push: each push arrives once, but those that a death may take with it. */
#include "harness/rows.h"
#include "harness/suite.h"

#include <math.h>

enum { ROWS = RANKS_ROWS, WIDTH = RANKS_WIDTH };

/* ------------------------------------------------------------------ who is to have what */

/* All have their parts, no slice goes from a rank that has its part or less, and who has all that
 * it is to have keeps it. */
START_TEST(few_slices_move)
{
    static struct owned_map map;
    int target[OWNED_SLICES], again[OWNED_SLICES];
    double shares[8], sum = 0;
    struct rng rng;

    rng_init(&rng, (uint64_t)_i);
    int before = 1 + (int)(rng_next(&rng) % 8), n = 1 + (int)(rng_next(&rng) % 8);
    n = n < before ? before : n;
    owned_map_make(&map, before);
    for (int k = 0; k < n; k++) {
        shares[k] = rng_next(&rng) % 4 ? (double)(rng_next(&rng) % 5) / 2 : 1;
        sum += shares[k];
    }
    shares[n - 1] += !(sum > 0);
    sum += !(sum > 0);
    owned_map_target(&map, shares, n, target);
    int counts[8] = {0}, moved = 0, least = 0;
    for (int s = 0; s < OWNED_SLICES; s++) {
        ck_assert(target[s] >= 0 && target[s] < n && shares[target[s]] > 0);
        counts[target[s]]++;
        moved += target[s] != map.owner[s];
    }
    for (int k = 0; k < n; k++) {
        double part = OWNED_SLICES * shares[k] / sum;
        ck_assert_msg(fabs(counts[k] - part) < 1, "rank %d of %d: %d, not %g", k, n, counts[k],
                      part);
        least += map.slices[k] > counts[k] ? map.slices[k] - counts[k] : 0;
    }
    ck_assert_int_eq(moved, least);
    for (int s = 0; s < OWNED_SLICES; s++)      /* one after the other, in any order */
        if (target[s] != map.owner[s] && rng_next(&rng) % 2)
            owned_map_change(&map, s, target[s], 2);
    owned_map_target(&map, shares, n, again);
    int other = 0;
    for (int s = 0; s < OWNED_SLICES; s++)
        other += again[s] != target[s];
    ck_assert_int_le(other, 2 * n);     /* as what is left by rounding may go elsewhere */
}
END_TEST

/* ------------------------------------------------------------------ worlds */

static struct rng rng;

/* `later` more ranks may come. Slow enough that slices are on their way for a while. */
static void open_moving(int seed, int ranks, int later, double follow_s)
{
    rng_init(&rng, (uint64_t)seed);
    memset(rows_pushed, 0, sizeof rows_pushed);
    rows_way = (struct rows_way){.moves = true, .follow_s = follow_s, .later = later};
    rows_open_world((struct simulated_options){.seed = (uint64_t)seed, .jitter_ns = 200000,
                                               .bytes_per_s = 2e7},
                    ranks + later, ranks);
}

static struct moves *moves_of(int rank)
{
    return rows_sides[rank].service.moves;
}

static int slices_of(int rank)
{
    return (int)owned_slices(&rows_sides[rank].service.map, rank);
}

static int any_open(void)
{
    int rank;

    do
        rank = (int)(rng_next(&rng) % (uint64_t)rows_n);
    while (!rows_sides[rank].open);
    return rank;
}

static int open_ranks(void)
{
    int n = 0;

    for (int k = 0; k < rows_n; k++)
        n += rows_sides[k].open;
    return n;
}

static void cut(int rank, int other, uint64_t ns)
{
    const struct simulated_fault cut = {.kind = SIMULATED_CUT, .rank = rank, .other = other,
                                        .at_ns = simulated_now(rows_world),
                                        .until_ns = simulated_now(rows_world) + ns};
    ck_assert(simulated_fault(rows_world, &cut));
}

static void push_a_while(int batches)
{
    for (int k = 0; k < batches; k++) {
        rows_push_some(any_open(), &rng, rng_next(&rng) % (k % 4 ? 80 : 3000));
        rows_run(rng_next(&rng) % 300000);
    }
}

static void leave(int rank)
{
    moves_leave(&rows_sides[rank].service);
    for (int k = 0; k < 100 && !atomic_load(&moves_of(rank)->away); k++) {
        rows_push_some(any_open(), &rng, 60);
        rows_run(20000000);
    }
    ck_assert(atomic_load(&moves_of(rank)->away));
    service_end(&rows_sides[rank].service);
    rows_run(1000000000);
    ck_assert_int_eq(service_turn(&rows_sides[rank].service), OWNERS_ENDED);
    rows_close(rank);
    rows_run(10000000);
}

/* All that are there know the same map, and have equal parts. */
static void check_map(void)
{
    int first = any_open();

    for (int k = 0; k < rows_n; k++) {
        const struct service *s = &rows_sides[k].service;
        if (!rows_sides[k].open)
            continue;
        ck_assert_mem_eq(s->map.owner, rows_sides[first].service.map.owner, sizeof s->map.owner);
        ck_assert_int_eq(s->moves->shut, 0);
        ck_assert_int_eq(s->moves->left, 0);
        ck_assert_ptr_null(s->moves->held);
        ck_assert_msg(abs(slices_of(k) - OWNED_SLICES / open_ranks()) <= 1, "rank %d has %d", k,
                      slices_of(k));
    }
}

START_TEST(ranks_come_and_leave)
{
    int ranks = 1 + _i % 3, later = 1 + _i % 2;

    open_moving(_i, ranks, later, _i % 4 == 3 ? 0.02 : 0);
    push_a_while(4);
    for (int k = ranks; k < ranks + later; k++) {
        rows_open_late(k);
        push_a_while(6);
    }
    rows_run(3000000000);
    check_map();
    rows_check(any_open());
    for (int k = 0; k < 2 && open_ranks() > 1; k++) {
        int rank = any_open();
        leave(rank);
        rows_run(2000000000);
        check_map();
        push_a_while(3);
        if (k == 0 && _i % 5 == 0) {
            rows_open_late(rank);               /* and comes again */
            push_a_while(3);
        }
    }
    rows_run(3000000000);
    check_map();
    for (int k = 0; k < rows_n; k++)
        if (rows_sides[k].open)
            rows_check(k);
    rows_end_all();
    ck_assert_str_eq(rows_logged, "");
    rows_close_world();
}
END_TEST

/* Also of slices that move meanwhile. */
START_TEST(a_rank_reads_its_own_pushes)
{
    enum { BATCH = 400 };
    static uint64_t rows[BATCH];
    static float g[BATCH * WIDTH];
    static int mine[ROWS];

    open_moving(_i, 3, 2, 0);
    memset(mine, 0, sizeof mine);
    for (int k = 0; k < BATCH * WIDTH; k++)
        g[k] = -1;
    int leaver = _i % 2 ? 1 : 0, pusher = _i % 3 == 0 ? 2 : 1 - leaver;
    for (int step = 0; step < 60; step++) {
        for (int k = 0; k < BATCH; k++)
            rows[k] = (uint64_t)(k * 13 + step % 3) % ROWS;
        struct descant_rows *batch = rows_fetch(pusher, rows, BATCH);
        const float *block = rows_come(pusher, batch);
        ck_assert_ptr_nonnull(block);
        for (int k = 0; k < BATCH; k++)
            ck_assert_msg(block[k * WIDTH] == (float)mine[rows[k]], "step %d, row %d: %g, not %d",
                          step, (int)rows[k], (double)block[k * WIDTH], mine[rows[k]]);
        for (int k = 0; k < BATCH; k++)
            mine[rows[k]]++;
        ck_assert_int_eq(batch_push(&rows_sides[pusher].service, batch, g, 1), DESCANT_OK);
        if (step == 5 || step == 25)
            rows_open_late(step == 5 ? 3 : 4);
        if (step == 15)
            moves_leave(&rows_sides[leaver].service);
        if (step % 2)                   /* what it has said comes late, also after it has gone */
            cut(leaver, step % 4 == 1 ? 3 : pusher, 5000000);
        else
            cut(pusher, 3 + step / 2 % 2, 3000000);
        if (rows_sides[leaver].open && atomic_load(&moves_of(leaver)->away)) {
            service_end(&rows_sides[leaver].service);
            if (service_turn(&rows_sides[leaver].service) == OWNERS_ENDED)
                rows_close(leaver);
        }
        rows_run(rng_next(&rng) % 2000000);
    }
    ck_assert_int_gt(slices_of(3), 0);
    ck_assert(!rows_sides[leaver].open || slices_of(leaver) == 0);
    rows_end_all();
    rows_close_world();
}
END_TEST

struct word {
    struct ask_head head;
    struct moves_entry entry;
};

static const char *hear(struct service *s, int from, struct word word)
{
    const char *why = NULL;

    word.head.n = 1;
    ck_assert(moves_heard(s, from, (const unsigned char *)&word, sizeof word, &why) == !why);
    return why;
}

/* It hears from two others what a third one has, before it meets that one. */
START_TEST(an_owner_may_be_met_last)
{
    const struct word map = {{.kind = ASK_MAP, .rate = 1}, {.slice = 7, .rank = 2, .epoch = 2}};

    open_moving(0, 3, 1, 0);
    rows_open_late(3);
    struct service *s = &rows_sides[3].service;
    for (int from = 0; from < 2; from++)
        ck_assert_ptr_null(hear(s, from, map));
    ck_assert(s->map.owner[7] == 2 && s->map.epoch[7] == 2 && !s->map.shut[7]);
    rows_close_world();
}
END_TEST

/* Its owner died before it met this rank. */
START_TEST(a_claim_is_heard_of_an_owner_that_never_came)
{
    open_moving(0, 3, 1, 1e3);
    rows_open_late(3);
    struct service *s = &rows_sides[3].service;
    ck_assert_int_eq(s->map.owner[8], 2);
    ck_assert_ptr_null(hear(s, 1, (struct word){{.kind = ASK_CLAIM}, {8, 1, 1, 9}}));
    ck_assert_int_eq(s->map.owner[8], 1);
    rows_close_world();
}
END_TEST

/* One owner's word comes after that of the next one. */
START_TEST(the_last_owner_is_remembered)
{
    open_moving(0, 4, 0, 1e3);
    rows_run(10000000);
    struct service *s = &rows_sides[0].service;
    uint64_t is[4];
    for (int k = 0; k < 4; k++)
        is[k] = s->peers[k].generation;
    ck_assert_ptr_null(hear(s, 3, (struct word){{.kind = ASK_OWN}, {5, 3, 4, is[3]}}));
    ck_assert_ptr_null(hear(s, 2, (struct word){{.kind = ASK_OWN}, {5, 2, 2, is[2]}}));
    ck_assert(service_goes(s, 2) && service_goes(s, 1));        /* 1 owned it at the start */
    ck_assert(s->map.owner[5] == 3 && !s->map.shut[5]);
    rows_close_world();
}
END_TEST

/* Others cannot make a rank own what has not come to it. */
START_TEST(words_of_others_give_nothing)
{
    open_moving(0, 3, 0, 1e3);
    rows_run(10000000);
    struct service *s = &rows_sides[0].service;
    uint64_t own = s->place.generation;
    ck_assert_ptr_nonnull(hear(s, 1, (struct word){{.kind = ASK_OWN}, {7, 0, 8, own}}));
    ck_assert_ptr_nonnull(hear(s, 1, (struct word){{.kind = ASK_CLAIM}, {7, 0, 1, own}}));
    hear(s, 1, (struct word){{.kind = ASK_MOVED}, {7, 0, 8, own}});
    hear(s, 1, (struct word){{.kind = ASK_MAP, .rate = 1}, {7, 0, 8, own}});
    hear(s, 1, (struct word){{.kind = ASK_UNSURE}, {7, 0, 8, own}});
    ck_assert_int_eq(s->map.owner[7], 1);
    hear(s, 2, (struct word){{.kind = ASK_MAP, .rate = 1}, {7, 0, 8, own - 1}});
    ck_assert(!moves_serves(s, 7));     /* a process before this one had it */
    rows_close_world();
}
END_TEST

/* The last words of the old owner come behind the first ones of the new owner. */
START_TEST(an_old_owner_begins_late)
{
    struct word begin = {{.kind = ASK_BEGIN, .rate = 1}, {.slice = 7, .rank = 2, .epoch = 2}};

    open_moving(0, 3, 0, 1e3);
    rows_run(10000000);
    struct service *s = &rows_sides[0].service;
    ck_assert_ptr_null(hear(s, 2, begin));
    begin.entry.epoch = 0;
    ck_assert_ptr_null(hear(s, 1, begin));
    ck_assert_int_eq(s->moves->slices[7].from, 2);
    ck_assert(moves_change(s, 8, 2, 2, false));
    begin.entry.slice = 8;
    ck_assert_ptr_null(hear(s, 1, begin));
    ck_assert_int_ne(s->moves->slices[8].from, 1);
    rows_close_world();
}
END_TEST

/* What a rank had asked the giver of a slice comes before its OPEN, but not where the giver has
 * died; then the owner's word is enough. One that has ended properly had passed all on. */
START_TEST(a_slice_opens_without_its_giver_only_where_that_died)
{
    struct word own = {{.kind = ASK_OWN}, {.slice = 7, .rank = 2, .epoch = 2}};
    bool there = _i == 0, done = _i == 1;

    open_moving(0, 3, 0, 1e3);          /* so that rank 1 may go */
    rows_run(10000000);
    struct service *s = &rows_sides[0].service;
    ck_assert(moves_change(s, 7, 2, 2, true));
    own.entry.generation = s->peers[2].generation;
    s->moves->slices[7].giver = 1;
    s->peers[1].done = done;
    ck_assert(there || service_goes(s, 1));
    ck_assert_ptr_null(hear(s, 2, own));
    ck_assert_int_eq(s->map.shut[7], there || done);
    rows_close_world();
}
END_TEST

/* As the thread of a rank does: it closes as soon as nobody needs it. */
static void end(int rank)
{
    service_end(&rows_sides[rank].service);
    for (int k = 0; k < 5000 && rows_sides[rank].open; k++)
        if (service_turn(&rows_sides[rank].service) == OWNERS_ENDED)
            rows_close(rank);
        else
            rows_run(100000);
}

/* A rank that comes late never meets the one of the start that had left. It counts on the others
 * alone, and so can leave. */
START_TEST(a_rank_that_has_left_gets_nothing)
{
    open_moving(_i, 3, 1, 0);
    push_a_while(3);
    leave(1);
    rows_open_late(3);
    push_a_while(3);
    rows_run(2000000000);
    ck_assert_int_gt(slices_of(3), 0);
    leave(2);
    leave(3);
    check_map();
    rows_check(0);
    rows_end_all();
    ck_assert_str_eq(rows_logged, "");
    rows_close_world();
}
END_TEST

/* At any moment: before it knows that slices have moved to others, or with some on their way to
 * it. One that has some by then stays until the others end; the others leave as ever. */
START_TEST(one_that_ends_keeps_nobody)
{
    open_moving(_i, 3, 2, 0);
    push_a_while(3);
    rows_open_late(3);
    if (_i % 2)                         /* it is to have none, and others are on their way */
        moves_leave(&rows_sides[3].service);
    rows_run(rng_next(&rng) % 2000000);
    rows_open_late(4);
    rows_run(rng_next(&rng) % (_i % 3 ? 3000000 : 15000000));
    end(3);
    push_a_while(3);
    rows_run(2000000000);
    for (int k = 0; k < 5; k++) {
        const struct service *s = &rows_sides[k].service;
        if (!rows_sides[k].open)
            continue;
        ck_assert(s->moves->left == 0 && s->moves->shut == 0);
        for (int slice = 0; slice < OWNED_SLICES; slice++)
            ck_assert(rows_sides[s->map.owner[slice]].open);
        rows_check(k);
    }
    if (!rows_sides[3].open)
        leave((int)(rng_next(&rng) % 3));
    rows_end_all();
    ck_assert_str_eq(rows_logged, "");
    rows_close_world();
}
END_TEST

static void die(int rank)
{
    const struct simulated_fault death = {.kind = SIMULATED_DIE, .rank = rank,
                                          .at_ns = simulated_now(rows_world)};
    ck_assert(simulated_fault(rows_world, &death));
    simulated_run(rows_world, simulated_now(rows_world) + 1);
    rows_close(rank);
}

/* One after the other, and each may come again, before the others know that it has died, too. */
START_TEST(replicas_take_the_rows_of_the_dead)
{
    open_moving(_i, 3 + _i % 2, 0, 0.02);
    push_a_while(5);
    rows_run(3000000000);
    for (int k = 0; k < 2; k++) {
        int rank = any_open();
        die(rank);
        if (_i % 4 == 1)
            rows_open_late(rank);
        rows_run(2000000000);
        for (int i = 0; i < rows_n; i++)
            if (rows_sides[i].open)
                rows_check(i);
        check_map();
        push_a_while(3);
        if (_i % 4 == 3) {
            rows_open_late(rank);
            push_a_while(3);
        }
        rows_run(3000000000);
        check_map();
    }
    rows_check(any_open());
    rows_end_all();
    ck_assert_str_eq(rows_logged, "");
    rows_close_world();
}
END_TEST

/* While all push, and slices move, with their replicas: what is lost is a part of what was pushed
 * in the last moments, and no rank waits for ever. Also where the one that dies has just got
 * slices, and where it comes again at once. */
START_TEST(a_death_loses_little)
{
    static double before[ROWS];
    static uint64_t rows[ROWS];
    int lost = 0;

    open_moving(_i, 3, 1, 0.02);
    push_a_while(6);
    rows_run(3000000000);
    memcpy(before, rows_pushed, sizeof before);
    if (_i % 3)
        rows_open_late(3);
    push_a_while(1 + _i % 5);
    int dead = _i % 3 == 1 ? 3 : (int)(rng_next(&rng) % 3);
    die(dead);
    if (_i % 4 > 1)
        rows_open_late(dead);
    push_a_while(3);
    rows_run(3000000000);
    int reader = any_open();
    for (uint64_t k = 0; k < ROWS; k++)
        rows[k] = k;
    struct descant_rows *batch = rows_fetch(reader, rows, ROWS);
    const float *block = rows_come(reader, batch);
    ck_assert_ptr_nonnull(block);
    for (size_t k = 0; k < ROWS; k++) {
        double is = (double)block[k * WIDTH];
        ck_assert_msg(is >= before[k] && is <= rows_pushed[k], "row %zu: %g, not %g to %g", k, is,
                      before[k], rows_pushed[k]);
        lost += is < rows_pushed[k];
    }
    batch_let_go(&rows_sides[reader].service, batch);
    ck_assert_int_lt(lost, ROWS / 2);
    check_map();
    rows_end_all();
    rows_close_world();
}
END_TEST

/* Without replicas a death ends it for all, also while slices move. */
START_TEST(without_replicas_rows_die_with_their_owner)
{
    open_moving(_i, 3, 1, 0);
    push_a_while(3);
    rows_open_late(3);
    rows_run((uint64_t)_i * 700000);
    die(_i % 3);
    rows_run(3000000000);
    for (int k = 0; k < 3; k++)         /* the last hears it of these, but not in this world */
        if (rows_sides[k].open)
            ck_assert_int_eq(service_turn(&rows_sides[k].service), OWNERS_FAILED);
    ck_assert_ptr_nonnull(strstr(rows_logged, "has gone, and with it its rows"));
    rows_close_world();
}
END_TEST

START_TEST(nothing_moves_while_a_rank_holds)
{
    static int owner[OWNED_SLICES];

    open_moving(_i, 2, 1, _i ? 0.02 : 0);
    push_a_while(3);
    for (int k = 0; k < 2; k++)
        moves_hold(&rows_sides[k].service, true);
    rows_run(1000000000);
    memcpy(owner, rows_sides[0].service.map.owner, sizeof owner);
    rows_open_late(2);
    for (int k = 0; k < 2; k++)
        ck_assert(atomic_load(&moves_of(k)->still));
    push_a_while(5);
    rows_run(1000000000);
    ck_assert_mem_eq(owner, rows_sides[0].service.map.owner, sizeof owner);
    moves_hold(&rows_sides[0].service, false);
    rows_run(1000000000);
    ck_assert_int_gt(slices_of(2), 100);
    ck_assert_int_eq(slices_of(1), OWNED_SLICES / 2);   /* it still holds */
    moves_hold(&rows_sides[1].service, false);
    rows_run(1000000000);
    check_map();
    rows_check(2);
    rows_end_all();
    rows_close_world();
}
END_TEST

/* ThreadSanitizer has little to find in worlds of one thread. */
#if defined __SANITIZE_THREAD__
enum { SEEDS = 2 };
#else
enum { SEEDS = 12 };
#endif

int main(void)
{
    int seeds = getenv("MOVES_MANY") ? atoi(getenv("MOVES_MANY")) : SEEDS;
    TCase *map = new_case("map", 20), *worlds = new_case("worlds", 120);

    tcase_add_loop_test(map, few_slices_move, 0, 200);
    tcase_add_loop_test(worlds, ranks_come_and_leave, 0, seeds);
    tcase_add_loop_test(worlds, a_rank_reads_its_own_pushes, 0, seeds / 2);
    tcase_add_test(worlds, an_owner_may_be_met_last);
    tcase_add_test(worlds, an_old_owner_begins_late);
    tcase_add_test(worlds, a_claim_is_heard_of_an_owner_that_never_came);
    tcase_add_test(worlds, the_last_owner_is_remembered);
    tcase_add_test(worlds, words_of_others_give_nothing);
    tcase_add_loop_test(worlds, a_slice_opens_without_its_giver_only_where_that_died, 0, 3);
    tcase_add_loop_test(worlds, a_rank_that_has_left_gets_nothing, 0, 3);
    tcase_add_loop_test(worlds, one_that_ends_keeps_nobody, 0, seeds);
    tcase_add_loop_test(worlds, replicas_take_the_rows_of_the_dead, 0, seeds / 2);
    tcase_add_loop_test(worlds, a_death_loses_little, 0, seeds);
    tcase_add_loop_test(worlds, without_replicas_rows_die_with_their_owner, 0, seeds / 2);
    tcase_add_loop_test(worlds, nothing_moves_while_a_rank_holds, 0, 2);
    return run_cases(map, worlds, NULL);
}
