/* SPDX-License-Identifier: MIT */
/* Parcels between rank 0 and ranks that come late, die, fall silent and come again, over
 * a simulated link. Each head has a number; what a process has received is counted. */
#include "harness/suite.h"
#include "link/simulated.h"
#include "ranks/ranks.h"

#include <check.h>
#include <string.h>

enum { MOST = 6, N = 300003, DEAD_S = 1, NUMBERS = 20000, STORMS = 20 };

static struct simulated *world;
static int n_ranks = 3;
static struct fabric *f[MOST];
static char said[512];
static int received[MOST]; /* parcels of rank 0's, by the process that has the rank now */
static bool seen[MOST][NUMBERS];
static int number, taken_of[MOST]; /* the last that was sent; of each rank, by rank 0 */
static bool sends;                 /* rank 0, to all that are there */

static void hear_log(void *user, enum descant_level level, const char *line)
{
    (void)user;
    if (level <= DESCANT_WARNING)
        snprintf(said, sizeof said, "%s", line);
}

static void come(int k)
{
    const struct log log = {hear_log, NULL, k};
    const struct fabric_options options = {.address = "",
                                           .rank = k,
                                           .size = n_ranks,
                                           .start_s = 5,
                                           .dead_s = DEAD_S,
                                           .log = &log,
                                           .link = &link_simulated,
                                           .context = world};

    if (f[k])
        ranks_free(f[k]);
    ck_assert_int_eq(ranks_open(&f[k], &fabric_mpi, &options), DESCANT_OK);
    for (int other = k ? 0 : 1; other < (k ? 1 : n_ranks); other++) {
        ck_assert_int_eq(ranks_post.room(f[k], other, 0), DESCANT_OK);
        ck_assert_int_eq(ranks_post.room(f[k], other, N), DESCANT_OK);
    }
    received[k] = 0;
    memset(seen[k], 0, sizeof seen[k]);
}

static void open_all(uint64_t seed)
{
    const struct simulated_options options = {
        .ranks = n_ranks, .seed = seed, .latency_ns = 100000, .bytes_per_s = 1e8};
    world = simulated_create(&options);
    for (int k = 0; k < n_ranks; k++)
        come(k);
    sends = true;
    number = 0;
    said[0] = 0;
    memset(taken_of, 0, sizeof taken_of);
}

static void close_all(void)
{
    for (int k = 0; k < n_ranks; k++) {
        ranks_free(f[k]);
        f[k] = NULL;
    }
    simulated_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}

static void send(int from, int to)
{
    int head[POST_HEAD / sizeof(int)] = {++number};
    float *box = ranks_post.box(f[from], to);

    ck_assert_int_lt(number, NUMBERS);
    for (size_t i = 0; i < N; i += 1000)
        box[i] = (float)number;
    ranks_post.send(f[from], to, head, N);
}

static void take(int at, int from)
{
    struct parcel parcel;
    int is;

    if (!ranks_post.look(f[at], from, &parcel))
        return;
    memcpy(&is, parcel.head, sizeof is);
    for (size_t i = 0; i < N; i += 1000)
        ck_assert(parcel.values[i] == (float)is);
    ck_assert_uint_eq(parcel.to, ranks_post.who(f[at], at));
    ck_assert(!seen[at][is]);
    seen[at][is] = true;
    received[at]++;
    taken_of[from] += at == 0;
    ranks_post.taken(f[at], from);
}

/* Both ways, whenever the lane is free. */
static void turn(int k)
{
    ck_assert_int_eq(ranks_post.move(f[k]), DESCANT_OK);
    for (int other = k ? 0 : 1; other < (k ? 1 : n_ranks); other++) {
        take(k, other);
        if (sends && ranks_post.who(f[k], other) && ranks_post.free(f[k], other))
            send(k, other);
    }
    ranks_rest(ranks_of(f[k]), 0);
}

static void run(double seconds)
{
    uint64_t until = simulated_now(world) + (uint64_t)(seconds * 1e9);
    int k;

    while ((k = simulated_turn(world, until)) >= 0)
        if (f[k])
            turn(k);
}

/* The lane to a rank without a process is free. */
static void check_lanes(void)
{
    for (int k = 1; k < n_ranks; k++) {
        if (!simulated_lives(world, 0) || (f[k] && simulated_lives(world, k)))
            continue;
        ck_assert_uint_eq(ranks_post.who(f[0], k), 0);
        ck_assert(ranks_post.free(f[0], k));
    }
}

static void fault(enum simulated_fault_kind kind, int rank, double seconds)
{
    const struct simulated_fault fault = {.kind = kind,
                                          .rank = rank,
                                          .other = 1,
                                          .at_ns = simulated_now(world),
                                          .until_ns = simulated_now(world) +
                                                      (uint64_t)(seconds * 1e9)};
    ck_assert(simulated_fault(world, &fault));
}

static void go_on(int k)
{
    int before = received[k], before_0 = taken_of[k];

    run(0.2);
    ck_assert_int_gt(received[k], before + 1);
    ck_assert_int_gt(taken_of[k], before_0 + 1);
}

/* In the midst of a parcel: it is lost, the lane is free, and the other rank goes on. */
START_TEST(parcels_to_the_dead_are_refused)
{
    for (int at = 0; at < 10; at++) {
        open_all(3);
        run(0.05 + 0.0017 * at);
        go_on(1);
        fault(_i ? SIMULATED_VANISH : SIMULATED_DIE, 1, 0);
        run(_i ? DEAD_S * 1.3 : 0.1);
        ck_assert_uint_eq(ranks_post.who(f[0], 1), 0);
        ck_assert(ranks_post.free(f[0], 1));
        ck_assert_msg(strstr(said, "is lost") || strstr(said, "given up"), "%s", said);
        said[0] = 0;
        send(0, 1);
        ck_assert_ptr_nonnull(strstr(said, "a parcel to rank 1"));
        ck_assert(ranks_post.free(f[0], 1));
        go_on(2);
        come(1);
        run(0.1);
        go_on(1);
        close_all();
    }
}
END_TEST

/* The others await the next one. */
START_TEST(rank_0_dies_and_comes_again)
{
    for (int at = 0; at < 10; at++) {
        open_all(3);
        run(0.05 + 0.0017 * at);
        fault(SIMULATED_DIE, 0, 0);
        run(0.1);
        for (int k = 1; k < n_ranks; k++) {
            ck_assert_uint_eq(ranks_post.who(f[k], 0), 0);
            ck_assert(ranks_post.free(f[k], 0));
        }
        come(0);
        run(0.1);
        go_on(1);
        go_on(2);
        close_all();
    }
}
END_TEST

/* What is here stays until it is taken, and its sender is told. */
START_TEST(a_parcel_outlives_its_sender)
{
    struct parcel parcel;

    open_all(3);
    sends = false;
    run(0.1);
    uint64_t from = ranks_post.who(f[0], 1);
    send(1, 0);
    for (int k; (k = simulated_turn(world, simulated_now(world) + 100000000)) >= 0;) {
        ck_assert_int_eq(ranks_post.move(f[k]), DESCANT_OK);
        ranks_rest(ranks_of(f[k]), 0);
    }
    fault(SIMULATED_DIE, 1, 0);
    for (int k; (k = simulated_turn(world, simulated_now(world) + 100000000)) >= 0;)
        if (k != 1) {
            ck_assert_int_eq(ranks_post.move(f[k]), DESCANT_OK);
            ranks_rest(ranks_of(f[k]), 0);
        }
    ck_assert_uint_eq(ranks_post.who(f[0], 1), 0);
    ck_assert(ranks_post.look(f[0], 1, &parcel));
    ck_assert_uint_eq(parcel.from, from);
    ranks_post.taken(f[0], 1);
    ck_assert(!ranks_post.look(f[0], 1, &parcel));
    sends = true;
    come(1);
    run(0.1);
    go_on(1);
    close_all();
}
END_TEST

/* A short silence costs nothing; a long one ends both sides' lane. */
START_TEST(silence_ends_a_lane)
{
    open_all(3);
    run(0.1);
    fault(SIMULATED_PAUSE, 1, 0.5 * DEAD_S);
    run(DEAD_S);
    go_on(1);
    ck_assert_str_eq(said, "");
    fault(SIMULATED_PART, 1, 3 * DEAD_S);
    run(4 * DEAD_S);
    ck_assert_uint_eq(ranks_post.who(f[0], 1), 0);
    ck_assert_uint_eq(ranks_post.who(f[1], 0), 0);
    go_on(2);
    come(1);
    run(0.1);
    go_on(1);
    close_all();
}
END_TEST

START_TEST(idle_lanes_live_on)
{
    open_all(3);
    run(0.1);
    sends = false;
    run(10 * DEAD_S);
    sends = true;
    go_on(1);
    go_on(2);
    ck_assert_str_eq(said, "");
    close_all();
}
END_TEST

/* Nothing comes twice to one process, and in the end all who live go on. */
START_TEST(storms)
{
    struct rng rng;

    for (uint64_t seed = 1; seed <= STORMS; seed++) {
        rng_init(&rng, seed);
        n_ranks = 2 + (int)(rng_next(&rng) % (MOST - 1));
        open_all(seed);
        for (int i = 0; i < 25; i++) {
            static const enum simulated_fault_kind kinds[] = {
                SIMULATED_DIE, SIMULATED_VANISH, SIMULATED_PAUSE, SIMULATED_PART};
            int k = (int)(rng_next(&rng) % (uint64_t)n_ranks);
            if (!simulated_lives(world, k))
                come(k);
            else
                fault(kinds[rng_next(&rng) % 4], k, 2 * DEAD_S * rng_uniform(&rng));
            run(0.3 * rng_uniform(&rng));
        }
        run(4 * DEAD_S);
        check_lanes();
        for (int k = 0; k < n_ranks; k++) /* some have given each other up */
            come(k);
        run(0.2);
        for (int k = 1; k < n_ranks; k++)
            go_on(k);
        close_all();
    }
    n_ranks = 3;
}
END_TEST

int main(void)
{
    TCase *all = new_case("parcels", 60);
    tcase_add_loop_test(all, parcels_to_the_dead_are_refused, 0, 2);
    tcase_add_test(all, rank_0_dies_and_comes_again);
    tcase_add_test(all, a_parcel_outlives_its_sender);
    tcase_add_test(all, silence_ends_a_lane);
    tcase_add_test(all, idle_lanes_live_on);
    tcase_add_test(all, storms);
    return run_cases(all, NULL);
}
