/* SPDX-License-Identifier: MIT */
/* Every rule against a scalar reference, step by step: the real plan, round machine and ranks over a
 * simulated link beside a plain loop over doubles and floats written from the rules alone. Both make
 * the same gradients, so that the first merge that differs shows at the next step.
 *
 * A round of messages of L each takes 4 L: its members have said HERE, GO has come, parts are given,
 * and told. Parts above a kilobyte leave L after their receive is open, so of two or three members
 * it takes 5 L. Rank 0 has said GO at L, and owns the few floats that the rules are about. Where it
 * reads the replicas as they are, it has its own part at 3 L; the others' are copied when they leave,
 * at 2 L, or, above a kilobyte, when they come, at 3 L. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/simulation.h"
#include "harness/suite.h"
#include "harness/values.h"

enum { N = 70, STEPS = 41, MOST = 8 };      /* 41: not a multiple of any period below */
enum { TICKS = 40, BULK_MEMBERS = 3 };      /* of a step; members whose parts are above 1 KiB */

static void gradient(int i, uint64_t t, const float *w, float *g)
{
    for (size_t k = 0; k < N; k++)
        g[k] = 0.3f * w[k] + noise(i, t, k);
}

/* ------------------------------------------------------------------ the reference */

struct reference {
    struct plan plan;
    int n, latency;                         /* of a message, in ticks */
    bool live;                              /* the mean reads the replicas as they are */
    float read[MOST][N];                    /* live: as they were read */
    float w[MOST][N], snap[MOST][N], W[N], G[MOST][N], s[MOST][N], g[MOST][N];
    float seen[MOST][STEPS + 2][N];         /* w before step t */
    bool open, have;
    int begins, ends;                       /* ticks */
};

static void merge_one(struct reference *r, int i, const float *g)
{
    float alpha = (float)r->plan.alpha;
    bool delta = r->plan.merge == PLAN_DELTA && plan_needs_snapshot(&r->plan);
    for (size_t k = 0; k < N; k++) {
        float from = delta ? r->snap[i][k] : r->w[i][k];
        float change = alpha * (g[k] - from);
        r->w[i][k] = r->w[i][k] + change;
    }
}

static void take(struct reference *r)
{
    memcpy(r->snap, r->w, sizeof r->snap);
    memcpy(r->read, r->w, sizeof r->read);
}

/* What the owner reads at this tick, before steps that end then, or after them. */
static void read_live(struct reference *r, int tick, bool before_steps)
{
    bool bulk = r->n <= BULK_MEMBERS;
    int others = r->begins + (bulk ? 3 : 2) * r->latency;

    if (r->open && tick == others && before_steps == bulk)
        memcpy(r->read[1], r->w[1], sizeof r->w - sizeof r->w[0]);
    if (r->open && tick == r->begins + 3 * r->latency && !before_steps)
        memcpy(r->read[0], r->w[0], sizeof r->w[0]);
}

/* A change goes on to 1 / (1 - mu) of itself in all; with n trainers to the root of n times that. */
static double momentum_of(const struct plan *plan, int n)
{
    return plan->scale == PLAN_AS_ROOT ? 1 - (1 - plan->momentum) / sqrt(n) : plan->momentum;
}

/* The exchange of all trainers, into r->g. */
static void compute(struct reference *r, const float (*from)[N])
{
    for (size_t k = 0; k < N; k++) {
        double c = 0;
        for (int i = 0; i < r->n; i++)
            c += (double)from[i][k] * (1.0 / r->n);
        for (int i = 0; i < r->n; i++)
            r->g[i][k] = (float)c;
    }
    if (r->plan.what != PLAN_BLOCK)
        return;
    float mu = (float)momentum_of(&r->plan, r->n), eta = (float)r->plan.rate;
    for (int i = 0; i < r->n; i++)
        for (size_t k = 0; k < N; k++) {
            float b = r->g[i][k] - r->G[i][k];
            float m = mu * r->s[i][k];
            r->s[i][k] = m + b;
            float look = r->plan.nesterov ? mu * r->s[i][k] + b : r->s[i][k];
            float up = eta * look;
            r->G[i][k] = r->G[i][k] + up;
            r->g[i][k] = r->G[i][k];
        }
}

static void elastic_one(struct reference *r, int i, const float *from)
{
    float alpha = (float)r->plan.alpha;
    for (size_t k = 0; k < N; k++) {
        float change = alpha * (from[k] - r->W[k]);
        r->W[k] = r->W[k] + change;
        r->g[i][k] = r->W[k];
    }
}

static void complete(struct reference *r)
{
    bool snap = plan_needs_snapshot(&r->plan);
    if (r->plan.what == PLAN_ELASTIC) {
        for (int i = 0; i < r->n; i++) {
            elastic_one(r, i, snap ? r->snap[i] : r->w[i]);
            if (r->plan.delay == 0)
                merge_one(r, i, r->g[i]);
        }
        return;
    }
    compute(r, r->live ? r->read : r->snap);
    for (int i = 0; i < r->n && r->plan.delay == 0; i++)
        merge_one(r, i, r->g[i]);
}

static void local_steps(struct reference *r, uint64_t t)
{
    float g[MOST][N], sum[N];
    for (int i = 0; i < r->n; i++) {
        memcpy(r->seen[i][t], r->w[i], sizeof r->w[i]);
        gradient(i, t, r->w[i], g[i]);
    }
    if (r->plan.what == PLAN_GRADIENT) {
        for (size_t k = 0; k < N; k++) {
            double c = 0;
            for (int i = 0; i < r->n; i++)
                c += (double)g[i][k] * (1.0 / r->n);
            sum[k] = (float)c;
        }
        for (int i = 0; i < r->n; i++)
            memcpy(g[i], sum, sizeof sum);
    }
    for (int i = 0; i < r->n; i++)
        for (size_t k = 0; k < N; k++) {
            float change = 0.1f * g[i][k];
            r->w[i][k] = r->w[i][k] - change;
        }
}

/* After tau steps a round begins; d later its result is merged; merge first, then snapshot. */
static void every(struct reference *r, uint64_t t)
{
    uint64_t tau = (uint64_t)r->plan.every, d = (uint64_t)r->plan.delay;
    if (d > 0 && t > d && (t - d) % tau == 0 && r->have)
        for (int i = 0; i < r->n; i++)
            merge_one(r, i, r->g[i]);
    if (t % tau == 0) {
        take(r);
        complete(r);
        r->have = true;
    }
}

static void shadow(struct reference *r, int tick, int *begun)
{
    for (;;) {
        if (r->open && tick >= r->ends) {
            complete(r);
            r->open = false;
        }
        if (r->open || tick / TICKS - *begun < 1)
            return;
        take(r);
        r->open = true;
        r->begins = tick;
        r->ends = tick + (r->n <= BULK_MEMBERS ? 5 : 4) * r->latency;
        *begun = tick / TICKS;
    }
}

static void reference_run(struct reference *r, const float *start)
{
    int begun = 0;
    for (int i = 0; i < r->n; i++) {
        memcpy(r->w[i], start, sizeof r->w[i]);
        memcpy(r->G[i], start, sizeof r->w[i]);
    }
    memcpy(r->W, start, sizeof r->W);
    for (int tick = 1; tick <= TICKS * STEPS; tick++) {
        bool step = tick % TICKS == 0;
        read_live(r, tick, true);
        if (step)
            local_steps(r, (uint64_t)(tick / TICKS));
        read_live(r, tick, false);
        if (r->plan.when == PLAN_SHADOW)
            shadow(r, tick, &begun);
        else if (r->plan.when == PLAN_EVERY && r->plan.what != PLAN_GRADIENT && step)
            every(r, (uint64_t)(tick / TICKS));
    }
}

/* ------------------------------------------------------------------ the comparison */

struct compare {
    struct reference *r;
    int worst_trainer;
    uint64_t worst_t;
    double worst;       /* in ulp of the larger value */
};

static double ulps(float a, float b)
{
    float m = fmaxf(fabsf(a), fabsf(b));
    return m == 0 ? 0 : fabs((double)a - b) / (nextafterf(m, INFINITY) - m);
}

static void watched_gradient(void *context, int i, uint64_t t, const float *w, float *g,
                             size_t n)
{
    struct compare *c = context;
    (void)n;
    for (size_t k = 0; k < N; k++) {
        double off = ulps(w[k], c->r->seen[i][t][k]);
        if (off > c->worst || isnan(off)) {
            c->worst = isnan(off) ? 1e9 : off;
            c->worst_trainer = i;
            c->worst_t = t;
        }
    }
    gradient(i, t, w, g);
}

static double compare_run(const char *plan, int n, int latency, bool attached,
                          int delay_of_reference, struct compare *c)
{
    static struct reference r;
    float start[N];
    memset(&r, 0, sizeof r);
    ck_assert_int_eq(plan_parse(&r.plan, plan, NULL), DESCANT_OK);
    struct simulation_options o = {
        .plan = plan, .trainers = n, .n = N, .start = start, .gradient = watched_gradient,
        .context = c, .rate = 0.1f, .steps = STEPS, .step_s = 1, .attached = attached,
        .fabric = &simulated_ranks, .world = {.seed = 1}};
    r.n = n;
    r.latency = n == 1 ? 0 : latency * TICKS / 2 / (n <= BULK_MEMBERS ? 5 : 4);
    o.world.latency_s = (double)r.latency / TICKS;
    r.live = !attached && !plan_needs_snapshot(&r.plan);
    if (delay_of_reference >= 0)
        r.plan.delay = delay_of_reference;
    for (size_t k = 0; k < N; k++)
        start[k] = noise(99, 0, k);
    reference_run(&r, start);
    *c = (struct compare){.r = &r};
    struct simulation *s;
    ck_assert_int_eq(simulation_run(&s, &o), DESCANT_OK);
    for (int i = 0; i < n; i++)
        ck_assert_uint_eq(simulation_look(s, i).steps, STEPS);
    simulation_destroy(s);
    return c->worst;
}

static const struct {
    const char *plan;
    int latency;                /* of a round, in half steps */
} rows[] = {
    {"none", 0}, {"allreduce", 0}, {"allreduce", 1},
    {"shadow-easgd", 0}, {"shadow-ma", 0},
    {"shadow-bmuf,rate=1,momentum=0.75", 0},
    {"shadow-ma", 5}, {"shadow-bmuf,momentum=0.5,rate=0.8", 5},
    {"shadow-ma,alpha=0.3,merge=delta", 3}, {"shadow-bmuf,merge=delta,rate=1,momentum=0.4", 3},
    {"shadow-easgd,alpha=0.2,merge=delta", 0},
    {"easgd", 0}, {"easgd,every=3,alpha=0.9", 0}, {"ma", 0}, {"ma,every=1", 0},
    {"ma,every=3", 1}, {"bmuf,rate=1,momentum=0.5", 0},
    {"bmuf,every=2,nesterov=1,rate=0.9,momentum=0.5", 0},
    {"bmuf,every=3,rate=0.8,momentum=0,scale=root", 0},
    {"shadow-bmuf,rate=1,momentum=0,scale=root", 2},
    {"dasgd", 0}, {"dasgd,every=4,delay=2", 1}, {"dasgd,every=4,delay=3,xi=0.5", 2},
    {"dasgd,every=4,delay=4", 3}, {"dasgd,every=1,delay=1", 1},
    {"dasgd-delta", 0}, {"dasgd-delta,every=5,delay=5", 2}, {"dasgd-delta,every=3,delay=2", 1},
    {"diloco,every=7,rate=0.7,momentum=0.9", 0},
    {"diloco-delta,every=6,delay=3,rate=0.7,momentum=0.9", 2},
    {"diloco-delta,every=6,delay=6,rate=0.7,momentum=0.9", 2},
    {"easgd,every=4,delay=2", 1}, {"easgd,every=4,delay=4,merge=delta", 0},
    {"when=every,every=5,delay=2,what=block,merge=pull,rate=0.5,momentum=0.3", 1},
};

START_TEST(every_rule_is_exact)
{
    const char *plan = rows[_i].plan;
    for (int n = 1; n <= MOST; n++)
        for (int attached = 0; attached < 2; attached++) {
            struct compare c;
            double off = compare_run(plan, n, rows[_i].latency, attached, -1, &c);
            ck_assert_msg(off <= 2, "%s, %d trainers, %s: %g ulp off at trainer %d, step %d",
                          plan, n, attached ? "attached" : "in place", off, c.worst_trainer,
                          (int)c.worst_t);
        }
}
END_TEST

/* The comparison above must notice a merge one step early or late. */
START_TEST(a_merge_at_another_step_is_noticed)
{
    struct compare c;
    ck_assert(compare_run("dasgd,every=5,delay=2", 3, 1, true, 2, &c) <= 2);
    ck_assert(compare_run("dasgd,every=5,delay=2", 3, 1, true, 1, &c) > 1000);
    ck_assert(compare_run("dasgd,every=5,delay=2", 3, 1, true, 3, &c) > 1000);
}
END_TEST

/* ------------------------------------------------------------------ S-EASGD's conserved sum */

static void apart_once(void *context, int i, uint64_t t, const float *w, float *g, size_t n)
{
    (void)context;
    for (size_t k = 0; k < n; k++)
        g[k] = t == 1 ? noise(i, 1, k) + 0 * w[k] : 0;      /* apart once, then no training */
}

START_TEST(easgd_conserves_its_sum)
{
    const double alpha = 0.4;
    for (int n = 1; n <= MOST; n++) {
        float start[N];
        double before[N], after[N];
        for (size_t k = 0; k < N; k++)
            start[k] = noise(7, 0, k);
        struct simulation_options o = {.plan = "shadow-easgd,alpha=0.4", .trainers = n, .n = N,
                                       .start = start, .gradient = apart_once, .rate = 1,
                                       .steps = 50, .step_s = 1, .spread = 0.5,
                                       .fabric = &simulated_ranks,
                                       .world = {.latency_s = 0.075, .seed = 5}};
        for (size_t k = 0; k < N; k++) {
            before[k] = (1 - alpha) * (double)start[k];
            for (int i = 0; i < n; i++)
                before[k] += (double)start[k] - (double)noise(i, 1, k);
        }
        struct simulation *s;
        ck_assert_int_eq(simulation_run(&s, &o), DESCANT_OK);
        for (size_t k = 0; k < N; k++) {
            after[k] = (1 - alpha) * (double)simulation_look(s, 0).center[k];
            for (int i = 0; i < n; i++)
                after[k] += (double)simulation_look(s, i).w[k];
            ck_assert_double_eq_tol(before[k], after[k], 1e-4);
        }
        ck_assert(simulation_look(s, 0).rounds > 5);
        simulation_destroy(s);
    }
}
END_TEST

/* -------------------------------------------------------- the same seed, the same bits */

/* Nobody comes late to allreduce: who arrives with gradients has no state to give. */
START_TEST(the_same_seed_gives_the_same_bits)
{
    static const char *const plans[] = {"shadow-easgd", "shadow-ma", "dasgd", "allreduce"};
    float first[3][N] = {{0}};
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++)
        for (int run = 0; run < 3; run++) {
            double slow[4] = {1, 1, 3, 1}, join[4] = {0, 0, 0, 4.2};
            uint64_t die[4] = {0, 17, 0, 0};
            struct compare c = {0};
            static struct reference blank;
            c.r = &blank;
            struct simulation_options o = {
                .plan = plans[p], .trainers = 4, .n = N, .gradient = watched_gradient,
                .context = &c, .rate = 0.1, .steps = 40, .step_s = 1, .spread = 0.3, .slow = slow,
                .die_at = die, .join_s = p < 3 ? join : NULL,
                .fabric = &simulated_ranks,
                .world = {.latency_s = 0.7 / 4, .jitter_s = 0.5 / 4, .seed = run == 2 ? 12 : 11}};
            struct simulation *s;
            ck_assert_int_eq(simulation_run(&s, &o), DESCANT_OK);
            memcpy(first[run], simulation_look(s, 0).w, sizeof first[run]);
            ck_assert(simulation_look(s, 1).dead);
            ck_assert_uint_eq(simulation_look(s, 3).steps, 40);
            simulation_destroy(s);
            if (run == 1)
                ck_assert_mem_eq(first[0], first[1], sizeof first[0]);
            if (run == 2 && p != 3 && p != 2)     /* in lock-step plans chance changes only times */
                ck_assert_mem_ne(first[0], first[2], sizeof first[0]);
        }
}
END_TEST

int main(void)
{
    TCase *rules = new_case("rules", 120);
    tcase_add_loop_test(rules, every_rule_is_exact, 0, N(rows));
    tcase_add_test(rules, a_merge_at_another_step_is_noticed);
    tcase_add_test(rules, easgd_conserves_its_sum);
    tcase_add_test(rules, the_same_seed_gives_the_same_bits);
    return run_cases(rules, NULL);
}
