/* SPDX-License-Identifier: MIT */
/* Long fat links, in virtual time: two ranks of a job that may have 64, 50 ms there and
 * back, 1 Gb/s. The bytes of a mean and of a state take the time that the link needs for
 * them and a few round trips, so as many pieces are in flight as the link holds. */
#include "fabric/fabric.h"
#include "harness/suite.h"
#include "link/simulated.h"
#include "ranks/ranks.h"

#include <check.h>

enum { RANKS = 2, MOST = 64, FLOATS = 4 << 20, ROUND_TRIPS = 4 };
#define RATE 125e6
#define LATENCY_NS UINT64_C(25000000)
#define LIMIT_NS UINT64_C(60000000000)

struct trainer {
    struct fabric *f;
    struct extent extent;
    struct vector in;
    bool open;
};

static struct trainer trainers[RANKS];
static struct simulated *world;

static void open(int rank, enum wire wire)
{
    struct trainer *t = &trainers[rank];
    const struct fabric_options options = {
        .rank = rank, .size = RANKS, .link = &link_simulated, .context = world,
        .wire = wire};
    const struct fabric_start start = {.manifest = "x\n", .n = FLOATS, .room = FLOATS,
                                       .collective = true, .threads = 1,
                                       .n_outer = wire != WIRE_F32};

    ck_assert_int_eq(fabric_mpi.open(&t->f, &options), DESCANT_OK);
    ck_assert_int_eq(fabric_mpi.start(t->f, &start), DESCANT_OK);
    t->extent = (struct extent){0, FLOATS, t->f->contribution};
    t->in = (struct vector){FLOATS, 1, &t->extent};
    for (size_t i = 0; i < FLOATS; i++)
        t->extent.p[i] = (float)rank;
}

static void use(const struct trainer *t, const struct fabric_part *part)
{
    if (part->kind == EXCHANGE_STATE && t->f->outer[0])
        memcpy(t->f->outer[0], part->out, FLOATS * sizeof(float));
    for (size_t i = 0; i < FLOATS; i += 1000)
        ck_assert(part->kind == EXCHANGE_STATE || part->out[i] == 0.5f);
}

/* Until it waits. */
static void go_on(struct trainer *t)
{
    struct fabric_part part;

    for (;;)
        switch (fabric_mpi.poll(t->f, &part)) {
        case FABRIC_WAITING:
        case FABRIC_CALLED:
            fabric_mpi.wait(t->f, 0);
            return;
        case FABRIC_FAILED:
            ck_abort_msg("rank %d: %s", t->f->rank, descant_last_error());
            return;
        case FABRIC_PART:
            use(t, &part);
            break;
        case FABRIC_DONE:
            t->open = false;
            fabric_mpi.wait(t->f, 0);
            return;
        case FABRIC_WORKED:
            break;
        }
}

/* The seconds of one exchange that both begin now. */
static double exchange(enum exchange_kind kind)
{
    uint64_t began = simulated_now(world);

    for (int k = 0; k < RANKS; k++) {
        struct trainer *t = &trainers[k];
        const struct exchange x = {.kind = kind, .in = &t->in, .n = FLOATS, .weight = 1};
        ck_assert_int_eq(fabric_mpi.begin(t->f, &x), DESCANT_OK);
        t->open = true;
        go_on(t);
    }
    while (trainers[0].open || trainers[1].open) {
        int rank = simulated_turn(world, began + LIMIT_NS);
        ck_assert_msg(rank >= 0, "it does not end");
        go_on(&trainers[rank]);
    }
    return 1e-9 * (double)(simulated_now(world) - began);
}

START_TEST(pieces_fill_a_long_link)
{
    static const enum wire wires[] = {WIRE_F32, WIRE_BF16, WIRE_Q8};
    const struct simulated_options options = {
        .ranks = MOST, .seed = 1, .latency_ns = LATENCY_NS, .bytes_per_s = RATE};
    enum wire wire = wires[_i];

    world = simulated_create(&options);
    for (int k = 0; k < RANKS; k++)
        open(k, wire);
    exchange(EXCHANGE_STATE);   /* in it they also meet */
    double trips_s = ROUND_TRIPS * 2e-9 * (double)LATENCY_NS;
    double state_s = exchange(EXCHANGE_STATE), mean_s = exchange(EXCHANGE_MEAN);
    double vectors = wire == WIRE_F32 ? 1 : 2;  /* an encoded mean has a reference */
    double state_bound_s = vectors * FLOATS * sizeof(float) / RATE;
    double mean_bound_s = (double)wire_bytes(wire, FLOATS) / RATE;
    ck_assert_msg(state_s <= state_bound_s + trips_s, "a state: %.3f s for %.3f s",
                  state_s, state_bound_s);
    ck_assert_msg(mean_s <= mean_bound_s + trips_s, "a mean: %.3f s for %.3f s", mean_s,
                  mean_bound_s);
    for (int k = 0; k < RANKS; k++)
        ranks_free(trainers[k].f);
    simulated_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

int main(void)
{
    TCase *all = new_case("all", 120);

    tcase_add_loop_test(all, pieces_fill_a_long_link, 0, 3);
    return run_cases(all, NULL);
}
