/* SPDX-License-Identifier: MIT */
/* Hot rows and cold ones, in virtual time: which go first, by how much they move, and what machines
 * learn together. */
#include "harness/suite.h"
#include "harness/tables.h"

#include <math.h>

/* ------------------------------------------------------------------ hot first, none starved */

/* A part has room for the hot rows and some warm ones beside the sweep; what is left of the rows is
 * touched once in a while, and never hot enough. */
enum { WATCH_ROWS = 2000, HOT = 8, WARM = 40, COLD_A_STEP = 6, WATCH_STEPS = 1500, ROOM_ROWS = 16,
       TOUCHES = 16384 };

#define WATCH_LATENCY 0.9
#define WATCH_BEGINS (1 + 4 * WATCH_LATENCY / ROW_MESSAGES)     /* a state takes four messages */

struct hot_watch {
    struct rng rng;
    uint64_t touched[WATCH_ROWS];       /* by trainer 0: so often, each adds 1, at these steps: */
    uint16_t steps[WATCH_ROWS][TOUCHES];
    uint64_t waits_from[WATCH_ROWS];    /* the first of them that is on the map; 0: none */
    uint64_t hot_lag, other_lag, arrived;
    double told;                        /* least of told oldest age - real one */
    bool counted, windows;              /* the map is counted at once, or in turns */
};

static void touch_one(struct hot_watch *w, struct tables *tables, uint64_t row,
                      uint64_t t)
{
    tables->list[0].w[row] += 1;
    w->steps[row][w->touched[row]++ % TOUCHES] = (uint16_t)t;
    if (w->waits_from[row] == 0)
        w->waits_from[row] = t;
    if (!tables_touch(tables, tables->list[0].w, &row, 1))
        ck_abort();
}

/* For how long the oldest change that is not here has not come. */
static void look(struct hot_watch *w, const struct tables *tables, uint64_t t)
{
    for (uint64_t row = 0; row < WATCH_ROWS; row++) {
        uint64_t seen = (uint64_t)tables->list[0].w[row];
        w->arrived = row == 0 ? seen : w->arrived + seen;
        if (seen == w->touched[row])
            continue;
        uint64_t lag = t - w->steps[row][seen % TOUCHES];
        uint64_t *most = row < HOT ? &w->hot_lag : &w->other_lag;
        *most = lag > *most ? lag : *most;
    }
}

static void check_told(struct hot_watch *w, const struct tables *tables, uint64_t t)
{
    uint64_t oldest = UINT64_MAX, n = 0;
    for (size_t row = 0; row < WATCH_ROWS; row++) {
        if (tables->list[0].heat[row] == 0)
            w->waits_from[row] = 0;
        n += w->waits_from[row] > 0;
        if (w->waits_from[row] > 0 && w->waits_from[row] < oldest)
            oldest = w->waits_from[row];
    }
    if (tables->stats.since_ns == 0)
        return;
    double since = (double)tables->stats.since_ns * 1e-9 - WATCH_BEGINS;
    w->told = fmin(w->told, (double)oldest - since);
    w->counted |= n > 1000;
    if (w->windows && t < 300)
        return;                 /* there is much that has not been counted */
    ck_assert_uint_le(n, tables->stats.waiting + (w->windows ? n / 8 : 0));
    ck_assert_uint_ge(n + (w->windows ? n / 8 : 0), tables->stats.waiting);
}

/* Trainer 0 changes rows, trainer 1 looks when they come. */
static void watch_rows(void *context, int i, uint64_t t, struct tables *tables)
{
    struct hot_watch *w = context;
    if (t > 0 && i == 1)
        look(w, tables, t);
    if (t == 0 || i == 1)
        return;
    if (t == 1 && w->windows)
        tables->census = (struct census){.n = TABLES_WINDOWS, .rows = WATCH_ROWS / TABLES_WINDOWS};
    check_told(w, tables, t);
    for (uint64_t row = 0; row < HOT + WARM; row++)
        for (int n = 0; n < (row < HOT ? 9 : 6); n++)
            touch_one(w, tables, row, t);
    for (int n = 0; n < COLD_A_STEP; n++)
        touch_one(w, tables, HOT + WARM + rng_next(&w->rng) % (WATCH_ROWS - HOT - WARM), t);
}

START_TEST(hot_rows_go_first_and_none_starves)
{
    static const struct simulation_table one[] = {{WATCH_ROWS, 1, 0}};
    static struct hot_watch w;
    size_t row = sizeof(uint64_t) + sizeof(float);
    struct simulation_options o = {
        .plan = "shadow-ma,hot=0", .trainers = 2, .n = N, .gradient = no_gradient, .context = &w,
        .steps = WATCH_STEPS, .step_s = 1, .tables = one, .n_tables = 1, .rows = watch_rows,
        .rows_part = sizeof(struct rows_head) + ROOM_ROWS * row,
        .fabric = &simulated_ranks,
        .world = {.latency_s = WATCH_LATENCY / ROW_MESSAGES, .seed = 3, .per_host = 1}};
    struct simulation *sim;
    memset(&w, 0, sizeof w);        /* an initializer of this size would be on the stack */
    w.told = 1e9;
    w.windows = _i == 1;
    rng_init(&w.rng, 5);
    ck_assert_int_eq(simulation_run(&sim, &o), DESCANT_OK);
    /* hot rows fit beside the sweep: they are in every round */
    ck_assert_uint_le(w.hot_lag, 3);
    /* a quarter of a part sweeps: 3 rows a round of a step, once round and what is under way */
    ck_assert_uint_gt(w.other_lag, 100);
    ck_assert_uint_le(w.other_lag, WATCH_ROWS / 3 + 5);
    ck_assert_uint_gt(w.arrived, 300 * WATCH_STEPS);
    ck_assert(w.counted);
    ck_assert_msg(w.told >= -1e-6, "a row has waited %g s longer than was told", -w.told);
    for (size_t k = 0; k < WATCH_ROWS; k++)
        ck_assert(table_of(sim, 1, 0)->w[k] == (float)w.touched[k]);
    simulation_destroy(sim);
}
END_TEST

/* ------------------------------------------------------------------ hot rows */

enum { OFTEN = 100, RARELY = 2 };       /* touches of rows 0 and 1 by each machine, in one round */

static void touch_unevenly(void *context, int i, uint64_t t, struct tables *tables)
{
    const uint64_t row[] = {0, 1};
    (void)context, (void)i;
    if (t != 1)
        return;
    tables->list[0].w[0] += 100;
    tables->list[0].w[1] += 100;
    for (int k = 0; k < OFTEN; k++)
        ck_assert(tables_touch(tables, tables->list[0].w, &row[0], 1));
    for (int k = 0; k < RARELY; k++)
        ck_assert(tables_touch(tables, tables->list[0].w, &row[1], 1));
}

/* Each of n machines adds 100, all of it in one round: n * 100 * (2 hot + k) / (2 hot + n k), where
 * k + 1 is how often each has touched it. */
START_TEST(hot_rows_are_averaged_by_degrees)
{
    static const struct simulation_table one[] = {{5, 1, 0}};
    static const struct {
        const char *plan;
        int hot;
    } plans[] = {{"shadow-ma,hot=0", 0}, {"shadow-ma", 100}, {"shadow-ma,hot=1", 1},
                 {"ma,hot=8", 8}, {"shadow-ma,hot=16,wire=q8", 16}};
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++)
        for (int n = 1; n <= 8; n += n) {
            struct simulation_options o = {
                .plan = plans[p].plan, .trainers = n, .n = N, .gradient = no_gradient,
                .steps = 30, .step_s = 1, .tables = one, .n_tables = 1, .rows = touch_unevenly,
                .fabric = &simulated_ranks,
                .world = {.latency_s = 0.1 / ROW_MESSAGES, .seed = 3, .per_host = 1}};
            struct simulation *sim;
            ck_assert_int_eq(simulation_run(&sim, &o), DESCANT_OK);
            for (int row = 0; row < 2; row++) {
                int half = 2 * plans[p].hot, k = (row ? RARELY : OFTEN) - 1;
                double s = half ? (double)(half + k) / (half + n * k) : 1;
                for (int i = 0; i < n; i++)
                    ck_assert_msg(fabs(table_of(sim, i, 0)->w[row] - 100 * s * n) < 1e-3 * 100 * n,
                                  "%s, %d machines, row %d: %g, not %g", o.plan, n, row,
                                  (double)table_of(sim, i, 0)->w[row], 100 * s * n);
            }
            simulation_destroy(sim);
        }
}
END_TEST

/* A row of every example and, of so many, rows of few, each on the way to 1 by steps of a tenth. */
static void descend(void *context, int i, uint64_t t, struct tables *tables)
{
    const uint64_t *rows = context;
    float *w = tables->list[0].w;
    uint64_t row[] = {0, *rows ? 1 + ((uint64_t)i + 8 * t) % *rows : 0};
    for (int k = 0; t > 0 && k < 1 + (*rows > 0); k++) {
        w[row[k]] += 0.1f * (1 - w[row[k]]);
        ck_assert(tables_touch(tables, w, &row[k], 1));
    }
}

static double worst_row(const char *plan, double latency_s, uint64_t rows)
{
    static const struct simulation_table one[] = {{200, 1, 0}};
    struct simulation_options o = {
        .plan = plan, .trainers = 8, .n = N, .gradient = no_gradient, .context = &rows,
        .steps = 100 + 50 * (uint64_t)latency_s, .step_s = 1, .tables = one, .n_tables = 1,
        .rows = descend, .fabric = &simulated_ranks,
        .world = {.latency_s = latency_s / ROW_MESSAGES, .seed = 3, .per_host = 1}};
    struct simulation *sim;
    ck_assert_int_eq(simulation_run(&sim, &o), DESCANT_OK);
    double worst = 0;
    for (uint64_t row = 0; row <= rows; row++)
        worst = fmax(worst, fabs(1 - (double)table_of(sim, 0, 0)->w[row]));
    simulation_destroy(sim);
    return worst;
}

/* Rounds of 20 steps: the sum of what 8 machines have gone is 8 times too far, and so on. */
START_TEST(hot_rows_do_not_run_away)
{
    double summed = worst_row("shadow-ma,hot=0", 20, 199);
    double averaged = worst_row("shadow-ma,hot=8", 20, 199);
    ck_assert_msg(!(summed < 100), "the sum keeps to %g", summed);
    ck_assert_msg(averaged < 0.1, "%g from where they should be", averaged);
}
END_TEST

/* Of more touches in a round than are counted a machine has made its way. */
START_TEST(rows_with_more_touches_than_are_counted_do_not_run_away)
{
    double most = worst_row("shadow-ma,hot=256", 300, 0), usual = worst_row("shadow-ma", 300, 0);
    ck_assert_msg(!(most < 100), "the sum keeps to %g", most);
    ck_assert_msg(usual < 0.1, "%g from where it should be", usual);
}
END_TEST

/* ------------------------------------------------------------------ quality */

enum { CATEGORIES = 3000, FIELDS = 4, EXAMPLES = 24000 };

struct planted {
    int trainers;
    double weight[FIELDS][CATEGORIES];
};

static uint64_t hash(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static double chance(uint64_t number, uint64_t what)
{
    return (double)(hash(number * 64 + what + 1) >> 11) * 0x1p-53;
}

/* Example `number`: its categories, most of them rare; returns its logit. */
static double example(const struct planted *p, uint64_t number, uint64_t *row)
{
    double logit = 0;
    for (uint64_t f = 0; f < FIELDS; f++) {
        double u = chance(number, f);
        row[f] = (uint64_t)(pow(u, 4) * CATEGORIES);
        logit += p->weight[f][row[f]];
    }
    return logit;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double score(const struct tables *tables, const uint64_t *row)
{
    double sum = 0;
    for (size_t f = 0; f < FIELDS; f++)
        sum += (double)tables->list[f].w[row[f]];
    return sum;
}

/* A logistic regression on ids, plain SGD; the trainers take the examples in turn. */
static void planted_rows(void *context, int i, uint64_t t, struct tables *tables)
{
    const struct planted *p = context;
    uint64_t row[FIELDS], number = (t - 1) * (uint64_t)p->trainers + (uint64_t)i;
    if (t == 0)
        return;
    double clicked = chance(number, 60) < sigmoid(example(p, number, row));
    double g = sigmoid(score(tables, row)) - clicked;
    for (size_t f = 0; f < FIELDS; f++) {
        tables->list[f].w[row[f]] -= (float)(0.15 * g);
        tables_touch(tables, tables->list[f].w, &row[f], 1);
    }
}

static double held_out_loss(const struct planted *p, const struct tables *tables)
{
    double loss = 0;
    const int n = 20000;
    for (uint64_t number = 1u << 30; number < (1u << 30) + (uint64_t)n; number++) {
        uint64_t row[FIELDS];
        double q = sigmoid(example(p, number, row)), s = sigmoid(score(tables, row));
        loss -= q * log(s) + (1 - q) * log(1 - s);
    }
    return loss / n;
}

static double planted_loss(struct planted *p, int machines, const char *plan)
{
    static const struct simulation_table fields[FIELDS] = {
        {CATEGORIES, 1, 0}, {CATEGORIES, 1, 0}, {CATEGORIES, 1, 0}, {CATEGORIES, 1, 0}};
    p->trainers = machines;
    struct simulation_options o = {
        .plan = plan, .trainers = machines, .n = N, .gradient = no_gradient, .context = p,
        .steps = EXAMPLES / (uint64_t)machines, .step_s = 1, .spread = 0.3, .tables = fields,
        .n_tables = FIELDS, .rows_part = PART, .rows = planted_rows,
        .fabric = &simulated_ranks,
        .world = {.latency_s = 1.0 / ROW_MESSAGES, .jitter_s = 2.0 / ROW_MESSAGES, .seed = 2, .per_host = 1}};
    struct simulation *sim;
    ck_assert_int_eq(simulation_run(&sim, &o), DESCANT_OK);
    double loss = held_out_loss(p, simulation_look(sim, 0).tables);
    simulation_destroy(sim);
    return loss;
}

START_TEST(machines_learn_as_one)
{
    static struct planted p;
    for (uint64_t f = 0; f < FIELDS; f++)
        for (uint64_t c = 0; c < CATEGORIES; c++)
            p.weight[f][c] = 3 * chance(c + (1u << 20) * (f + 1), 0) - 1.5;
    double one = planted_loss(&p, 1, "shadow-easgd");
    ck_assert_double_lt(one, 0.66);             /* from 0.693 */
    for (int machines = 2; machines <= 4; machines += 2) {
        double many = planted_loss(&p, machines, "shadow-easgd");
        double apart = planted_loss(&p, machines, "none");
        ck_assert_msg(many < one * 1.002, "%d machines: %g, one: %g", machines, many, one);
        ck_assert_msg(apart > one * 1.01, "%d machines apart: %g, one: %g", machines, apart, one);
    }
}
END_TEST

int main(void)
{
    TCase *rows = new_case("rows", 60), *quality = new_case("quality", 60);
    tcase_add_loop_test(rows, hot_rows_go_first_and_none_starves, 0, 2);
    tcase_add_test(rows, hot_rows_are_averaged_by_degrees);
    tcase_add_test(rows, hot_rows_do_not_run_away);
    tcase_add_test(rows, rows_with_more_touches_than_are_counted_do_not_run_away);
    tcase_add_test(quality, machines_learn_as_one);
    return run_cases(rows, quality, NULL);
}
