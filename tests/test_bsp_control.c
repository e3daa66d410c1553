/* SPDX-License-Identifier: MIT */
/* Control and its local modules in one process, with ML modules that are this process, too:
 * supersteps against a scalar reference, to the bit, and what a segment of a dead run means. */
#include "bsp/control.h"
#include "nn/nn.h"

#include "harness/segments.h"
#include "harness/suite.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>

/* The model is larger than a piece of a step. */
enum { FLOATS = 10007, LOCALS = 2, SLOTS = 2, STATE = 2 * FLOATS, BOUND = 3 };

static struct optimizer optimizer;
static float model[FLOATS], state[STATE], want[FLOATS], want_state[STATE];
static struct local *locals[LOCALS];
static struct descant_ml *modules[LOCALS][SLOTS];
static struct control *control;
static char names[LOCALS][64];

static const double rate = 0.5;

static void step(void *of, const struct control_piece *piece)
{
    const struct optimizer_piece p = {piece->w, piece->g, state, piece->at, piece->n, FLOATS};
    ck_assert_ptr_eq(of, &optimizer);
    optimizer_step_piece(&optimizer, &p, rate, piece->step);
}

static void open_local(int k, uint64_t version)
{
    const struct segment_part parts[] = {{.name = "b", .n = 1}, {.name = "w", .n = FLOATS - 1}};
    const struct segment_options o = {.name = names[k], .slots = SLOTS, .bound = BOUND,
                                      .parts = parts, .n_parts = 2, .model = model,
                                      .version = version};
    ck_assert_msg(local_open(&locals[k], &o) == DESCANT_OK, "%s", descant_last_error());
}

static struct control_options how(uint64_t version)
{
    return (struct control_options){.locals = locals, .n_locals = LOCALS, .n = FLOATS, .w = model,
                                    .version = version, .bound = BOUND, .step = step,
                                    .of = &optimizer};
}

static void open_control(const struct control_options *o)
{
    ck_assert_msg(control_create(&control, o) == DESCANT_OK, "%s", descant_last_error());
}

static void name_all(void)
{
    for (int k = 0; k < LOCALS; k++) {
        new_name();
        snprintf(names[k], sizeof names[k], "%s", segment_name);
    }
}

static void attach_all(void)
{
    for (int k = 0; k < LOCALS; k++)
        for (int s = 0; s < SLOTS; s++)
            ck_assert_int_eq(descant_ml_attach(&modules[k][s], names[k], 0), DESCANT_OK);
}

static void open_all(const struct control_options *o)
{
    name_all();
    for (int i = 0; i < FLOATS; i++)
        model[i] = want[i] = (float)(i % 5) - 2;
    for (int k = 0; k < LOCALS; k++)
        open_local(k, o->version);
    open_control(o);
    attach_all();
}

static void close_all(void)
{
    for (int k = 0; k < LOCALS; k++) {
        for (int s = 0; s < SLOTS; s++)
            descant_ml_detach(modules[k][s]);
        local_close(locals[k]);
    }
    control_destroy(control);
    ck_assert_int_eq(memory_live(), 0);
}

/* What a module of segment k reads is `want`, of that version. */
static void expect_model(int k, uint64_t version)
{
    struct descant_ml_model is;
    ck_assert_int_eq(descant_ml_pin(modules[k][0], &is), DESCANT_OK);
    ck_assert_uint_eq(is.version, version);
    ck_assert_int_eq(memcmp(is.values, want, sizeof want), 0);
}

/* Who adds how many examples in which superstep; in each they are a power of two. */
static const struct {
    int superstep, local, slot;
    uint64_t examples;
} adds[] = {
    {0, 0, 0, 3}, {0, 0, 1, 1}, {0, 1, 0, 4},
    {1, 1, 1, 1},
    {2, 0, 0, 5}, {2, 0, 0, 2}, {2, 1, 0, 8}, {2, 1, 1, 1},
    {3, 0, 1, 2}, {3, 1, 1, 2}, {3, 0, 0, 28},
};
enum { N_ADDS = sizeof adds / sizeof *adds, SUPERSTEPS = 4 };

/* The rule, by hand: the sum over the adds of a superstep, divided by its examples. */
static void refer(int superstep)
{
    float g[FLOATS] = {0};
    double examples = 0;
    for (int a = 0; a < N_ADDS; a++) {
        if (adds[a].superstep != superstep)
            continue;
        examples += (double)adds[a].examples;
        for (int i = 0; i < FLOATS; i++)
            g[i] += (float)adds[a].examples * added(a, i);
    }
    for (int i = 0; i < FLOATS; i++) {
        g[i] = (float)((double)g[i] / examples);
        if (optimizer.kind == OPTIMIZER_SGD && optimizer.momentum == 0)
            want[i] -= (float)rate * g[i];
    }
    if (optimizer.kind != OPTIMIZER_SGD || optimizer.momentum > 0)
        optimizer_step(&optimizer, want, g, want_state, FLOATS, rate, (uint64_t)superstep + 1);
}

static const struct optimizer optimizers[] = {
    {.kind = OPTIMIZER_SGD},
    {.kind = OPTIMIZER_SGD, .momentum = 0.9},
    {.kind = OPTIMIZER_ADAGRAD, .epsilon = 1e-8},
    {.kind = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8},
    {.kind = OPTIMIZER_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .l2 = 0.01},
};

START_TEST(supersteps_are_exact)
{
    const struct control_options o = how(1);
    struct superstep s;
    optimizer = optimizers[_i];
    open_all(&o);
    for (int step_number = 0; step_number < SUPERSTEPS; step_number++) {
        uint64_t gradients = 0, examples = 0;
        for (int a = 0; a < N_ADDS; a++)
            if (adds[a].superstep == step_number) {
                add_numbers(modules[adds[a].local][adds[a].slot], a, adds[a].examples);
                gradients++;
                examples += adds[a].examples;
            }
        ck_assert_uint_eq(control_pending(control), gradients);
        ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
        refer(step_number);
        ck_assert(s.stepped && s.sums.gradients == gradients && s.sums.examples == examples);
        for (int k = 0; k < LOCALS; k++)
            expect_model(k, (uint64_t)step_number + 2);
    }
    ck_assert_uint_eq(control_steps(control), SUPERSTEPS);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    ck_assert(!s.stepped);
    expect_model(0, SUPERSTEPS + 1);
    close_all();
}
END_TEST

/* All in one slot, whose room comes round again while they wait for more. */
START_TEST(sums_that_wait_are_kept)
{
    enum { ADDS = 6 };
    struct control_options o = how(1);
    struct superstep s;
    double squares = 0;
    o.min_gradients = ADDS;
    optimizer = optimizers[0];
    open_all(&o);
    for (int k = 0; k < ADDS; k++) {
        add_numbers(modules[0][0], k, 1);
        ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    }
    for (int i = 0; i < FLOATS; i++) {
        double sum = 0;
        for (int k = 0; k < ADDS; k++)
            sum += (double)added(k, i);
        squares += sum * sum;
    }
    ck_assert(s.stepped && s.sums.examples == ADDS);
    ck_assert_double_eq_tol(s.norm, sqrt(squares) / ADDS, 1e-9);
    close_all();
}
END_TEST

/* Those that were read out already count with those that come. */
START_TEST(too_few_gradients_wait)
{
    struct control_options o = how(1);
    struct superstep s;
    o.min_gradients = 3;
    optimizer = optimizers[0];
    open_all(&o);
    add_numbers(modules[0][0], 0, 3);
    add_numbers(modules[0][1], 1, 1);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    ck_assert(!s.stepped && s.sums.gradients == 2);
    expect_model(1, 1);
    ck_assert_uint_eq(control_pending(control), 2);
    add_numbers(modules[1][0], 2, 4);
    ck_assert_uint_eq(control_pending(control), 3);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    ck_assert(s.stepped && s.sums.gradients == 3 && s.sums.examples == 8);
    refer(0);
    expect_model(0, 2);
    ck_assert_uint_eq(control_pending(control), 0);
    close_all();
}
END_TEST

/* Virtual time, in ticks: a module takes `compute` from reading the model to the commit, control
 * `store` from a read-out to the store. What counts is at most ceil((compute + store) / period)
 * versions behind the model that it changes, and that does happen. Another module commits in each
 * tick, so that no superstep is without. */
static const struct slow_pace {
    int period, compute, store;
} paces[] = {{7, 3, 1},  {7, 6, 5},  {7, 7, 7}, {7, 14, 2},
             {7, 12, 7}, {7, 20, 1}, {7, 36, 3}};

/* The slow module has two slots in turns: it may read for its next gradient, in the tick of a
 * read-out whose store it does not see yet, before it has committed this one. */
struct slow {
    int slot, reads_at, commits_at;
    bool has_read;              /* for the next */
    uint64_t version[SLOTS], waits;     /* what was read for the one that waits; 0: none does */
    uint64_t behind, refused;
};

static void slow_reads(struct slow *m)
{
    struct descant_ml_model is;
    int next = 1 - m->slot;
    if (!m->has_read)
        ck_assert_int_eq(descant_ml_pin(modules[1][next], &is), DESCANT_OK);
    if (!m->has_read)
        m->version[next] = is.version;
    m->has_read = true;
}

static void slow_commits(struct slow *m)
{
    static const float gradient[FLOATS];
    descant_status status = descant_ml_add(modules[1][m->slot], gradient, 1);
    ck_assert(status == DESCANT_OK || status == DESCANT_STALE);
    m->refused += status == DESCANT_STALE;
    if (status == DESCANT_OK && m->waits == 0)
        m->waits = m->version[m->slot];
}

static void superstep_with(struct slow *m)
{
    struct superstep s;
    uint64_t behind = m->waits ? control_version(control) - m->waits : 0;
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    m->behind = behind > m->behind ? behind : m->behind;
    m->waits = 0;
}

static void slow_run(struct slow *m, const struct slow_pace *pace)
{
    enum { TICKS = 210 };
    for (int tick = 0; tick < TICKS; tick++) {
        add_numbers(modules[0][0], 0, 1);
        if (tick == m->commits_at)
            slow_commits(m);
        if (tick % pace->period == 0) {
            if (m->reads_at < tick + pace->store)
                slow_reads(m);
            superstep_with(m);
        }
        if (tick == m->reads_at) {
            slow_reads(m);
            m->slot = 1 - m->slot;
            m->has_read = false;
            m->reads_at = m->commits_at = tick + pace->compute;
        }
    }
}

START_TEST(staleness_has_its_bound)
{
    const struct slow_pace *pace = &paces[_i];
    const int most = (pace->compute + pace->store + pace->period - 1) / pace->period;
    const struct control_options o = how(1);
    uint64_t behind = 0, refused = 0;
    optimizer = optimizers[0];
    for (int offset = 0; offset < pace->period; offset++) {
        struct slow m = {.reads_at = offset, .commits_at = -1};
        open_all(&o);
        slow_run(&m, pace);
        close_all();
        behind = m.behind > behind ? m.behind : behind;
        refused += m.refused;
    }
    if (most > BOUND)
        ck_assert_uint_gt(refused, 0);
    else
        ck_assert_msg(refused == 0 && behind == (uint64_t)most, "%d behind, %d refused",
                      (int)behind, (int)refused);
}
END_TEST

START_TEST(staleness_is_told)
{
    const struct control_options o = how(1);
    struct superstep s;
    float gradient[FLOATS] = {0};
    open_all(&o);
    add_numbers(modules[0][0], 0, 1);
    expect_model(1, 1);             /* segment 1, slot 0 pins version 1 */
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    ck_assert(s.sums.lag == 0 && s.sums.lag_most == 0);
    add_numbers(modules[0][0], 0, 1);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    ck_assert_int_eq(descant_ml_add(modules[1][0], gradient, 1), DESCANT_OK);
    add_numbers(modules[0][1], 0, 1);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    ck_assert(s.sums.gradients == 2 && s.sums.lag == 2 && s.sums.lag_most == 2);
    close_all();
}
END_TEST

START_TEST(a_long_gradient_is_clipped)
{
    struct control_options o = how(1);
    struct superstep s;
    float gradient[FLOATS] = {3, 4};
    o.clip = 2.5;
    optimizer = optimizers[0];
    open_all(&o);
    add_numbers(modules[0][0], 0, 1);
    ck_assert_int_eq(descant_ml_drop(modules[0][0]), DESCANT_OK);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    memcpy(want, model, sizeof want);
    expect_model(1, 2);
    ck_assert_int_eq(descant_ml_add(modules[1][0], gradient, 2), DESCANT_OK);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    ck_assert_double_eq(s.norm, 5);
    want[0] -= 0.5f * 1.5f;
    want[1] -= 0.5f * 2;
    expect_model(1, 3);
    close_all();
}
END_TEST

static void spoil(void *of, const struct control_piece *piece)
{
    (void)of;
    if (piece->at)
        piece->w[5] = NAN;
}

START_TEST(a_model_with_nan_is_not_stored)
{
    struct control_options o = how(1);
    struct superstep s;
    o.step = spoil;
    open_all(&o);
    add_numbers(modules[0][0], 0, 1);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_NOT_FINITE);
    expect_said("float 4101 NaN");
    expect_model(0, 1);
    expect_model(1, 1);
    close_all();
}
END_TEST

/* Each is finite, and their sum is not. */
START_TEST(sums_that_overflow_together_are_left_out)
{
    const struct control_options o = how(1);
    struct superstep s;
    float gradient[FLOATS] = {[FLOATS - 1] = 2e38f};
    optimizer = optimizers[0];
    open_all(&o);
    for (int k = 0; k < LOCALS; k++) {
        expect_model(k, 1);
        ck_assert_int_eq(descant_ml_add(modules[k][0], gradient, 1), DESCANT_OK);
    }
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    ck_assert(!s.stepped);
    expect_model(0, 1);
    for (int a = 0; a < 3; a++)
        add_numbers(modules[adds[a].local][adds[a].slot], a, adds[a].examples);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    refer(0);
    expect_model(0, 2);
    close_all();
}
END_TEST

/* A run that keeps both segments, makes some supersteps, and dies. */
static uint64_t run_that_dies(int supersteps)
{
    int ends[2];
    uint64_t version = 0;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        const struct control_options o = how(1);
        struct superstep s;
        for (int k = 0; k < LOCALS; k++)
            open_local(k, 1);
        open_control(&o);
        attach_all();
        for (int i = 0; i < supersteps; i++) {
            add_numbers(modules[0][0], i, 1);
            control_superstep(control, &s);
        }
        add_numbers(modules[1][1], 9, 1);                /* nobody takes it */
        version = control_version(control);
        if (write(ends[1], &version, sizeof version) < 0)
            _exit(1);
        raise(SIGKILL);
    }
    ck_assert_int_eq(read(ends[0], &version, sizeof version), sizeof version);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    close(ends[0]);
    close(ends[1]);
    return version;
}

START_TEST(what_a_dead_run_left_is_undone)
{
    struct superstep s;
    struct descant_ml_model is;
    float gradient[FLOATS] = {1};
    struct local_figures figures;
    optimizer = optimizers[0];
    name_all();
    uint64_t died_at = run_that_dies(4);
    ck_assert_uint_eq(died_at, 5);
    struct descant_ml *there;
    ck_assert_int_eq(descant_ml_attach(&there, names[0], 0), DESCANT_OK);
    ck_assert_int_eq(descant_ml_pin(there, &is), DESCANT_OK);
    ck_assert_uint_eq(is.version, died_at);
    ck_assert_int_eq(descant_ml_add(there, gradient, 1), DESCANT_OK);

    for (int i = 0; i < FLOATS; i++)
        model[i] = want[i] = (float)i;
    for (int k = 0; k < LOCALS; k++)
        open_local(k, 2);
    const struct control_options o = how(2);
    open_control(&o);
    uint64_t first = control_version(control);
    ck_assert_uint_eq(first, died_at + BOUND + 1);
    ck_assert_int_eq(descant_ml_add(there, gradient, 1), DESCANT_STALE);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    ck_assert(!s.stepped && s.sums.gradients == 0 && s.sums.undone == 2);
    local_figures(locals[0], &figures);
    ck_assert(figures.gradients == 0 && figures.stale == 1 && figures.attached == 1);
    ck_assert_int_eq(descant_ml_pin(there, &is), DESCANT_OK);
    ck_assert_uint_eq(is.version, first);
    ck_assert_int_eq(memcmp(is.values, want, sizeof want), 0);
    ck_assert_int_eq(descant_ml_add(there, gradient, 1), DESCANT_OK);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    ck_assert(s.stepped && s.sums.gradients == 1);
    ck_assert_uint_eq(control_version(control), first + 1);
    descant_ml_detach(there);
    for (int k = 0; k < LOCALS; k++)
        local_close(locals[k]);
    control_destroy(control);
}
END_TEST

/* A branch may get two models before it reads out for the first time, and only with the first
 * one does it know that the segment is taken over. */
START_TEST(what_was_left_is_undone_also_after_two_models)
{
    struct local_sums sums = {0};
    struct gradient g;
    static float sum[FLOATS];
    optimizer = optimizers[0];
    name_all();
    uint64_t version = run_that_dies(4) + BOUND + 1;
    for (int k = 0; k < LOCALS; k++)
        open_local(k, 2);
    ck_assert(local_taken_over(locals[1]));
    local_store(locals[1], model, version, version);
    local_store(locals[1], model, version + 1, 1);
    ck_assert(gradient_init(&g, sum, FLOATS, SEGMENT_SLOTS));
    gradient_clear(&g);
    local_read_out(locals[1], &g, &sums);
    ck_assert(sums.gradients == 0 && sums.undone == 1);
    gradient_fini(&g);
    for (int k = 0; k < LOCALS; k++)
        local_close(locals[k]);
}
END_TEST

/* A process that goes on with the same run: no gradient of before is too old, and those that
 * were not read out count. */
START_TEST(an_heir_goes_on_with_the_run)
{
    struct superstep s;
    float gradient[FLOATS] = {1};
    optimizer = optimizers[0];
    name_all();
    uint64_t died_at = run_that_dies(4);
    struct descant_ml *there;
    struct descant_ml_model is;
    ck_assert_int_eq(descant_ml_attach(&there, names[0], 0), DESCANT_OK);
    ck_assert_int_eq(descant_ml_pin(there, &is), DESCANT_OK);
    ck_assert_int_eq(descant_ml_add(there, gradient, 1), DESCANT_OK);
    for (int k = 0; k < LOCALS; k++)
        open_local(k, 1);
    struct control_options o = how(died_at);
    o.since = 1;
    open_control(&o);
    ck_assert_uint_eq(control_version(control), died_at);
    ck_assert_int_eq(descant_ml_add(there, gradient, 1), DESCANT_OK);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
    ck_assert(s.stepped && s.sums.gradients == 3 && s.sums.undone == 0);
    ck_assert_int_eq(descant_ml_pin(there, &is), DESCANT_OK);
    ck_assert_uint_eq(is.version, died_at + 1);
    descant_ml_detach(there);
    for (int k = 0; k < LOCALS; k++)
        local_close(locals[k]);
    control_destroy(control);
}
END_TEST

static void step_by_half(void *of, const struct control_piece *piece)
{
    (void)of;
    for (size_t i = 0; i < piece->n; i++)
        piece->w[i] -= 0.5F * piece->g[i];
}

/* So large that it is stored past the caches. */
START_TEST(a_large_model_is_stored)
{
    enum { MANY = (4 << 20) + 5 };
    const struct segment_part part = {.name = "w", .n = MANY};
    float *w = memory_take_array(MANY, sizeof *w), *g = memory_take_array(MANY, sizeof *g);
    struct descant_ml_model is;
    struct superstep s;
    ck_assert(w && g);
    name_all();
    const struct segment_options segment = {.name = names[0], .slots = 1, .bound = BOUND,
                                            .parts = &part, .n_parts = 1, .model = w, .version = 1};
    ck_assert_int_eq(local_open(&locals[0], &segment), DESCANT_OK);
    struct control_options o = how(1);
    o.n_locals = 1;
    o.n = MANY;
    o.w = w;
    o.step = step_by_half;
    open_control(&o);
    ck_assert_int_eq(descant_ml_attach(&modules[0][0], names[0], 0), DESCANT_OK);
    for (int k = 1; k <= 2; k++) {
        for (int i = 0; i < MANY; i++)
            g[i] = added(k, i);
        ck_assert_int_eq(descant_ml_pin(modules[0][0], &is), DESCANT_OK);
        ck_assert_int_eq(descant_ml_add(modules[0][0], g, 1), DESCANT_OK);
        ck_assert_int_eq(control_superstep(control, &s), DESCANT_OK);
        ck_assert_int_eq(descant_ml_pin(modules[0][0], &is), DESCANT_OK);
        ck_assert_uint_eq(is.version, 1 + (uint64_t)k);
        int wrong = 0;
        for (int i = 0; i < MANY; i++)
            wrong += is.values[i] != -0.5F * (added(1, i) + (k > 1 ? added(2, i) : 0));
        ck_assert_int_eq(wrong, 0);
    }
    w[MANY - 1] = (float)NAN;       /* tested while it is copied */
    ck_assert_int_eq(descant_ml_add(modules[0][0], g, 1), DESCANT_OK);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_NOT_FINITE);
    ck_assert_int_eq(descant_ml_pin(modules[0][0], &is), DESCANT_OK);
    ck_assert_uint_eq(is.version, 3);
    descant_ml_detach(modules[0][0]);
    local_close(locals[0]);
    control_destroy(control);
    memory_give(w);
    memory_give(g);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* A segment that comes back while the run ends for NaN. */
START_TEST(a_model_with_nan_is_not_stored_later_either)
{
    struct control_options o = how(1);
    struct superstep s;
    struct descant_ml_model is;
    char dead[sizeof names[1]];
    optimizer = optimizers[0];
    name_all();
    uint64_t died_at = run_that_dies(1);
    memcpy(dead, names[1], sizeof dead);
    new_name();
    memcpy(names[1], segment_name, sizeof segment_name);
    for (int k = 0; k < LOCALS; k++)
        open_local(k, 1);
    o.step = spoil;
    open_control(&o);
    attach_all();
    add_numbers(modules[0][0], 0, 1);
    ck_assert_int_eq(control_superstep(control, &s), DESCANT_NOT_FINITE);

    for (int i = 0; i < SLOTS; i++)
        descant_ml_detach(modules[1][i]);
    local_close(locals[1]);
    memcpy(names[1], dead, sizeof dead);
    open_local(1, 1);
    control_meet(control);
    ck_assert_int_eq(descant_ml_attach(&modules[1][0], names[1], 0), DESCANT_OK);
    ck_assert_int_eq(descant_ml_attach(&modules[1][1], names[1], 0), DESCANT_OK);
    ck_assert_int_eq(descant_ml_pin(modules[1][0], &is), DESCANT_OK);
    ck_assert_uint_eq(is.version, died_at);
    for (int i = 0; i < FLOATS; i++)
        ck_assert(isfinite(is.values[i]));
    close_all();
}
END_TEST

START_TEST(refused_gradients_are_told_once)
{
    const struct control_options o = how(1);
    float gradient[FLOATS] = {[FLOATS - 1] = NAN};
    int pid;
    open_all(&o);
    expect_model(0, 1);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(descant_ml_add(modules[0][0], gradient, 1), DESCANT_NOT_FINITE);
    ck_assert_uint_eq(local_bad(locals[0], &pid), 3);
    ck_assert_int_eq(pid, getpid());
    ck_assert_uint_eq(local_bad(locals[0], &pid), 0);
    ck_assert_uint_eq(local_bad(locals[1], &pid), 0);
    close_all();
}
END_TEST

int main(void)
{
    TCase *tests = new_case("control", 60);
    tcase_add_loop_test(tests, supersteps_are_exact, 0, N(optimizers));
    tcase_add_test(tests, too_few_gradients_wait);
    tcase_add_test(tests, sums_that_wait_are_kept);
    tcase_add_test(tests, staleness_is_told);
    tcase_add_loop_test(tests, staleness_has_its_bound, 0, N(paces));
    tcase_add_test(tests, a_long_gradient_is_clipped);
    tcase_add_test(tests, a_model_with_nan_is_not_stored);
    tcase_add_test(tests, a_model_with_nan_is_not_stored_later_either);
    tcase_add_test(tests, a_large_model_is_stored);
    tcase_add_test(tests, sums_that_overflow_together_are_left_out);
    tcase_add_test(tests, what_a_dead_run_left_is_undone);
    tcase_add_test(tests, what_was_left_is_undone_also_after_two_models);
    tcase_add_test(tests, an_heir_goes_on_with_the_run);
    tcase_add_test(tests, refused_gradients_are_told_once);
    return run_cases(tests, NULL);
}
