/* SPDX-License-Identifier: MIT */
/* Dense features through hidden layers with relu to one logit, or to one for each class.
 */
#include "nn/parts.h"

static const char *check(const struct model_shape *s)
{
    if (s->n_dense < 1)
        return "mlp needs a dense feature";
    if (s->n_fields)
        return "mlp takes no ids";
    return NULL;
}

static void lay_out(struct model *m)
{
    const struct model_shape *s = &m->shape;
    model_add_stack(m, &m->top, "layers", s->n_dense, s->top, s->n_top, s->n_classes,
                    false);
}

static void forward(struct work *work, const struct params *p,
                    const struct examples *batch, struct matrix scores, bool keep)
{
    const struct model *m = work->model;
    struct view dense = {batch->dense, (size_t)batch->n_dense};
    (void)keep;
    work->top[m->top.n - 1] = scores;
    stack_forward(m, &m->top, p->w, dense, work->top, batch->n);
}

static void backward(struct work *work, const struct params *p,
                     const struct examples *batch, const struct sink *sink)
{
    struct view dense = {batch->dense, (size_t)batch->n_dense};
    struct pass pass = {p->w, dense, work->top, work->top_d, batch->n, sink};
    stack_backward(work, &work->model->top, &pass, (struct matrix){0}, true);
}

static double flops(const struct model *m)
{
    (void)m;
    return 0;
}

const struct model_kind_table kind_mlp = {
    .name = "mlp",
    .check = check,
    .lay_out = lay_out,
    .forward = forward,
    .backward = backward,
    .flops = flops,
};
