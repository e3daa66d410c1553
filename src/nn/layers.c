/* SPDX-License-Identifier: MIT */
/* Layers: y = relu(x W' + b), one after the other, forward and backward.
 *
 * The three products of a layer are OpenBLAS's sgemm on the parameters where they lie. Backward,
 * d (gradient of y, masked by relu) gives dx = d W first and then dW = d' x, which goes straight
 * to the sink: for a step of SGD that is W = beta W - lr d' x in the one product, with no
 * gradient ever stored. The mask and the bias's gradient (the columns' sums of d) are one pass.
 *
 * Invariants:
 *  1 dx is computed before W changes.
 *  2 The last layer's output may lie anywhere (in dlrm, among the vectors): only ld says where.
 *  3 A layer of one output is a dot an example: sgemm is slow at that shape.
 *  4 W is touched by sgemm and by loops.c only (Hogwild; neither is seen by ThreadSanitizer).
 *
 * Runs on the thread that owns `work`. */
#include "nn/parts.h"

static void layer_forward(const struct loops *loops, const struct layer *l, const float *w,
                          struct view x, struct matrix y, size_t n)
{
    if (l->n_out == 1)
        loops->dot(y.at, y.ld, x.at, x.ld, w + l->weight, n, (size_t)l->n_in);
    else
        blas_sgemm(false, true, (int)n, l->n_out, l->n_in, 1, x.at, (int)x.ld, w + l->weight,
                   l->n_in, 0, y.at, (int)y.ld);
    loops->bias(y.at, y.ld, w + l->bias, n, (size_t)l->n_out, l->relu);
}

/* k: the layer; d: gradient of its output; dx.at NULL: not wanted. */
static void layer_backward(const struct work *work, const struct layer *l,
                           const struct pass *pass, int k, struct matrix d, struct matrix dx)
{
    const struct loops *loops = work->model->loops;
    const struct sink *sink = pass->sink;
    struct view x = k ? view_of(pass->y[k - 1]) : pass->x;
    const float *y = l->relu ? pass->y[k].at : NULL;
    int n = (int)pass->n;
    loops->mask(d.at, d.ld, y, pass->y[k].ld, pass->n, (size_t)l->n_out, work->column);
    if (dx.at)
        blas_sgemm(false, false, n, l->n_in, l->n_out, 1, d.at, (int)d.ld, pass->w + l->weight,
                   l->n_in, 0, dx.at, (int)dx.ld);
    if (l->n_in)
        blas_sgemm(true, false, l->n_out, l->n_in, n, sink->alpha, d.at, (int)d.ld, x.at,
                   (int)x.ld, sink->beta, sink->w + l->weight, l->n_in);
    loops->add(sink->w + l->bias, work->column, (size_t)l->n_out, sink->alpha, sink->beta);
}

void stack_forward(const struct model *model, const struct stack *stack, const float *w,
                   struct view x, const struct matrix *y, size_t n)
{
    for (int k = 0; k < stack->n; k++)
        layer_forward(model->loops, &stack->layers[k], w, k ? view_of(y[k - 1]) : x, y[k], n);
}

struct matrix stack_backward(const struct work *work, const struct stack *stack,
                             const struct pass *pass, struct matrix d, bool want_dx)
{
    for (int k = stack->n - 1; k >= 0; k--) {
        const struct layer *l = &stack->layers[k];
        struct matrix dx = {0};
        if (k || want_dx)
            dx = work_other(work, d, (size_t)l->n_in);
        layer_backward(work, l, pass, k, d, dx);
        d = dx;
    }
    return d;
}
