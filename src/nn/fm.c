/* SPDX-License-Identifier: MIT */
/* Linear models and factorization machines (Rendle, ICDM 2010): a linear model is one of
 * width 0.
 *
 *   score = bias + w . dense + sum_k x_k u_k + sum_{k < l} x_k x_l v_k . v_l
 *
 * over all ids k of the example, whatever their field; a row is [u, v_1 ... v_width]. The
 * pairs are had in linear time: half of (sum x v)^2 - sum (x v)^2, so d score / d v_k =
 * x_k (sum_l x_l v_l - x_k v_k). The products x v of the forward pass are kept for the
 * backward one: an id that comes twice in a batch must not see its row half changed.
 *
 * The dense features are a layer of one output. */
#include "nn/parts.h"

static size_t width_of(const struct model *m)
{
    return m->shape.kind == MODEL_FM ? (size_t)m->shape.width : 0;
}

static const char *check_linear(const struct model_shape *s)
{
    if (s->n_dense < 0 || s->n_fields < 0 || s->n_dense + s->n_fields < 1)
        return "linear and fm need a feature";
    if (s->n_fields && s->rows < 1 && !s->grows)
        return "linear and fm need rows for their ids";
    if (s->n_classes != 1)
        return "linear and fm have one output";
    return NULL;
}

static const char *check_fm(const struct model_shape *s)
{
    if (s->n_fields < 1)
        return "fm needs a field";
    if (s->width < 1)
        return "fm needs a width";
    return check_linear(s);
}

static void lay_out(struct model *m)
{
    model_add_layer(m, &m->top, "dense", m->shape.n_dense, 1, false);
    m->row_width = m->shape.n_fields ? 1 + (int)width_of(m) : 0;
    m->n_tables = m->shape.n_fields ? 1 : 0;
}

static bool reserve(struct work *work)
{
    return work_matrix(work, &work->vectors, 2 * width_of(work->model));
}

static void forward(struct work *work, const struct params *p,
                    const struct examples *batch, struct matrix scores, bool keep)
{
    const struct model *m = work->model;
    size_t width = width_of(m);
    struct view dense = {batch->dense, (size_t)batch->n_dense};
    work->top[0] = scores;
    stack_forward(m, &m->top, p->w, dense, work->top, batch->n);
    const float *tables = work_tables(work, p->tables);
    for (size_t i = 0; i < batch->n && m->n_tables; i++) {
        struct bags bags = rows_bags(batch, i, rows_index(work));
        float *sums = work->vectors.at + i * work->vectors.ld;
        float *products =
            keep ? work->rows.products + rows_first(batch, i) * width : NULL;
        scores.at[i * scores.ld] +=
            m->loops->factors(sums, products, tables, width, &bags);
    }
}

static void backward(struct work *work, const struct params *p,
                     const struct examples *batch, const struct sink *sink)
{
    const struct model *m = work->model;
    size_t width = width_of(m);
    struct view dense = {batch->dense, (size_t)batch->n_dense};
    struct pass pass = {p->w, dense, work->top, work->top_d, batch->n, sink};
    struct matrix d = work->top_d[0];
    for (size_t i = 0; i < batch->n && m->n_tables; i++) {
        struct bags bags = rows_bags(batch, i, sink->index);
        const float *sums = work->vectors.at + i * work->vectors.ld;
        const float *products = work->rows.products + rows_first(batch, i) * width;
        m->loops->factors_back(sink->rows, width, &bags, sums, products,
                               sink->alpha * d.at[i * d.ld]);
    }
    work_rows_done(work);
    stack_backward(work, &m->top, &pass, (struct matrix){0}, true);
}

/* One product an id and factor, forward, and as many backward for sums and rows. */
static double flops(const struct model *m)
{
    return 3 * 2 * (double)m->shape.n_fields * (double)m->row_width;
}

const struct model_kind_table kind_linear = {
    .name = "linear",
    .check = check_linear,
    .lay_out = lay_out,
    .reserve = reserve,
    .forward = forward,
    .backward = backward,
    .flops = flops,
};

const struct model_kind_table kind_fm = {
    .name = "fm",
    .check = check_fm,
    .lay_out = lay_out,
    .reserve = reserve,
    .forward = forward,
    .backward = backward,
    .flops = flops,
};
