/* SPDX-License-Identifier: MIT */
/* The outer step that auto chooses, over every round, number of members and interval that matters,
 * against its rule in words; that numbers of the plan stay as they are; what the watch says of each
 * gain and cosine; and that a checkpoint brings the count of rounds along. */
#include "descant.h"
#include "harness/suite.h"
#include "sync/outer_step.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 1000, MEMBERS = 65 };

static struct plan good(const char *text)
{
    struct plan plan;
    ck_assert_msg(plan_parse(&plan, text, NULL) == DESCANT_OK, "%s", descant_last_error());
    return plan;
}

static bool is(float a, double b)
{
    return fabs((double)a - b) < 1e-6;
}

START_TEST(auto_follows_its_rule)
{
    static const char *const plans[] = {"diloco", "diloco-delta", "diloco,every=20",
                                        "bmuf,every=50"};
    static const double best[] = {0.4, 0.4, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8};
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        struct plan plan = good(plans[p]);
        for (int k = 1; k < MEMBERS; k++)
            for (uint64_t r = 0; r < ROUNDS; r++) {
                struct outer_step step = outer_step_of(&plan, r, k);
                double mu = r <= 20 ? 0 : fmin(0.9, 1 - 20 / (double)r);
                double rate = 1 - (1 - best[k < 8 ? k : 8]) * mu / 0.9;
                ck_assert_msg(is(step.momentum, mu) && is(step.rate, rate),
                              "%s, round %d of %d: %g, %g", plans[p], (int)r, k,
                              (double)step.rate, (double)step.momentum);
                ck_assert(step.nesterov == plan.nesterov);
            }
    }
}
END_TEST

/* Rounds without a fixed interval, or a short one, are plain averaging for ever. */
START_TEST(short_intervals_have_no_momentum)
{
    static const char *const plans[] = {"shadow-bmuf", "bmuf", "diloco,every=19",
                                        "shadow-bmuf,gap=1000", "diloco-delta,every=10"};
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        struct plan plan = good(plans[p]);
        for (uint64_t r = 0; r < ROUNDS; r += 7) {
            struct outer_step step = outer_step_of(&plan, r, 4);
            ck_assert_msg(is(step.rate, 1) && is(step.momentum, 0), "%s", plans[p]);
        }
    }
}
END_TEST

START_TEST(numbers_stay_as_they_are)
{
    struct plan both = good("diloco,rate=0.7,momentum=0.9"), rate = good("diloco,rate=0.3"),
                momentum = good("diloco,momentum=0.95"), none = good("diloco,momentum=0");
    for (uint64_t r = 0; r < ROUNDS; r++)
        for (int k = 1; k < MEMBERS; k++) {
            struct outer_step step = outer_step_of(&both, r, k);
            ck_assert(is(step.rate, 0.7) && is(step.momentum, 0.9));
            ck_assert(is(outer_step_of(&rate, r, k).rate, 0.3));
            step = outer_step_of(&momentum, r, 2);
            ck_assert(is(step.momentum, 0.95) && is(step.rate, 0.6));
            step = outer_step_of(&none, r, k);
            ck_assert(is(step.momentum, 0) && is(step.rate, 1));
        }
}
END_TEST

/* Changes that all point one way go so many times as far, by more momentum, whoever chose that. */
START_TEST(scale_lengthens_by_momentum)
{
    static const char *const plans[] = {"shadow-bmuf", "diloco", "bmuf,rate=0.7,momentum=0.5"};
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        char text[64];
        snprintf(text, sizeof text, "%s,scale=root", plans[p]);
        struct plan mean = good(plans[p]), root = good(text);
        for (int k = 1; k < MEMBERS; k++)
            for (uint64_t r = 0; r < ROUNDS; r += 9) {
                struct outer_step one = outer_step_of(&mean, r, k);
                struct outer_step far = outer_step_of(&root, r, k);
                ck_assert(is(far.rate, one.rate));
                ck_assert(fabs((double)((1 - one.momentum) / (1 - far.momentum)) - sqrt(k)) < 1e-4);
            }
    }
}
END_TEST

/* What is said in so many rounds of one cosine, and after how many. */
static enum outer_verdict watched(const char *text, double cosine, int *after)
{
    struct plan plan = good(text);
    struct outer_step step = outer_step_of(&plan, 0, 4);
    struct outer_watch watch = {.cosine = 0};
    enum outer_verdict said = OUTER_FITS;
    *after = 0;
    for (int r = 1; r <= 100; r++) {
        enum outer_verdict now = outer_watch(&watch, &plan, step,
                                             &(struct turn){6 * cosine, 4, 9});
        ck_assert(now == OUTER_FITS || said == OUTER_FITS);     /* once */
        if (now != OUTER_FITS) {
            said = now;
            *after = r;
        }
    }
    ck_assert(is((float)watch.cosine, cosine));
    return said;
}

START_TEST(the_watch_knows_gain_and_cosine)
{
    static const char *const longer = "diloco-delta,rate=0.7,momentum=0.9", *const plain = "bmuf",
                             *const further = "bmuf,rate=3", *const scaled = "bmuf,scale=root",
                             *const shorter = "bmuf,rate=0.5,momentum=0",
                             *const shadow = "shadow-bmuf,alpha=1,rate=1,momentum=0.75",
                             *const pulled = "bmuf,alpha=0.5,rate=1,momentum=0.75";
    int after;
    for (int c = -100; c <= 100; c++) {
        double cosine = c / 100.0;
        ck_assert_int_eq(watched(longer, cosine, &after),
                         c < 5 ? OUTER_OVERSHOOTS : OUTER_FITS);
        ck_assert_int_eq(after, c < 5 ? 8 : 0);
        ck_assert_int_eq(watched(further, cosine, &after), c < 5 ? OUTER_OVERSHOOTS : OUTER_FITS);
        ck_assert_int_eq(watched(scaled, cosine, &after), c < 5 ? OUTER_OVERSHOOTS : OUTER_FITS);
        ck_assert_int_eq(watched(plain, cosine, &after), OUTER_FITS);
        ck_assert_int_eq(watched(shorter, cosine, &after), c > 90 ? OUTER_LAGS : OUTER_FITS);
        ck_assert_int_eq(watched(shadow, cosine, &after), OUTER_FITS);
        ck_assert_int_eq(watched(pulled, cosine, &after), OUTER_FITS);
    }
}
END_TEST

/* What is chosen here is not warned of, nor a step that is hardly longer than plain averaging. */
START_TEST(the_watch_is_of_steps_that_were_asked_for)
{
    static const char *const plans[] = {"diloco", "diloco-delta,every=500", "diloco,rate=1",
                                        "bmuf,momentum=0.05", "bmuf,momentum=0.3"};
    struct plan plan = good(plans[_i]);
    struct outer_watch watch = {.cosine = 0};
    for (uint64_t r = 0; r < 500; r++)
        ck_assert_int_eq(outer_watch(&watch, &plan, outer_step_of(&plan, r, 2),
                                     &(struct turn){-0.6, 4, 9}), OUTER_FITS);
}
END_TEST

/* A first round has no momentum to lie to, and one of nothing no direction. */
START_TEST(no_direction_counts_for_nothing)
{
    static const struct turn turns[] = {{0, 0, 0}, {0, 4, 0}, {0, 0, 4}, {NAN, 4, 4},
                                        {INFINITY, INFINITY, 1}};
    struct plan plan = good("diloco,momentum=0.9");
    struct outer_watch watch = {.cosine = 0};
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++)
        ck_assert_int_eq(outer_watch(&watch, &plan, outer_step_of(&plan, 0, 2),
                                     &turns[i]), OUTER_FITS);
    ck_assert_uint_eq(watch.rounds, 0);
}
END_TEST

/* ------------------------------------------------------------------ a job's count of rounds */

enum { N = 10, EVERY = 20, HEADER = 32 };

static struct descant *open_job(float **w)
{
    struct descant *job;
    struct descant_options o = descant_options_default();
    o.job = "self";
    o.plan = "diloco,every=20";
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    *w = descant_alloc(job, "w", N);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    return job;
}

static void have_rounds(struct descant *job, float *w, int n)
{
    for (int t = 0; t < n * EVERY; t++) {
        for (int k = 0; k < N; k++)
            w[k] += (float)k;
        ck_assert_int_eq(descant_step(job), DESCANT_OK);
    }
}

static float momentum_now(struct descant *job)
{
    struct descant_stats s;
    ck_assert_int_eq(descant_stats(job, &s), DESCANT_OK);
    return (float)s.outer_momentum;
}

static void load(struct descant *job, const void *state, size_t bytes)
{
    ck_assert_int_eq(descant_pause(job), DESCANT_OK);
    ck_assert_int_eq(descant_outer_load(job, state, bytes), DESCANT_OK);
    ck_assert_int_eq(descant_reload(job), DESCANT_OK);
}

START_TEST(a_checkpoint_brings_the_rounds_along)
{
    float *w;
    struct descant *job = open_job(&w);
    have_rounds(job, w, 51);
    ck_assert(is(momentum_now(job), 0.6));      /* 1 - 20 / 50 */
    unsigned char state[HEADER + 8 + 2 * N * sizeof(float)];
    size_t bytes = sizeof state;
    ck_assert_int_eq(descant_outer_save(job, state, &bytes), DESCANT_OK);
    ck_assert_uint_eq(bytes, sizeof state);
    descant_close(job);
    job = open_job(&w);
    load(job, state, bytes);
    have_rounds(job, w, 2);                     /* the first gives the state to all */
    ck_assert(is(momentum_now(job), 1 - 20 / 51.0));
    ck_assert_int_eq(descant_pause(job), DESCANT_OK);
    ck_assert_int_eq(descant_reload(job), DESCANT_OK);
    have_rounds(job, w, 2);                     /* anew: the outer state was not loaded */
    ck_assert(is(momentum_now(job), 0));
    descant_close(job);
}
END_TEST

/* One of before rounds were counted begins at 0. */
START_TEST(a_state_of_version_1_is_taken)
{
    float *w;
    struct descant *job = open_job(&w);
    have_rounds(job, w, 31);
    unsigned char state[HEADER + 8 + 2 * N * sizeof(float)];
    size_t bytes = sizeof state;
    ck_assert_int_eq(descant_outer_save(job, state, &bytes), DESCANT_OK);
    memmove(state + HEADER, state + HEADER + 8, bytes -= HEADER + 8);
    uint64_t check = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++)
        check = (check ^ state[HEADER + i]) * 1099511628211u;
    memcpy(state + 24, &check, sizeof check);
    memcpy(state + 8, &(uint32_t){1}, sizeof(uint32_t));
    load(job, state, HEADER + bytes);
    have_rounds(job, w, 22);
    ck_assert(is(momentum_now(job), 0));
    have_rounds(job, w, 1);
    ck_assert(is(momentum_now(job), 1 - 20 / 21.0));
    descant_close(job);
}
END_TEST

int main(void)
{
    TCase *tests = new_case("outer_step", 60);
    tcase_add_test(tests, auto_follows_its_rule);
    tcase_add_test(tests, short_intervals_have_no_momentum);
    tcase_add_test(tests, numbers_stay_as_they_are);
    tcase_add_test(tests, scale_lengthens_by_momentum);
    tcase_add_test(tests, the_watch_knows_gain_and_cosine);
    tcase_add_loop_test(tests, the_watch_is_of_steps_that_were_asked_for, 0, 5);
    tcase_add_test(tests, no_direction_counts_for_nothing);
    tcase_add_test(tests, a_checkpoint_brings_the_rounds_along);
    tcase_add_test(tests, a_state_of_version_1_is_taken);
    return run_cases(tests, NULL);
}
