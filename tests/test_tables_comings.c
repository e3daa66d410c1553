/* SPDX-License-Identifier: MIT */
/* Tables of machines that come late and die: all that go on end with the same rows, which
 * are the first ones, all that those who lived to the end have added, and of the dead
 * what had come. */
#include "harness/simulation.h"
#include "harness/suite.h"

#include <check.h>
#include <string.h>

enum { MACHINES = 4, ROWS = 60, WIDTH = 7, STATE = 2, N = 5, PART = 1024, STEPS = 80 };

static struct comings_sums {
    struct rng rng;
    double of[MACHINES][ROWS]; /* what each has added to each float of a row */
} s;

static struct tables *tables_of[MACHINES];

static float first_value(uint64_t row)
{
    return (float)(row % 5);
}

/* Some rows often, most rarely; whole numbers. */
static void change_rows(void *context, int i, uint64_t t, struct tables *tables)
{
    struct table *x = &tables->list[0];

    (void)context;
    tables_of[i] = tables;
    for (uint64_t at = 0; t == 0 && at < ROWS * WIDTH; at++)
        x->w[at] = first_value(at / WIDTH);
    for (int n = 0; t > 0 && n < 4; n++) {
        double u = rng_uniform(&s.rng);
        uint64_t row = (uint64_t)(u * u * u * ROWS);
        for (int c = 0; c < WIDTH; c++)
            x->w[row * WIDTH + (uint64_t)c] += 1;
        for (int c = 0; c < STATE; c++)
            x->state[row * STATE + (uint64_t)c] += 1;
        s.of[i][row] += 1;
        ck_assert(tables_touch(tables, x->w, &row, 1));
    }
}

/* Tables leave while w is still to become the base, which others' rows would change. */
static int left;

static bool leave_rows(struct fabric *f)
{
    for (int i = 0; i < MACHINES; i++)
        if (tables_of[i] && tables_of[i]->fabric == f) {
            left++;
            ck_assert(!tables_ended(tables_of[i]));
        }
    return fabric_mpi.rows->leave(f);
}

static struct fabric_rows rows;
static struct fabric_type type;

static descant_status open_ranks(struct fabric **out, const struct fabric_options *options)
{
    descant_status status = fabric_mpi.open(out, options);

    if (status == DESCANT_OK)
        (*out)->type = &type;
    return status;
}

static struct simulation *run(const char *plan, uint64_t seed, const uint64_t *die,
                              const double *join)
{
    static const struct simulation_table table = {ROWS, WIDTH, STATE};
    static struct simulation_fabric fabric;
    const struct simulation_options o = {
        .plan = plan,
        .trainers = MACHINES,
        .n = N,
        .gradient = no_gradient,
        .steps = STEPS,
        .step_s = 0.1,
        .spread = 0.2,
        .rate = 1,
        .die_at = die,
        .join_s = join,
        .tables = &table,
        .n_tables = 1,
        .rows_part = PART,
        .rows = change_rows,
        .fabric = &fabric,
        .world = {.latency_s = 1e-3, .jitter_s = 1e-3, .bytes_per_s = 1e6, .seed = seed}};
    struct simulation *sim = NULL;

    rows = *fabric_mpi.rows;
    rows.leave = leave_rows;
    type = fabric_mpi;
    type.open = open_ranks;
    type.rows = &rows;
    fabric = simulated_ranks;
    fabric.type = &type;
    left = 0;
    memset(tables_of, 0, sizeof tables_of);
    memset(&s, 0, sizeof s);
    rng_init(&s.rng, seed);
    ck_assert_int_eq(simulation_run(&sim, &o), DESCANT_OK);
    ck_assert_int_gt(left, 0);
    return sim;
}

static const char *const plans[] = {"shadow-easgd,hot=0", "shadow-ma,hot=0",
                                    "ma,every=5,hot=0"};

/* Trainers that live have the same rows; lossy: whose work may be lost. */
static void check_rows(const struct simulation *sim, const bool *lossy)
{
    int first = -1;

    for (int i = 0; i < MACHINES; i++) {
        const struct simulation_trainer x = simulation_look(sim, i);
        if (x.dead)
            continue;
        first = first < 0 ? i : first;
        const struct table *a = &simulation_look(sim, first).tables->list[0];
        const struct table *b = &x.tables->list[0];
        ck_assert_mem_eq(a->w, b->w, ROWS * WIDTH * sizeof(float));
        ck_assert_mem_eq(a->state, b->state, ROWS * STATE * sizeof(float));
    }
    const struct table *x = &simulation_look(sim, first).tables->list[0];
    for (uint64_t row = 0; row < ROWS; row++) {
        double least = first_value(row), most = least;
        for (int i = 0; i < MACHINES; i++) {
            least += lossy[i] ? 0 : s.of[i][row];
            most += s.of[i][row];
        }
        ck_assert_msg(x->w[row * WIDTH] >= least && x->w[row * WIDTH] <= most,
                      "row %d is %g, of %g to %g", (int)row, (double)x->w[row * WIDTH],
                      least, most);
        ck_assert(x->w[row * WIDTH] == x->w[row * WIDTH + WIDTH - 1]);
        ck_assert(x->state[row * STATE] == x->w[row * WIDTH] - first_value(row));
    }
}

START_TEST(dead_machines_leave_the_others_alike)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        const uint64_t die[MACHINES] = {seed % 3 == 0 ? 25 : 0, 11 + 3 * seed, 0,
                                        seed % 2 ? 40 : 0};
        const bool lossy[MACHINES] = {die[0] > 0, true, false, die[3] > 0};
        struct simulation *sim = run(plans[_i], seed, die, NULL);
        ck_assert(simulation_look(sim, 1).dead);
        check_rows(sim, lossy);
        simulation_destroy(sim);
    }
}
END_TEST

/* What it adds is in, too: it has the others' rows before it begins. */
START_TEST(a_machine_that_comes_late_has_the_rows)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        const double join[MACHINES] = {0, 0, 2 + (double)seed / 3, 4};
        const bool lossy[MACHINES] = {false};
        struct simulation *sim = run(plans[_i], seed, NULL, join);
        ck_assert_uint_gt(simulation_look(sim, 2).tables->stats.rounds, 3);
        ck_assert_uint_gt(simulation_look(sim, 3).tables->stats.rounds, 3);
        check_rows(sim, lossy);
        simulation_destroy(sim);
    }
}
END_TEST

START_TEST(some_come_and_some_die)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        const double join[MACHINES] = {0, 0, 0, 1 + (double)seed / 2};
        const uint64_t die[MACHINES] = {seed % 2 ? 30 : 0, seed % 2 ? 0 : 35, 0, 0};
        const bool lossy[MACHINES] = {die[0] > 0, die[1] > 0, false, false};
        struct simulation *sim = run(plans[_i], seed, die, join);
        check_rows(sim, lossy);
        simulation_destroy(sim);
    }
}
END_TEST

int main(void)
{
    TCase *all = new_case("tables", 60);
    enum { PLANS = sizeof plans / sizeof *plans };
    tcase_add_loop_test(all, dead_machines_leave_the_others_alike, 0, PLANS);
    tcase_add_loop_test(all, a_machine_that_comes_late_has_the_rows, 0, PLANS);
    tcase_add_loop_test(all, some_come_and_some_die, 0, PLANS);
    return run_cases(all, NULL);
}
