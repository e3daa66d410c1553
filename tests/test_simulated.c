/* SPDX-License-Identifier: MIT */
/* The simulated link: what link.h promises, what a message costs in virtual time, and
 * faults. */
#include "base/base.h"
#include "link/simulated.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8, BULK = 10000, LATENCY = 1000, SEEDS = 40 };

static struct simulated *world;
static struct link *ends[MOST];
static struct link_place places[MOST];
static struct link_peer peers[MOST][MOST];  /* as told last; generation 0: nothing */
static unsigned char buffers[MOST][4 * BULK];

/* A message, as one side of it sees it. */
struct side {
    int n_ended, from;
    bool failed;
    size_t bytes;
    uint64_t at_ns;
};

static void meet(int rank)
{
    struct link_entry entry = {.context = world, .rank = rank};

    memset(peers[rank], 0, sizeof peers[rank]);
    ends[rank] = link_simulated.meet(&entry, &places[rank]);
    ck_assert_ptr_nonnull(ends[rank]);
    ck_assert_int_eq(places[rank].rank, rank);
    ck_assert_uint_ne(places[rank].generation, 0);
}

static void open_world(const struct simulated_options *options)
{
    world = simulated_create(options);
    ck_assert_ptr_nonnull(world);
    memset(ends, 0, sizeof ends);
    for (int k = 0; k < options->ranks; k++)
        meet(k);
}

static void close_one(int rank)
{
    if (ends[rank])
        link_simulated.close(ends[rank], false);
    ends[rank] = NULL;
}

static void close_world(void)
{
    for (int k = 0; k < MOST; k++)
        close_one(k);
    simulated_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}

static void collect(int rank)
{
    struct link_news news;

    ck_assert(link_simulated.collect(ends[rank], &news));
    ck_assert_uint_eq(news.now_ns, simulated_now(world));
    for (int i = 0; i < news.n_ended; i++) {
        struct side *side = news.ended[i].op;
        *side = (struct side){side->n_ended + 1, news.ended[i].from, news.ended[i].failed,
                              news.ended[i].bytes, news.now_ns};
    }
    for (int i = 0; i < news.n_peers; i++)
        peers[rank][news.peers[i].rank] = news.peers[i];
}

/* All collect at each event, up to a time. */
static void run(uint64_t until_ns)
{
    for (;;) {
        uint64_t next = simulated_next(world);
        for (int k = 0; k < MOST; k++)
            if (ends[k])
                collect(k);
        if (simulated_now(world) >= until_ns)
            return;
        simulated_run(world, next < until_ns ? next : until_ns);
    }
}

static void run_for(uint64_t ns)
{
    run(simulated_now(world) + ns);
}

static void send(int from, int to, int tag, size_t bytes, struct side *side)
{
    *side = (struct side){0};
    ck_assert(link_simulated.send(ends[from], buffers[from], bytes, to, tag, side));
}

static void receive(int to, int from, int tag, struct side *side)
{
    *side = (struct side){0};
    ck_assert(link_simulated.receive(ends[to], buffers[to], BULK, from, tag, side));
}

static bool has_come(int rank, int peer)
{
    return peers[rank][peer].generation && !peers[rank][peer].gone;
}

static bool is_gone(int rank, int peer)
{
    return peers[rank][peer].generation && peers[rank][peer].gone;
}

/* --- the time that messages take --- */

static const struct simulated_options gigabyte = {.ranks = 4, .latency_ns = LATENCY,
                                                  .bytes_per_s = 1e9, .fixed = true};

static void need_time(const struct side *side, uint64_t began_ns, uint64_t takes_ns)
{
    ck_assert_int_eq(side->n_ended, 1);
    ck_assert(!side->failed);
    ck_assert_uint_eq(side->at_ns - began_ns, takes_ns);
}

START_TEST(a_message_takes_latency_and_its_bytes)
{
    struct side s, r;

    open_world(&gigabyte);
    uint64_t began = simulated_now(world);
    receive(1, 0, 1, &r);
    send(0, 1, 1, 100, &s);
    run_for(1000000);
    need_time(&s, began, 0);                    /* a word is copied */
    need_time(&r, began, LATENCY + 100);
    ck_assert_uint_eq(r.bytes, 100);
    ck_assert_int_eq(r.from, 0);

    receive(1, 0, 1, &r);                       /* its sender knows of it in time */
    run_for(LATENCY);
    began = simulated_now(world);
    send(0, 1, 1, BULK, &s);
    run_for(1000000);
    need_time(&r, began, LATENCY + BULK);
    need_time(&s, began, LATENCY + BULK);

    began = simulated_now(world);
    send(0, 1, 1, BULK, &s);
    run_for(1000000);
    ck_assert_int_eq(s.n_ended, 0);
    receive(1, 0, 1, &r);
    run_for(1000000);
    need_time(&r, began, 1000000 + 2 * LATENCY + BULK);

    began = simulated_now(world);
    receive(1, LINK_ANY, 2, &r);                /* nobody knows who it is for */
    send(0, 1, 2, BULK, &s);
    run_for(1000000);
    need_time(&r, began, 3 * LATENCY + BULK);
    ck_assert_int_eq(r.from, 0);
    close_world();
}
END_TEST

START_TEST(links_are_occupied_both_ways)
{
    struct side s[4], r[4];

    open_world(&gigabyte);
    receive(2, 0, 1, &r[0]);
    receive(2, 1, 1, &r[1]);
    run_for(LATENCY);
    uint64_t began = simulated_now(world);
    send(0, 2, 1, BULK, &s[0]);                 /* two to one */
    send(1, 2, 1, BULK, &s[1]);
    run_for(1000000);
    need_time(&r[0], began, LATENCY + BULK);
    need_time(&r[1], began, LATENCY + 2 * BULK);

    receive(1, 0, 1, &r[1]);
    receive(2, 0, 1, &r[2]);
    receive(2, 0, 3, &r[3]);
    receive(3, 0, 1, &r[0]);
    run_for(LATENCY);
    began = simulated_now(world);
    send(0, 1, 1, BULK, &s[1]);                 /* one to two */
    send(0, 2, 1, BULK, &s[2]);
    send(0, 2, 3, 500, &s[3]);                  /* a word goes past both, */
    send(0, 3, 1, BULK, &s[0]);
    run_for(1000000);
    need_time(&r[1], began, LATENCY + BULK);
    need_time(&r[2], began, LATENCY + 2 * BULK);
    need_time(&r[3], began, LATENCY + 500);
    need_time(&r[0], began, LATENCY + 3 * BULK + 500);  /* and takes its part */

    receive(0, 1, 1, &r[0]);
    receive(1, 0, 1, &r[1]);
    run_for(LATENCY);
    began = simulated_now(world);
    send(0, 1, 1, BULK, &s[0]);                 /* there and back at once */
    send(1, 0, 1, BULK, &s[1]);
    run_for(1000000);
    need_time(&r[0], began, LATENCY + BULK);
    need_time(&r[1], began, LATENCY + BULK);
    close_world();
}
END_TEST

START_TEST(hosts_have_one_link_and_some_are_slow)
{
    struct simulated_options options = gigabyte;
    struct simulated_fault slow = {.kind = SIMULATED_SLOW, .rank = 3, .factor = 4};
    struct side s[3], r[3];

    options.per_host = 2;
    options.near_latency_ns = 7;
    open_world(&options);
    ck_assert_int_eq(places[3].host, 2);
    ck_assert_int_eq(places[3].local_rank, 1);
    ck_assert_int_eq(places[3].hosts, 2);
    receive(2, 0, 1, &r[0]);
    receive(3, 1, 1, &r[1]);
    receive(1, 0, 1, &r[2]);
    run_for(LATENCY);
    uint64_t began = simulated_now(world);
    send(0, 2, 1, BULK, &s[0]);
    send(1, 3, 1, BULK, &s[1]);
    send(0, 1, 1, BULK, &s[2]);
    run_for(1000000);
    need_time(&r[0], began, LATENCY + BULK);
    need_time(&r[1], began, LATENCY + 2 * BULK);
    need_time(&r[2], began, 7);

    ck_assert(simulated_fault(world, &slow));
    receive(2, 0, 1, &r[0]);
    receive(0, 2, 1, &r[1]);
    run_for(LATENCY);
    began = simulated_now(world);
    send(0, 2, 1, BULK, &s[0]);
    send(2, 0, 1, BULK, &s[1]);
    run_for(1000000);
    need_time(&r[0], began, LATENCY + 4 * BULK);
    need_time(&r[1], began, LATENCY + 4 * BULK);
    close_world();
}
END_TEST

/* --- order, and what is read when --- */

START_TEST(one_tag_keeps_its_order_and_others_overtake)
{
    static struct side s[60], r[60];
    static int came[60];
    int n_came = 0, overtook = 0;
    const struct simulated_options options = {.ranks = 2,
                                              .seed = (uint64_t)_i,
                                              .fixed = true,
                                              .jitter_ns = 5000,
                                              .bytes_per_s = 1e9};

    open_world(&options);
    for (int i = 0; i < 60; i++) {
        size_t bytes = i % 7 == 0 ? BULK : (size_t)i + 1;
        r[i] = s[i] = (struct side){0};
        ck_assert(link_simulated.receive(ends[1], buffers[1], bytes, 0, i % 3, &r[i]));
        send(0, 1, i % 3, bytes, &s[i]);
    }
    while (n_came < 60) {
        struct link_news news;
        ck_assert_uint_lt(simulated_next(world), UINT64_MAX);
        simulated_run(world, simulated_next(world));
        ck_assert(link_simulated.collect(ends[1], &news));
        for (int i = 0; i < news.n_ended; i++) {
            ck_assert(!news.ended[i].failed);
            came[n_came++] = (int)((struct side *)news.ended[i].op - r);
        }
    }
    for (int i = 0; i < 60; i++)
        for (int k = 0; k < i; k++) {
            ck_assert(came[k] < came[i] || came[k] % 3 != came[i] % 3);
            overtook += came[k] > came[i];
        }
    ck_assert_int_gt(overtook, 0);
    close_world();
}
END_TEST

START_TEST(words_are_copied_and_bulk_is_read_when_it_comes)
{
    struct side s[2], r[2];

    open_world(&gigabyte);
    memset(buffers[0], 1, BULK);
    receive(1, 0, 1, &r[0]);
    run_for(LATENCY);
    send(0, 1, 1, LINK_WORD, &s[0]);
    collect(0);
    ck_assert_int_eq(s[0].n_ended, 1);
    memset(buffers[0], 2, BULK);
    run_for(1000000);
    ck_assert_int_eq(buffers[1][0], 1);
    receive(1, 0, 1, &r[1]);
    send(0, 1, 1, LINK_WORD + 1, &s[1]);
    run_for(100);
    ck_assert_int_eq(s[1].n_ended, 0);
    memset(buffers[0], 3, BULK);
    run_for(1000000);
    ck_assert_int_eq(s[1].n_ended, 1);
    ck_assert_int_eq(buffers[1][0], 3);
    close_world();
}
END_TEST

/* Each tag has its room, and a word that has none stays with its sender. */
START_TEST(words_have_room_for_so_many)
{
    struct side s[LINK_WORDS + 2], r, other, taken;

    open_world(&gigabyte);
    for (int i = 0; i < LINK_WORDS + 2; i++)
        send(0, 1, 1, 10, &s[i]);
    run_for(1000000);
    for (int i = 0; i < LINK_WORDS + 2; i++)
        ck_assert_int_eq(s[i].n_ended, i < LINK_WORDS);
    send(0, 1, 2, 10, &other);
    receive(1, 0, 2, &taken);
    run_for(1000000);
    ck_assert_int_eq(taken.n_ended, 1);
    receive(1, 0, 1, &r);
    run_for(0);
    ck_assert_int_eq(r.n_ended, 1);
    ck_assert_int_eq(s[LINK_WORDS].n_ended, 1);
    ck_assert_int_eq(s[LINK_WORDS + 1].n_ended, 0);
    close_world();
}
END_TEST

START_TEST(what_is_too_long_for_its_receive_is_not_written)
{
    struct side s, r = {0};
    unsigned char *small = malloc(10);

    open_world(&gigabyte);
    ck_assert(link_simulated.receive(ends[1], small, 10, 0, 1, &r));
    send(0, 1, 1, BULK, &s);
    run_for(1000000);
    ck_assert(!r.failed && r.n_ended == 1);
    ck_assert_uint_eq(r.bytes, LINK_TOO_LONG);
    ck_assert_int_eq(s.n_ended, 1);
    free(small);
    close_world();
}
END_TEST

/* --- no tag waits for another one --- */

START_TEST(words_pass_bulk_that_nobody_receives)
{
    struct side bulk[2][20], words[2], r[2], late[2][20];

    open_world(&gigabyte);
    for (int i = 0; i < 20; i++)
        for (int k = 0; k < 2; k++)
            send(k, 1 - k, 1, BULK, &bulk[k][i]);
    for (int k = 0; k < 2; k++) {
        send(k, 1 - k, 2, 100, &words[k]);
        receive(1 - k, LINK_ANY, 2, &r[1 - k]);
    }
    run_for(1000000);
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(r[k].n_ended, 1);
        ck_assert_int_eq(bulk[k][0].n_ended, 0);
        for (int i = 0; i < 20; i++)
            receive(k, 1 - k, 1, &late[k][i]);
    }
    run_for(10000000);
    for (int i = 0; i < 20; i++)
        ck_assert(late[0][i].n_ended == 1 && late[1][i].n_ended == 1);
    close_world();
}
END_TEST

enum { TALKS = 10, TALK_RANKS = 3, TALK_TAGS = 4, TALK_MESSAGES = 24 };

/* One of (sender, receiver, tag): all is sent, and received one after the other. */
struct talk {
    int from, to, tag, n_sent, n_received;
    struct side s[TALK_MESSAGES], r[TALK_MESSAGES];
};

/* A receiver opens receives of one tag only, in whatever order of senders and tags it
 * likes, and takes everything of that before it goes on. Each sender has sent all before.
 * */
static void hear_out(struct talk *talk)
{
    for (int i = 0; i < TALK_MESSAGES; i++) {
        receive(talk->to, talk->from, talk->tag, &talk->r[i]);
        for (int turn = 0; talk->r[i].n_ended == 0; turn++) {
            ck_assert_msg(turn < 1000, "%d to %d, tag %d: message %d does not come",
                          talk->from, talk->to, talk->tag, i);
            run_for(LATENCY);
        }
    }
}

START_TEST(no_order_of_receives_stops_the_others)
{
    static struct talk talks[TALK_RANKS * TALK_RANKS * TALK_TAGS];
    const struct simulated_options options = {.ranks = TALK_RANKS, .seed = (uint64_t)_i,
                                              .latency_ns = LATENCY, .jitter_ns = 3000,
                                              .bytes_per_s = 1e9, .fixed = true};
    struct talk *left[TALK_RANKS * TALK_RANKS * TALK_TAGS];
    struct rng rng;
    int n = 0;

    rng_init(&rng, (uint64_t)_i);
    open_world(&options);
    for (int from = 0; from < TALK_RANKS; from++)
        for (int to = 0; to < TALK_RANKS; to++)
            for (int tag = 0; tag < TALK_TAGS && from != to; tag++)
                talks[n++] = (struct talk){.from = from, .to = to, .tag = tag};
    for (int k = 0; k < n; k++)
        for (int i = 0; i < TALK_MESSAGES; i++)
            send(talks[k].from, talks[k].to, talks[k].tag,
                 rng_next(&rng) % 2 ? BULK : 100, &talks[k].s[i]);
    for (int k = 0; k < n; k++)
        left[k] = &talks[k];
    for (; n > 0; n--) {
        int k = (int)(rng_next(&rng) % (uint64_t)n);
        hear_out(left[k]);
        for (int i = 0; i < TALK_MESSAGES; i++)
            ck_assert_int_eq(left[k]->s[i].n_ended, 1);
        left[k] = left[n - 1];
    }
    close_world();
}
END_TEST

/* --- coming and going --- */

static const struct simulated_options open_job = {.ranks = 4, .latency_ns = LATENCY,
                                                  .bytes_per_s = 1e9};

static void fault(enum simulated_fault_kind kind, int rank, int other, uint64_t for_ns)
{
    uint64_t now = simulated_now(world);
    const struct simulated_fault fault = {.kind = kind,
                                          .rank = rank,
                                          .other = other,
                                          .at_ns = now,
                                          .until_ns = now + for_ns};
    ck_assert(simulated_fault(world, &fault));
    simulated_run(world, now);
}

START_TEST(who_is_there_is_told)
{
    struct side s, r;

    open_world(&open_job);
    ck_assert(!places[0].fixed);
    send(0, 1, 1, 100, &s);
    receive(0, 1, 1, &r);
    collect(0);
    ck_assert(s.failed && r.failed && s.n_ended == 1 && r.n_ended == 1);
    run_for(LATENCY - 1);
    ck_assert(!has_come(0, 1));
    run_for(1);
    for (int k = 0; k < 4; k++)
        for (int j = 0; j < 4; j++)
            ck_assert(j == k || (has_come(k, j) &&
                                 peers[k][j].generation == places[j].generation));
    close_one(3);
    run_for(LATENCY);
    ck_assert(is_gone(0, 3) && is_gone(1, 3) && is_gone(2, 3));
    close_world();
}
END_TEST

/* What has left before a death arrives; nothing of the dead rank's memory is read. */
START_TEST(a_death_is_told_and_its_messages_are_given_back)
{
    struct side s[3], r[4], unused;
    unsigned char *of_dead = malloc(BULK), *of_living = malloc(BULK);

    open_world(&open_job);
    run_for(LATENCY);
    receive(1, 0, 1, &r[0]);
    receive(1, 0, 2, &r[1]);
    receive(1, 0, 3, &r[2]);
    receive(1, LINK_ANY, 4, &r[3]);
    run_for(LATENCY);
    send(0, 1, 1, 100, &unused);
    s[0] = s[1] = (struct side){0};
    ck_assert(link_simulated.send(ends[0], of_dead, BULK, 1, 2, &unused));
    ck_assert(link_simulated.send(ends[0], of_dead, BULK, 1, 4, &unused));
    ck_assert(link_simulated.send(ends[1], of_living, BULK, 0, 1, &s[0]));
    ck_assert(link_simulated.send(ends[1], of_living, BULK, 0, 2, &s[1]));
    run_for(500);
    fault(SIMULATED_DIE, 0, 0, 0);
    ck_assert(!simulated_lives(world, 0));
    free(of_dead);
    run_for(1000000);
    ck_assert(is_gone(1, 0) && has_come(1, 2));
    ck_assert_int_eq(r[0].n_ended, 1);          /* the word */
    ck_assert(!r[0].failed);
    ck_assert(r[1].n_ended == 0 && r[2].n_ended == 0 && s[0].n_ended == 0);
    ck_assert(link_simulated.forget(ends[1], 0));
    collect(1);
    ck_assert(r[1].failed && r[2].failed && s[0].failed && s[1].failed);
    ck_assert(r[1].n_ended == 1 && s[1].n_ended == 1);
    free(of_living);
    ck_assert_int_eq(r[3].n_ended, 0);          /* it had the dead rank's, and is open */
    send(2, 1, 4, 100, &s[2]);
    run_for(1000000);
    ck_assert(r[3].n_ended == 1 && r[3].from == 2 && !r[3].failed);
    close_world();
}
END_TEST

START_TEST(a_rank_comes_again_with_another_generation)
{
    struct side s, r, stale;

    open_world(&open_job);
    run_for(LATENCY);
    uint64_t first = places[0].generation;
    send(1, 0, 1, BULK, &stale);
    fault(_i ? SIMULATED_VANISH : SIMULATED_DIE, 0, 0, 0);
    run_for(1000000);
    ck_assert_int_eq(is_gone(1, 0), !_i);       /* who vanishes is only silent */
    close_one(0);
    meet(0);
    ck_assert_uint_ne(places[0].generation, first);
    run_for(1000000);
    ck_assert(is_gone(1, 0));
    ck_assert_uint_eq(peers[1][0].generation, first);
    ck_assert(!has_come(0, 1));                 /* the old one is not forgotten yet */
    receive(0, 1, 1, &r);
    collect(0);
    ck_assert(r.failed);
    ck_assert(link_simulated.forget(ends[1], 0));
    run_for(LATENCY);
    ck_assert(stale.failed && stale.n_ended == 1);
    ck_assert(has_come(1, 0) && has_come(0, 1) && !has_come(0, 2));
    ck_assert_uint_eq(peers[1][0].generation, places[0].generation);
    receive(0, 1, 1, &r);
    send(1, 0, 1, BULK, &s);
    run_for(1000000);
    ck_assert(r.n_ended == 1 && !r.failed && s.n_ended == 1 && !s.failed);
    close_world();
}
END_TEST

/* Both live; the one that is forgotten is told, and has to meet anew. */
START_TEST(who_is_forgotten_is_told_and_meets_again)
{
    struct side s[2], r[2];

    open_world(&open_job);
    run_for(LATENCY);
    receive(0, 1, 1, &r[0]);
    send(0, 1, 1, BULK, &s[0]);
    ck_assert(link_simulated.forget(ends[0], 1));
    collect(0);
    ck_assert(r[0].failed && s[0].failed);
    send(1, 0, 2, 100, &s[1]);
    receive(1, 0, 1, &r[1]);
    run_for(1000000);
    ck_assert(is_gone(1, 0) && r[1].n_ended == 0);
    ck_assert(link_simulated.forget(ends[1], 0));
    collect(1);
    ck_assert(r[1].failed && !s[1].failed);
    run_for(1000000);
    ck_assert(is_gone(1, 0) && has_come(1, 2));
    close_one(1);
    meet(1);
    run_for(1000000);
    ck_assert(has_come(0, 1) && has_come(1, 0) && !has_come(2, 1));
    close_world();
}
END_TEST

START_TEST(cuts_hold_messages_back_until_they_end)
{
    struct side s[4], r[4];

    open_world(&open_job);
    run_for(LATENCY);
    for (int k = 0; k < 4; k++)
        receive(3 - k, k, 1, &r[k]);
    run_for(LATENCY);
    uint64_t began = simulated_now(world);
    send(0, 3, 1, 100, &s[0]);                  /* on the wire: it arrives */
    if (_i) {
        fault(SIMULATED_PART, 2, 1, 50000);     /* {0, 1} and {2, 3} */
        fault(SIMULATED_PART, 3, 1, 50000);
    } else {
        fault(SIMULATED_CUT, 0, 3, 50000);
    }
    send(3, 0, 1, 100, &s[3]);
    send(1, 2, 1, BULK, &s[1]);
    send(2, 1, 1, 100, &s[2]);
    run_for(1000000);
    need_time(&r[0], began, LATENCY + 100);
    need_time(&r[3], began, 50000 + LATENCY + 100);
    need_time(&r[1], began, (_i ? 50000 : 0) + LATENCY + BULK);
    need_time(&r[2], began, (_i ? 50000 : 0) + LATENCY + 100);
    close_world();
}
END_TEST

/* --- the driver --- */

START_TEST(who_sleeps_is_woken_by_time_or_by_news)
{
    struct side s, r;
    int turned[4] = {0};

    open_world(&gigabyte);
    for (int k = 0; k < 4; k++) {
        int rank = simulated_turn(world, UINT64_MAX);
        turned[rank]++;
        link_simulated.sleep(ends[rank], UINT64_C(1000000) << rank, 0);
        ck_assert(simulated_sleeps(world, rank));
    }
    for (int k = 0; k < 4; k++)
        ck_assert_int_eq(turned[k], 1);
    uint64_t began = simulated_now(world);
    receive(3, 1, 1, &r);
    send(1, 3, 1, 100, &s);                     /* ends at once: 1 has news */
    ck_assert_int_eq(simulated_turn(world, UINT64_MAX), 1);
    ck_assert_uint_eq(simulated_now(world), began);
    collect(1);
    link_simulated.sleep(ends[1], 1000000000, began + 5000);
    ck_assert_int_eq(simulated_turn(world, UINT64_MAX), 3);
    ck_assert_uint_eq(simulated_now(world), began + LATENCY + 100);
    collect(3);
    ck_assert_int_eq(r.n_ended, 1);
    link_simulated.sleep(ends[3], 1000000000, 0);
    ck_assert_int_eq(simulated_turn(world, began + 100), -1);   /* it never goes back */
    ck_assert_int_eq(simulated_turn(world, UINT64_MAX), 1);
    ck_assert_uint_eq(simulated_now(world), began + 5000);
    fault(SIMULATED_PAUSE, 0, 0, 5000000);
    link_simulated.sleep(ends[1], 1000000000, 0);
    ck_assert_int_eq(simulated_turn(world, UINT64_MAX), 2);     /* and not 0 */
    link_simulated.sleep(ends[2], 1000000000, 0);
    ck_assert_int_eq(simulated_turn(world, UINT64_MAX), 0);
    ck_assert_uint_eq(simulated_now(world), began + 5000 + 5000000);
    close_world();
}
END_TEST

START_TEST(a_fixed_world_forgets_nobody)
{
    struct side s;

    open_world(&gigabyte);
    ck_assert(places[0].fixed);
    ck_assert(!link_simulated.forget(ends[0], 1));
    ck_assert_str_ne(link_simulated.why(ends[0]), "");
    send(0, 1, 1, BULK, &s);
    ck_assert(!link_simulated.close(ends[0], false));
    ends[0] = NULL;
    ck_assert(link_simulated.close(ends[1], true));
    ends[1] = NULL;
    close_world();
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
            ck_assert(link_simulated.forget(ends[rank], peer->rank));
    }
}

static void wild_message(struct rng *rng, int rank)
{
    int other = (rank + 1 + (int)(rng_next(rng) % (WILD_RANKS - 1))) % WILD_RANKS;
    int tag = (int)(rng_next(rng) % 4);
    size_t bytes = rng_next(rng) % 2 ? 4 * LINK_WORD : 100;
    struct wild *wild = wild_add(rank);

    if (rng_next(rng) % 2)
        ck_assert(link_simulated.send(ends[rank], wild->p, bytes, other, tag, wild));
    else
        ck_assert(link_simulated.receive(ends[rank], wild->p, bytes,
                                         tag == 3 ? LINK_ANY : other, tag, wild));
}

static void wild_dies(struct rng *rng, int rank)
{
    uint64_t kind = rng_next(rng) % 3;

    if (kind)
        fault(kind == 1 ? SIMULATED_DIE : SIMULATED_VANISH, rank, 0, 0);
    for (int i = 0; i < n_wilds && kind; i++)   /* before its link is closed */
        if (wilds[i].open && wilds[i].rank == rank)
            wild_end(&wilds[i]);
    if (kind)
        simulated_run(world, simulated_now(world) + rng_next(rng) % 20000);
    close_one(rank);
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
        meet(rank);
    else if (what < 48)
        wild_message(rng, rank);
    else if (what == 48 && rank != other)
        ck_assert(link_simulated.forget(ends[rank], other));
    else if (what == 49)
        wild_dies(rng, rank);
    else if (what == 50)
        fault(SIMULATED_CUT, rank, other, rng_next(rng) % 50000);
    else if (what == 51)
        fault(SIMULATED_PART, rank, other % 2, rng_next(rng) % 50000);
    else if (what == 52)
        fault(SIMULATED_PAUSE, rank, other, rng_next(rng) % 50000);
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
    open_world(&options);
    for (int step = 0; step < WILD_STEPS; step++)
        wild_step(&rng);
    for (int k = 0; k < WILD_RANKS; k++)        /* all of that is given back */
        for (int j = 0; ends[k] && j < WILD_RANKS; j++)
            ck_assert(j == k || link_simulated.forget(ends[k], j));
    for (int k = 0; k < WILD_RANKS; k++)
        if (ends[k])
            wild_collect(&rng, k);
    struct simulated_figures figures = simulated_figures(world);
    for (int k = 0; k < WILD_RANKS; k++)
        close_one(k);
    for (int i = 0, any = 0; i < n_wilds; i++, any = 0)
        if (wilds[i].open) {                    /* from LINK_ANY */
            ck_assert_int_eq(any, 0);
            wild_end(&wilds[i]);
        }
    close_world();
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

/* --- no memory --- */

/* False: something had failed. */
static bool try_a_world(void)
{
    struct simulated_options options = open_job;
    struct link_entry entry = {.rank = -1};
    struct link *both[2] = {NULL, NULL};
    struct link_news news;
    struct side side;

    world = simulated_create(&options);
    entry.context = world;
    bool good = world != NULL;
    for (int k = 0; k < 2 && good; k++)
        good = (both[k] = link_simulated.meet(&entry, &places[k])) != NULL;
    if (good)
        simulated_run(world, simulated_now(world) + LATENCY);
    for (int i = 0; i < 100 && good; i++)
        good = link_simulated.send(both[0], buffers[0], i % 2 ? 100 : BULK, 1, i % 3,
                                   &side) &&
               link_simulated.receive(both[1], buffers[1], BULK, 0, i % 3, &side);
    const struct simulated_fault cut = {.kind = SIMULATED_CUT, .other = 1};
    good = good && simulated_fault(world, &cut);
    if (good)
        simulated_run(world, simulated_now(world) + 10000000);
    for (int k = 0; k < 2 && good; k++)
        good = link_simulated.collect(both[k], &news) && news.n_ended == 100;
    for (int k = 0; k < 2; k++)
        if (both[k])
            link_simulated.close(both[k], false);
    simulated_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
    return good;
}

START_TEST(memory_may_run_out_at_any_time)
{
    long k = 1;

    for (;; k++) {
        memory_fail_at(k);
        bool good = try_a_world();
        memory_fail_at(0);
        if (good)
            break;
    }
    ck_assert_int_gt(k, 100);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulated");
    TCase *link = tcase_create("link");
    tcase_set_timeout(link, 120);
    tcase_add_test(link, a_message_takes_latency_and_its_bytes);
    tcase_add_test(link, links_are_occupied_both_ways);
    tcase_add_test(link, hosts_have_one_link_and_some_are_slow);
    tcase_add_loop_test(link, one_tag_keeps_its_order_and_others_overtake, 0, SEEDS);
    tcase_add_test(link, words_are_copied_and_bulk_is_read_when_it_comes);
    tcase_add_test(link, words_have_room_for_so_many);
    tcase_add_test(link, what_is_too_long_for_its_receive_is_not_written);
    tcase_add_test(link, words_pass_bulk_that_nobody_receives);
    tcase_add_loop_test(link, no_order_of_receives_stops_the_others, 0, TALKS);
    tcase_add_test(link, who_is_there_is_told);
    tcase_add_test(link, a_death_is_told_and_its_messages_are_given_back);
    tcase_add_loop_test(link, a_rank_comes_again_with_another_generation, 0, 2);
    tcase_add_test(link, who_is_forgotten_is_told_and_meets_again);
    tcase_add_loop_test(link, cuts_hold_messages_back_until_they_end, 0, 2);
    tcase_add_test(link, who_sleeps_is_woken_by_time_or_by_news);
    tcase_add_test(link, a_fixed_world_forgets_nobody);
    tcase_add_loop_test(link, nothing_is_touched_that_was_given_back, 0, SEEDS);
    tcase_add_test(link, the_same_seed_gives_the_same_events);
    tcase_add_test(link, memory_may_run_out_at_any_time);
    suite_add_tcase(suite, link);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
