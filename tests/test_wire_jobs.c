/* SPDX-License-Identifier: MIT */
/* Encoded means in whole jobs, through reloads, and where nothing is sent. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/heard.h"
#include "harness/simulation.h"
#include "harness/suite.h"
#include "harness/wire.h"
#include "mpi_loopback.h"
#include "sync/round.h"

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
                                       .step_s = 1, .fabric = &simulated_ranks,
                                       .world = {.latency_s = 0.3 / 4, .seed = 1}};
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
                                       .steps = 1, .step_s = 1, .fabric = &simulated_ranks};
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
                                       .step_s = 1, .fabric = &simulated_ranks,
                                       .world = {.latency_s = 0.5 / 4, .seed = 1}};
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

/* Somebody dies, somebody comes: all train to where they do without encoding. That a version is the
 * same bits in all that hold it is tests/faults.c's to check. */
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
                                       .fabric = &simulated_ranks,
                                       .world = {.latency_s = 0.7 / 4, .jitter_s = 0.5 / 4, .seed = 4}};
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

struct wire_pair {
    struct loopback *world;
    struct plan plan;
    struct fabric *f[PAIR];
    struct replica replica[PAIR];
    struct round round[PAIR];
    float *w[PAIR];
};

static void pair_open(struct wire_pair *p, const char *plan)
{
    *p = (struct wire_pair){.world = loopback_create(PAIR, 1)};
    ck_assert_int_eq(plan_parse(&p->plan, plan, NULL), DESCANT_OK);
    for (int i = 0; i < PAIR; i++) {
        struct fabric_options o = {.rank = i, .size = PAIR, .wire = (enum wire)p->plan.wire,
                                   .context = p->world};
        struct replica *replica = &p->replica[i];
        size_t at;
        replica_init(replica);
        ck_assert_int_eq(fabric_loopback.open(&p->f[i], &o), DESCANT_OK);
        ck_assert_int_eq(replica_check(replica, "w", PARAMETERS, &at, NULL), DESCANT_OK);
        p->w[i] = fabric_loopback.alloc(p->f[i], at, PARAMETERS);
        replica_add(replica, p->w[i], PARAMETERS, false);
        struct fabric_start start = round_needs(&p->plan, p->f[i], replica);
        start.manifest = plan;
        ck_assert_int_eq(fabric_loopback.start(p->f[i], &start), DESCANT_OK);
        ck_assert_int_eq(replica_fix(replica), DESCANT_OK);
        ck_assert_int_eq(round_init(&p->round[i], &p->plan, p->f[i], replica), DESCANT_OK);
    }
}

static void pair_close(struct wire_pair *p)
{
    for (int i = 0; i < PAIR; i++) {
        round_fini(&p->round[i]);
        fabric_loopback.close(p->f[i]);
        replica_fini(&p->replica[i]);
    }
    loopback_destroy(p->world);
}

/* What both have begun, to its end. */
static void pair_run(struct wire_pair *p)
{
    bool done[PAIR] = {false};
    for (int turn = 0; !done[0] || !done[1]; turn = (turn + 1) % PAIR) {
        enum round_progress progress = round_advance(&p->round[turn]);
        ck_assert_int_ne(progress, ROUND_FAILED);
        done[turn] = done[turn] || progress == ROUND_DONE;
    }
}

/* What was overwritten owes nothing: after a reload a mean of what stands still is that, exactly,
 * and the reference is what was loaded. */
START_TEST(a_reload_begins_anew)
{
    static const char *const plans[] = {"ma,every=1,wire=q8", "ma,every=1,wire=bf16",
                                        "bmuf,every=1,momentum=0,wire=q8"};
    struct wire_pair p;
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

START_TEST(one_machine_sends_nothing)
{
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
    TCase *tests = new_case("wire jobs", 120);
    tcase_add_loop_test(tests, replicas_that_stand_still_come_to_their_mean, 0, N(still));
    tcase_add_test(tests, large_parameters_do_not_coarsen_the_step);
    tcase_add_test(tests, small_progress_beside_large_is_kept);
    tcase_add_loop_test(tests, members_come_and_go, 0, N(shaken));
    tcase_add_test(tests, a_reload_begins_anew);
    tcase_add_test(tests, one_machine_sends_nothing);
    return run_cases(tests, NULL);
}
