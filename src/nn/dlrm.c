/* SPDX-License-Identifier: MIT */
/* DLRM (Naumov et al. 2019, arXiv 1906.00091): click prediction from dense features and
 * ids.
 *
 *   b = bottom(dense)                     n_dense -> ... -> width, relu after every layer
 *   e_f = sum of value * row of table f over the bag of field f
 *   T = [b; e_1; ...; e_F]                F + 1 vectors
 *   z = [b, T_i . T_j for i > j]          in the order (1,0) (2,0) (2,1) (3,0) ...
 *   score = top(z)                        -> ... -> 1, relu between
 *
 * The bottom's last layer writes its output among the vectors of T, where the interaction
 * wants it. Vectors are padded with zeros to whole lanes; the pads stay zero. Backward
 * goes example by example: the gradient of T is a few kilobytes, used up while it is in
 * the first cache: its first vector becomes the bottom's, the others go to the tables'
 * rows at once. Where rows come from elsewhere, the gradients of the top's weights are
 * computed after that, so that the next batch's rows are on their way for longer. */
#include "nn/parts.h"

#include <string.h>

static size_t n_vectors(const struct model *model)
{
    return (size_t)model->shape.n_fields + 1;
}

static size_t vector_stride(const struct model *model)
{
    return room_of((size_t)model->shape.width);
}

static size_t n_pairs(const struct model *model)
{
    return n_vectors(model) * (n_vectors(model) - 1) / 2;
}

static const char *check(const struct model_shape *s)
{
    if (s->n_dense < 1)
        return "dlrm needs a dense feature";
    if (s->n_fields < 1 || s->n_fields > 1000)
        return "dlrm needs 1 to 1000 fields";
    if (s->rows < 1 && !s->grows)
        return "dlrm needs rows";
    if (s->width < 1)
        return "dlrm needs a width";
    if (s->n_classes != 1)
        return "dlrm has one output";
    return NULL;
}

static void lay_out(struct model *m)
{
    const struct model_shape *s = &m->shape;
    model_add_stack(m, &m->bottom, "bottom", s->n_dense, s->bottom, s->n_bottom, s->width,
                    true);
    model_add_stack(m, &m->top, "top", s->width + (int)n_pairs(m), s->top, s->n_top, 1,
                    false);
    m->row_width = s->width;
    m->n_tables = (size_t)s->n_fields;
}

static bool reserve(struct work *work)
{
    const struct model *m = work->model;
    size_t all = n_vectors(m) * vector_stride(m), width = (size_t)m->shape.width;
    work->one = memory_take_array(all, sizeof(float));
    work->turned = memory_take_array(room_of(n_vectors(m)) * width, sizeof(float));
    return work->one && work->turned && work_matrix(work, &work->vectors, all) &&
           work_matrix(work, &work->top_in, width + n_pairs(m) + LANES) &&
           work_matrix(work, &work->top_in_d, width + n_pairs(m));
}

static void interact(struct work *work, const float *tables, const struct examples *batch)
{
    const struct model *m = work->model;
    size_t width = (size_t)m->shape.width, stride = vector_stride(m);
    for (size_t i = 0; i < batch->n; i++) {
        struct bags bags = rows_bags(batch, i, rows_index(work));
        float *t = work->vectors.at + i * work->vectors.ld;
        float *in = work->top_in.at + i * work->top_in.ld;
        m->loops->pool(t + stride, stride, tables, width, &bags);
        memcpy(in, t, width * sizeof *t);
        m->loops->dots(in + width, t, stride, n_vectors(m), width, work->turned);
    }
}

/* The gradient of [bottom, dots] becomes the bottom's and, in the sink, that of rows. */
static void interact_back(struct work *work, const struct examples *batch,
                          const struct sink *sink)
{
    const struct model *m = work->model;
    size_t width = (size_t)m->shape.width, stride = vector_stride(m);
    struct matrix d = work->top_in_d, bottom_d = work->bottom_d[m->bottom.n - 1];
    float *dt = work->one;
    for (size_t i = 0; i < batch->n; i++) {
        struct bags bags = rows_bags(batch, i, sink->index);
        const float *t = work->vectors.at + i * work->vectors.ld, *di = d.at + i * d.ld;
        float *bottom = bottom_d.at + i * bottom_d.ld;
        m->loops->dots_back(dt, di + width, t, stride, n_vectors(m));
        m->loops->scatter(sink->rows, width, &bags, dt + stride, stride, sink->alpha);
        for (size_t c = 0; c < width; c++)
            bottom[c] = di[c] + dt[c];
    }
}

static struct view dense_of(const struct examples *batch)
{
    return (struct view){batch->dense, (size_t)batch->n_dense};
}

static void forward(struct work *work, const struct params *p,
                    const struct examples *batch, struct matrix scores, bool keep)
{
    const struct model *m = work->model;
    (void)keep;
    work->bottom[m->bottom.n - 1] = work->vectors;
    work->top[m->top.n - 1] = scores;
    stack_forward(m, &m->bottom, p->w, dense_of(batch), work->bottom, batch->n);
    interact(work, work_tables(work, p->tables), batch);
    stack_forward(m, &m->top, p->w, view_of(work->top_in), work->top, batch->n);
}

static void backward(struct work *work, const struct params *p,
                     const struct examples *batch, const struct sink *sink)
{
    const struct model *m = work->model;
    struct pass top = {p->w, view_of(work->top_in), work->top, work->top_d, batch->n,
                       sink};
    struct pass bottom = {p->w, dense_of(batch), work->bottom, work->bottom_d, batch->n,
                          sink};
    bool rows_first = work_rows_first(work);
    stack_backward(work, &m->top, &top, work->top_in_d, !rows_first);
    interact_back(work, batch, sink);
    work_rows_done(work);
    if (rows_first)
        stack_weights(work, &m->top, &top);
    stack_backward(work, &m->bottom, &bottom, (struct matrix){0}, true);
}

/* As one product T T' forward and two backward, which is what others compute. */
static double flops(const struct model *m)
{
    double n = (double)n_vectors(m);
    return 3 * 2 * n * n * m->shape.width;
}

const struct model_kind_table kind_dlrm = {
    .name = "dlrm",
    .check = check,
    .lay_out = lay_out,
    .reserve = reserve,
    .forward = forward,
    .backward = backward,
    .flops = flops,
};
