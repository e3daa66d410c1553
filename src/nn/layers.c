/* SPDX-License-Identifier: MIT */
/* Layers: y = relu(x W' + b), one after the other, forward and backward.
 *
 * The three products of a layer are OpenBLAS's sgemm on the parameters where they lie.
 * Backward, d (gradient of y, masked by relu) gives dx = d W first, and dW = d' x right
 * after that or later (stack_weights), for which each layer keeps its d. dW goes straight
 * to the sink: for a step of SGD that is W = beta W - lr d' x in the one product, with no
 * gradient ever stored. Forward, the product is added to rows that hold the bias:
 * OpenBLAS adds to what it has cleared anyway. The mask and the bias's gradient (the
 * columns' sums of d) are one pass.
 *
 * Invariants:
 *  1 dx is computed before W changes.
 *  2 The last layer's output may lie anywhere (in dlrm, among the vectors): only ld says
 *    where.
 *  3 A layer of one output has loops of its own: sgemm is slow at that shape.
 *  4 W is touched by sgemm and by loops.c only (Hogwild; neither is seen by
 *    ThreadSanitizer).
 *
 * Runs on the thread that owns `work`. */
#include "nn/parts.h"

static void layer_forward(const struct loops *loops, const struct layer *l,
                          const float *w, struct view x, struct matrix y, size_t n)
{
    size_t n_out = (size_t)l->n_out;
    loops->fill(y.at, y.ld, w + l->bias, n, n_out);
    if (n_out == 1)
        loops->dot(y.at, y.ld, x.at, x.ld, w + l->weight, n, (size_t)l->n_in);
    else
        blas_sgemm(false, true, (int)n, l->n_out, l->n_in, 1, x.at, (int)x.ld,
                   w + l->weight, l->n_in, 1, y.at, (int)y.ld);
    if (l->relu)
        loops->relu(y.at, y.ld, n, n_out);
}

static void input_gradient(const struct loops *loops, const struct layer *l,
                           const float *w, struct matrix d, struct matrix dx, size_t n)
{
    if (l->n_out == 1)
        loops->outer(dx.at, dx.ld, d.at, d.ld, w + l->weight, n, (size_t)l->n_in);
    else
        blas_sgemm(false, false, (int)n, l->n_in, l->n_out, 1, d.at, (int)d.ld,
                   w + l->weight, l->n_in, 0, dx.at, (int)dx.ld);
}

/* k: the layer. */
static void weight_gradient(const struct work *work, const struct layer *l,
                            const struct pass *pass, int k)
{
    const struct sink *sink = pass->sink;
    struct view x = k ? view_of(pass->y[k - 1]) : pass->x;
    struct matrix d = pass->d[k];
    float *to = sink->w + l->weight;
    size_t n_in = (size_t)l->n_in, n = pass->n;
    if (!n_in)
        return;
    if (l->n_out == 1) {
        work->model->loops->weigh(work->column, d.at, d.ld, x.at, x.ld, n, n_in);
        work->model->loops->add(to, work->column, n_in, sink->alpha, sink->beta);
    } else {
        blas_sgemm(true, false, l->n_out, l->n_in, (int)n, sink->alpha, d.at, (int)d.ld,
                   x.at, (int)x.ld, sink->beta, to, l->n_in);
    }
}

void stack_forward(const struct model *model, const struct stack *stack, const float *w,
                   struct view x, const struct matrix *y, size_t n)
{
    for (int k = 0; k < stack->n; k++)
        layer_forward(model->loops, &stack->layers[k], w, k ? view_of(y[k - 1]) : x, y[k],
                      n);
}

void stack_backward(const struct work *work, const struct stack *stack,
                    const struct pass *pass, struct matrix dx, bool weights)
{
    const struct loops *loops = work->model->loops;
    const struct sink *sink = pass->sink;

    for (int k = stack->n - 1; k >= 0; k--) {
        const struct layer *l = &stack->layers[k];
        struct matrix d = pass->d[k], to = k ? pass->d[k - 1] : dx;
        loops->mask(d.at, d.ld, l->relu ? pass->y[k].at : NULL, pass->y[k].ld, pass->n,
                    (size_t)l->n_out, work->column);
        loops->add(sink->w + l->bias, work->column, (size_t)l->n_out, sink->alpha,
                   sink->beta);
        if (to.at)
            input_gradient(loops, l, pass->w, d, to, pass->n);
        if (weights)
            weight_gradient(work, l, pass, k);
    }
}

void stack_weights(const struct work *work, const struct stack *stack,
                   const struct pass *pass)
{
    for (int k = stack->n - 1; k >= 0; k--)
        weight_gradient(work, &stack->layers[k], pass, k);
}
