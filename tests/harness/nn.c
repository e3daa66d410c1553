/* SPDX-License-Identifier: MIT */
/* Shapes of models, batches for them, and models of these shapes. */
#include "harness/nn.h"

#include <check.h>
#include <math.h>

const struct model_shape shapes[12] = {
    {.kind = MODEL_LINEAR, .n_dense = 3, .n_fields = 4, .n_classes = 1, .rows = 20},
    {.kind = MODEL_LINEAR, .n_dense = 5, .n_classes = 1},
    {.kind = MODEL_FM, .n_dense = 3, .n_fields = 4, .n_classes = 1, .rows = 20,
     .width = 16},
    {.kind = MODEL_FM, .n_fields = 6, .n_classes = 1, .rows = 15, .width = 5,
     .plain_ids = true},
    {.kind = MODEL_DLRM, .n_dense = 13, .n_fields = 26, .n_classes = 1, .rows = 9,
     .width = 16, .n_bottom = 2, .bottom = {32, 20}, .n_top = 2, .top = {40, 24}},
    {.kind = MODEL_DLRM, .n_dense = 3, .n_fields = 5, .n_classes = 1, .rows = 30,
     .width = 19, .plain_ids = true, .n_bottom = 1, .bottom = {7}, .n_top = 1,
     .top = {9}},
    {.kind = MODEL_DLRM, .n_dense = 1, .n_fields = 1, .n_classes = 1, .rows = 5,
     .width = 1},
    {.kind = MODEL_DLRM, .n_dense = 2, .n_fields = 18, .n_classes = 1, .rows = 7,
     .width = 32},
    {.kind = MODEL_MLP, .n_dense = 6, .n_classes = 3, .n_top = 2, .top = {17, 8}},
    {.kind = MODEL_MLP, .n_dense = 4, .n_classes = 1, .n_top = 1, .top = {33}},
    {.kind = MODEL_MLP, .n_dense = 4, .n_classes = 2},
    {.kind = MODEL_DLRM, .n_dense = 3, .n_fields = 7, .n_classes = 1, .rows = 11,
     .width = 24, .n_bottom = 2, .bottom = {1, 6}, .n_top = 2, .top = {5, 1}},
};

void batch_fill(struct batch *b, const struct model_shape *s, size_t n, bool bags,
                struct rng *rng)
{
    size_t n_bags = n * (size_t)s->n_fields, at = 0;
    for (size_t i = 0; i < n * (size_t)s->n_dense; i++)
        b->dense[i] = (float)rng_normal(rng);
    for (size_t i = 0; i < n; i++)
        b->labels[i] =
            (float)(rng_next(rng) % (s->n_classes == 1 ? 2 : (unsigned)s->n_classes));
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
        .labels = b->labels, .ids = b->ids, .offsets = bags ? b->offsets : NULL,
        .values = bags ? b->values : NULL};
}

struct trained trained_create(const struct model_shape *shape, size_t max_batch)
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

void trained_destroy(struct trained *t)
{
    work_destroy(t->work);
    model_destroy(t->model);
    memory_give(t->w);
    memory_give(t->tables);
}

void shake(struct trained *t, struct rng *rng)
{
    for (size_t k = 0; k < model_floats(t->model); k++)
        t->w[k] += 0.1f * (float)rng_normal(rng);
    for (size_t k = 0; k < model_table_floats(t->model); k++)
        t->tables[k] += 0.3f * (float)rng_normal(rng);
}

void assert_near(const float *a, const float *b, size_t n, double tolerance,
                 const char *what)
{
    for (size_t k = 0; k < n; k++)
        ck_assert_msg(fabs((double)a[k] - (double)b[k]) <=
                          tolerance * (1 + fabs((double)b[k])),
                      "%s: [%zu] is %g, not %g", what, k, (double)a[k], (double)b[k]);
}
