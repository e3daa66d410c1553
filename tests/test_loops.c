/* SPDX-License-Identifier: MIT */
/* Optimizers against their formulas, and every instruction set's loops against the base ones. */
#include "nn/loops.h"
#include "nn_suite.h"

/* --- optimizers --- */

static const struct optimizer optimizers[] = {
    {.kind = OPTIMIZER_SGD},
    {.kind = OPTIMIZER_SGD, .l2 = 0.02},
    {.kind = OPTIMIZER_SGD, .momentum = 0.9, .l2 = 0.02},
    {.kind = OPTIMIZER_ADAGRAD, .epsilon = 1e-3, .l2 = 0.02},
    {.kind = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-3, .l2 = 0.02},
    {.kind = OPTIMIZER_ADAMW, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .l2 = 0.3},
};

/* One parameter of PyTorch's optimizers. */
static double naive_step(const struct optimizer *o, double w, double g, double *s, double lr,
                         int step)
{
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
    for (int step = 1; step <= 12; step++) {
        for (int k = 0; k < SIZE; k++) {
            g[k] = (float)rng_normal(&rng);
            naive[k] = naive_step(o, naive[k], (double)g[k], s[k], 0.05, step);
        }
        optimizer_step(o, w, g, state, SIZE, 0.05, (uint64_t)step);
        for (int k = 0; k < SIZE; k++)
            ck_assert_double_eq_tol((double)w[k], naive[k], 1e-5);
    }
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
        struct row_grads grads = {TOUCHED, WIDTH, rows, g};
        optimizer_rows_step(&o, tables, state, &grads, 0.1);
        for (int k = 0; k < ROWS * WIDTH; k++)
            ck_assert_double_eq_tol((double)tables[k], naive[k], 1e-5);
    }
    memory_give(state);
}
END_TEST

/* --- loops: every instruction set against the base one --- */

#if defined(__x86_64__)
extern const struct loops loops_avx2, loops_avx512;
#endif

static const struct loops *loops_set(int k)
{
#if defined(__x86_64__)
    if (k == 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &loops_avx2;
    if (k == 1 && loops_best() == &loops_avx512)
        return &loops_avx512;
#endif
    return k == 2 ? loops_best() : NULL;
}

enum { ROOM = 6000 };

/* Six arrays of the same random values for both sets; all must be alike afterwards. */
struct arena {
    float a[6][ROOM];
};

static void arena_fill(struct arena *x, struct arena *y, uint64_t seed)
{
    struct rng rng;
    rng_init(&rng, seed);
    for (int k = 0; k < 6; k++)
        for (int i = 0; i < ROOM; i++)
            x->a[k][i] = (float)(k == 5 ? rng_uniform(&rng) : rng_normal(&rng));
    *y = *x;
}

static void run_layers(const struct loops *l, struct arena *m, size_t n, bool flag)
{
    size_t ld = n + 3;
    l->bias(m->a[0] + 1, ld, m->a[1], 5, n, flag);
    l->mask(m->a[2], ld, flag ? m->a[0] : NULL, ld, 5, n, m->a[3]);
    l->add(m->a[4] + 1, m->a[3], n, 0.5f, flag ? 0.9f : 0);
    l->dot(m->a[3], 2, m->a[2], ld, m->a[1], 5, n);
}

static void run_optimizers(const struct loops *l, struct arena *m, size_t n)
{
    const struct adam adam = {0.9f, 0.99f, 0.1f, 0.01f, 1e-3f, 0.1f, 1.3f, 0.1f, 0.95f};
    l->momentum(m->a[0] + 1, m->a[1], m->a[2], n, 0.1f, 0.9f, 0.01f);
    l->adagrad(m->a[0], m->a[1] + 1, m->a[5], n, 0.1f, 1e-3f, 0.01f);
    l->adam(m->a[0], m->a[1], m->a[2], m->a[5] + 2, n, &adam);
    l->rowwise(m->a[0], m->a[1], m->a[5] + n + 5, n, 0.1f, 1e-3f);
}

static float run_rows(const struct loops *l, struct arena *m, size_t width, bool bags)
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

static void run_dots(const struct loops *l, struct arena *m, size_t n, size_t width)
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
    static struct arena base, other;
    static const size_t sizes[] = {1, 2, 15, 16, 17, 27, 33, 64, 100};
    const struct loops *loops = loops_set(_i);
    if (!loops)
        return;
    for (int k = 0; k < 4 * N(sizes); k++) {
        size_t n = sizes[k / 4];
        float score = 0, same = 0;
        arena_fill(&base, &other, (uint64_t)k);
        for (int set = 0; set < 2; set++) {
            struct arena *m = set ? &other : &base;
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

int main(void)
{
    Suite *suite = suite_create("loops");
    TCase *tests = tcase_create("loops");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, optimizers_as_naive, 0, N(optimizers));
    tcase_add_loop_test(tests, row_optimizers_as_naive, 0, 3);
    tcase_add_loop_test(tests, loops_agree, 0, 3);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
