/* SPDX-License-Identifier: MIT */
/* Tables across machines, in virtual time: the real rounds of rows on the sim fabric. Updates are
 * whole numbers, so that sums are exact in any order: at the end every row of every machine must
 * be its first value and the sum of all updates. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sync/simulation.h"

enum { N = 5, MOST = 8, ROWS_A = 400, WIDTH_A = 3, ROWS_B = 90, WIDTH_B = 17, STEPS = 60,
       PART = 2048 };

static const struct simulation_table two[] = {{ROWS_A, WIDTH_A}, {ROWS_B, WIDTH_B}};

static void no_gradient(void *context, int i, uint64_t t, const float *w, float *g, size_t n)
{
    (void)context, (void)i, (void)t, (void)w;
    memset(g, 0, n * sizeof *g);
}

static float first_value(size_t table, size_t at)
{
    return (float)((at * 7 + table * 13) % 101);
}

static void fill_first(struct tables *tables)
{
    for (size_t k = 0; k < tables->n; k++)
        for (size_t at = 0; at < tables->list[k].rows * tables->list[k].width; at++)
            tables->list[k].w[at] = first_value(k, at);
}

/* ------------------------------------------------------------------ random touches, exact sums */

struct sums {
    struct rng rng;
    float of[MOST][2][ROWS_B * WIDTH_B + ROWS_A * WIDTH_A];     /* what each trainer has added */
    bool real;                  /* not whole numbers */
    float bad_value;            /* what step 10 of trainer 0 puts into row 3 of table 1 */
    int touches;
};

static void add_to(struct sums *s, int i, struct tables *tables, size_t k, uint64_t row)
{
    const struct table *x = &tables->list[k];
    for (size_t c = 0; c < x->width; c++) {
        float d = (float)(1 + rng_next(&s->rng) % 9);
        d = s->real ? d * 0.37f - 1.1f : d;
        x->w[row * x->width + c] += d;
        s->of[i][k][row * x->width + c] += d;
    }
    ck_assert(tables_touch(tables, x->w, &row, 1));
}

/* Some rows often, most rarely; both tables by the same numbers. */
static void random_rows(void *context, int i, uint64_t t, struct tables *tables)
{
    struct sums *s = context;
    if (t == 0) {
        fill_first(tables);
        return;
    }
    for (int n = 0; n < s->touches; n++) {
        double u = rng_uniform(&s->rng);
        uint64_t row = (uint64_t)(u * u * u * ROWS_A);
        add_to(s, i, tables, 0, row);
        if (row < ROWS_B)
            add_to(s, i, tables, 1, row);
    }
    if (t == 10 && i == 0 && s->bad_value != 0)
        tables->list[1].w[3 * WIDTH_B + 5] = s->bad_value;
}

static struct simulation *run(struct simulation_options *o, struct sums *s)
{
    struct simulation *sim = NULL;
    o->n = N;
    o->gradient = no_gradient;
    o->context = s;
    o->rows = o->rows ? o->rows : random_rows;
    o->steps = o->steps ? o->steps : STEPS;
    o->step_s = 1;
    o->spread = 0.3;
    if (o->tables == NULL) {
        o->tables = two;
        o->n_tables = 2;
    }
    rng_init(&s->rng, o->world.seed + 1);
    s->touches = s->touches ? s->touches : 6;
    ck_assert_msg(simulation_run(&sim, o) == DESCANT_OK, "%s, %d trainers, seed %d: %s", o->plan,
                  o->trainers, (int)o->world.seed, descant_last_error());
    return sim;
}

/* Encoded updates are no whole numbers, and round as they are added. */
static bool is_sum(const char *plan, float x, float sum)
{
    float err = strstr(plan, "wire=") ? 2e-6f * (100 + fabsf(sum)) : 0;
    return fabsf(x - sum) <= err;
}

static const struct table *table_of(const struct simulation *sim, int i, size_t k)
{
    return &simulation_look(sim, i).tables->list[k];
}

/* Every row is its first value and what all have added. */
static void check_sums(const struct simulation *sim, const struct simulation_options *o,
                       const struct sums *s)
{
    for (int i = 0; i < o->trainers; i++)
        for (size_t k = 0; k < 2; k++) {
            const struct table *x = table_of(sim, i, k);
            for (size_t at = 0; at < x->rows * x->width; at++) {
                float sum = first_value(k, at);
                for (int from = 0; from < o->trainers; from++)
                    sum += s->of[from][k][at];
                ck_assert_msg(is_sum(o->plan, x->w[at], sum),
                              "%s, %d trainers, %d a machine, seed %d: trainer %d, table %zu, row "
                              "%zu has %g, not %g", o->plan, o->trainers, o->world.per_host,
                              (int)o->world.seed, i, k, at / x->width, (double)x->w[at],
                              (double)sum);
            }
        }
}

static const struct {
    const char *plan;
    double rate, latency, jitter;
} links[] = {
    {"shadow-easgd,hot=0", 0, 0, 0},
    {"shadow-easgd,hot=0", 3000, 0.2, 0.4},
    {"shadow-ma,hot=0", 800, 0.5, 3},
    {"shadow-bmuf,hot=0", 0, 0.1, 9},
    {"easgd,hot=0", 2000, 0.1, 0.5},
    {"ma,every=3,hot=0", 1000, 0, 1},
    {"dasgd,hot=0", 0, 2, 0},
    {"diloco-delta,hot=0", 5000, 0.3, 0.3},
    {"allreduce,hot=0", 1500, 0.1, 2},
    {"shadow-ma,wire=q8,hot=0", 800, 0.5, 3},
    {"ma,every=3,wire=bf16,hot=0", 0, 0, 1},
    {"shadow-bmuf,wire=q8,hot=0", 0, 0.1, 9},
};

enum { N_LINKS = sizeof links / sizeof *links };

static const int groups[][2] = {{2, 1}, {3, 1}, {8, 1}, {4, 2}, {7, 3}};

START_TEST(sums_are_exact)
{
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            static struct sums s;
            double slow[MOST] = {1, 1, 2.5, 1, 0.5, 1, 1, 4};
            struct simulation_options o = {
                .plan = links[_i].plan, .trainers = groups[g][0], .rows_part = PART,
                .slow = seed == 2 ? slow : NULL,
                .world = {.link = {links[_i].rate, 0.01}, .latency_s = links[_i].latency,
                          .jitter_s = links[_i].jitter, .seed = seed, .per_host = groups[g][1]}};
            memset(&s, 0, sizeof s);
            struct simulation *sim = run(&o, &s);
            check_sums(sim, &o, &s);
            const struct tables *t = simulation_look(sim, 0).tables;
            ck_assert_uint_gt(t->stats.rounds, 3);
            ck_assert_uint_eq(t->stats.waiting, 0);
            ck_assert_uint_eq(t->stats.since_ns, 0);
            /* a machine moves at most its own part to each other, or all others' */
            int machines = (o.trainers + o.world.per_host - 1) / o.world.per_host;
            ck_assert_uint_le(t->fabric->rows_bytes,
                              t->stats.rounds * (uint64_t)(machines - 1) * PART);
            ck_assert_uint_gt(t->fabric->rows_bytes, 0);
            simulation_destroy(sim);
        }
}
END_TEST

/* Floats that round, and parts that arrive in any order of time. */
START_TEST(all_end_with_the_same_bits)
{
    static const char *const plans[] = {"shadow-easgd,hot=0", "shadow-ma,hot=0,wire=q8",
                                        "ma,hot=0,wire=bf16"};
    for (uint64_t seed = 1; seed <= 12; seed++) {
        static struct sums s;
        struct simulation_options o = {
            .plan = plans[seed % 3], .trainers = 5, .rows_part = PART,
            .world = {.link = {3000, 0}, .jitter_s = 2, .seed = seed, .per_host = 1}};
        memset(&s, 0, sizeof s);
        s.real = true;
        struct simulation *sim = run(&o, &s);
        for (size_t k = 0; k < 2; k++) {
            const struct table *x = table_of(sim, 0, k);
            for (int i = 1; i < o.trainers; i++)
                ck_assert_mem_eq(x->w, table_of(sim, i, k)->w,
                                 x->rows * x->width * sizeof(float));
            for (size_t at = 0; at < x->rows * x->width; at++) {
                double sum = (double)first_value(k, at);
                for (int i = 0; i < o.trainers; i++)
                    sum += (double)s.of[i][k][at];
                ck_assert_double_eq_tol((double)x->w[at], sum, 1e-3);
            }
        }
        simulation_destroy(sim);
    }
}
END_TEST

struct sent {
    uint64_t bytes, rows;
};

static struct sent sent_under(const char *plan, const struct simulation_table *tables)
{
    static struct sums s;
    struct simulation_options o = {.plan = plan, .trainers = 2, .steps = 12 * STEPS,
                                   .tables = tables, .n_tables = 2,
                                   .world = {.latency_s = 0.2, .seed = 6, .per_host = 1}};
    memset(&s, 0, sizeof s);
    struct simulation *sim = run(&o, &s);
    const struct tables *t = simulation_look(sim, 0).tables;
    struct sent sent = {t->fabric->rows_bytes, t->stats.sent};
    simulation_destroy(sim);
    return sent;
}

/* Though each goes once more at the end, as it is; but for rows that encoding would not shorten. */
START_TEST(encoded_rows_are_shorter)
{
    static const struct simulation_table narrow[] = {{ROWS_A, 1}, {ROWS_B, 2}};
    struct sent f32 = sent_under("ma,every=2,hot=0", two),
                q8 = sent_under("ma,every=2,hot=0,wire=q8", two),
                bf16 = sent_under("ma,every=2,hot=0,wire=bf16", two);
    ck_assert_uint_gt(f32.rows, 500);
    ck_assert_double_lt((double)bf16.bytes, 0.85 * (double)f32.bytes);
    ck_assert_double_lt((double)q8.bytes, 0.8 * (double)f32.bytes);
    ck_assert_uint_lt(q8.bytes, bf16.bytes);
    f32 = sent_under("ma,every=2,hot=0", narrow);
    q8 = sent_under("ma,every=2,hot=0,wire=q8", narrow);
    ck_assert_uint_eq(q8.bytes, f32.bytes);
}
END_TEST

/* ------------------------------------------------------------------ hot first, none starved */

/* A part has room for the hot rows and some warm ones beside the sweep; what is left of the rows is
 * touched once in a while, and never hot enough. */
enum { WATCH_ROWS = 2000, HOT = 8, WARM = 40, COLD_A_STEP = 6, WATCH_STEPS = 1500, ROOM_ROWS = 16,
       TOUCHES = 16384 };

#define WATCH_LATENCY 0.9

struct watch {
    struct rng rng;
    uint64_t touched[WATCH_ROWS];       /* by trainer 0: so often, each adds 1, at these steps: */
    uint16_t steps[WATCH_ROWS][TOUCHES];
    uint64_t waits_from[WATCH_ROWS];    /* the first of them that is on the map; 0: none */
    uint64_t hot_lag, other_lag, arrived;
    double told;                        /* least of told oldest age - real one */
    bool counted;
};

static void touch_one(struct watch *w, struct tables *tables, uint64_t row, uint64_t t)
{
    tables->list[0].w[row] += 1;
    w->steps[row][w->touched[row]++ % TOUCHES] = (uint16_t)t;
    if (w->waits_from[row] == 0)
        w->waits_from[row] = t;
    ck_assert(tables_touch(tables, tables->list[0].w, &row, 1));
}

/* For how long the oldest change that is not here has not come. */
static void look(struct watch *w, const struct tables *tables, uint64_t t)
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

static void check_told(struct watch *w, const struct tables *tables)
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
    double since = (double)tables->stats.since_ns * 1e-9 - WATCH_LATENCY;   /* steps begin then */
    w->told = fmin(w->told, (double)oldest - since);
    w->counted |= n > 1000;
    ck_assert_uint_eq(n, tables->stats.waiting);
}

/* Trainer 0 changes rows, trainer 1 looks when they come. */
static void watch_rows(void *context, int i, uint64_t t, struct tables *tables)
{
    struct watch *w = context;
    if (t > 0 && i == 1)
        look(w, tables, t);
    if (t == 0 || i == 1)
        return;
    check_told(w, tables);
    for (uint64_t row = 0; row < HOT + WARM; row++)
        for (int n = 0; n < (row < HOT ? 9 : 6); n++)
            touch_one(w, tables, row, t);
    for (int n = 0; n < COLD_A_STEP; n++)
        touch_one(w, tables, HOT + WARM + rng_next(&w->rng) % (WATCH_ROWS - HOT - WARM), t);
}

START_TEST(hot_rows_go_first_and_none_starves)
{
    static const struct simulation_table one[] = {{WATCH_ROWS, 1}};
    static struct watch w = {.told = 1e9};
    size_t row = sizeof(uint64_t) + sizeof(float);
    struct simulation_options o = {
        .plan = "shadow-ma,hot=0", .trainers = 2, .n = N, .gradient = no_gradient, .context = &w,
        .steps = WATCH_STEPS, .step_s = 1, .tables = one, .n_tables = 1, .rows = watch_rows,
        .rows_part = sizeof(struct rows_head) + ROOM_ROWS * row,
        .world = {.latency_s = WATCH_LATENCY, .seed = 3, .per_host = 1}};
    struct simulation *sim;
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
    static const struct simulation_table one[] = {{5, 1}};
    static const struct {
        const char *plan;
        int hot;
    } plans[] = {{"shadow-ma,hot=0", 0}, {"shadow-ma", 8}, {"shadow-ma,hot=1", 1},
                 {"ma,hot=64", 64}, {"shadow-ma,hot=16,wire=q8", 16}};
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++)
        for (int n = 1; n <= 8; n += n) {
            struct simulation_options o = {
                .plan = plans[p].plan, .trainers = n, .n = N, .gradient = no_gradient,
                .steps = 30, .step_s = 1, .tables = one, .n_tables = 1, .rows = touch_unevenly,
                .world = {.latency_s = 0.1, .seed = 3, .per_host = 1}};
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

/* A row of every example and rows of few, each on the way to 1 by steps of a tenth. */
static void descend(void *context, int i, uint64_t t, struct tables *tables)
{
    (void)context;
    float *w = tables->list[0].w;
    uint64_t row[] = {0, 1 + ((uint64_t)i + 8 * t) % 199};
    for (int k = 0; t > 0 && k < 2; k++) {
        w[row[k]] += 0.1f * (1 - w[row[k]]);
        ck_assert(tables_touch(tables, w, &row[k], 1));
    }
}

static double worst_row(const char *plan)
{
    static const struct simulation_table one[] = {{200, 1}};
    struct simulation_options o = {
        .plan = plan, .trainers = 8, .n = N, .gradient = no_gradient, .steps = 1000, .step_s = 1,
        .tables = one, .n_tables = 1, .rows = descend,
        .world = {.latency_s = 20, .seed = 3, .per_host = 1}};
    struct simulation *sim;
    ck_assert_int_eq(simulation_run(&sim, &o), DESCANT_OK);
    double worst = 0;
    for (int row = 0; row < 200; row++)
        worst = fmax(worst, fabs(1 - (double)table_of(sim, 0, 0)->w[row]));
    simulation_destroy(sim);
    return worst;
}

/* Rounds of 20 steps: the sum of what 8 machines have gone is 8 times too far, and so on. */
START_TEST(hot_rows_do_not_run_away)
{
    double summed = worst_row("shadow-ma,hot=0"), averaged = worst_row("shadow-ma");
    ck_assert_msg(!(summed < 100), "the sum keeps to %g", summed);
    ck_assert_msg(averaged < 0.1, "%g from where they should be", averaged);
}
END_TEST

/* ------------------------------------------------------------------ what may go wrong */

static char lines[4096];

static void keep_line(void *user, enum descant_level level, const char *line)
{
    (void)user;
    if (level >= DESCANT_WARNING && strlen(lines) + strlen(line) + 2 < sizeof lines)
        strcat(strcat(lines, line), "\n");
}

static const struct log to_lines = {.fn = keep_line, .rank = -1};

START_TEST(bad_rows_are_refused_and_named)
{
    static const char *const plans[] = {"shadow-easgd,hot=0", "shadow-easgd,hot=0,heal=1",
                                        "shadow-ma,hot=0,wire=q8", "shadow-ma,hot=0,wire=q8,heal=1",
                                        "ma,hot=0,wire=bf16", "ma,hot=0,wire=bf16,heal=1"};
    for (int p = 0; p < 6; p++) {
        bool heal = p % 2;
        static struct sums s;
        struct simulation_options o = {
            .plan = plans[p], .trainers = 2,
            .rows_part = PART, .log = &to_lines,
            .world = {.latency_s = 0.4, .seed = 4, .per_host = 1}};
        memset(&s, 0, sizeof s);
        lines[0] = '\0';
        s.bad_value = NAN;
        struct simulation *sim = run(&o, &s);
        ck_assert_msg(strstr(lines, "row 3 of table table1"), "the log has: %s", lines);
        ck_assert_uint_ge(simulation_look(sim, 0).tables->stats.bad, heal ? 1 : 2);
        ck_assert_uint_eq(simulation_look(sim, 1).tables->stats.bad, 0);
        const struct table *a = table_of(sim, 0, 1), *b = table_of(sim, 1, 1);
        ck_assert_mem_eq(a->w, b->w, ROWS_B * WIDTH_B * sizeof(float));
        for (size_t at = 0; at < ROWS_B * WIDTH_B; at++)
            ck_assert_msg(isfinite(a->w[at]), "row %zu is bad", at / WIDTH_B);
        for (size_t at = 0; at < ROWS_A * WIDTH_A; at++)
            ck_assert(is_sum(o.plan, table_of(sim, 1, 0)->w[at],
                             first_value(0, at) + s.of[0][0][at] + s.of[1][0][at]));
        if (heal)       /* it goes on from what was agreed */
            ck_assert(a->w[3 * WIDTH_B] > first_value(1, 3 * WIDTH_B) + s.of[1][1][3 * WIDTH_B]);
        simulation_destroy(sim);
    }
}
END_TEST

/* Survivors have the same rows: all of their own updates, and of the dead one's those that came. */
START_TEST(a_dead_machine_leaves_the_others_alike)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        static struct sums s;
        uint64_t die[4] = {0, 11 + seed * 3, seed % 2 ? 0 : 30, 0};
        struct simulation_options o = {
            .plan = links[seed % N_LINKS].plan, .trainers = 4, .rows_part = PART, .die_at = die,
            .world = {.link = {4000, 0.01}, .jitter_s = 1.5, .seed = seed, .per_host = 1}};
        memset(&s, 0, sizeof s);
        struct simulation *sim = run(&o, &s);
        double came = 0, given = 0;
        for (size_t k = 0; k < 2; k++) {
            const struct table *x = table_of(sim, 0, k);
            ck_assert_mem_eq(x->w, table_of(sim, 3, k)->w, x->rows * x->width * sizeof(float));
            for (size_t at = 0; at < x->rows * x->width; at++) {
                float sum = first_value(k, at) + s.of[0][k][at] + s.of[3][k][at];
                sum += die[2] ? 0 : s.of[2][k][at];
                float theirs = s.of[1][k][at] + (die[2] ? s.of[2][k][at] : 0);
                float err = strstr(o.plan, "wire=") ? 0.5f : 0;     /* half a step, some times */
                ck_assert(x->w[at] >= sum - err && x->w[at] <= sum + theirs + err);
                came += (double)(x->w[at] - sum);
                given += (double)theirs;
            }
        }
        ck_assert(simulation_look(sim, 1).dead);
        ck_assert(came > 0.2 * given);
        simulation_destroy(sim);
    }
}
END_TEST

/* Its machine goes on by another trainer, also with what the dead one had taken off the map. */
START_TEST(the_leader_of_a_machine_has_an_heir)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        static struct sums s;
        uint64_t die[6] = {9 + seed * 3, 0, 0, seed % 3 ? 0 : 40, 0, 0};
        struct simulation_options o = {
            .plan = "shadow-easgd,hot=0", .trainers = 6, .rows_part = PART, .die_at = die,
            .world = {.link = {2500, 0.01}, .latency_s = 0.7, .seed = seed, .per_host = 3}};
        memset(&s, 0, sizeof s);
        struct simulation *sim = run(&o, &s);
        check_sums(sim, &o, &s);
        ck_assert(simulation_look(sim, 0).dead);
        ck_assert_uint_gt(simulation_look(sim, 1).tables->stats.rounds, 3);
        simulation_destroy(sim);
    }
}
END_TEST

static void other_first_rows(void *context, int i, uint64_t t, struct tables *tables)
{
    (void)context;
    if (t == 0)
        fill_first(tables);
    if (t == 0 && i == 1)
        tables->list[1].w[77] += 1;
}

START_TEST(first_rows_must_agree)
{
    struct sums s;
    struct simulation *sim = NULL;
    struct simulation_options o = {.plan = "shadow-easgd", .trainers = 2, .n = N, .context = &s,
                                   .gradient = no_gradient, .steps = 3, .step_s = 1,
                                   .rows = other_first_rows, .tables = two, .n_tables = 2,
                                   .log = &to_lines, .world = {.per_host = 1}};
    lines[0] = '\0';
    ck_assert_int_eq(simulation_run(&sim, &o), DESCANT_MISMATCH);
    ck_assert_msg(strstr(lines, "table table1 90 x 17, first rows") && !strstr(lines, "table0"),
                  "the log has: %s", lines);
}
END_TEST

START_TEST(one_machine_has_no_rounds_of_rows)
{
    static struct sums s;
    struct simulation_options o = {.plan = "shadow-easgd", .trainers = 3};
    memset(&s, 0, sizeof s);
    struct simulation *sim = run(&o, &s);
    for (int i = 0; i < 3; i++) {
        const struct tables *t = simulation_look(sim, i).tables;
        ck_assert_ptr_null(t->list[0].base);
        ck_assert_ptr_null(t->list[0].heat);
        ck_assert_ptr_null(t->part);
        ck_assert_ptr_eq(t->list[0].w, table_of(sim, 0, 0)->w);
        ck_assert_uint_eq(t->stats.rounds, 0);
    }
    simulation_destroy(sim);
}
END_TEST

START_TEST(touches_are_checked)
{
    struct sim_world *world = sim_world_create(&(struct sim_options){.per_host = 1});
    struct fabric_options options = {.rank = 0, .size = 1, .context = world};
    struct fabric *f;
    struct plan plan;
    struct tables t;
    float *a, *b;
    ck_assert_int_eq(plan_parse(&plan, "shadow-ma,hot=0", NULL), DESCANT_OK);
    ck_assert_int_eq(fabric_sim.open(&f, &options), DESCANT_OK);
    tables_init(&t, f, &plan);
    ck_assert_int_eq(tables_add(&t, "a", 10, 4, &a), DESCANT_OK);
    ck_assert_int_eq(tables_add(&t, "a", 10, 4, &b), DESCANT_DUPLICATE);
    ck_assert_int_eq(tables_add(&t, "a b", 10, 4, &b), DESCANT_INVALID);
    ck_assert_int_eq(tables_add(&t, "b", 0, 4, &b), DESCANT_INVALID);
    ck_assert_int_eq(tables_add(&t, "b", 20, 1, &b), DESCANT_OK);
    uint64_t rows[] = {9, 10};
    ck_assert(tables_touch(&t, a, rows, 1));
    ck_assert(!tables_touch(&t, a, rows, 2));
    ck_assert(tables_touch(&t, b, rows, 2));
    ck_assert(!tables_touch(&t, a + 1, rows, 1));
    for (int n = 0; n < 300; n++)
        tables_touch(&t, a, rows, 1);
    ck_assert_uint_eq(t.list[0].heat[9], 255);
    ck_assert_uint_eq(t.list[1].heat[10], 1);
    f->type->close(f);
    tables_fini(&t);
    sim_world_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* A machine on the sim fabric, started; size 2. part: bytes of a part, 0: as usual. */
static struct fabric *enter_wire(struct sim_world *world, int rank, struct tables *t, float **w,
                                 size_t part, enum wire wire)
{
    struct fabric_options options = {.rank = rank, .size = 2, .wire = wire, .context = world};
    struct fabric_start start = {.manifest = "", .n = N, .room = N, .collective = true};
    struct plan plan;
    struct fabric *f;
    ck_assert_int_eq(plan_parse(&plan, "shadow-ma,hot=0", NULL), DESCANT_OK);
    ck_assert_int_eq(fabric_sim.open(&f, &options), DESCANT_OK);
    tables_init(t, f, &plan);
    t->part_room = part ? part : t->part_room;
    ck_assert_int_eq(tables_add(t, "a", 10, 4, w), DESCANT_OK);
    ck_assert_int_eq(tables_add(t, "b", 5, 2, &(float *){NULL}), DESCANT_OK);
    start.rows_bytes = tables_part_bytes(t);
    ck_assert_int_eq(fabric_sim.start(f, &start), DESCANT_OK);
    ck_assert_int_eq(tables_start(t), DESCANT_OK);
    return f;
}

static struct fabric *enter(struct sim_world *world, int rank, struct tables *t, float **w,
                            size_t part)
{
    return enter_wire(world, rank, t, w, part, WIRE_F32);
}

static void meet(struct fabric **f)
{
    struct fabric_part part;
    struct exchange state = {.kind = EXCHANGE_STATE, .in = &(struct vector){.n = N}, .n = N};
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(fabric_sim.begin(f[k], &state), DESCANT_OK);
    for (int k = 0; k < 6; k++)
        fabric_sim.poll(f[k % 2], &part);
}

static const struct {
    uint64_t number;
    size_t n;                       /* bytes of the part: its head, a number, an update */
    uint16_t wire;
    bool good;
} parts[] = {
    {9, 8 + 8 + 16, 0, true},         {14, 8 + 8 + 8, 0, true},
    {10, 8 + 8 + 8, 0, true},         {15, 8 + 8 + 16, 0, false},
    {UINT64_MAX, 8 + 8 + 16, 0, false}, {9, 8 + 8 + 12, 0, false},
    {9, 8 + 4, 0, false},             {9, 4, 0, false},
    {9, 8 + 8 + 8, WIRE_Q8, true},    {9, 8 + 8 + 4, WIRE_Q8, false},
    {14, 8 + 8 + 4, WIRE_BF16, true}, {14, 8 + 8 + 8, WIRE_Q8, true},
    {9, 8 + 8 + 16, WIRE_Q8 + 1, false},
};

START_TEST(parts_are_checked)
{
    struct sim_world *world = sim_world_create(&(struct sim_options){.per_host = 1});
    struct tables t[2];
    float *w, bytes[16] = {0};
    struct fabric *f[2] = {enter(world, 0, &t[0], &w, 0), enter(world, 1, &t[1], &w, 0)};
    meet(f);
    uint32_t one = 1;
    memcpy(bytes, &one, sizeof one);
    memcpy((char *)bytes + offsetof(struct rows_head, wire), &parts[_i].wire, sizeof one / 2);
    memcpy(bytes + 2, &parts[_i].number, sizeof parts[_i].number);
    ck_assert_int_eq(f[1]->type->rows->begin(f[1], bytes, parts[_i].n), DESCANT_OK);
    ck_assert_int_eq(tables_advance(&t[0]), ROUND_CALLED);
    tables_begin(&t[0], 1);
    enum round_progress progress = ROUND_WORKED;
    while (progress == ROUND_WORKED)
        progress = tables_advance(&t[0]);
    ck_assert_int_eq(progress, parts[_i].good ? ROUND_DONE : ROUND_FAILED);
    ck_assert_int_eq(f[0]->status, parts[_i].good ? DESCANT_OK : DESCANT_MISMATCH);
    for (int k = 0; k < 2; k++) {
        tables_stop(&t[k]);
        f[k]->type->close(f[k]);
        tables_fini(&t[k]);
    }
    sim_world_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

static void work(struct tables *t, float *w, uint64_t row)
{
    for (size_t c = 0; c < 4; c++)
        w[4 * row + c] += 1;
    ck_assert(tables_touch(t, w, &row, 1));
}

/* A round of both; it is done. */
static void both(struct tables *t)
{
    enum round_progress last[2] = {ROUND_WORKED, ROUND_WORKED};
    for (int k = 0; k < 1000 && (last[0] != ROUND_DONE || last[1] != ROUND_DONE); k++)
        if (last[k % 2] != ROUND_DONE)
            last[k % 2] = tables_advance(&t[k % 2]);
    ck_assert(last[0] == ROUND_DONE && last[1] == ROUND_DONE);
}

/* The sweep has put row 0, and the rest is being counted, when it is touched again. */
START_TEST(a_row_is_in_a_part_once)
{
    struct sim_world *world = sim_world_create(&(struct sim_options){.per_host = 1});
    struct tables t[2];
    float *w[2];
    struct fabric *f[2] = {enter(world, 0, &t[0], &w[0], 8 + 3 * 24),
                           enter(world, 1, &t[1], &w[1], 8 + 3 * 24)};
    meet(f);
    work(&t[0], w[0], 0);
    work(&t[0], w[0], 1);
    for (int round = 1; round <= 2; round++) {
        for (int k = 0; k < 2; k++) {
            t[k].called = true;         /* by the other */
            tables_begin(&t[k], (uint64_t)round);
        }
        for (int k = 0; round == 1 && t[0].state != TABLES_COUNTING; k++) {
            ck_assert_int_lt(k, 10);
            tables_advance(&t[0]);
        }
        if (round == 1)
            work(&t[0], w[0], 0);
        both(t);
        for (int k = 0; k < 2; k++) {
            ck_assert_float_eq(t[k].list[0].base[0], (float)round);
            ck_assert_float_eq(t[k].list[0].base[4], 1);
            ck_assert_float_eq(w[k][0], (float)(k == 0 ? 2 : round));
            ck_assert_float_eq(w[k][4], 1);
        }
    }
    for (int k = 0; k < 2; k++) {
        tables_stop(&t[k]);
        f[k]->type->close(f[k]);
        tables_fini(&t[k]);
    }
    sim_world_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

static void turn(struct tables *t)
{
    enum round_progress progress = tables_advance(t);
    ck_assert_int_ne(progress, ROUND_FAILED);
    if ((progress == ROUND_RESTING || progress == ROUND_CALLED) && tables_can_begin(t))
        tables_begin(t, 1);
}

enum { SOME_ROWS = 10 };            /* of table a */

static void touched_at_any_time(uint64_t seed, enum wire wire)
{
    struct sim_world *world = sim_world_create(&(struct sim_options){.per_host = 1});
    const size_t part = 8 + 7 * (8 + 16);       /* some rows, and one of them is the sweep's */
    struct tables t[2];
    struct rng rng;
    float *w[2], sum[SOME_ROWS] = {0};
    struct fabric *f[2] = {enter_wire(world, 0, &t[0], &w[0], part, wire),
                           enter_wire(world, 1, &t[1], &w[1], part, wire)};
    rng_init(&rng, seed);
    meet(f);
    for (int n = 0; n < 4000; n++) {
        uint64_t k = rng_next(&rng) % 2, row = rng_next(&rng) % SOME_ROWS;
        turn(&t[k]);
        if (n < 3000 && rng_next(&rng) % 2) {
            work(&t[k], w[k], row);
            sum[row] += 1;
        }
        if (n >= 3000)
            tables_stop(&t[k]);
    }
    for (int k = 0; k < 2; k++) {
        ck_assert(tables_ended(&t[k]));
        for (size_t at = 0; at < 4 * SOME_ROWS; at++)
            ck_assert_msg(fabsf(w[k][at] - sum[at / 4]) <= (wire == WIRE_F32 ? 0 : 1e-3f),
                          "seed %llu: machine %d, row %zu: %g, not %g",
                          (unsigned long long)seed, k, at / 4, (double)w[k][at],
                          (double)sum[at / 4]);
    }
    for (int k = 0; k < 2; k++) {
        tables_fini(&t[k]);
        f[k]->type->close(f[k]);
    }
    sim_world_destroy(world);
    ck_assert_int_eq(memory_live(), 0);
}

/* Between any two advances, also while the part is filled: of rows that it has already, too. */
START_TEST(rows_may_be_touched_at_any_time)
{
    for (uint64_t seed = 1; seed <= 45; seed++)
        touched_at_any_time(seed, (enum wire)(seed % 3));
}
END_TEST

/* ------------------------------------------------------------------ kernels */

START_TEST(kernels_agree_with_plain_loops)
{
    const struct kernels *const sets[] = {&kernels_base, kernels_best()};
    const struct kernels *k = sets[_i];
    struct rng rng;
    rng_init(&rng, 9);
    for (size_t n = 0; n < 200; n++) {
        float w[200], base[200], d[200];
        unsigned char heat[200];
        uint32_t counts[256] = {0}, plain[256] = {0};
        bool any;
        for (size_t i = 0; i < n; i++) {
            w[i] = base[i] = (float)rng_uniform(&rng);
            heat[i] = rng_next(&rng) % 4 ? 0 : (unsigned char)rng_next(&rng);
            plain[heat[i]]++;
        }
        ck_assert(k->less(d, w, base, n, &any) && !any);
        for (size_t i = 0; i < n; i++) {
            float kept = w[i];
            w[i] = kept + 1e-30f * (kept == 0) + 1e-6f;
            ck_assert(k->less(d, w, base, n, &any) && any && d[i] == w[i] - base[i]);
            w[i] = NAN;
            ck_assert(!k->less(d, w, base, n, &any));
            w[i] = INFINITY;
            ck_assert(!k->less(d, w, base, n, &any));
            w[i] = kept;
        }
        memcpy(w, base, sizeof w);
        k->add(w, base, 1, n);
        for (size_t i = 0; i < n; i++)
            ck_assert(w[i] == base[i] + base[i]);
        k->tally(heat, n, counts);
        ck_assert_mem_eq(counts + 1, plain + 1, sizeof counts - sizeof *counts);
        for (int least = 1; least < 256; least += 50) {
            size_t first = 0;
            while (first < n && heat[first] < least)
                first++;
            ck_assert_uint_eq(k->hot(heat, n, (unsigned char)least), first);
        }
    }
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
        {CATEGORIES, 1}, {CATEGORIES, 1}, {CATEGORIES, 1}, {CATEGORIES, 1}};
    p->trainers = machines;
    struct simulation_options o = {
        .plan = plan, .trainers = machines, .n = N, .gradient = no_gradient, .context = p,
        .steps = EXAMPLES / (uint64_t)machines, .step_s = 1, .spread = 0.3, .tables = fields,
        .n_tables = FIELDS, .rows_part = PART, .rows = planted_rows,
        .world = {.latency_s = 1, .jitter_s = 2, .seed = 2, .per_host = 1}};
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
    Suite *suite = suite_create("tables");
    TCase *rounds = tcase_create("rounds");
    tcase_set_timeout(rounds, 60);
    tcase_add_loop_test(rounds, sums_are_exact, 0, N_LINKS);
    tcase_add_test(rounds, all_end_with_the_same_bits);
    tcase_add_test(rounds, encoded_rows_are_shorter);
    tcase_add_test(rounds, hot_rows_go_first_and_none_starves);
    tcase_add_test(rounds, hot_rows_are_averaged_by_degrees);
    tcase_add_test(rounds, hot_rows_do_not_run_away);
    tcase_add_test(rounds, rows_may_be_touched_at_any_time);
    tcase_add_test(rounds, one_machine_has_no_rounds_of_rows);
    tcase_add_test(rounds, touches_are_checked);
    tcase_add_loop_test(rounds, kernels_agree_with_plain_loops, 0, 2);
    suite_add_tcase(suite, rounds);
    TCase *trouble = tcase_create("trouble");
    tcase_set_timeout(trouble, 60);
    tcase_add_test(trouble, bad_rows_are_refused_and_named);
    tcase_add_test(trouble, a_dead_machine_leaves_the_others_alike);
    tcase_add_test(trouble, the_leader_of_a_machine_has_an_heir);
    tcase_add_test(trouble, first_rows_must_agree);
    tcase_add_test(trouble, a_row_is_in_a_part_once);
    tcase_add_loop_test(trouble, parts_are_checked, 0, (int)(sizeof parts / sizeof *parts));
    suite_add_tcase(suite, trouble);
    TCase *quality = tcase_create("quality");
    tcase_set_timeout(quality, 60);
    tcase_add_test(quality, machines_learn_as_one);
    suite_add_tcase(suite, quality);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
