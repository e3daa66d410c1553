/* SPDX-License-Identifier: MIT */
/* Tables across machines, in virtual time: what all have added, and what may go wrong. Updates are
 * whole numbers, so that sums are exact in any order: at the end every row of every machine must
 * be its first value and the sum of all updates. */
#include "harness/heard.h"
#include "harness/suite.h"
#include "harness/tables.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 8, ROWS_A = 400, WIDTH_A = 3, ROWS_B = 90, WIDTH_B = 17, STATE_B = 2,
       FIRST_STATE = 3, STEPS = 60 };

static const struct simulation_table two[] = {{ROWS_A, WIDTH_A, 0}, {ROWS_B, WIDTH_B, STATE_B}};

static float first_value(size_t table, size_t at)
{
    return (float)((at * 7 + table * 13) % 101);
}

static void fill_first(struct tables *tables)
{
    for (size_t k = 0; k < tables->n; k++)
        for (size_t at = 0; at < tables->list[k].rows * tables->list[k].width; at++)
            tables->list[k].w[at] = first_value(k, at);
    for (size_t at = 0; at < tables->list[1].rows * tables->list[1].state_width; at++)
        tables->list[1].state[at] = FIRST_STATE;
}

/* ------------------------------------------------------------------ random touches, exact sums */

struct sums {
    struct rng rng;
    float of[MOST][2][ROWS_B * WIDTH_B + ROWS_A * WIDTH_A];     /* what each trainer has added */
    bool real;                  /* not whole numbers */
    float state[ROWS_B * STATE_B];      /* of table 1; all trainers' */
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
    for (size_t c = 0; c < x->state_width; c++) {
        x->state[row * x->state_width + c] += (float)(c + 1);
        s->state[row * x->state_width + c] += (float)(c + 1);
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
    if (t == 10 && i == 0 && s->bad_value != 0) {
        tables->list[1].w[3 * WIDTH_B + 5] = s->bad_value;
        tables->list[1].state[3 * STATE_B] = s->bad_value;
    }
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
    o->fabric = &simulated_ranks;
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
                if (!is_sum(o->plan, x->w[at], sum))
                    ck_abort_msg("%s, %d trainers, %d a machine, seed %d: trainer %d, table %zu, "
                                 "row %zu has %g, not %g", o->plan, o->trainers,
                                 o->world.per_host, (int)o->world.seed, i, k, at / x->width,
                                 (double)x->w[at], (double)sum);
            }
            for (size_t at = 0; at < x->rows * x->state_width; at++)
                if (x->state[at] != FIRST_STATE + s->state[at])
                    ck_abort_msg("%s, %d trainers: trainer %d, state %zu is %g, not %g", o->plan,
                                 o->trainers, i, at, (double)x->state[at],
                                 (double)(FIRST_STATE + s->state[at]));
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

/* An odd step that 3 does not divide: seeds choose among two and three kinds. */
#define SEEDS_APART ((uint64_t)pick(1, 7, 11))

static const int groups[][2] = {{2, 1}, {3, 1}, {8, 1}, {4, 2}, {7, 3}};

START_TEST(sums_are_exact)
{
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (uint64_t seed = 1; seed <= 3; seed += (uint64_t)pick(1, 2, 3)) {
            static struct sums s;
            double slow[MOST] = {1, 1, 2.5, 1, 0.5, 1, 1, 4};
            struct simulation_options o = {
                .plan = links[_i].plan, .trainers = groups[g][0], .rows_part = PART,
                .slow = seed == 2 ? slow : NULL,
                .world = {.bytes_per_s = links[_i].rate,
                          .latency_s = (links[_i].latency + 0.1) / ROW_MESSAGES,
                          .jitter_s = links[_i].jitter / ROW_MESSAGES, .seed = seed, .per_host = groups[g][1]}};
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
    for (uint64_t seed = 1; seed <= 12; seed += SEEDS_APART) {
        static struct sums s;
        struct simulation_options o = {
            .plan = plans[seed % 3], .trainers = 5, .rows_part = PART,
            .world = {.bytes_per_s = 3000, .jitter_s = 2.0 / ROW_MESSAGES, .seed = seed, .per_host = 1}};
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

struct sent_rows {
    uint64_t bytes, rows;
};

static struct sent_rows sent_under(const char *plan,
                                   const struct simulation_table *tables)
{
    static struct sums s;
    struct simulation_options o = {.plan = plan, .trainers = 2, .steps = 12 * STEPS,
                                   .tables = tables, .n_tables = 2,
                                   .world = {.latency_s = 0.2 / ROW_MESSAGES, .seed = 6, .per_host = 1}};
    memset(&s, 0, sizeof s);
    struct simulation *sim = run(&o, &s);
    const struct tables *t = simulation_look(sim, 0).tables;
    struct sent_rows sent = {t->fabric->rows_bytes, t->stats.sent};
    simulation_destroy(sim);
    return sent;
}

/* Though each goes once more at the end, as it is; but for rows that encoding would not shorten: rounds
 * of encoded means are at other times, and so are those of rows, but of no other length. */
START_TEST(encoded_rows_are_shorter)
{
    static const struct simulation_table narrow[] = {{ROWS_A, 1, 0}, {ROWS_B, 2, 0}},
                                         wide[] = {{ROWS_A, WIDTH_A, 0}, {ROWS_B, WIDTH_B, 0}};
    struct sent_rows f32 = sent_under("ma,every=2,hot=0", wide),
                     q8 = sent_under("ma,every=2,hot=0,wire=q8", wide),
                     bf16 = sent_under("ma,every=2,hot=0,wire=bf16", wide);
    ck_assert_uint_gt(f32.rows, 500);
    ck_assert_double_lt((double)bf16.bytes, 0.85 * (double)f32.bytes);
    ck_assert_double_lt((double)q8.bytes, 0.8 * (double)f32.bytes);
    ck_assert_uint_lt(q8.bytes, bf16.bytes);
    f32 = sent_under("ma,every=2,hot=0", narrow);
    q8 = sent_under("ma,every=2,hot=0,wire=q8", narrow);
    ck_assert_double_eq_tol((double)q8.bytes, (double)f32.bytes, 0.01 * (double)f32.bytes);
}
END_TEST

/* ------------------------------------------------------------------ what may go wrong */

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
            .rows_part = PART, .log = &listening,
            .world = {.latency_s = 0.4 / ROW_MESSAGES, .seed = 4, .per_host = 1}};
        memset(&s, 0, sizeof s);
        heard = (struct heard_lines){.least = DESCANT_WARNING};
        s.bad_value = NAN;
        struct simulation *sim = run(&o, &s);
        ck_assert_msg(strstr(heard.text, "row 3 of table table1"), "the log has: %s", heard.text);
        uint64_t bad = simulation_look(sim, 0).tables->stats.bad;
        ck_assert(heal ? bad == 1 : bad >= 2);
        ck_assert_uint_eq(simulation_look(sim, 1).tables->stats.bad, 0);
        const struct table *a = table_of(sim, 0, 1), *b = table_of(sim, 1, 1);
        ck_assert_mem_eq(a->w, b->w, ROWS_B * WIDTH_B * sizeof(float));
        for (size_t at = 0; at < ROWS_B * WIDTH_B; at++)
            ck_assert_msg(isfinite(a->w[at]), "row %zu is bad", at / WIDTH_B);
        for (size_t at = 0; at < ROWS_B * STATE_B; at++)
            ck_assert_msg(isfinite(a->state[at]), "state %zu is bad", at / STATE_B);
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
    for (uint64_t seed = 1; seed <= 12; seed += SEEDS_APART) {
        static struct sums s;
        uint64_t die[4] = {0, 11 + seed * 3, seed % 2 ? 0 : 30, 0};
        struct simulation_options o = {
            .plan = links[seed % N_LINKS].plan, .trainers = 4, .rows_part = PART, .die_at = die,
            .world = {.bytes_per_s = 4000, .jitter_s = 1.5 / ROW_MESSAGES, .seed = seed, .per_host = 1}};
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
                                   .log = &listening, .fabric = &simulated_ranks,
                                   .world = {.per_host = 1}};
    heard = (struct heard_lines){.least = DESCANT_WARNING};
    ck_assert_int_eq(simulation_run(&sim, &o), DESCANT_MISMATCH);
    ck_assert_msg(strstr(heard.text, "table table1 90 x 17 and 2, first rows") && !strstr(heard.text, "table0"),
                  "the log has: %s", heard.text);
}
END_TEST

START_TEST(one_machine_has_no_rounds_of_rows)
{
    static struct sums s;
    struct simulation_options o = {.plan = "shadow-easgd", .trainers = 3, .world = {.per_host = 3}};
    memset(&s, 0, sizeof s);
    struct simulation *sim = run(&o, &s);
    for (int i = 0; i < 3; i++) {
        const struct tables *t = simulation_look(sim, i).tables;
        ck_assert_ptr_null(t->list[0].base);
        ck_assert_ptr_null(t->list[0].heat);
        ck_assert_ptr_null(t->part);
        t->list[0].w[i] += 1000;
        ck_assert_float_eq(t->list[0].w[i], table_of(sim, 0, 0)->w[i]);
        ck_assert_uint_eq(t->stats.rounds, 0);
    }
    simulation_destroy(sim);
}
END_TEST

int main(void)
{
    TCase *rounds = new_case("rounds", 60), *trouble = new_case("trouble", 60);
    tcase_add_loop_test(rounds, sums_are_exact, 0, N_LINKS);
    tcase_add_test(rounds, all_end_with_the_same_bits);
    tcase_add_test(rounds, encoded_rows_are_shorter);
    tcase_add_test(rounds, one_machine_has_no_rounds_of_rows);
    tcase_add_test(trouble, bad_rows_are_refused_and_named);
    tcase_add_test(trouble, a_dead_machine_leaves_the_others_alike);
    tcase_add_test(trouble, first_rows_must_agree);
    return run_cases(rounds, trouble, NULL);
}
