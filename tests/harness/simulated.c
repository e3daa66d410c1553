/* SPDX-License-Identifier: MIT */
/* A world of the simulated link, as tests of the link drive it. */
#include "harness/simulated.h"

#include <check.h>

struct simulated *world;
struct link *ends[MOST];
struct link_place places[MOST];
struct link_peer peers[MOST][MOST];
unsigned char buffers[MOST][4 * BULK];

void sim_meet(int rank)
{
    struct link_entry entry = {.context = world, .rank = rank};

    memset(peers[rank], 0, sizeof peers[rank]);
    ends[rank] = link_simulated.meet(&entry, &places[rank]);
    ck_assert_ptr_nonnull(ends[rank]);
    ck_assert_int_eq(places[rank].rank, rank);
    ck_assert_uint_ne(places[rank].generation, 0);
}

void sim_open(const struct simulated_options *options)
{
    world = simulated_create(options);
    ck_assert_ptr_nonnull(world);
    memset(ends, 0, sizeof ends);
    for (int k = 0; k < options->ranks; k++)
        sim_meet(k);
}

void sim_close_one(int rank)
{
    if (ends[rank])
        link_simulated.close(ends[rank], false);
    ends[rank] = NULL;
}

void sim_close(void)
{
    for (int k = 0; k < MOST; k++)
        sim_close_one(k);
    simulated_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}

void sim_collect(int rank)
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

void sim_run(uint64_t until_ns)
{
    for (;;) {
        uint64_t next = simulated_next(world);
        for (int k = 0; k < MOST; k++)
            if (ends[k])
                sim_collect(k);
        if (simulated_now(world) >= until_ns)
            return;
        simulated_run(world, next < until_ns ? next : until_ns);
    }
}

void sim_run_for(uint64_t ns)
{
    sim_run(simulated_now(world) + ns);
}

void sim_send(int from, int to, int tag, size_t bytes, struct side *side)
{
    *side = (struct side){0};
    ck_assert(link_simulated.send(ends[from], buffers[from], bytes,
        &(struct link_message){to, tag, 0, side}));
}

void sim_receive(int to, int from, int tag, struct side *side)
{
    *side = (struct side){0};
    ck_assert(link_simulated.receive(ends[to], buffers[to], BULK,
        &(struct link_message){from, tag, 0, side}));
}

bool sim_has_come(int rank, int peer)
{
    return peers[rank][peer].generation && !peers[rank][peer].gone;
}

bool sim_is_gone(int rank, int peer)
{
    return peers[rank][peer].generation && peers[rank][peer].gone;
}

void need_time(const struct side *side, uint64_t began_ns, uint64_t takes_ns)
{
    ck_assert_int_eq(side->n_ended, 1);
    ck_assert(!side->failed);
    ck_assert_uint_eq(side->at_ns - began_ns, takes_ns);
}

void sim_fault(enum simulated_fault_kind kind, int rank, int other, uint64_t for_ns)
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
