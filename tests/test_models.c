/* SPDX-License-Identifier: MIT */
/* Models against naive ones in double, gradients against finite differences, shapes, and memory
 * that fails. */
#include "harness/nn.h"
#include "harness/suite.h"

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

/* Of tables that grow: by its number, and that of its table. */
START_TEST(each_id_has_a_row_of_its_own)
{
    static struct batch batch;
    struct rng rng;
    struct model *model;
    struct work *work;
    struct model_shape shape = shapes[4];
    shape.grows = true;
    ck_assert_int_eq(model_create(&model, &shape, NULL), DESCANT_INVALID);
    shape.rows = 0;
    ck_assert_int_eq(model_create(&model, &shape, NULL), DESCANT_OK);
    ck_assert_uint_eq(model_table_floats(model), 0);
    ck_assert_int_eq(work_create(&work, model, 33, NULL), DESCANT_OK);
    work_on_blocks(work, NULL);
    rng_init(&rng, 4);
    batch_fill(&batch, &shape, 33, true, &rng);
    ck_assert(work_ahead(work, &batch.examples));
    const struct row_grads *rows = work_rows(work);
    size_t n = 0, fields = (size_t)shape.n_fields;
    for (size_t bag = 0; bag < 33 * fields; bag++)
        for (uint32_t k = batch.offsets[bag]; k < batch.offsets[bag + 1]; k++) {
            uint64_t row = (uint64_t)(bag % fields) << 32 | batch.ids[k];
            size_t at = 0;
            while (at < rows->n && rows->rows[at] != row)
                at++;
            ck_assert_uint_lt(at, rows->n);
            n = at + 1 > n ? at + 1 : n;
        }
    ck_assert_uint_eq(n, rows->n);      /* in the order in which they come */
    work_destroy(work);
    model_destroy(model);
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

/* The rows of a batch alone, as their owners send them. */
START_TEST(a_block_is_as_the_tables)
{
    static struct batch batch;
    static float scores[2][33 * 10];
    struct rng rng;
    rng_init(&rng, 300 + (uint64_t)_i);
    struct trained a = trained_create(&shapes[_i], 33), b = trained_create(&shapes[_i], 33);
    size_t n = model_floats(a.model), width = (size_t)model_table_width(a.model);
    float *g = memory_take_array(2 * n, sizeof *g), *block = NULL;
    work_on_blocks(b.work, NULL);
    for (int k = 0; k < 2 * N(batch_sizes); k++) {
        batch_fill(&batch, &shapes[_i], batch_sizes[k / 2], k % 2, &rng);
        ck_assert(work_ahead(b.work, &batch.examples));
        const struct row_grads *rows = work_rows(b.work), *same = work_rows(a.work);
        memory_give(block);
        block = memory_take_array(rows->n * width + 1, sizeof *block);
        for (size_t r = 0; r < rows->n; r++)
            memcpy(block + r * width, a.tables + rows->rows[r] * width, width * sizeof *block);
        model_scores(b.work, a.w, block, &batch.examples, scores[0]);
        model_scores(a.work, a.w, a.tables, &batch.examples, scores[1]);
        size_t outputs = batch.examples.n * (size_t)model_outputs(a.model);
        ck_assert_mem_eq(scores[0], scores[1], outputs * sizeof(float));
        ck_assert(work_ahead(b.work, &batch.examples));
        double loss = model_gradient(b.work, a.w, block, &batch.examples, g, NULL);
        double as = model_gradient(a.work, a.w, a.tables, &batch.examples, g + n, NULL);
        ck_assert(loss >= as && loss <= as);
        ck_assert_mem_eq(g, g + n, n * sizeof *g);
        ck_assert_uint_eq(rows->n, same->n);
        if (rows->n == 0)
            continue;
        ck_assert_mem_eq(rows->rows, same->rows, rows->n * sizeof *rows->rows);
        ck_assert_mem_eq(rows->grads, same->grads, rows->n * width * sizeof(float));
    }
    memory_give(block);
    memory_give(g);
    trained_destroy(&a);
    trained_destroy(&b);
}
END_TEST

/* --- turns: rows come in the middle of a pass, and go there --- */

struct turned {
    const struct model *model;
    const float *g;                     /* of the pass, UNTOUCHED at first */
    struct work *work;
    const float *block;                 /* of the next pass */
    const struct examples *next;        /* batch, which done makes ready */
    float *grads;                       /* (n, width) as done had them */
    size_t width;
    int needed, done;
};

#define UNTOUCHED 12345.0f

static void fill(float *g, size_t n, float with)
{
    for (size_t k = 0; k < n; k++)
        g[k] = with;
}

static const float *needed(void *of)
{
    struct turned *t = of;
    ck_assert_int_eq(t->needed++, t->done);
    return t->block;
}

/* In dlrm the gradients of the top's weights are none of what the rows' need. */
static void weights_come_later(const struct turned *t)
{
    size_t n, touched = 0;
    const struct tensor *tensors = model_tensors(t->model, &n);
    for (const struct tensor *one = tensors; one < tensors + n; one++)
        for (size_t k = 0; strncmp(one->name, "top.", 4) == 0 && one->n_dims == 2 && k < one->n; k++)
            touched += t->g[one->at + k] < UNTOUCHED || t->g[one->at + k] > UNTOUCHED;
    ck_assert_uint_eq(touched, 0);
}

static void done(void *of)
{
    struct turned *t = of;
    const struct row_grads *rows = work_rows(t->work);
    ck_assert_int_eq(++t->done, t->needed);
    if (rows->n)
        memcpy(t->grads, rows->grads, rows->n * t->width * sizeof *t->grads);
    ck_assert(work_ahead(t->work, t->next));
    weights_come_later(t);
}

/* The next batch is made ready in the middle of each pass, and changes nothing of it. */
START_TEST(rows_turn_in_the_middle_of_a_pass)
{
    static struct batch batches[2];
    struct rng rng;
    rng_init(&rng, 600 + (uint64_t)_i);
    struct trained a = trained_create(&shapes[_i], 33), b = trained_create(&shapes[_i], 33);
    size_t n = model_floats(a.model), width = (size_t)model_table_width(a.model);
    float *g = memory_take_array(2 * n, sizeof *g), *block = NULL;
    struct turned turned = {.model = b.model, .g = g, .work = b.work, .width = width,
                            .grads = memory_take_array(100000, sizeof(float))};
    const struct work_turns turns = {&turned, needed, done};
    bool turned_at_all = shapes[_i].kind != MODEL_MLP;  /* which has no rows */
    work_on_blocks(b.work, &turns);
    batch_fill(&batches[0], &shapes[_i], 33, true, &rng);
    ck_assert(work_ahead(b.work, &batches[0].examples));
    for (int k = 0; k < 6; k++) {
        const struct examples *now = &batches[k % 2].examples;
        batch_fill(&batches[(k + 1) % 2], &shapes[_i], 1 + 6 * (size_t)k, k % 2, &rng);
        turned.next = &batches[(k + 1) % 2].examples;
        const struct row_grads *rows = work_rows(b.work), *same = work_rows(a.work);
        ck_assert_uint_le(rows->n * width, 100000);
        memory_give(block);
        block = memory_take_array(rows->n * width + 1, sizeof *block);
        for (size_t r = 0; r < rows->n; r++)
            memcpy(block + r * width, a.tables + rows->rows[r] * width, width * sizeof *block);
        turned.block = block;
        fill(g, n, UNTOUCHED);
        double loss = model_gradient(b.work, a.w, NULL, now, g, NULL);
        double as = model_gradient(a.work, a.w, a.tables, now, g + n, NULL);
        ck_assert(loss >= as && loss <= as);
        ck_assert_mem_eq(g, g + n, n * sizeof *g);
        ck_assert_int_eq(turned.done, turned_at_all ? k + 1 : 0);
        if (same->n)
            ck_assert_mem_eq(turned.grads, same->grads, same->n * width * sizeof(float));
        if (!turned_at_all)
            ck_assert(work_ahead(b.work, turned.next));
    }
    turned.block = NULL;            /* they are not to be had: the pass ends all the same */
    fill(g, n, UNTOUCHED);
    model_gradient(b.work, a.w, NULL, turned.next, g, NULL);
    a.w[0] = NAN;
    ck_assert(work_ahead(b.work, turned.next));
    int so_far = turned.done;
    ck_assert(!isfinite(model_gradient(b.work, a.w, NULL, turned.next, g, NULL)));
    ck_assert_int_eq(turned.done, so_far);
    memory_give(turned.grads);
    memory_give(block);
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
    batch_fill(&batch, &shapes[2], 7, false, &rng);
    model_gradient(t.work, t.w, t.tables, &batch.examples, g, NULL);
    ck_assert_uint_gt(work_rows(t.work)->n, 0);
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

int main(void)
{
    TCase *tests = new_case("models", 120);
    tcase_add_loop_test(tests, scores_and_loss_as_naive, 0, N(shapes));
    tcase_add_loop_test(tests, gradients_as_finite_differences, 0, N(shapes));
    tcase_add_test(tests, each_row_once);
    tcase_add_test(tests, each_id_has_a_row_of_its_own);
    tcase_add_loop_test(tests, sgd_is_gradient_and_step, 0, N(shapes));
    tcase_add_loop_test(tests, a_block_is_as_the_tables, 0, N(shapes));
    tcase_add_loop_test(tests, rows_turn_in_the_middle_of_a_pass, 0, N(shapes));
    tcase_add_loop_test(tests, scores_do_not_depend_on_the_split, 0, N(shapes));
    tcase_add_loop_test(tests, what_is_not_finite_shows, 0, N(shapes));
    tcase_add_test(tests, layout_is_pytorchs);
    tcase_add_loop_test(tests, init_by_seed_and_in_parts, 0, N(shapes));
    tcase_add_loop_test(tests, bad_shapes_are_refused, 0, N(bad_shapes));
    tcase_add_test(tests, bad_batches_are_refused);
    tcase_add_loop_test(tests, failing_memory_leaks_nothing, 0, N(shapes));
    tcase_add_test(tests, bags_grow_once);
    return run_cases(tests, NULL);
}
