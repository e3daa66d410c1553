/* SPDX-License-Identifier: MIT */
/* The simulated link: ranks that come, go, are forgotten or cut off, and what happens to
 * messages with them. */
#include "harness/simulated.h"
#include "harness/suite.h"

enum { SEEDS = 40 };

static const struct simulated_options open_job = {.ranks = 4, .latency_ns = LATENCY,
                                                  .bytes_per_s = 1e9};

/* --- coming and going --- */

START_TEST(who_is_there_is_told)
{
    struct side s, r;

    sim_open(&open_job);
    ck_assert(!places[0].fixed);
    sim_send(0, 1, 1, 100, &s);
    sim_receive(0, 1, 1, &r);
    sim_collect(0);
    ck_assert(s.failed && r.failed && s.n_ended == 1 && r.n_ended == 1);
    sim_run_for(LATENCY - 1);
    ck_assert(!sim_has_come(0, 1));
    sim_run_for(1);
    for (int k = 0; k < 4; k++)
        for (int j = 0; j < 4; j++)
            ck_assert(j == k || (sim_has_come(k, j) &&
                                 peers[k][j].generation == places[j].generation));
    sim_close_one(3);
    sim_run_for(LATENCY);
    ck_assert(sim_is_gone(0, 3) && sim_is_gone(1, 3) && sim_is_gone(2, 3));
    sim_close();
}
END_TEST

/* What has left before a death arrives; nothing of the dead rank's memory is read. */
START_TEST(a_death_is_told_and_its_messages_are_given_back)
{
    struct side s[3], r[4], unused;
    unsigned char *of_dead = malloc(BULK), *of_living = malloc(BULK);

    sim_open(&open_job);
    sim_run_for(LATENCY);
    sim_receive(1, 0, 1, &r[0]);
    sim_receive(1, 0, 2, &r[1]);
    sim_receive(1, 0, 3, &r[2]);
    sim_receive(1, LINK_ANY, 4, &r[3]);
    sim_run_for(LATENCY);
    sim_send(0, 1, 1, 100, &unused);
    s[0] = s[1] = (struct side){0};
    ck_assert(link_simulated.send(ends[0], of_dead, BULK,
        &(struct link_message){1, 4, 0, &unused}));
    sim_run_for(2 * LATENCY + 10);                  /* it has left */
    ck_assert(link_simulated.send(ends[0], of_dead, BULK,
        &(struct link_message){1, 2, 0, &unused}));
    ck_assert(link_simulated.send(ends[1], of_living, BULK,
        &(struct link_message){0, 1, 0, &s[0]}));
    ck_assert(link_simulated.send(ends[1], of_living, BULK,
        &(struct link_message){0, 2, 0, &s[1]}));
    sim_run_for(500);
    sim_fault(SIMULATED_DIE, 0, 0, 0);
    ck_assert(!simulated_lives(world, 0));
    free(of_dead);
    sim_run_for(1000000);
    ck_assert(sim_is_gone(1, 0) && sim_has_come(1, 2));
    ck_assert_int_eq(r[0].n_ended, 1);          /* the word */
    ck_assert(!r[0].failed);
    ck_assert(r[1].n_ended == 0 && r[2].n_ended == 0 && s[0].n_ended == 0);
    ck_assert(link_simulated.forget(ends[1], 0, LINK_PEER));
    sim_collect(1);
    ck_assert(r[1].failed && r[2].failed && s[0].failed && s[1].failed);
    ck_assert(r[1].n_ended == 1 && s[1].n_ended == 1);
    free(of_living);
    ck_assert_int_eq(r[3].n_ended, 0);          /* it had the dead rank's, and is open */
    sim_send(2, 1, 4, 100, &s[2]);
    sim_run_for(1000000);
    ck_assert(r[3].n_ended == 1 && r[3].from == 2 && !r[3].failed);
    sim_close();
}
END_TEST

START_TEST(a_rank_comes_again_with_another_generation)
{
    struct side s, r, stale;

    sim_open(&open_job);
    sim_run_for(LATENCY);
    uint64_t first = places[0].generation;
    sim_send(1, 0, 1, BULK, &stale);
    sim_fault(_i ? SIMULATED_VANISH : SIMULATED_DIE, 0, 0, 0);
    sim_run_for(1000000);
    ck_assert_int_eq(sim_is_gone(1, 0), !_i);       /* who vanishes is only silent */
    sim_close_one(0);
    sim_meet(0);
    ck_assert_uint_ne(places[0].generation, first);
    sim_run_for(1000000);
    ck_assert(sim_is_gone(1, 0));
    ck_assert_uint_eq(peers[1][0].generation, first);
    ck_assert(!sim_has_come(0, 1));                 /* the old one is not forgotten yet */
    sim_receive(0, 1, 1, &r);
    sim_collect(0);
    ck_assert(r.failed);
    ck_assert(link_simulated.forget(ends[1], 0, LINK_PEER));
    sim_run_for(LATENCY);
    ck_assert(stale.failed && stale.n_ended == 1);
    ck_assert(sim_has_come(1, 0) && sim_has_come(0, 1) && !sim_has_come(0, 2));
    ck_assert_uint_eq(peers[1][0].generation, places[0].generation);
    sim_receive(0, 1, 1, &r);
    sim_send(1, 0, 1, BULK, &s);
    sim_run_for(1000000);
    ck_assert(r.n_ended == 1 && !r.failed && s.n_ended == 1 && !s.failed);
    sim_close();
}
END_TEST

/* Both live; the one that is forgotten is told, and has to meet anew. */
START_TEST(who_is_forgotten_is_told_and_meets_again)
{
    struct side s[3], r[2], any[2], other;

    sim_open(&open_job);
    sim_run_for(LATENCY);
    sim_receive(0, 1, 1, &r[0]);
    sim_receive(0, LINK_ANY, 2, &any[0]);
    sim_receive(0, LINK_ANY, 3, &any[1]);
    sim_send(0, 1, 1, BULK, &s[0]);
    ck_assert(link_simulated.forget(ends[0], 1, LINK_PEER));
    sim_collect(0);
    ck_assert(r[0].failed && s[0].failed);
    sim_send(1, 0, 2, 100, &s[1]);                  /* nobody hears it any more */
    sim_send(1, 0, 3, BULK, &s[2]);
    sim_receive(1, 0, 1, &r[1]);
    sim_run_for(1000000);
    ck_assert(sim_is_gone(1, 0) && r[1].n_ended == 0 && s[2].n_ended == 0);
    ck_assert(any[0].n_ended == 0 && any[1].n_ended == 0);
    sim_send(2, 0, 3, 100, &other);
    sim_run_for(1000000);
    ck_assert(any[1].n_ended == 1 && any[1].from == 2);
    ck_assert(link_simulated.forget(ends[1], 0, LINK_PEER));
    sim_collect(1);
    ck_assert(r[1].failed && !s[1].failed && s[2].failed);
    sim_run_for(1000000);
    ck_assert(sim_is_gone(1, 0) && sim_has_come(1, 2));
    sim_close_one(1);
    sim_meet(1);
    sim_run_for(1000000);
    ck_assert(sim_has_come(0, 1) && sim_has_come(1, 0) && !sim_has_come(2, 1));
    sim_close();
}
END_TEST

START_TEST(cuts_hold_messages_back_until_they_end)
{
    struct side s[4], r[4];

    sim_open(&open_job);
    sim_run_for(LATENCY);
    for (int k = 0; k < 4; k++)
        sim_receive(3 - k, k, 1, &r[k]);
    sim_run_for(LATENCY);
    uint64_t began = simulated_now(world);
    sim_send(0, 3, 1, 100, &s[0]);                  /* on the wire: it arrives */
    if (_i) {
        sim_fault(SIMULATED_PART, 2, 1, 50000);     /* {0, 1} and {2, 3} */
        sim_fault(SIMULATED_PART, 3, 1, 50000);
    } else {
        sim_fault(SIMULATED_CUT, 0, 3, 50000);
    }
    sim_send(3, 0, 1, 100, &s[3]);
    sim_send(1, 2, 1, BULK, &s[1]);
    sim_send(2, 1, 1, 100, &s[2]);
    sim_run_for(1000000);
    need_time(&r[0], began, LATENCY + 100);
    need_time(&r[3], began, 50000 + LATENCY + 100);
    need_time(&r[1], began, (_i ? 50000 : 0) + LATENCY + BULK);
    need_time(&r[2], began, (_i ? 50000 : 0) + LATENCY + 100);
    sim_close();
}
END_TEST

/* --- everything at once --- */

enum { WILD_RANKS = 5, WILD_STEPS = 1500, WILD_OPS = 1 << 14 };

/* A message of its own memory, which is freed when it has ended, or when its rank has
 * died. */
struct wild {
    unsigned char *p;
    int rank;
    bool open;
};

static struct wild wilds[WILD_OPS];
static int n_wilds;

static struct wild *wild_add(int rank)
{
    ck_assert_int_lt(n_wilds, WILD_OPS);
    wilds[n_wilds] = (struct wild){calloc(1, 4 * LINK_WORD), rank, true};
    return &wilds[n_wilds++];
}

static void wild_end(struct wild *wild)
{
    ck_assert(wild->open);
    free(wild->p);
    wild->open = false;
}

static void wild_collect(struct rng *rng, int rank)
{
    struct link_news news;

    ck_assert(link_simulated.collect(ends[rank], &news));
    for (int i = 0; i < news.n_ended; i++)
        wild_end(news.ended[i].op);
    for (int i = 0; i < news.n_peers; i++) {
        struct link_peer *peer = &peers[rank][news.peers[i].rank];
        if (news.peers[i].gone)
            ck_assert_uint_eq(peer->generation, news.peers[i].generation);
        else
            ck_assert_uint_ne(peer->generation, news.peers[i].generation);
        *peer = news.peers[i];
        if (peer->gone && rng_next(rng) % 4)
            ck_assert(link_simulated.forget(ends[rank], peer->rank, LINK_PEER));
    }
}

static void wild_message(struct rng *rng, int rank)
{
    int other = (rank + 1 + (int)(rng_next(rng) % (WILD_RANKS - 1))) % WILD_RANKS;
    int tag = (int)(rng_next(rng) % 4);
    size_t bytes = rng_next(rng) % 2 ? 4 * LINK_WORD : 100;
    struct wild *wild = wild_add(rank);

    if (rng_next(rng) % 2)
        ck_assert(link_simulated.send(ends[rank], wild->p, bytes,
        &(struct link_message){other, tag, 0, wild}));
    else
        ck_assert(link_simulated.receive(ends[rank], wild->p, bytes,
        &(struct link_message){tag == 3 ? LINK_ANY : other, tag, 0, wild}));
}

static void wild_dies(struct rng *rng, int rank)
{
    uint64_t kind = rng_next(rng) % 3;

    if (kind)
        sim_fault(kind == 1 ? SIMULATED_DIE : SIMULATED_VANISH, rank, 0, 0);
    for (int i = 0; i < n_wilds && kind; i++)   /* before its link is closed */
        if (wilds[i].open && wilds[i].rank == rank)
            wild_end(&wilds[i]);
    if (kind)
        simulated_run(world, simulated_now(world) + rng_next(rng) % 20000);
    sim_close_one(rank);
    for (int i = 0; i < n_wilds; i++)
        if (wilds[i].open && wilds[i].rank == rank)
            wild_end(&wilds[i]);
}

static void wild_step(struct rng *rng)
{
    int rank = (int)(rng_next(rng) % WILD_RANKS),
        other = (int)(rng_next(rng) % WILD_RANKS);
    uint64_t what = rng_next(rng) % 64;

    if (!ends[rank])
        sim_meet(rank);
    else if (what < 48)
        wild_message(rng, rank);
    else if (what == 48 && rank != other)
        ck_assert(link_simulated.forget(ends[rank], other, LINK_PEER));
    else if (what == 49)
        wild_dies(rng, rank);
    else if (what == 50)
        sim_fault(SIMULATED_CUT, rank, other, rng_next(rng) % 50000);
    else if (what == 51)
        sim_fault(SIMULATED_PART, rank, other % 2, rng_next(rng) % 50000);
    else if (what == 52)
        sim_fault(SIMULATED_PAUSE, rank, other, rng_next(rng) % 50000);
    else
        simulated_run(world, simulated_now(world) + rng_next(rng) % 3000);
    for (int k = 0; k < WILD_RANKS; k++)
        if (ends[k])
            wild_collect(rng, k);
}

static struct simulated_figures wild_world(uint64_t seed, uint64_t world_seed)
{
    const struct simulated_options options = {.ranks = WILD_RANKS, .seed = world_seed,
                                              .latency_ns = LATENCY, .jitter_ns = 3000,
                                              .per_host = seed % 3 ? 1 : 2,
                                              .bytes_per_s = seed % 2 ? 1e9 : 0};
    struct rng rng;

    n_wilds = 0;
    rng_init(&rng, seed);
    sim_open(&options);
    for (int step = 0; step < WILD_STEPS; step++)
        wild_step(&rng);
    for (int k = 0; k < WILD_RANKS; k++)        /* all of that is given back */
        for (int j = 0; ends[k] && j < WILD_RANKS; j++)
            ck_assert(j == k || link_simulated.forget(ends[k], j, LINK_PEER));
    for (int k = 0; k < WILD_RANKS; k++)
        if (ends[k])
            wild_collect(&rng, k);
    struct simulated_figures figures = simulated_figures(world);
    for (int k = 0; k < WILD_RANKS; k++)
        sim_close_one(k);
    for (int i = 0, any = 0; i < n_wilds; i++, any = 0)
        if (wilds[i].open) {                    /* from LINK_ANY */
            ck_assert_int_eq(any, 0);
            wild_end(&wilds[i]);
        }
    sim_close();
    return figures;
}

START_TEST(nothing_is_touched_that_was_given_back)
{
    struct simulated_figures figures = wild_world((uint64_t)_i, (uint64_t)_i);
    ck_assert_uint_gt(figures.messages, 50);
}
END_TEST

START_TEST(the_same_seed_gives_the_same_events)
{
    struct simulated_figures first = wild_world(7, 1), again = wild_world(7, 1);
    struct simulated_figures other = wild_world(7, 2);

    ck_assert_uint_eq(first.trace, again.trace);
    ck_assert_uint_eq(first.events, again.events);
    ck_assert_uint_ne(first.trace, other.trace);
}
END_TEST

/* --- series --- */

static void send_in(int from, int to, uint64_t series, size_t bytes, struct side *side)
{
    ck_assert(link_simulated.send(ends[from], buffers[from], bytes,
                                  &(struct link_message){to, 1, series, side}));
}

static void receive_in(int to, int from, uint64_t series, void *p, struct side *side)
{
    ck_assert(link_simulated.receive(ends[to], p, BULK,
                                     &(struct link_message){from, 1, series, side}));
}

static void through(int rank, uint64_t below)
{
    ck_assert(link_simulated.forget(ends[rank], LINK_ANY, below));
    sim_collect(rank);
}

/* Bulk and words of a round that one end gives up, at each moment of their way, and of the
 * next one. What was given up ends as failed and touches nothing; the next round is whole,
 * also where the other end is later to give up. */
START_TEST(what_is_given_up_is_over_and_the_next_goes_on)
{
    const struct simulated_options o = {.ranks = 2, .latency_ns = LATENCY,
                                        .bytes_per_s = 1e9};
    size_t bytes = _i % 2 ? BULK : 100;

    for (uint64_t at = 0; at < 20000; at += 250) {
        static unsigned char old[BULK], next[BULK];
        struct side s[2], r[2], never[2], s0, r0;
        memset(s, 0, sizeof s);
        memset(r, 0, sizeof r);
        memset(never, 0, sizeof never);
        memset(old, 7, sizeof old);
        s0 = r0 = (struct side){0};
        sim_open(&o);
        sim_run_for(3 * LATENCY);
        receive_in(1, 0, 5, old, &r[0]);
        receive_in(1, 0, 5, old, &never[0]);    /* the other end has no second one */
        memset(buffers[0], 1, BULK);
        send_in(0, 1, 5, bytes, &s[0]);
        sim_run_for(at);
        bool came = r[0].n_ended;
        through(1, 6);
        ck_assert(r[0].n_ended == 1 && r[0].failed == !came);
        ck_assert(never[0].n_ended == 1 && never[0].failed);
        if (!came)
            ck_assert(old[0] == 7 && old[bytes - 1] == 7);
        receive_in(1, 0, 6, next, &r[1]);
        receive_in(1, 0, 0, next, &r0);
        sim_run_for(5 * LATENCY);
        if (_i / 2) {                       /* a word of it that is said later */
            send_in(0, 1, 5, 10, &never[1]);
            sim_run_for(30 * LATENCY);
        }
        through(0, 6);
        ck_assert(s[0].n_ended == 1);
        memset(buffers[0], 2, BULK);
        send_in(0, 1, 6, bytes, &s[1]);
        send_in(0, 1, 0, 10, &s0);
        sim_run_for(30 * LATENCY);
        ck_assert(r[1].n_ended == 1 && !r[1].failed && r[1].bytes == bytes);
        ck_assert(r0.n_ended == 1 && !r0.failed && r0.bytes == 10);
        ck_assert(s[1].n_ended == 1 && !s[1].failed && s0.n_ended == 1);
        ck_assert(next[0] == 2 && (bytes < BULK || next[bytes - 1] == 2));
        if (!came)
            ck_assert(old[0] == 7);
        sim_close();
    }
}
END_TEST

int main(void)
{
    TCase *link = new_case("link", 120);
    tcase_add_test(link, who_is_there_is_told);
    tcase_add_test(link, a_death_is_told_and_its_messages_are_given_back);
    tcase_add_loop_test(link, a_rank_comes_again_with_another_generation, 0, 2);
    tcase_add_test(link, who_is_forgotten_is_told_and_meets_again);
    tcase_add_loop_test(link, cuts_hold_messages_back_until_they_end, 0, 2);
    tcase_add_loop_test(link, nothing_is_touched_that_was_given_back, 0, SEEDS);
    tcase_add_loop_test(link, what_is_given_up_is_over_and_the_next_goes_on, 0, 4);
    tcase_add_test(link, the_same_seed_gives_the_same_events);
    return run_cases(link, NULL);
}
