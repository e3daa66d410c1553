/* SPDX-License-Identifier: MIT */
/* Models against naive ones in double, gradients against finite differences, optimizers against
 * their formulas, every instruction set's loops against the base ones, races under
 * ThreadSanitizer, memory that fails, and training that must reach a planted best. */
#include "nn/loops.h"
#include "nn/nn.h"

#include <cblas.h>
#include <check.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define N(array) ((int)(sizeof(array) / sizeof *(array)))

/* --- shapes, random batches, a model with its parameters --- */

static const struct model_shape shapes[] = {
    {.kind = MODEL_LINEAR, .n_dense = 3, .n_fields = 4, .n_classes = 1, .rows = 20},
    {.kind = MODEL_LINEAR, .n_dense = 5, .n_classes = 1},
    {.kind = MODEL_FM, .n_dense = 3, .n_fields = 4, .n_classes = 1, .rows = 20, .width = 16},
    {.kind = MODEL_FM, .n_fields = 6, .n_classes = 1, .rows = 15, .width = 5, .plain_ids = true},
    {.kind = MODEL_DLRM, .n_dense = 13, .n_fields = 26, .n_classes = 1, .rows = 9, .width = 16,
     .n_bottom = 2, .bottom = {32, 20}, .n_top = 2, .top = {40, 24}},
    {.kind = MODEL_DLRM, .n_dense = 3, .n_fields = 5, .n_classes = 1, .rows = 30, .width = 19,
     .plain_ids = true, .n_bottom = 1, .bottom = {7}, .n_top = 1, .top = {9}},
    {.kind = MODEL_DLRM, .n_dense = 1, .n_fields = 1, .n_classes = 1, .rows = 5, .width = 1},
    {.kind = MODEL_DLRM, .n_dense = 2, .n_fields = 18, .n_classes = 1, .rows = 7, .width = 32},
    {.kind = MODEL_MLP, .n_dense = 6, .n_classes = 3, .n_top = 2, .top = {17, 8}},
    {.kind = MODEL_MLP, .n_dense = 4, .n_classes = 1, .n_top = 1, .top = {33}},
    {.kind = MODEL_MLP, .n_dense = 4, .n_classes = 2},
};

enum { MOST = 200, MOST_IDS = MOST * 26 * 4 };

struct batch {
    struct examples examples;
    float dense[MOST * 13], labels[MOST], values[MOST_IDS];
    uint32_t ids[MOST_IDS], offsets[MOST * 26 + 1];
};

/* Few different ids, so that rows come twice; bags: of 0 to 3 ids, with values. */
static void batch_fill(struct batch *b, const struct model_shape *s, size_t n, bool bags,
                       struct rng *rng)
{
    size_t n_bags = n * (size_t)s->n_fields, at = 0;
    for (size_t i = 0; i < n * (size_t)s->n_dense; i++)
        b->dense[i] = (float)rng_normal(rng);
    for (size_t i = 0; i < n; i++)
        b->labels[i] = (float)(rng_next(rng) % (s->n_classes == 1 ? 2 : (unsigned)s->n_classes));
    for (size_t k = 0; k < n_bags; k++) {
        b->offsets[k] = (uint32_t)at;
        for (size_t end = at + (bags ? rng_next(rng) % 4 : 1); at < end; at++) {
            b->ids[at] = (uint32_t)(rng_next(rng) % 11) * 390000001u;
            b->values[at] = (float)rng_normal(rng);
        }
    }
    b->offsets[n_bags] = (uint32_t)at;
    b->examples = (struct examples){
        .n = n, .n_dense = s->n_dense, .n_fields = s->n_fields, .dense = b->dense,
        .ids = b->ids, .offsets = bags ? b->offsets : NULL, .values = bags ? b->values : NULL,
        .labels = b->labels};
}

struct trained {
    struct model *model;
    struct work *work;
    float *w, *tables;
};

static struct trained trained_create(const struct model_shape *shape, size_t max_batch)
{
    struct trained t = {0};
    ck_assert_int_eq(model_create(&t.model, shape, NULL), DESCANT_OK);
    ck_assert_int_eq(work_create(&t.work, t.model, max_batch, NULL), DESCANT_OK);
    t.w = memory_take_array(model_floats(t.model), sizeof *t.w);
    t.tables = memory_take_array(model_table_floats(t.model), sizeof *t.tables);
    model_init(t.model, t.w, 7);
    model_init_tables(t.model, t.tables, 0, model_table_rows(t.model), 8);
    return t;
}

static void trained_destroy(struct trained *t)
{
    work_destroy(t->work);
    model_destroy(t->model);
    memory_give(t->w);
    memory_give(t->tables);
}

/* Every parameter moved, so that none is 0. */
static void shake(struct trained *t, struct rng *rng)
{
    for (size_t k = 0; k < model_floats(t->model); k++)
        t->w[k] += 0.1f * (float)rng_normal(rng);
    for (size_t k = 0; k < model_table_floats(t->model); k++)
        t->tables[k] += 0.3f * (float)rng_normal(rng);
}

static void assert_near(const float *a, const float *b, size_t n, double tolerance,
                        const char *what)
{
    for (size_t k = 0; k < n; k++)
        ck_assert_msg(fabs((double)a[k] - (double)b[k]) <=
                          tolerance * (1 + fabs((double)b[k])),
                      "%s: [%zu] is %g, not %g", what, k, (double)a[k], (double)b[k]);
}

/* --- naive models in double: what the scores should be --- */

static const float *tensor_named(const struct trained *t, const char *name)
{
    size_t n;
    const struct tensor *tensors = model_tensors(t->model, &n);
    for (size_t k = 0; k < n; k++)
        if (strcmp(tensors[k].name, name) == 0)
            return t->w + tensors[k].at;
    ck_abort_msg("no tensor %s", name);
    return NULL;
}

static int naive_stack(const struct trained *t, const char *stack, double *x, int n_in,
                       const int *hidden, int n_hidden, int n_out, bool last_relu)
{
    for (int l = 0; l <= n_hidden; l++) {
        int out = l < n_hidden ? hidden[l] : n_out;
        double y[512];
        char name[64];
        snprintf(name, sizeof name, "%s.%d.weight", stack, 2 * l);
        const float *weight = tensor_named(t, name);
        snprintf(name, sizeof name, "%s.%d.bias", stack, 2 * l);
        const float *bias = tensor_named(t, name);
        for (int o = 0; o < out; o++) {
            y[o] = (double)bias[o];
            for (int i = 0; i < n_in; i++)
                y[o] += (double)weight[o * n_in + i] * x[i];
            if (y[o] < 0 && (l < n_hidden || last_relu))
                y[o] = 0;
        }
        memcpy(x, y, (size_t)out * sizeof *x);
        n_in = out;
    }
    return n_in;
}

static const float *naive_row(const struct trained *t, const struct examples *e, size_t k, int f)
{
    const struct model_shape *s = model_shape(t->model);
    uint64_t row = s->plain_ids ? e->ids[k] % s->rows : (uint64_t)e->ids[k] * s->rows >> 32;
    if (s->kind == MODEL_DLRM)
        row += (uint64_t)f * s->rows;
    return t->tables + row * (uint64_t)model_table_width(t->model);
}

static size_t bag_begin(const struct examples *e, size_t i, int f)
{
    size_t bag = i * (size_t)e->n_fields + (size_t)f;
    return e->offsets ? e->offsets[bag] : bag;
}

static double naive_linear(const struct trained *t, const struct examples *e, size_t i)
{
    const struct model_shape *s = model_shape(t->model);
    int width = s->kind == MODEL_FM ? s->width : 0;
    double score = (double)tensor_named(t, "dense.bias")[0];
    for (int k = 0; k < s->n_dense; k++)
        score += (double)tensor_named(t, "dense.weight")[k] *
                 (double)e->dense[i * (size_t)s->n_dense + (size_t)k];
    size_t first = s->n_fields ? bag_begin(e, i, 0) : 0;
    size_t end = s->n_fields ? bag_begin(e, i, s->n_fields) : 0;
    for (size_t a = first; a < end; a++) {
        const float *row = naive_row(t, e, a, 0);
        double value = e->values ? (double)e->values[a] : 1;
        score += value * (double)row[0];
        for (size_t b = first; b < a; b++)
            for (int c = 1; c <= width; c++)
                score += value * (e->values ? (double)e->values[b] : 1) * (double)row[c] *
                         (double)naive_row(t, e, b, 0)[c];
    }
    return score;
}

static double naive_dlrm(const struct trained *t, const struct examples *e, size_t i)
{
    const struct model_shape *s = model_shape(t->model);
    double vectors[27][512] = {{0}}, in[512];
    for (int k = 0; k < s->n_dense; k++)
        vectors[0][k] = (double)e->dense[i * (size_t)s->n_dense + (size_t)k];
    naive_stack(t, "bottom", vectors[0], s->n_dense, s->bottom, s->n_bottom, s->width, true);
    for (int f = 0; f < s->n_fields; f++)
        for (size_t k = bag_begin(e, i, f); k < bag_begin(e, i, f + 1); k++)
            for (int c = 0; c < s->width; c++)
                vectors[f + 1][c] += (e->values ? (double)e->values[k] : 1) *
                                     (double)naive_row(t, e, k, f)[c];
    int n = s->width;
    memcpy(in, vectors[0], (size_t)n * sizeof *in);
    for (int a = 1; a <= s->n_fields; a++)
        for (int b = 0; b < a; b++, n++) {
            in[n] = 0;
            for (int c = 0; c < s->width; c++)
                in[n] += vectors[a][c] * vectors[b][c];
        }
    naive_stack(t, "top", in, n, s->top, s->n_top, 1, false);
    return in[0];
}

static void naive_scores(const struct trained *t, const struct examples *e, size_t i,
                         double *scores)
{
    const struct model_shape *s = model_shape(t->model);
    if (s->kind == MODEL_MLP) {
        for (int k = 0; k < s->n_dense; k++)
            scores[k] = (double)e->dense[i * (size_t)s->n_dense + (size_t)k];
        naive_stack(t, "layers", scores, s->n_dense, s->top, s->n_top, s->n_classes, false);
    } else if (s->kind == MODEL_DLRM) {
        scores[0] = naive_dlrm(t, e, i);
    } else {
        scores[0] = naive_linear(t, e, i);
    }
}

static double naive_loss(const double *scores, int n, float label)
{
    if (n == 1)
        return log(1 + exp(scores[0])) - (double)label * scores[0];
    double sum = 0;
    for (int k = 0; k < n; k++)
        sum += exp(scores[k]);
    return log(sum) - scores[(int)label];
}

static const size_t batch_sizes[] = {1, 2, 7, 33};

START_TEST(scores_and_loss_as_naive)
{
    static struct batch batch;
    struct rng rng;
    rng_init(&rng, (uint64_t)_i);
    struct trained t = trained_create(&shapes[_i], 33);
    shake(&t, &rng);
    float *g = memory_take_array(model_floats(t.model), sizeof *g);
    size_t outputs = (size_t)model_outputs(t.model);
    for (int k = 0; k < 2 * N(batch_sizes); k++) {
        batch_fill(&batch, &shapes[_i], batch_sizes[k / 2], k % 2, &rng);
        float scores[33 * 3], again[33 * 3];
        double naive[512], loss = 0;
        model_scores(t.work, t.w, t.tables, &batch.examples, scores);
        double had = model_gradient(t.work, t.w, t.tables, &batch.examples, g, again);
        assert_near(again, scores, batch.examples.n * outputs, 1e-6, "scores with a gradient");
        for (size_t i = 0; i < batch.examples.n; i++) {
            naive_scores(&t, &batch.examples, i, naive);
            for (size_t o = 0; o < outputs; o++)
                ck_assert_double_eq_tol((double)scores[i * outputs + o], naive[o],
                                        2e-5 * (1 + fabs(naive[o])));
            loss += naive_loss(naive, (int)outputs, batch.labels[i]);
        }
        ck_assert_double_eq_tol(had, loss, 1e-4 * (1 + loss));
    }
    memory_give(g);
    trained_destroy(&t);
}
END_TEST

/* --- gradients --- */

START_TEST(gradients_as_finite_differences)
{
    static struct batch batch;
    struct rng rng;
    rng_init(&rng, 100 + (uint64_t)_i);
    struct trained t = trained_create(&shapes[_i], 33);
    shake(&t, &rng);
    for (int k = 0; k < 2 * N(batch_sizes); k++) {
        batch_fill(&batch, &shapes[_i], batch_sizes[k / 2], k % 2, &rng);
        const char *worst;
        double error = model_check(t.model, t.w, t.tables, &batch.examples, 80, (uint64_t)k,
                                   &worst);
        ck_assert_msg(error < 0.01, "batch %d: %g at %s", k, error, worst);
    }
    trained_destroy(&t);
}
END_TEST

START_TEST(each_row_once)
{
    static struct batch batch;
    struct rng rng;
    rng_init(&rng, 3);
    struct trained t = trained_create(&shapes[4], 33);
    float *g = memory_take_array(model_floats(t.model), sizeof *g);
    batch_fill(&batch, &shapes[4], 33, true, &rng);
    model_gradient(t.work, t.w, t.tables, &batch.examples, g, NULL);
    const struct row_grads *rows = work_rows(t.work);
    ck_assert_uint_gt(rows->n, 26);
    ck_assert_uint_le(rows->n, 26 * 9);
    ck_assert_uint_lt(rows->n, batch.offsets[33 * 26]);
    for (size_t a = 0; a < rows->n; a++) {
        ck_assert_uint_lt(rows->rows[a], model_table_rows(t.model));
        for (size_t b = 0; b < a; b++)
            ck_assert_uint_ne(rows->rows[a], rows->rows[b]);
    }
    memory_give(g);
    trained_destroy(&t);
}
END_TEST

START_TEST(sgd_is_gradient_and_step)
{
    static struct batch batch;
    const struct optimizer plain = {.kind = OPTIMIZER_SGD, .rows = ROWS_SGD, .l2 = 0.03};
    struct rng rng;
    rng_init(&rng, 200 + (uint64_t)_i);
    struct trained a = trained_create(&shapes[_i], 33), b = trained_create(&shapes[_i], 33);
    size_t n = model_floats(a.model);
    float *g = memory_take_array(n, sizeof *g);
    for (int k = 0; k < 2 * N(batch_sizes); k++) {
        batch_fill(&batch, &shapes[_i], batch_sizes[k / 2], k % 2, &rng);
        double loss = model_sgd(a.work, a.w, a.tables, &batch.examples, 0.2, plain.l2, NULL);
        double same = model_gradient(b.work, b.w, b.tables, &batch.examples, g, NULL);
        ck_assert_double_eq_tol(loss, same, 1e-3 * (1 + same));
        optimizer_step(&plain, b.w, g, NULL, n, 0.2, 1);
        optimizer_rows_step(&plain, b.tables, NULL, work_rows(b.work), 0.2);
        assert_near(a.w, b.w, n, 1e-4, "w");
        assert_near(a.tables, b.tables, model_table_floats(a.model), 1e-4, "tables");
    }
    memory_give(g);
    trained_destroy(&a);
    trained_destroy(&b);
}
END_TEST

START_TEST(scores_do_not_depend_on_the_split)
{
    static struct batch batch;
    struct rng rng;
    rng_init(&rng, 300 + (uint64_t)_i);
    struct trained t = trained_create(&shapes[_i], MOST);
    size_t outputs = (size_t)model_outputs(t.model);
    for (int bags = 0; bags < 2; bags++) {
        batch_fill(&batch, &shapes[_i], MOST, bags, &rng);
        float whole[MOST * 3], parts[MOST * 3];
        model_scores(t.work, t.w, t.tables, &batch.examples, whole);
        for (size_t from = 0, n = 1; from < MOST; from += n, n = n * 2 + 1) {
            n = n < MOST - from ? n : MOST - from;
            struct examples part = examples_slice(&batch.examples, from, n);
            model_scores(t.work, t.w, t.tables, &part, parts + from * outputs);
        }
        assert_near(parts, whole, MOST * outputs, 1e-5, "scores");
    }
    trained_destroy(&t);
}
END_TEST

START_TEST(what_is_not_finite_shows)
{
    static struct batch batch;
    struct rng rng;
    rng_init(&rng, 5);
    struct trained t = trained_create(&shapes[_i], 7);
    float *g = memory_take_array(model_floats(t.model), sizeof *g);
    batch_fill(&batch, &shapes[_i], 7, false, &rng);
    ck_assert(isfinite(model_gradient(t.work, t.w, t.tables, &batch.examples, g, NULL)));
    if (shapes[_i].n_dense) {
        batch.dense[0] = NAN;
        ck_assert(!isfinite(model_gradient(t.work, t.w, t.tables, &batch.examples, g, NULL)));
        batch.dense[0] = 1;
    }
    for (size_t k = 0; k < model_table_floats(t.model); k++)
        t.tables[k] = INFINITY;
    for (size_t k = 0; k < model_floats(t.model) && shapes[_i].n_fields == 0; k++)
        t.w[k] = INFINITY;
    ck_assert(!isfinite(model_gradient(t.work, t.w, t.tables, &batch.examples, g, NULL)));
    if (shapes[_i].n_classes > 1) {
        static const float bad[] = {-1, 3, NAN, INFINITY};
        model_init(t.model, t.w, 1);
        for (int k = 0; k < N(bad); k++) {
            batch.labels[3] = bad[k];
            ck_assert(!isfinite(
                model_gradient(t.work, t.w, t.tables, &batch.examples, g, NULL)));
        }
    }
    memory_give(g);
    trained_destroy(&t);
}
END_TEST

/* --- shapes --- */

START_TEST(layout_is_pytorchs)
{
    static const struct {
        const char *name;
        size_t out, in;
    } wanted[] = {{"bottom.0.weight", 512, 13}, {"bottom.0.bias", 512, 0},
                  {"bottom.2.weight", 256, 512}, {"bottom.2.bias", 256, 0},
                  {"bottom.4.weight", 64, 256}, {"bottom.4.bias", 64, 0},
                  {"bottom.6.weight", 16, 64}, {"bottom.6.bias", 16, 0},
                  {"top.0.weight", 512, 367}, {"top.0.bias", 512, 0},
                  {"top.2.weight", 256, 512}, {"top.2.bias", 256, 0},
                  {"top.4.weight", 1, 256}, {"top.4.bias", 1, 0}};
    struct model_shape shape = {.kind = MODEL_DLRM, .n_dense = 13, .n_fields = 26, .width = 16,
                                .n_classes = 1, .rows = 100000, .n_bottom = 3,
                                .bottom = {512, 256, 64}, .n_top = 2, .top = {512, 256}};
    struct model *model;
    ck_assert_int_eq(model_create(&model, &shape, NULL), DESCANT_OK);
    size_t n, at = 0;
    double products = 0;
    const struct tensor *tensors = model_tensors(model, &n);
    ck_assert_uint_eq(n, N(wanted));
    for (size_t k = 0; k < n; k++) {
        ck_assert_str_eq(tensors[k].name, wanted[k].name);
        ck_assert_int_eq(tensors[k].n_dims, wanted[k].in ? 2 : 1);
        ck_assert_uint_eq(tensors[k].dims[0], wanted[k].out);
        ck_assert_uint_eq(tensors[k].dims[1], wanted[k].in);
        ck_assert_uint_eq(tensors[k].at, at);
        at += wanted[k].out * (wanted[k].in ? wanted[k].in : 1);
        products += (double)(wanted[k].out * wanted[k].in) * (k ? 3 : 2);
    }
    ck_assert_uint_eq(model_floats(model), at);
    ck_assert_double_eq(model_flops(model), 2 * (products + 3 * 27 * 27 * 16));
    tensors = model_tables(model, &n);
    ck_assert_uint_eq(n, 26);
    ck_assert_str_eq(tensors[25].name, "tables.25.weight");
    ck_assert_uint_eq(tensors[25].at, 25 * 1600000);
    ck_assert_uint_eq(model_table_floats(model), 26 * 1600000);
    ck_assert_uint_eq(model_table_rows(model), 2600000);
    ck_assert_int_eq(model_table_width(model), 16);
    model_destroy(model);
}
END_TEST

START_TEST(init_by_seed_and_in_parts)
{
    struct trained a = trained_create(&shapes[_i], 1), b = trained_create(&shapes[_i], 1);
    size_t floats = model_floats(a.model) * sizeof(float), rows = model_table_rows(a.model);
    size_t bytes = model_table_floats(a.model) * sizeof(float);
    ck_assert_mem_eq(a.w, b.w, floats);
    memset(b.tables, 0xff, bytes);
    for (size_t from = 0, n = 1; from < rows; from += n, n += 2) {
        n = n < rows - from ? n : rows - from;
        model_init_tables(b.model, b.tables, from, n, 8);
    }
    ck_assert_mem_eq(a.tables, b.tables, bytes);
    if (shapes[_i].kind == MODEL_DLRM || shapes[_i].kind == MODEL_MLP) {
        model_init(b.model, b.w, 9);
        ck_assert_mem_ne(a.w, b.w, floats);
    }
    if (model_table_width(a.model) > 1) {
        model_init_tables(b.model, b.tables, 0, rows, 9);
        ck_assert_mem_ne(a.tables, b.tables, bytes);
    }
    trained_destroy(&a);
    trained_destroy(&b);
}
END_TEST

#define DLRM .kind = MODEL_DLRM, .n_dense = 2, .n_fields = 2, .rows = 9, .width = 4

static const struct {
    struct model_shape shape;
    const char *message;
} bad_shapes[] = {
    {{.kind = (enum model_kind)9, .n_classes = 1}, "no such kind"},
    {{.kind = MODEL_LINEAR, .n_classes = 1}, "need a feature"},
    {{.kind = MODEL_LINEAR, .n_fields = 1, .n_classes = 1}, "need rows"},
    {{.kind = MODEL_LINEAR, .n_dense = 1, .n_classes = 2}, "one output"},
    {{.kind = MODEL_LINEAR, .n_dense = -1, .n_fields = 3, .n_classes = 1}, "0 to 2^20"},
    {{.kind = MODEL_FM, .n_dense = 1, .width = 3, .n_classes = 1}, "needs a field"},
    {{.kind = MODEL_FM, .n_fields = 1, .rows = 3, .n_classes = 1}, "needs a width"},
    {{.kind = MODEL_FM, .n_fields = 1, .width = 1, .n_classes = 1}, "need rows"},
    {{.kind = MODEL_DLRM, .n_fields = 2, .rows = 9, .width = 4, .n_classes = 1}, "dense feature"},
    {{.kind = MODEL_DLRM, .n_dense = 2, .rows = 9, .width = 4, .n_classes = 1}, "1000 fields"},
    {{.kind = MODEL_DLRM, .n_dense = 2, .n_fields = 2, .width = 4, .n_classes = 1}, "needs rows"},
    {{.kind = MODEL_DLRM, .n_dense = 2, .n_fields = 2, .rows = 4, .n_classes = 1}, "a width"},
    {{DLRM, .n_classes = 2}, "one output"},
    {{DLRM, .n_classes = 0}, "1 to 2^20 classes"},
    {{DLRM, .n_classes = 1, .n_bottom = 1}, "hidden layers"},
    {{DLRM, .n_classes = 1, .n_top = 17}, "hidden layers"},
    {{DLRM, .n_classes = 1, .n_top = 1, .top = {-3}}, "hidden layers"},
    {{.kind = MODEL_FM, .n_fields = 1, .rows = SIZE_MAX, .width = 1, .n_classes = 1}, "2^32 rows"},
    {{.kind = MODEL_MLP, .n_classes = 1}, "needs a dense feature"},
    {{.kind = MODEL_MLP, .n_dense = 1, .n_fields = 1, .n_classes = 1}, "takes no ids"},
};

START_TEST(bad_shapes_are_refused)
{
    struct model *model = NULL;
    ck_assert_int_eq(model_create(&model, &bad_shapes[_i].shape, NULL), DESCANT_INVALID);
    ck_assert_ptr_null(model);
    ck_assert_msg(strstr(descant_last_error(), bad_shapes[_i].message), "%s",
                  descant_last_error());
}
END_TEST

START_TEST(bad_batches_are_refused)
{
    struct model *model;
    struct work *work = NULL;
    ck_assert_int_eq(model_create(&model, &shapes[0], NULL), DESCANT_OK);
    ck_assert_int_eq(work_create(&work, model, 0, NULL), DESCANT_INVALID);
    ck_assert_int_eq(work_create(&work, model, SIZE_MAX, NULL), DESCANT_INVALID);
    ck_assert_ptr_null(work);
    model_destroy(model);
}
END_TEST

/* --- memory --- */

START_TEST(failing_memory_leaks_nothing)
{
    long before = memory_live();
    bool done = false;
    for (long k = 1; !done; k++) {
        struct model *model = NULL;
        struct work *work = NULL;
        memory_fail_at(k);
        descant_status status = model_create(&model, &shapes[_i], NULL);
        if (status == DESCANT_OK)
            status = work_create(&work, model, 5, NULL);
        done = status == DESCANT_OK;
        ck_assert(done || status == DESCANT_MEMORY);
        ck_assert(done || strstr(descant_last_error(), "no memory"));
        memory_fail_at(0);
        work_destroy(work);
        model_destroy(model);
        ck_assert_int_eq(memory_live(), before);
        ck_assert_int_lt(k, 100);
        ck_assert(!done || k > 5);
    }
}
END_TEST

/* Steps take no memory, but where a batch brings more ids than any before; and if there is
 * none, the loss says so and the next batch is fine. */
START_TEST(bags_grow_once)
{
    static struct batch batch;
    struct rng rng;
    rng_init(&rng, 1);
    struct trained t = trained_create(&shapes[2], 7);
    float *g = memory_take_array(model_floats(t.model), sizeof *g), scores[7];
    do
        batch_fill(&batch, &shapes[2], 7, true, &rng);
    while (batch.offsets[7 * 4] <= 7 * 4);
    memory_fail_at(2);
    ck_assert(isnan(model_gradient(t.work, t.w, t.tables, &batch.examples, g, scores)));
    ck_assert(isnan(scores[6]));
    ck_assert(strstr(descant_last_error(), "no memory"));
    ck_assert_uint_eq(work_rows(t.work)->n, 0);
    ck_assert(isfinite(model_gradient(t.work, t.w, t.tables, &batch.examples, g, scores)));
    memory_fail_at(1);
    for (int k = 0; k < 5; k++) {
        model_scores(t.work, t.w, t.tables, &batch.examples, scores);
        ck_assert(isfinite(model_gradient(t.work, t.w, t.tables, &batch.examples, g, NULL)));
        ck_assert(isfinite(
            model_sgd(t.work, t.w, t.tables, &batch.examples, 0.1, 0, NULL)));
    }
    memory_fail_at(0);
    memory_give(g);
    trained_destroy(&t);
}
END_TEST

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

/* --- OpenBLAS and threads --- */

START_TEST(blas_knows_the_processor)
{
    struct trained t = trained_create(&shapes[0], 1);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        ck_assert_str_ne(openblas_get_corename(), "Prescott");
#endif
    ck_assert_ptr_null(getenv("OPENBLAS_CORETYPE"));
    trained_destroy(&t);
}
END_TEST

START_TEST(small_numbers_are_flushed)
{
#if defined(__SSE__)
    volatile float small = FLT_MIN;
    ck_assert_float_gt(small / 4, 0);
    nn_thread_init();
    ck_assert_float_eq(small / 4, 0);
#endif
}
END_TEST

struct worker {
    struct trained *shared;     /* its w and tables */
    const struct model_shape *shape;
    uint64_t seed;
    size_t n;
    double first, last;         /* summed losses */
};

/* Learns that the sign of the first dense feature is the label. */
static void *work_away(void *argument)
{
    struct worker *worker = argument;
    struct batch *batch = memory_take(sizeof *batch);
    struct work *work;
    struct rng rng;
    rng_init(&rng, worker->seed);
    nn_thread_init();
    if (work_create(&work, worker->shared->model, worker->n, NULL) != DESCANT_OK)
        return NULL;
    for (int step = 0; step < 300; step++) {
        batch_fill(batch, worker->shape, worker->n, step % 2, &rng);
        for (size_t i = 0; i < worker->n; i++)
            batch->labels[i] = batch->dense[i * (size_t)worker->shape->n_dense] > 0;
        double loss = model_sgd(work, worker->shared->w, worker->shared->tables,
                                &batch->examples, 0.05, 0, NULL);
        *(step < 50 ? &worker->first : &worker->last) = loss;
    }
    work_destroy(work);
    memory_give(batch);
    return argument;
}

static const int threaded[] = {0, 2, 4, 8};

/* Both threads step the same parameters: a race by design, that ThreadSanitizer must not see. */
START_TEST(two_threads_share_parameters)
{
    const struct model_shape *shape = &shapes[threaded[_i]];
    struct trained t = trained_create(shape, 1);
    struct worker workers[2];
    pthread_t threads[2];
    for (int k = 0; k < 2; k++) {
        workers[k] = (struct worker){.shared = &t, .shape = shape, .seed = (uint64_t)k, .n = 32};
        pthread_create(&threads[k], NULL, work_away, &workers[k]);
    }
    for (int k = 0; k < 2; k++) {
        void *result;
        pthread_join(threads[k], &result);
        ck_assert_ptr_nonnull(result);
        ck_assert(isfinite(workers[k].last));
        ck_assert_double_lt(workers[k].last, 0.8 * 32 * log(2));
    }
    trained_destroy(&t);
}
END_TEST

/* Products of several threads at once do not disturb each other. */
START_TEST(threads_of_their_own_give_the_same)
{
    enum { THREADS = 4 };
    struct trained alone[THREADS], t[THREADS];
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    for (int k = 0; k < THREADS; k++) {
        struct worker w = {.shape = &shapes[4], .seed = (uint64_t)k, .n = 32};
        alone[k] = trained_create(&shapes[4], 1);
        t[k] = trained_create(&shapes[4], 1);
        w.shared = &alone[k];
        pthread_create(&threads[k], NULL, work_away, &w);
        pthread_join(threads[k], NULL);
        workers[k] = w;
        workers[k].shared = &t[k];
    }
    for (int k = 0; k < THREADS; k++)
        pthread_create(&threads[k], NULL, work_away, &workers[k]);
    for (int k = 0; k < THREADS; k++) {
        pthread_join(threads[k], NULL);
        ck_assert_mem_eq(t[k].w, alone[k].w, model_floats(t[k].model) * sizeof(float));
        ck_assert_mem_eq(t[k].tables, alone[k].tables,
                         model_table_floats(t[k].model) * sizeof(float));
        trained_destroy(&alone[k]);
        trained_destroy(&t[k]);
    }
}
END_TEST

/* --- training reaches a planted best --- */

/* Fills labels; returns the summed loss of whoever knows the truth. */
typedef double plant(struct batch *batch, struct rng *rng);

static double draw(float *label, double logit, struct rng *rng)
{
    double p = 1 / (1 + exp(-logit));
    *label = rng_uniform(rng) < p;
    return *label > 0 ? -log(p) : -log(1 - p);
}

/* Odd and even ids of two fields: only the pair tells. */
static double plant_pairs(struct batch *b, struct rng *rng)
{
    double best = 0;
    for (size_t i = 0; i < b->examples.n; i++) {
        uint32_t *ids = b->ids + 2 * i;
        for (int f = 0; f < 2; f++)
            ids[f] = (uint32_t)(rng_next(rng) % 10) + 10 * (uint32_t)f;
        best += draw(&b->labels[i], (ids[0] + ids[1]) % 2 ? 2 : -2, rng);
    }
    return best;
}

/* A pair of fields and a dense feature. */
static double plant_clicks(struct batch *b, struct rng *rng)
{
    double best = 0;
    for (size_t i = 0; i < b->examples.n; i++) {
        uint32_t *ids = b->ids + 3 * i;
        for (int f = 0; f < 3; f++)
            ids[f] = (uint32_t)(rng_next(rng) % 10);
        double logit = (ids[0] + ids[2]) % 2 ? 1.5 : -1.5;
        best += draw(&b->labels[i], logit + 2 * (double)b->dense[2 * i], rng);
    }
    return best;
}

static double plant_xor(struct batch *b, struct rng *rng)
{
    (void)rng;
    for (size_t i = 0; i < b->examples.n; i++)
        b->labels[i] = b->dense[2 * i] * b->dense[2 * i + 1] > 0;
    return 0;
}

static double plant_quadrants(struct batch *b, struct rng *rng)
{
    (void)rng;
    for (size_t i = 0; i < b->examples.n; i++)
        b->labels[i] = (float)((b->dense[2 * i] > 0) + 2 * (b->dense[2 * i + 1] > 0));
    return 0;
}

static const struct {
    struct model_shape shape;
    plant *plant;
    double lr, above;           /* the mean loss may end this much above the best */
} planted[] = {
    {{.kind = MODEL_FM, .n_fields = 2, .n_classes = 1, .rows = 20, .width = 8, .plain_ids = true},
     plant_pairs, 0.5, 0.02},
    {{.kind = MODEL_DLRM, .n_dense = 2, .n_fields = 3, .n_classes = 1, .rows = 10, .width = 8,
      .plain_ids = true, .n_bottom = 1, .bottom = {16}, .n_top = 1, .top = {32}},
     plant_clicks, 0.3, 0.03},
    {{.kind = MODEL_MLP, .n_dense = 2, .n_classes = 1, .n_top = 2, .top = {32, 16}},
     plant_xor, 0.3, 0.08},
    {{.kind = MODEL_MLP, .n_dense = 2, .n_classes = 4, .n_top = 1, .top = {32}},
     plant_quadrants, 0.3, 0.08},
};

START_TEST(training_reaches_the_best)
{
    enum { STEPS = 4000, LAST = 500 };
    static struct batch batch;
    struct trained t = trained_create(&planted[_i].shape, 64);
    struct rng rng;
    rng_init(&rng, 6);
    double loss = 0, best = 0;
    for (int step = 0; step < STEPS; step++) {
        batch_fill(&batch, &planted[_i].shape, 64, false, &rng);
        batch.examples.offsets = NULL;
        double perfect = planted[_i].plant(&batch, &rng);
        double had = model_sgd(t.work, t.w, t.tables, &batch.examples, planted[_i].lr, 0, NULL);
        if (step >= STEPS - LAST) {
            loss += had / (64 * LAST);
            best += perfect / (64 * LAST);
        }
    }
    ck_assert_msg(loss < best + planted[_i].above, "%g, the best is %g", loss, best);
    trained_destroy(&t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nn");
    TCase *tests = tcase_create("nn");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, scores_and_loss_as_naive, 0, N(shapes));
    tcase_add_loop_test(tests, gradients_as_finite_differences, 0, N(shapes));
    tcase_add_test(tests, each_row_once);
    tcase_add_loop_test(tests, sgd_is_gradient_and_step, 0, N(shapes));
    tcase_add_loop_test(tests, scores_do_not_depend_on_the_split, 0, N(shapes));
    tcase_add_loop_test(tests, what_is_not_finite_shows, 0, N(shapes));
    tcase_add_test(tests, layout_is_pytorchs);
    tcase_add_loop_test(tests, init_by_seed_and_in_parts, 0, N(shapes));
    tcase_add_loop_test(tests, bad_shapes_are_refused, 0, N(bad_shapes));
    tcase_add_test(tests, bad_batches_are_refused);
    tcase_add_loop_test(tests, failing_memory_leaks_nothing, 0, N(shapes));
    tcase_add_test(tests, bags_grow_once);
    tcase_add_loop_test(tests, optimizers_as_naive, 0, N(optimizers));
    tcase_add_loop_test(tests, row_optimizers_as_naive, 0, 3);
    tcase_add_loop_test(tests, loops_agree, 0, 3);
    tcase_add_test(tests, blas_knows_the_processor);
    tcase_add_test(tests, small_numbers_are_flushed);
    tcase_add_loop_test(tests, two_threads_share_parameters, 0, N(threaded));
    tcase_add_test(tests, threads_of_their_own_give_the_same);
    tcase_add_loop_test(tests, training_reaches_the_best, 0, N(planted));
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
