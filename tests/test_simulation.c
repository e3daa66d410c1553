/* SPDX-License-Identifier: MIT */
/* Simulated jobs whose rounds do not depend on when anything happens: their replicas have the same
 * bits over any fabric. The hashes are those of a simulator whose rounds were computed in one piece,
 * by no messages. */
#include "harness/simulation.h"
#include "harness/suite.h"
#include "harness/values.h"

#include <check.h>
#include <string.h>

static void gradient(void *context, int i, uint64_t t, const float *w, float *g, size_t n)
{
    (void)context;
    for (size_t k = 0; k < n; k++)
        g[k] = 0.3f * w[k] + noise(i, t, k);
}

static uint64_t hash_of(const struct simulation *s, int trainers, size_t n)
{
    uint64_t hash = 0;

    for (int i = 0; i < trainers; i++)
        for (size_t k = 0; k < n; k++) {
            uint32_t bits;
            memcpy(&bits, &simulation_look(s, i).w[k], sizeof bits);
            hash = (hash ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
            hash ^= hash >> 29;
        }
    return hash;
}

enum { SIZES = 6 };

static const struct {
    int trainers;
    size_t n;
} sizes[SIZES] = {{2, 70}, {3, 70}, {8, 5000}, {12, 70}, {12, 40000}, {70, 5000}};

static const struct {
    const char *plan;
    uint64_t hash[SIZES];
} rows[] = {
    {"allreduce",
     {0x4627c87baf1e7d60, 0xe7df17bb25ff5f75, 0x36031e4857c04ec0,
      0x2e27db335dda0c96, 0xb0921ea4a58af881, 0xf571fceff802002b}},
    {"ma,every=1",
     {0xe57ecdfb31b09ff4, 0x5f6a63e573c303d5, 0x6225a8eba174ac3c,
      0x672b5ca9f0f1b1fd, 0x186c4f5485b50575, 0x622401f2bd8c92c5}},
    {"ma,every=4",
     {0xf80b4aa1227114a3, 0xed24da18cb7931cf, 0xb8407ebeb77b5092,
      0xaed840177c72c3ce, 0x46668bdc347bfa9d, 0x78ccfc087d78b4d9}},
    {"ma,every=3,alpha=0.7",
     {0xd077b87fa9336605, 0x11902224fc2ed6b8, 0x2f2a1fe77a661db5,
      0x880ea600e4caa7d3, 0x0d356ee3246085eb, 0x40b0ac21554d92a3}},
    {"bmuf,every=5,rate=1,momentum=0.5",
     {0x73db8ccc55946611, 0x2c2a21487f6b1bf9, 0x368f59612e56ebfa,
      0x440b12df71302de2, 0x9e6f35141209423c, 0xfe16667c6e29b3e9}},
    {"bmuf,every=2,nesterov=1,rate=0.9,momentum=0.5",
     {0x148fc8b51c797637, 0xecfe499ea2881903, 0x2cb8382189de0747,
      0x84278be8685c0010, 0x51a2bbae748a6c19, 0x28f4dd339ed1e03b}},
    {"diloco,every=7,rate=0.7,momentum=0.9",
     {0xea46c82be9152703, 0x21571672622ef208, 0x228fdb5b38fbcadd,
      0x25c966a889c534ab, 0xc847002573924e35, 0xaa16bc0d0efcce57}},
    {"ma,every=3,weight=steps",
     {0x9bfb312e4e38e99e, 0xa0244410caf28108, 0xd956cd6e9422621c,
      0xc97af2d8edb43237, 0x1f30a22cb68eca73, 0xc3c8b2acd69b4b8e}},
};

START_TEST(replicas_have_the_same_bits_over_any_fabric)
{
    for (size_t z = 0; z < SIZES; z++)
        for (int attached = 0; attached < 2; attached++) {
            const struct simulation_options o = {
                .plan = rows[_i].plan, .trainers = sizes[z].trainers, .n = sizes[z].n,
                .gradient = gradient, .rate = 0.1, .steps = 15, .step_s = 1, .spread = 0.3,
                .attached = attached, .fabric = &simulated_ranks,
                .world = {.latency_s = 0.1, .jitter_s = 0.05, .seed = 7}};
            struct simulation *s;
            ck_assert_int_eq(simulation_run(&s, &o), DESCANT_OK);
            uint64_t hash = hash_of(s, o.trainers, o.n);
            simulation_destroy(s);
            ck_assert_msg(hash == rows[_i].hash[z], "%s, %d trainers, %zu floats: 0x%016llx",
                          o.plan, o.trainers, o.n, (unsigned long long)hash);
            ck_assert_int_eq(memory_live(), 0);
        }
}
END_TEST

int main(void)
{
    TCase *all = new_case("all", 60);

    tcase_add_loop_test(all, replicas_have_the_same_bits_over_any_fabric, 0, N(rows));
    return run_cases(all, NULL);
}
