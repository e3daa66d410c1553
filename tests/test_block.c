/* SPDX-License-Identifier: MIT */
/* The rule block is PyTorch's SGD with momentum, the outer difference being the gradient: the
 * figures of block_torch.h, made by torch.optim.SGD, against the same rounds made here. Three
 * trainers of the simulation take part in rounds by the real plan and round machine, and one
 * trainer of a real job drifts as the three do on average; its momentum is seen as well.
 *
 * The two round differently: the mean, PyTorch's fused multiply-adds, a replica that comes to G
 * by an increment. What is off in one round the momentum brings again, mu times as much, in the
 * next; hence the bound of 4 ulp / (1 - mu). An ulp is taken at 1 where a value is below: |G| is
 * mostly 2 to 4, and it is G's errors that the momentum adds up. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "block_torch.h"
#include "descant.h"
#include "harness/simulation.h"
#include "harness/suite.h"

enum { N = TORCH_N, N_RUNS = sizeof torch_runs / sizeof *torch_runs, HEADER = 40 };

static double ulps(float a, float b)
{
    float m = fmaxf(1, fmaxf(fabsf(a), fabsf(b)));
    double off = fabs((double)a - b) / (nextafterf(m, INFINITY) - m);
    return isnan(off) ? INFINITY : off;
}

static double worst_of(const float *a, const float *b)
{
    double worst = 0;
    for (int k = 0; k < N; k++)
        worst = fmax(worst, ulps(a[k], b[k]));
    return worst;
}

static double momentum_of(const struct torch_run *run)
{
    char text[128];
    struct plan plan;
    snprintf(text, sizeof text, "bmuf,%s", run->plan);
    ck_assert_int_eq(plan_parse(&plan, text, NULL), DESCANT_OK);
    return plan.momentum;
}

static double bound(const struct torch_run *run)
{
    return 4 / (1 - momentum_of(run));
}

static void starting(float *w)
{
    for (int k = 0; k < N; k++)
        w[k] = (float)torch_start[k] / TORCH_UNIT;
}

/* ------------------------------------------------------------------ three trainers, simulated */

struct torch_watch {
    const struct torch_run *run;
    double worst;
    int worst_round;            /* from 1 */
};

/* Before step t a replica is what round t - 1 made of it; the step drifts away from there. */
static void drift(void *context, int i, uint64_t t, const float *w, float *g, size_t n)
{
    struct torch_watch *c = context;
    double off = t > 1 ? worst_of(w, c->run->G[t - 2]) : 0;
    if (off > c->worst) {
        c->worst = off;
        c->worst_round = (int)t - 1;
    }
    for (size_t k = 0; k < n; k++)
        g[k] = t > TORCH_ROUNDS ? 0 : (float)torch_drift[t - 1][i][k] / TORCH_UNIT;
}

static struct torch_watch simulate(const struct torch_run *run, const char *changes,
                                   bool attached)
{
    struct torch_watch c = {.run = run};
    char plan[128];
    float start[N];
    starting(start);
    snprintf(plan, sizeof plan, "bmuf,every=1,%s", changes);
    struct simulation_options o = {.plan = plan, .trainers = TORCH_TRAINERS, .n = N,
                                   .start = start, .gradient = drift, .context = &c, .rate = 1,
                                   .steps = TORCH_ROUNDS + 1, .step_s = 1,
                                   .attached = attached,
                                   .fabric = &simulated_ranks, .world = {.seed = 1}};
    struct simulation *s;
    ck_assert_int_eq(simulation_run(&s, &o), DESCANT_OK);
    for (int i = 0; i < TORCH_TRAINERS; i++)
        ck_assert_uint_eq(simulation_look(s, i).rounds, TORCH_ROUNDS + 1);
    simulation_destroy(s);
    return c;
}

START_TEST(rounds_are_steps_of_sgd)
{
    const struct torch_run *run = &torch_runs[_i];
    for (int attached = 0; attached < 2; attached++) {
        struct torch_watch c = simulate(run, run->plan, attached);
        ck_assert_msg(c.worst <= bound(run), "%s, %s: %g ulp off after round %d", run->plan,
                      attached ? "attached" : "in place", c.worst, c.worst_round);
    }
}
END_TEST

/* The figures tell every setting from every other, at the first round where they can. */
START_TEST(another_setting_is_noticed)
{
    for (int i = 0; i < N_RUNS; i++)
        if (i != _i)
            ck_assert_msg(simulate(&torch_runs[_i], torch_runs[i].plan, false).worst > 1000,
                          "%s looks like %s", torch_runs[i].plan, torch_runs[_i].plan);
}
END_TEST

/* ------------------------------------------------------------------ one trainer of a real job */

static struct descant *open_job(const char *changes, float **w)
{
    struct descant *job;
    struct descant_options o = descant_options_default();
    char plan[128];
    snprintf(plan, sizeof plan, "bmuf,every=1,%s", changes);
    o.job = "self";
    o.plan = plan;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    *w = descant_alloc(job, "w", N);
    ck_assert_ptr_nonnull(*w);
    starting(*w);
    ck_assert_int_eq(descant_start(job), DESCANT_OK);
    return job;
}

/* G, then s. */
static void outer(struct descant *job, float state[2][N])
{
    unsigned char bytes[HEADER + 2 * N * sizeof(float)];
    size_t room = sizeof bytes;
    ck_assert_int_eq(descant_outer_save(job, bytes, &room), DESCANT_OK);
    ck_assert_uint_eq(room, sizeof bytes);
    memcpy(state, bytes + HEADER, 2 * N * sizeof(float));
}

/* SGD's gradient is G - c where ours is c - G: its buffer is our momentum with the other sign.
 * Without momentum it keeps none. */
START_TEST(the_outer_state_is_sgds)
{
    const struct torch_run *run = &torch_runs[_i];
    bool keeps = momentum_of(run) > 0;
    float *w, state[2][N];
    struct descant *job = open_job(run->plan, &w);
    for (int r = 0; r < TORCH_ROUNDS; r++) {
        for (int k = 0; k < N; k++) {
            int sum = 0;
            for (int i = 0; i < TORCH_TRAINERS; i++)
                sum += torch_drift[r][i][k];
            w[k] -= (float)sum / (TORCH_UNIT * TORCH_TRAINERS);
        }
        ck_assert_int_eq(descant_step(job), DESCANT_OK);
        outer(job, state);
        double off = fmax(worst_of(state[0], run->G[r]), worst_of(w, run->G[r]));
        ck_assert_msg(off <= bound(run), "%s: %g ulp off after round %d", run->plan, off, r + 1);
    }
    for (int k = 0; k < N; k++)
        state[1][k] = -state[1][k];
    double off = keeps ? worst_of(state[1], run->buffer) : 0;
    ck_assert_msg(off <= bound(run), "%s: the momentum is %g ulp off", run->plan, off);
    descant_close(job);
}
END_TEST

int main(void)
{
    TCase *block = new_case("block", 60);
    tcase_add_loop_test(block, rounds_are_steps_of_sgd, 0, N_RUNS);
    tcase_add_loop_test(block, another_setting_is_noticed, 0, N_RUNS);
    tcase_add_loop_test(block, the_outer_state_is_sgds, 0, N_RUNS);
    return run_cases(block, NULL);
}
