/* SPDX-License-Identifier: MIT */
/* Optimizers against their formulas, and every instruction set's loops against the base ones. */
#include "harness/nn.h"
#include "harness/suite.h"
#include "nn/loops.h"

/* --- optimizers --- */

static const struct optimizer optimizers[] = {
    {.kind = OPTIMIZER_SGD},
    {.kind = OPTIMIZER_SGD, .l2 = 0.02},
    {.kind = OPTIMIZER_SGD, .momentum = 0.9, .l2 = 0.02},
    {.kind = OPTIMIZER_ADAGRAD, .epsilon = 1e-3, .l2 = 0.02},
    {.kind = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-3, .l2 = 0.02},
    {.kind = OPTIMIZER_ADAMW, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .l2 = 0.3},
    {.kind = OPTIMIZER_FTRL, .beta = 0.3},
    {.kind = OPTIMIZER_FTRL, .beta = 0.01, .l1 = 1, .l2 = 0.5},
};

/* FTRL-proximal as McMahan et al. 2013 write it: s is n and z, w is made of them. */
static double naive_ftrl(const struct optimizer *o, double w, double g, double *s, double lr,
                         int step)
{
    double sign = w > 0 ? 1 : -1;
    if (step == 1)
        s[1] = -w * (o->beta / lr + o->l2) - sign * o->l1;
    double more = (sqrt(s[0] + g * g) - sqrt(s[0])) / lr;
    s[0] += g * g;
    s[1] += g - more * w;
    sign = s[1] > 0 ? 1 : -1;
    return fabs(s[1]) <= o->l1 ? 0
                               : -(s[1] - sign * o->l1) / ((o->beta + sqrt(s[0])) / lr + o->l2);
}

/* One parameter of PyTorch's optimizers. */
static double naive_step(const struct optimizer *o, double w, double g, double *s, double lr,
                         int step)
{
    if (o->kind == OPTIMIZER_FTRL)
        return naive_ftrl(o, w, g, s, lr, step);
    if (o->kind == OPTIMIZER_ADAMW)
        w -= lr * o->l2 * w;
    else
        g += o->l2 * w;
    if (o->kind == OPTIMIZER_SGD) {
        s[0] = o->momentum * s[0] + g;
        return w - lr * s[0];
    }
    if (o->kind == OPTIMIZER_ADAGRAD) {
        s[0] += g * g;
        return w - lr * g / (sqrt(s[0]) + o->epsilon);
    }
    s[0] = o->beta1 * s[0] + (1 - o->beta1) * g;
    s[1] = o->beta2 * s[1] + (1 - o->beta2) * g * g;
    double mean = s[0] / (1 - pow(o->beta1, step)), square = s[1] / (1 - pow(o->beta2, step));
    return w - lr * mean / (sqrt(square) + o->epsilon);
}

START_TEST(optimizers_as_naive)
{
    enum { SIZE = 37 };
    const struct optimizer *o = &optimizers[_i];
    float w[SIZE], g[SIZE], *state = memory_take_array(optimizer_floats(o, SIZE), sizeof *state);
    double naive[SIZE], s[SIZE][2] = {{0}};
    struct rng rng;
    rng_init(&rng, 4);
    for (int k = 0; k < SIZE; k++)
        naive[k] = (double)(w[k] = (float)rng_normal(&rng));
    int zeros = 0;
    for (int step = 1; step <= 12; step++) {
        for (int k = 0; k < SIZE; k++) {
            g[k] = (float)rng_normal(&rng);
            naive[k] = naive_step(o, naive[k], (double)g[k], s[k], 0.05, step);
        }
        optimizer_step(o, w, g, state, SIZE, 0.05, (uint64_t)step);
        for (int k = 0; k < SIZE; k++) {
            ck_assert_double_eq_tol((double)w[k], naive[k], 1e-5);
            zeros += !(w[k] < 0 || w[k] > 0);
        }
    }
    ck_assert((zeros > 0) == (o->l1 > 0));
    memory_give(state);
}
END_TEST

START_TEST(row_optimizers_as_naive)
{
    enum { ROWS = 9, WIDTH = 17, TOUCHED = 4 };
    const struct optimizer o = {.rows = (enum row_optimizer_kind)_i, .epsilon = 1e-3, .l2 = 9};
    float tables[ROWS * WIDTH], g[TOUCHED * WIDTH];
    double naive[ROWS * WIDTH], each[ROWS * WIDTH] = {0}, mean[ROWS] = {0};
    float *state = memory_take_array(optimizer_row_floats(&o, ROWS, WIDTH), sizeof *state);
    struct rng rng;
    rng_init(&rng, 4);
    for (int k = 0; k < ROWS * WIDTH; k++)
        naive[k] = (double)(tables[k] = (float)rng_normal(&rng));
    for (int step = 0; step < 8; step++) {
        uint64_t rows[TOUCHED], first = rng_next(&rng) % ROWS;
        for (int k = 0; k < TOUCHED * WIDTH; k++)
            g[k] = (float)rng_normal(&rng);
        for (int r = 0; r < TOUCHED; r++) {
            rows[r] = (first + 2 * (uint64_t)r) % ROWS;
            double squares = 0;
            for (int c = 0; c < WIDTH; c++)
                squares += (double)g[r * WIDTH + c] * (double)g[r * WIDTH + c];
            mean[rows[r]] += squares / WIDTH;
            for (int c = 0; c < WIDTH; c++) {
                size_t at = rows[r] * WIDTH + (size_t)c;
                double x = (double)g[r * WIDTH + c];
                each[at] += x * x;
                double by = o.rows == ROWS_SGD ? 1
                            : o.rows == ROWS_ADAGRAD
                                ? sqrt(each[at]) + o.epsilon
                                : sqrt(mean[rows[r]]) + o.epsilon;
                naive[at] -= 0.1 * x / by;
            }
        }
        struct row_grads grads = {.n = TOUCHED, .width = WIDTH, .rows = rows, .grads = g};
        optimizer_rows_step(&o, tables, state, &grads, 0.1);
        for (int k = 0; k < ROWS * WIDTH; k++)
            ck_assert_double_eq_tol((double)tables[k], naive[k], 1e-5);
    }
    memory_give(state);
}
END_TEST

/* Steps of FTRL on a model whose features are multiplied by `unit`; scores: of the last
 * batch. Returns the sum of the losses. */
static double train_ftrl(const struct model_shape *shape, double unit, float *scores)
{
    enum { STEPS = 60, BATCH = 4 };
    const struct optimizer o = {.kind = OPTIMIZER_FTRL, .rows = ROWS_FTRL, .beta = 0.3, .l1 = 0.01};
    static struct batch batch;
    struct trained t = trained_create(shape, BATCH);
    size_t n = model_floats(t.model), rows = model_table_rows(t.model);
    int width = model_table_width(t.model);
    float *g = memory_take_array(n, sizeof *g);
    float *state = memory_take_array(optimizer_floats(&o, n), sizeof *state);
    float *row_state = memory_take_array(optimizer_row_floats(&o, rows, width), sizeof *state);
    double loss = 0;
    struct rng rng;
    rng_init(&rng, 3);
    for (int step = 1; step <= STEPS; step++) {
        batch_fill(&batch, shape, BATCH, true, &rng);
        for (size_t i = 0; i < BATCH; i++)
            batch.labels[i] = batch.dense[i * (size_t)shape->n_dense] > 0;
        for (size_t k = 0; k < batch.offsets[BATCH * shape->n_fields]; k++)
            batch.values[k] *= (float)unit;
        ck_assert(work_ahead(t.work, &batch.examples));
        double sum = optimizer_rows_meet(&o, t.tables, row_state, work_rows(t.work));
        ck_assert(sum > 0);
        loss += model_gradient(t.work, t.w, t.tables, &batch.examples, g, scores);
        optimizer_rows_step(&o, t.tables, row_state, work_rows(t.work), 0.1);
        optimizer_step(&o, t.w, g, state, n, 0.1, (uint64_t)step);
    }
    memory_give(g);
    memory_give(state);
    memory_give(row_state);
    trained_destroy(&t);
    return loss;
}

/* The unit that a feature is written in does not matter; and something is learnt. */
START_TEST(rows_of_ftrl_know_their_scale)
{
    float plain[8], thousands[8], thousandths[8];
    const struct model_shape *shape = &shapes[_i];
    double loss = train_ftrl(shape, 1, plain);
    ck_assert_double_lt(loss, 60 * 4 * log(2));
    ck_assert_double_eq_tol(train_ftrl(shape, 1024, thousands), loss, 1e-3 * loss);
    ck_assert_double_eq_tol(train_ftrl(shape, 1.0 / 1024, thousandths), loss, 1e-3 * loss);
    assert_near(thousands, plain, 4, 1e-3, "thousands");
    assert_near(thousandths, plain, 4, 1e-3, "thousandths");
}
END_TEST

/* Rates of 0, as schedules end with, change nothing. */
START_TEST(ftrl_stands_still_at_rate_0)
{
    const struct optimizer o = {.kind = OPTIMIZER_FTRL, .rows = ROWS_FTRL, .beta = 0.3, .l1 = 0.01};
    float w[] = {1, -2, 0}, g[] = {3, 0, 1}, state[6] = {0}, row_state[8] = {1, 1};
    const float inputs[] = {1, 1};
    const uint64_t row = 0;
    const struct row_grads rows = {.n = 1, .width = 3, .n_weights = 1, .rows = &row, .grads = g,
                                   .inputs = inputs};
    optimizer_step(&o, w, g, state, 3, 0, 1);
    optimizer_rows_step(&o, w, row_state, &rows, 0);
    ck_assert(w[0] >= 1 && w[0] <= 1 && w[1] >= -2 && w[1] <= -2 && w[2] >= 0 && w[2] <= 0);
}
END_TEST

/* Without beta nothing but gradients says how far to step: none, and those whose square is no float,
 * leave a weight where it is. */
static const struct {
    float beta, g, scale;
} faint[] = {{0, 0, 1}, {0, 1e-30f, 1}, {0, 1e-21f, 1}, {0.3f, 1.6e-19f, 1.6e-19f}};

START_TEST(ftrl_steps_by_faint_gradients)
{
    const struct optimizer o = {.kind = OPTIMIZER_FTRL, .rows = ROWS_FTRL,
                                .beta = (double)faint[_i].beta};
    float g[3] = {faint[_i].g, -faint[_i].g, faint[_i].g}, scale = faint[_i].scale;
    float w[] = {1, -2, 0}, row[] = {1, -2, 0}, state[6] = {0};
    float row_state[8] = {1, scale * scale};
    const uint64_t at = 0;
    const struct row_grads rows = {.n = 1, .width = 3, .n_weights = 1, .rows = &at, .grads = g};
    nn_thread_init();
    for (int step = 1; step <= 3; step++) {
        optimizer_step(&o, w, g, state, 3, 0.5, (uint64_t)step);
        optimizer_rows_step(&o, row, row_state, &rows, 0.5);
        for (int k = 0; k < 3; k++)
            ck_assert_msg(isfinite(w[k]) && isfinite(row[k]), "%d: %g, %g", k, (double)w[k],
                          (double)row[k]);
    }
    if (!(faint[_i].g > 0))
        ck_assert(w[1] >= -2 && w[1] <= -2 && row[1] >= -2 && row[1] <= -2);
}
END_TEST

/* NaN is shown, where weights stay, too. */
START_TEST(ftrl_passes_nan_on)
{
    const struct optimizer o = {.kind = OPTIMIZER_FTRL};
    float w[] = {1, 0}, g[] = {NAN, NAN}, state[4] = {0};
    optimizer_step(&o, w, g, state, 2, 0.5, 1);
    ck_assert(isnan(w[0]) && isnan(w[1]));
}
END_TEST

/* A value whose square is no float, as a cache may have, costs its own row and not the run. */
START_TEST(ftrl_survives_an_absurd_value)
{
    float scores[8];
    ck_assert(isfinite(train_ftrl(&shapes[0], 1e25, scores)));
}
END_TEST

/* What a row has met is told by floats, which do not count on from 2^24. */
START_TEST(rows_of_ftrl_learn_their_scale_late)
{
    const float inputs[] = {1, 1.0f / 16};
    float met[] = {1 << 24, 1 << 24}, scale = 1, w = 1;
    for (int k = 0; k < 1 << 23; k++)
        scale = loops_best()->ftrl_meet(&w, met, inputs, 1);
    ck_assert_double_eq_tol((double)scale, 0.25, 0.01);
}
END_TEST

/* --- loops: every instruction set against the base one --- */

static const char *const sets[] = {"avx2", "avx512", "base"};

enum { ROOM = 6000 };

/* Six arrays of the same random values for both sets; all must be alike afterwards. */
struct loops_arena {
    float a[6][ROOM];
};

static void arena_fill(struct loops_arena *x, struct loops_arena *y, uint64_t seed)
{
    struct rng rng;
    rng_init(&rng, seed);
    for (int k = 0; k < 6; k++)
        for (int i = 0; i < ROOM; i++)
            x->a[k][i] = (float)(k == 5 ? rng_uniform(&rng) : rng_normal(&rng));
    *y = *x;
}

static void run_layers(const struct loops *l, struct loops_arena *m, size_t n, bool flag)
{
    size_t ld = n + 3;
    if (flag)
        l->fill(m->a[0] + 1, ld, m->a[1], 5, n);
    l->relu(m->a[0] + 1, ld, 5, n);
    l->mask(m->a[2], ld, flag ? m->a[0] : NULL, ld, 5, n, m->a[3]);
    l->add(m->a[4] + 1, m->a[3], n, 0.5f, flag ? 0.9f : 0);
    l->dot(m->a[3], 2, m->a[2], ld, m->a[1], 5, n);
    l->outer(m->a[2] + 1, ld, m->a[3], 2, m->a[1], 5, n);
    l->weigh(m->a[4], m->a[3], 2, m->a[2], ld, 5, n);
}

static void run_optimizers(const struct loops *l, struct loops_arena *m, size_t n)
{
    const struct ftrl ftrl = {0.1f, 1, 0.3f, 0.1f, 1.5f};
    l->ftrl(m->a[0], m->a[1], m->a[5] + 2, m->a[2], n, &ftrl);
    l->ftrl_meet(m->a[0], m->a[5] + 1, m->a[5] + 7, n);
}

static float run_rows(const struct loops *l, struct loops_arena *m, size_t width,
                      bool bags)
{
    static const uint64_t rows[12 + ROWS_AHEAD] = {3, 0, 7, 3, 9, 1, 1, 8, 2, 5, 5, 4};
    static const uint32_t offsets[] = {40, 41, 41, 44, 52};
    struct bags b = {.n_fields = 4, .offsets = bags ? offsets : NULL, .rows = rows,
                     .values = bags ? m->a[1] : NULL};
    size_t stride = (width + LANES - 1) / LANES * LANES;
    l->pool(m->a[2], stride, m->a[0], width, &b);
    l->scatter(m->a[0], width, &b, m->a[2], stride, 0.1f);
    float score = l->factors(m->a[3], m->a[4], m->a[0] + 1, width, &b);
    l->factors_back(m->a[0] + 1, width, &b, m->a[3], m->a[4], 0.3f);
    return score;
}

static void run_dots(const struct loops *l, struct loops_arena *m, size_t n, size_t width)
{
    size_t stride = (width + LANES - 1) / LANES * LANES;
    memset(m->a[0], 0, sizeof m->a[0]);
    for (size_t i = 0; i < n; i++)
        memcpy(m->a[0] + i * stride, m->a[1] + i * width, width * sizeof(float));
    l->dots(m->a[2], m->a[0], stride, n, width, m->a[3]);
    memset(m->a[3], 0, sizeof m->a[3]);
    memset(m->a[2] + n * (n - 1) / 2, 0, LANES * sizeof(float));
    l->dots_back(m->a[4], m->a[2], m->a[0], stride, n);
}

START_TEST(loops_agree)
{
    static struct loops_arena base, other;
    static const size_t sizes[] = {1, 2, 15, 16, 17, 27, 33, 64, 100};
    const struct loops *loops = loops_named(sets[_i]);
    if (!loops)
        return;
    for (int k = 0; k < 4 * N(sizes); k++) {
        size_t n = sizes[k / 4];
        float score = 0, same = 0;
        arena_fill(&base, &other, (uint64_t)k);
        for (int set = 0; set < 2; set++) {
            struct loops_arena *m = set ? &other : &base;
            const struct loops *l = set ? loops : &loops_base;
            if (k % 4 < 2)
                run_layers(l, m, n, k % 4);
            if (k % 4 == 2)
                run_optimizers(l, m, n);
            if (k % 4 == 3)
                run_dots(l, m, n < 28 ? n : 27, 16 + n / 2 % 17);
            *(set ? &score : &same) = run_rows(l, m, n / 2, k % 2);
        }
        for (int a = 0; a < 6; a++)
            assert_near(other.a[a], base.a[a], ROOM, 2e-4, loops->name);
        assert_near(&score, &same, 1, 2e-4, "score");
    }
}
END_TEST

/* --- layers of one output, relu --- */

START_TEST(one_output_as_naive)
{
    const struct loops *l = loops_named(sets[_i]);
    enum { EXAMPLES = 3, MOST_WIDE = 70 };
    for (size_t width = 0; l && width <= MOST_WIDE; width += width < 35 ? 1 : 7) {
        float x[EXAMPLES * (MOST_WIDE + 3)], w[MOST_WIDE], y[2 * EXAMPLES], was[2 * EXAMPLES];
        float dx[EXAMPLES * (MOST_WIDE + 3)], sums[MOST_WIDE + 1];
        size_t ld = width + 3;
        struct rng rng;
        rng_init(&rng, width);
        for (size_t i = 0; i < EXAMPLES * ld; i++)
            dx[i] = x[i] = (float)rng_normal(&rng);
        for (size_t k = 0; k < width; k++)
            w[k] = (float)rng_normal(&rng);
        for (int i = 0; i < 2 * EXAMPLES; i++)
            was[i] = y[i] = (float)rng_normal(&rng);
        sums[width] = 9;
        l->dot(y, 2, x, ld, w, EXAMPLES, width);
        l->outer(dx, ld, was, 2, w, EXAMPLES, width);
        l->weigh(sums, was, 2, x, ld, EXAMPLES, width);
        double gradient[MOST_WIDE] = {0};
        for (size_t i = 0; i < EXAMPLES; i++) {
            double sum = (double)was[2 * i], d = (double)was[2 * i];
            for (size_t k = 0; k < width; k++) {
                sum += (double)x[i * ld + k] * (double)w[k];
                gradient[k] += d * (double)x[i * ld + k];
                ck_assert_float_eq(dx[i * ld + k], was[2 * i] * w[k]);
            }
            ck_assert_double_eq_tol((double)y[2 * i], sum, 1e-4);
            ck_assert_float_eq(y[2 * i + 1], was[2 * i + 1]);
            for (size_t k = width; k < ld; k++)
                ck_assert_float_eq(dx[i * ld + k], x[i * ld + k]);
        }
        for (size_t k = 0; k < width; k++)
            ck_assert_double_eq_tol((double)sums[k], gradient[k], 1e-4);
        ck_assert_float_eq(sums[width], 9);
    }
}
END_TEST

START_TEST(relu_passes_nan_on)
{
    const struct loops *l = loops_named(sets[_i]);
    float y[40], b[40];
    for (int k = 0; k < 40; k++)
        b[k] = k % 3 ? (float)(k - 20) : NAN;
    if (!l)
        return;
    l->fill(y, 40, b, 1, 40);
    l->relu(y, 40, 1, 40);
    for (int k = 0; k < 40; k++)
        if (k % 3)
            ck_assert_float_eq(y[k], k < 20 ? 0 : (float)(k - 20));
        else
            ck_assert_float_nan(y[k]);
}
END_TEST

/* --- the interaction --- */

enum { MOST_VECTORS = 70, MOST_WIDTH = 50, MOST_PAIRS = MOST_VECTORS * (MOST_VECTORS - 1) / 2 };

struct interaction {
    size_t n, width, stride;
    float t[MOST_VECTORS * 64], dt[MOST_VECTORS * 64 + 1], turned[MOST_WIDTH * 80];
    float out[MOST_PAIRS + LANES + 1], g[MOST_PAIRS];
};

static void interaction_fill(struct interaction *x, size_t n, size_t width)
{
    struct rng rng;
    rng_init(&rng, n * 100 + width);
    *x = (struct interaction){.n = n, .width = width,
                              .stride = (width + LANES - 1) / LANES * LANES};
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < width; k++)
            x->t[i * x->stride + k] = (float)rng_normal(&rng);
    for (size_t k = 0; k < n * (n - 1) / 2; k++)
        x->g[k] = (float)rng_normal(&rng);
    x->out[n * (n - 1) / 2 + LANES] = 9;
    x->dt[n * x->stride] = 9;
}

static double pair_of(const float *g, size_t i, size_t j)
{
    return (double)(i > j ? g[i * (i - 1) / 2 + j] : g[j * (j - 1) / 2 + i]);
}

/* NaN is the worst. */
static double worse(double so_far, float had, double wanted)
{
    double error = fabs((double)had - wanted);
    return error <= so_far ? so_far : error;
}

static void interaction_check(const struct interaction *x)
{
    double worst = 0;
    for (size_t i = 0; i < x->n; i++) {
        double dt[64] = {0};
        for (size_t j = 0; j < x->n; j++) {
            double dot = 0;
            for (size_t k = 0; k < x->width && i != j; k++) {
                double tj = (double)x->t[j * x->stride + k];
                dot += (double)x->t[i * x->stride + k] * tj;
                dt[k] += pair_of(x->g, i, j) * tj;
            }
            if (j < i)
                worst = worse(worst, x->out[i * (i - 1) / 2 + j], dot);
        }
        for (size_t k = 0; k < x->stride; k++)
            worst = worse(worst, x->dt[i * x->stride + k], dt[k]);
    }
    ck_assert_msg(worst < 1e-4, "%zu vectors of %zu: %g", x->n, x->width, worst);
    ck_assert_float_eq(x->out[x->n * (x->n - 1) / 2 + LANES], 9);
    ck_assert_float_eq(x->dt[x->n * x->stride], 9);
}

START_TEST(interaction_as_naive)
{
    const struct loops *l = loops_named(sets[_i]);
    static const size_t widths[] = {1, 2, 3, 7, 8, 15, 16, 17, 32, 33, 48, 50};
    static struct interaction x;
    for (size_t n = 2; l && n <= MOST_VECTORS; n += n < 35 ? 1 : 7)
        for (int k = 0; k < N(widths); k++) {
            interaction_fill(&x, n, widths[k]);
            l->dots(x.out, x.t, x.stride, n, x.width, x.turned);
            l->dots_back(x.dt, x.g, x.t, x.stride, n);
            interaction_check(&x);
        }
}
END_TEST

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static double least_ns(const struct loops *l, struct interaction *x, bool back)
{
    double least = INFINITY;
    for (int k = 0; k < 300; k++) {
        uint64_t from = clock_now_ns();
        for (int i = 0; i < 10; i++)
            if (back)
                l->dots_back(x->dt, x->g, x->t, x->stride, x->n);
            else
                l->dots(x->out, x->t, x->stride, x->n, x->width, x->turned);
        least = fmin(least, (double)(clock_now_ns() - from));
    }
    return least;
}

/* Its products are twice those of the dots. It took 9 to 23 times as long where sums were kept in
 * memory: half of that is the bar, for the sake of others on the machine. Sanitizers slow both, but not
 * alike. */
START_TEST(interaction_back_takes_as_long)
{
    const struct loops *l = loops_named(sets[_i]);
    static struct interaction x;
    interaction_fill(&x, 27, 16);
    if (l && !SANITIZED)
        ck_assert_double_lt(least_ns(l, &x, true), 4.5 * least_ns(l, &x, false));
}
END_TEST

/* --- which set --- */

START_TEST(the_environment_names_a_set)
{
    const struct loops *best = loops_named(NULL);
    ck_assert_int_eq(setenv("DESCANT_LOOPS", sets[_i], 1), 0);
    const struct loops *asked = loops_named(sets[_i]);
    ck_assert_ptr_eq(loops_best(), asked ? asked : best);
    ck_assert((loops_lacking() == NULL) == (asked != NULL));
    ck_assert_str_eq(loops_named("base")->name, "loops_base");
}
END_TEST

START_TEST(a_set_that_is_not_there_is_refused)
{
    struct model *model = NULL;
    ck_assert_int_eq(setenv("DESCANT_LOOPS", "sse9", 1), 0);
    ck_assert_ptr_eq(loops_best(), loops_named(NULL));
    ck_assert_int_eq(model_create(&model, &shapes[0], NULL), DESCANT_INVALID);
    ck_assert_ptr_null(model);
    ck_assert_int_eq(setenv("DESCANT_LOOPS", "", 1), 0);
    ck_assert_int_eq(model_create(&model, &shapes[0], NULL), DESCANT_OK);
    model_destroy(model);
    ck_assert_int_eq(setenv("DESCANT_LOOPS", "base", 1), 0);
    ck_assert_int_eq(model_create(&model, &shapes[0], NULL), DESCANT_OK);
    model_destroy(model);
}
END_TEST

int main(void)
{
    TCase *tests = new_case("loops", 120);
    tcase_add_loop_test(tests, optimizers_as_naive, 0, N(optimizers));
    tcase_add_loop_test(tests, row_optimizers_as_naive, 0, 3);
    tcase_add_loop_test(tests, rows_of_ftrl_know_their_scale, 0, 1);
    tcase_add_loop_test(tests, rows_of_ftrl_know_their_scale, 2, 3);
    tcase_add_test(tests, ftrl_stands_still_at_rate_0);
    tcase_add_loop_test(tests, ftrl_steps_by_faint_gradients, 0, N(faint));
    tcase_add_test(tests, ftrl_passes_nan_on);
    tcase_add_test(tests, ftrl_survives_an_absurd_value);
    tcase_add_test(tests, rows_of_ftrl_learn_their_scale_late);
    tcase_add_loop_test(tests, loops_agree, 0, N(sets));
    tcase_add_loop_test(tests, one_output_as_naive, 0, N(sets));
    tcase_add_loop_test(tests, relu_passes_nan_on, 0, N(sets));
    tcase_add_loop_test(tests, interaction_as_naive, 0, N(sets));
    tcase_add_loop_test(tests, interaction_back_takes_as_long, 0, N(sets));
    tcase_add_loop_test(tests, the_environment_names_a_set, 0, N(sets));
    tcase_add_test(tests, a_set_that_is_not_there_is_refused);
    return run_cases(tests, NULL);
}
