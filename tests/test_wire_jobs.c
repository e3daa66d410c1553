/* SPDX-License-Identifier: MIT */
/* Encoded means on the sim fabric, in whole jobs, through reloads, and where nothing is sent. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sync/round.h"
#include "sync/simulation.h"
#include "wire_group.h"

/* ------------------------------------------------------------------ the sim fabric */

struct sim {
    struct sim_world *world;
    struct fabric *f[MEMBERS];
    struct extent extents[MEMBERS][2];      /* with a gap between them */
    struct vector in[MEMBERS];
    int k;
    float c[MEMBERS][N];
};

enum { GAP_AT = 700, GAP_END = 4 * WIRE_BLOCK };

#define RATE 1e6
#define RTT 0.25

static void sim_open(struct sim *s, enum wire wire, int k)
{
    struct sim_options world = {.link = {RATE, RTT}};
    const struct fabric_start start = {.manifest = "x\n", .n = N, .room = N, .threads = 1,
                                       .collective = true, .n_outer = 1};
    *s = (struct sim){.world = sim_world_create(&world), .k = k};
    for (int i = 0; i < k; i++) {
        struct fabric_options o = {.rank = i, .size = k, .wire = wire, .context = s->world};
        ck_assert_int_eq(fabric_sim.open(&s->f[i], &o), DESCANT_OK);
        ck_assert_int_eq(s->f[i]->wire, wire);
        ck_assert_int_eq(fabric_sim.start(s->f[i], &start), DESCANT_OK);
        float *x = s->f[i]->contribution;
        s->extents[i][0] = (struct extent){0, GAP_AT, x};
        s->extents[i][1] = (struct extent){GAP_END, N - GAP_END, x + GAP_END};
        s->in[i] = (struct vector){N, 2, s->extents[i]};
    }
}

static void sim_shut(struct sim *s)
{
    for (int i = 0; i < s->k; i++)
        fabric_sim.close(s->f[i]);
    sim_world_destroy(s->world);
}

static void sim_run(struct sim *s, struct exchange x, const double *weight)
{
    bool done[MEMBERS] = {false};
    x.n = N;
    for (int i = 0; i < s->k; i++) {
        x.in = &s->in[i];
        x.weight = weight ? weight[i] : 1;
        ck_assert_int_eq(fabric_sim.begin(s->f[i], &x), DESCANT_OK);
    }
    for (int left = s->k; left > 0;) {
        for (int i = 0; i < s->k; i++) {
            struct fabric_part part;
            enum fabric_progress progress = FABRIC_WORKED;
            while (!done[i] && progress != FABRIC_WAITING && progress != FABRIC_DONE) {
                progress = fabric_sim.poll(s->f[i], &part);
                ck_assert_int_ne(progress, FABRIC_FAILED);
                if (progress == FABRIC_PART)
                    memcpy(s->c[i] + part.from, part.out, part.n * sizeof(float));
            }
            left -= !done[i] && progress == FABRIC_DONE;
            done[i] = done[i] || progress == FABRIC_DONE;
        }
        if (left > 0 && sim_world_next(s->world) != UINT64_MAX)
            sim_world_advance(s->world, sim_world_next(s->world));
    }
}

static void sim_state(struct sim *s)
{
    sim_run(s, (struct exchange){.kind = EXCHANGE_STATE}, NULL);
}

/* What the round machine does after a mean. */
static void sim_refer(struct sim *s)
{
    for (int i = 0; i < s->k; i++)
        memcpy(s->f[i]->outer[0], s->c[i], sizeof s->c[i]);
}

static void fill(float *x, struct rng *rng, const float *around)
{
    for (size_t k = 0; k < N; k++)
        if (k < GAP_AT || k >= GAP_END)
            x[k] = around[k] + (float)rng_normal(rng);
}

static uint64_t bytes_of(const struct group *g, int i)
{
    uint64_t bytes = 0;
    for (int j = 0; j < g->k; j++) {
        size_t n = wire_slice(N, g->k, j + 1) - wire_slice(N, g->k, j);
        bytes += wire_bytes(g->wire, n) * (uint64_t)(j == i ? g->k - 1 : 1);
    }
    return bytes;
}

/* The same bits as a group of the calls of wire.h, for all; as many bytes, and as long. */
START_TEST(sim_does_what_the_rule_says)
{
    static struct group g;
    static struct sim s;
    for (int w = 0; w < 2; w++)
        for (int k = 2; k <= MEMBERS; k++) {
            struct rng rng;
            rng_init(&rng, (uint64_t)k);
            sim_open(&s, wires[w], k);
            sim_state(&s);
            memset(&g, 0, sizeof g);
            g.wire = wires[w];
            for (int t = 0; t < 8; t++) {
                double weight[MEMBERS], total = 0;
                for (g.k = 0; g.k < k; g.k++)
                    total += weight[g.k] = (double)(rng_next(&rng) % 4 + (t % 2 == 0));
                for (int i = 0; i < k; i++) {
                    fill(g.x[i], &rng, g.R);
                    memcpy(s.f[i]->contribution, g.x[i], sizeof g.x[i]);
                    g.share[i] = total > 0 ? weight[i] / total : 1.0 / k;
                }
                uint64_t before = atomic_load(&s.f[k - 1]->bytes), began = sim_world_now(s.world);
                sim_run(&s, (struct exchange){.kind = EXCHANGE_MEAN}, weight);
                group_mean(&g);
                for (int i = 0; i < k; i++)
                    ck_assert_mem_eq(s.c[i], g.c, sizeof g.c);
                ck_assert_uint_eq(atomic_load(&s.f[k - 1]->bytes) - before, bytes_of(&g, k - 1));
                double seconds = 2.0 * (k - 1) / k * (double)wire_bytes(wires[w], N) / RATE +
                                 2 * RTT;
                ck_assert_double_eq_tol((double)(sim_world_now(s.world) - began) * 1e-9, seconds,
                                        1e-6);
                memcpy(g.R, g.c, sizeof g.R);
                sim_refer(&s);
            }
            sim_shut(&s);
        }
}
END_TEST

/* A state that all take ends what is owed; a final mean, and one alone, is exact. */
START_TEST(states_and_last_means_are_exact)
{
    static struct sim s;
    static float x[N], zero[N];
    for (int w = 0; w < 2; w++) {
        struct rng rng;
        rng_init(&rng, 8);
        sim_open(&s, wires[w], 3);
        sim_state(&s);
        for (int i = 0; i < 3; i++)
            fill(s.f[i]->contribution, &rng, zero);
        sim_run(&s, (struct exchange){.kind = EXCHANGE_MEAN}, NULL);
        sim_state(&s);
        sim_refer(&s);
        memcpy(x, s.c[0], sizeof x);
        for (int i = 0; i < 3; i++)
            memcpy(s.f[i]->contribution, x, sizeof x);
        sim_run(&s, (struct exchange){.kind = EXCHANGE_MEAN}, NULL);
        ck_assert_mem_eq(s.c[1], x, sizeof x);
        for (int i = 0; i < 3; i++)
            fill(s.f[i]->contribution, &rng, zero);
        uint64_t before = atomic_load(&s.f[0]->bytes);
        sim_run(&s, (struct exchange){.kind = EXCHANGE_MEAN, .final = true}, NULL);
        ck_assert_uint_eq(atomic_load(&s.f[0]->bytes) - before, (uint64_t)(N * 4.0 * 4 / 3));
        for (size_t k = 0; k < N; k++) {
            double mean = 0;
            for (int i = 0; i < 3; i++)
                mean += (double)s.f[i]->contribution[k] / 3;
            ck_assert_double_eq_tol((double)s.c[0][k], mean, 1e-6);
        }
        sim_shut(&s);
        sim_open(&s, wires[w], 1);
        sim_state(&s);
        fill(s.f[0]->contribution, &rng, zero);
        sim_run(&s, (struct exchange){.kind = EXCHANGE_MEAN}, NULL);
        for (size_t k = 0; k < N; k++)
            ck_assert(!(s.c[0][k] < s.f[0]->contribution[k]) &&
                      !(s.c[0][k] > s.f[0]->contribution[k]));
        sim_shut(&s);
    }
}
END_TEST

START_TEST(a_bad_contribution_is_left_out)
{
    static struct sim s;
    static float zero[N];
    for (int w = 0; w < 2; w++) {
        struct rng rng;
        rng_init(&rng, 9);
        sim_open(&s, wires[w], 3);
        sim_state(&s);
        for (int t = 0; t < 5; t++) {
            for (int i = 0; i < 3; i++)
                fill(s.f[i]->contribution, &rng, zero);
            s.f[1]->contribution[5] = t % 2 ? NAN : INFINITY;
            sim_run(&s, (struct exchange){.kind = EXCHANGE_MEAN}, NULL);
            ck_assert(s.f[1]->own_bad && !s.f[0]->own_bad);
            for (size_t k = 0; k < N; k++)
                ck_assert_double_eq_tol((double)s.c[2][k], ((double)s.f[0]->contribution[k] +
                                                            s.f[2]->contribution[k]) / 2, 0.3);
            sim_refer(&s);
        }
        sim_shut(&s);
    }
}
END_TEST

/* ------------------------------------------------------------------ jobs */

enum { PARAMETERS = 600 };

static float apart(int i, size_t k)
{
    return (float)(sin((double)k * 3 + i) * (k % 10 ? 0.01 : 1));
}

static void apart_once(void *context, int i, uint64_t t, const float *w, float *g, size_t n)
{
    (void)context, (void)w;
    for (size_t k = 0; k < n; k++)
        g[k] = t == 1 ? apart(i, k) : 0;
}

static const char *const still[] = {"ma,every=2", "shadow-ma", "dasgd,every=2,delay=1",
                                    "dasgd-delta,every=2,delay=2", "ma,every=2,weight=steps"};

/* Nobody trains: all come to the exact mean of where they stood. */
START_TEST(replicas_that_stand_still_come_to_their_mean)
{
    enum { TRAINERS = 3 };
    for (int w = 0; w < 2; w++) {
        char plan[100];
        snprintf(plan, sizeof plan, "%s,wire=%s", still[_i], wire_names[wires[w]]);
        struct simulation_options o = {.plan = plan, .trainers = TRAINERS, .n = PARAMETERS,
                                       .gradient = apart_once, .rate = 1, .steps = 120,
                                       .step_s = 1, .world = {.latency_s = 0.3, .seed = 1}};
        struct simulation *s;
        ck_assert_int_eq(simulation_run(&s, &o), DESCANT_OK);
        for (size_t k = 0; k < PARAMETERS; k++) {
            double mean = 0;
            for (int i = 0; i < TRAINERS; i++)
                mean -= (double)apart(i, k) / TRAINERS;
            for (int i = 0; i < TRAINERS; i++)
                ck_assert_double_eq_tol((double)simulation_look(s, i).w[k], mean, 1e-6);
        }
        simulation_destroy(s);
    }
}
END_TEST

/* Already the first mean is of differences: large parameters cost it nothing. */
START_TEST(large_parameters_do_not_coarsen_the_step)
{
    static const char *const plans[] = {"ma,every=1,wire=q8", "ma,every=1,wire=bf16",
                                        "bmuf,every=1,momentum=0,wire=q8"};
    float start[PARAMETERS];
    for (size_t k = 0; k < PARAMETERS; k++)
        start[k] = k % 2 ? 1000 : -1000;
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        struct simulation_options o = {.plan = plans[p], .trainers = 2, .n = PARAMETERS,
                                       .start = start, .gradient = apart_once, .rate = 1,
                                       .steps = 1, .step_s = 1};
        struct simulation *s;
        ck_assert_int_eq(simulation_run(&s, &o), DESCANT_OK);
        for (size_t k = 0; k < PARAMETERS; k++)
            ck_assert_double_eq_tol((double)simulation_look(s, 1).w[k],
                                    (double)start[k] - (apart(0, k) + apart(1, k)) / 2, 0.02);
        simulation_destroy(s);
    }
}
END_TEST

static void uneven_slope(void *context, int i, uint64_t t, const float *w, float *g, size_t n)
{
    (void)context, (void)i, (void)t, (void)w;
    for (size_t k = 0; k < n; k++)
        g[k] = k % 64 == 0 ? -1 : -1e-3f;
}

/* What is smaller than half a step beside its neighbours is not lost, however often it is. */
START_TEST(small_progress_beside_large_is_kept)
{
    static const char *const plans[] = {"ma,every=4,wire=q8", "dasgd-delta,wire=q8",
                                        "bmuf,every=4,momentum=0,wire=q8"};
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        struct simulation_options o = {.plan = plans[p], .trainers = 3, .n = PARAMETERS,
                                       .gradient = uneven_slope, .rate = 1, .steps = 4000,
                                       .step_s = 1, .world = {.latency_s = 0.5, .seed = 1}};
        struct simulation *s;
        ck_assert_int_eq(simulation_run(&s, &o), DESCANT_OK);
        for (size_t k = 0; k < PARAMETERS; k++)
            ck_assert_double_eq_tol((double)simulation_look(s, 1).w[k],
                                    k % 64 == 0 ? 4000 : 4, k % 64 == 0 ? 8 : 0.1);
        simulation_destroy(s);
    }
}
END_TEST

static void towards(void *context, int i, uint64_t t, const float *w, float *g, size_t n)
{
    (void)context;
    for (size_t k = 0; k < n; k++)
        g[k] = w[k] - (float)k / PARAMETERS + 0.1f * (float)sin((double)(t * 7 + k) + i);
}

static const char *const shaken[] = {"ma,every=3", "bmuf,every=3", "dasgd", "shadow-ma",
                                     "shadow-bmuf", "diloco-delta,every=6,delay=3"};

/* Somebody dies, somebody comes: all still hold the same reference, which sim asserts at each mean,
 * and train to where they do without encoding. */
START_TEST(members_come_and_go)
{
    double slow[4] = {1, 1, 1.5, 1}, join[4] = {0, 0, 0, 40.5};
    uint64_t die[4] = {0, 61, 0, 0};
    for (int w = 0; w < 2; w++) {
        char plan[100];
        snprintf(plan, sizeof plan, "%s,wire=%s", shaken[_i], wire_names[wires[w]]);
        struct simulation_options o = {.plan = plan, .trainers = 4, .n = PARAMETERS,
                                       .gradient = towards, .rate = 0.1, .steps = 200, .step_s = 1,
                                       .spread = 0.3, .slow = slow, .die_at = die, .join_s = join,
                                       .world = {.latency_s = 0.7, .jitter_s = 0.5, .seed = 4}};
        struct simulation *s;
        ck_assert_int_eq(simulation_run(&s, &o), DESCANT_OK);
        ck_assert(simulation_look(s, 1).dead && simulation_look(s, 3).rounds > 3);
        for (int i = 0; i < 4; i++)
            for (size_t k = 0; i != 1 && k < PARAMETERS; k++)
                ck_assert_double_eq_tol((double)simulation_look(s, i).w[k],
                                        (double)k / PARAMETERS, 0.15);
        simulation_destroy(s);
    }
}
END_TEST

/* ------------------------------------------------------------------ reloads */

enum { PAIR = 2 };

struct pair {
    struct sim_world *world;
    struct plan plan;
    struct fabric *f[PAIR];
    struct replica replica[PAIR];
    struct round round[PAIR];
    float *w[PAIR];
};

static void pair_open(struct pair *p, const char *plan)
{
    struct sim_options world = {.latency_s = 1};
    *p = (struct pair){.world = sim_world_create(&world)};
    ck_assert_int_eq(plan_parse(&p->plan, plan, NULL), DESCANT_OK);
    for (int i = 0; i < PAIR; i++) {
        struct fabric_options o = {.rank = i, .size = PAIR, .wire = (enum wire)p->plan.wire,
                                   .context = p->world};
        struct replica *replica = &p->replica[i];
        size_t at;
        replica_init(replica);
        ck_assert_int_eq(fabric_sim.open(&p->f[i], &o), DESCANT_OK);
        ck_assert_int_eq(replica_check(replica, "w", PARAMETERS, &at, NULL), DESCANT_OK);
        p->w[i] = fabric_sim.alloc(p->f[i], at, PARAMETERS);
        replica_add(replica, p->w[i], PARAMETERS, false);
        struct fabric_start start = round_needs(&p->plan, p->f[i], replica);
        start.manifest = plan;
        ck_assert_int_eq(fabric_sim.start(p->f[i], &start), DESCANT_OK);
        ck_assert_int_eq(replica_fix(replica), DESCANT_OK);
        ck_assert_int_eq(round_init(&p->round[i], &p->plan, p->f[i], replica), DESCANT_OK);
    }
}

static void pair_close(struct pair *p)
{
    for (int i = 0; i < PAIR; i++) {
        round_fini(&p->round[i]);
        fabric_sim.close(p->f[i]);
        replica_fini(&p->replica[i]);
    }
    sim_world_destroy(p->world);
}

/* What both have begun, to its end. */
static void pair_run(struct pair *p)
{
    bool done[PAIR] = {false};
    while (!done[0] || !done[1]) {
        bool moved = false;
        for (int i = 0; i < PAIR; i++) {
            enum round_progress progress = done[i] ? ROUND_WAITING : round_advance(&p->round[i]);
            ck_assert_int_ne(progress, ROUND_FAILED);
            moved = moved || progress != ROUND_WAITING;
            done[i] = done[i] || progress == ROUND_DONE;
        }
        if (!moved)
            sim_world_advance(p->world, sim_world_next(p->world));
    }
}

/* What was overwritten owes nothing: after a reload a mean of what stands still is that, exactly,
 * and the reference is what was loaded. */
START_TEST(a_reload_begins_anew)
{
    static const char *const plans[] = {"ma,every=1,wire=q8", "ma,every=1,wire=bf16",
                                        "bmuf,every=1,momentum=0,wire=q8"};
    struct pair p;
    for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
        float loaded[PARAMETERS];
        pair_open(&p, plans[k]);
        for (int i = 0; i < PAIR; i++)
            round_begin_state(&p.round[i], 0, false);
        pair_run(&p);
        for (int i = 0; i < PAIR; i++) {
            for (size_t n = 0; n < PARAMETERS; n++)
                p.w[i][n] += apart(i, n);
            round_begin(&p.round[i], 1, true);
        }
        pair_run(&p);
        for (size_t n = 0; n < PARAMETERS; n++)
            loaded[n] = p.w[1][n] = 100 + apart(5, n);
        round_begin(&p.round[0], 1, true);
        round_begin_state(&p.round[1], 1, false);
        pair_run(&p);
        for (int i = 0; i < PAIR; i++) {
            ck_assert_mem_eq(p.f[i]->outer[0], loaded, sizeof loaded);
            round_begin(&p.round[i], 1, true);
        }
        pair_run(&p);
        for (int i = 0; i < PAIR; i++)
            ck_assert_mem_eq(p.w[i], loaded, sizeof loaded);
        pair_close(&p);
    }
}
END_TEST

/* ------------------------------------------------------------------ where nothing is sent */

struct heard {
    char text[4000];
};

static void hear(void *user, enum descant_level level, const char *line)
{
    struct heard *heard = user;
    size_t used = strlen(heard->text);
    (void)level;
    snprintf(heard->text + used, sizeof heard->text - used, "%s\n", line);
}

START_TEST(one_machine_sends_nothing)
{
    static struct heard heard;
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    char address[100];
    o.plan = "ma,every=1,wire=q8";
    o.log = hear;
    o.log_user = &heard;
    o.size = 1;
    o.job = address;
    snprintf(address, sizeof address, "shm:wire-%d,rate=1gbit", (int)getpid());
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "wire=q8 and rate="));
    for (int shm = 0; shm < 2; shm++) {
        snprintf(address, sizeof address, shm ? "shm:wire-%d" : "self", (int)getpid());
        heard.text[0] = 0;
        ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
        ck_assert_int_eq(strstr(heard.text, "wire=q8 changes nothing here") != NULL, shm);
        float *w = descant_alloc(job, "w", PARAMETERS);
        ck_assert_ptr_nonnull(w);
        ck_assert_int_eq(descant_start(job), DESCANT_OK);
        w[3] = 1;
        w[4] = 1e-6f;
        ck_assert_int_eq(descant_step(job), DESCANT_OK);
        ck_assert(w[4] > 0.9e-6f);
        ck_assert_int_eq(descant_close(job), DESCANT_OK);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wire jobs");
    TCase *tests = tcase_create("wire jobs");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, sim_does_what_the_rule_says);
    tcase_add_test(tests, states_and_last_means_are_exact);
    tcase_add_test(tests, a_bad_contribution_is_left_out);
    tcase_add_loop_test(tests, replicas_that_stand_still_come_to_their_mean, 0,
                        (int)(sizeof still / sizeof *still));
    tcase_add_test(tests, large_parameters_do_not_coarsen_the_step);
    tcase_add_test(tests, small_progress_beside_large_is_kept);
    tcase_add_loop_test(tests, members_come_and_go, 0, (int)(sizeof shaken / sizeof *shaken));
    tcase_add_test(tests, a_reload_begins_anew);
    tcase_add_test(tests, one_machine_sends_nothing);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
