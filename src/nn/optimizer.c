/* SPDX-License-Identifier: MIT */
/* Optimizers, as PyTorch computes them. With g the gradient (l2 w added, but for adamw):
 *
 *   sgd              v = momentum v + g;  w -= lr v
 *   adagrad          s += g g;  w -= lr g / (sqrt(s) + epsilon)
 *   adam, adamw      m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g g
 *                    w -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + epsilon)
 *                    adamw: w *= 1 - lr l2 first (decoupled)
 *   rows sgd         w -= lr g, for the rows that the batch touched
 *   rows adagrad     as adagrad; epsilon the same
 *   rowwise adagrad  s += mean(g g), one s a row;  w -= lr g / (sqrt(s) + epsilon)
 *
 * Here the state is laid out and the constants of a step are computed, in double; the loops are
 * in loops.c, since others may be changing w at the same time. */
#include "nn/loops.h"
#include "nn/nn.h"

#include <math.h>

size_t optimizer_floats(const struct optimizer *o, size_t n)
{
    switch (o->kind) {
    case OPTIMIZER_SGD:
        return o->momentum == 0 ? 0 : n;
    case OPTIMIZER_ADAGRAD:
        return n;
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW:
        return 2 * n;
    }
    return 0;
}

size_t optimizer_row_floats(const struct optimizer *o, size_t n_rows, int width)
{
    switch (o->rows) {
    case ROWS_SGD:
        return 0;
    case ROWS_ADAGRAD:
        return n_rows * (size_t)width;
    case ROWS_ROWWISE_ADAGRAD:
        return n_rows;
    }
    return 0;
}

static struct adam adam_of(const struct optimizer *o, double lr, uint64_t step)
{
    bool decoupled = o->kind == OPTIMIZER_ADAMW;
    return (struct adam){
        .beta1 = (float)o->beta1,
        .beta2 = (float)o->beta2,
        .rest1 = (float)(1 - o->beta1),
        .rest2 = (float)(1 - o->beta2),
        .epsilon = (float)o->epsilon,
        .rate = (float)(lr / (1 - pow(o->beta1, (double)step))),
        .root = (float)(1 / sqrt(1 - pow(o->beta2, (double)step))),
        .l2 = decoupled ? 0 : (float)o->l2,
        .keep = decoupled ? (float)(1 - lr * o->l2) : 1,
    };
}

void optimizer_step(const struct optimizer *o, float *w, const float *g, float *state, size_t n,
                    double lr, uint64_t step)
{
    const struct optimizer_piece all = {w, g, state, 0, n, n};
    optimizer_step_piece(o, &all, lr, step);
}

void optimizer_step_piece(const struct optimizer *o, const struct optimizer_piece *p, double lr,
                          uint64_t step)
{
    const struct loops *loops = loops_best();
    struct adam adam;
    switch (o->kind) {
    case OPTIMIZER_SGD:
        if (o->momentum == 0)
            loops->add(p->w, p->g, p->n, (float)-lr, (float)(1 - lr * o->l2));
        else
            loops->momentum(p->w, p->g, p->state + p->at, p->n, (float)lr,
                            (float)o->momentum, (float)o->l2);
        break;
    case OPTIMIZER_ADAGRAD:
        loops->adagrad(p->w, p->g, p->state + p->at, p->n, (float)lr, (float)o->epsilon,
                       (float)o->l2);
        break;
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW:
        adam = adam_of(o, lr, step);
        loops->adam(p->w, p->g, p->state + p->at, p->state + p->all + p->at, p->n, &adam);
        break;
    }
}

void optimizer_rows_step(const struct optimizer *o, float *tables, float *state,
                         const struct row_grads *rows, double lr)
{
    const struct loops *loops = loops_best();
    size_t width = (size_t)rows->width;
    float rate = (float)lr, epsilon = (float)o->epsilon;
    for (size_t k = 0; k < rows->n; k++) {
        size_t at = rows->rows[k] * width;
        const float *g = rows->grads + k * width;
        switch (o->rows) {
        case ROWS_SGD:
            loops->add(tables + at, g, width, -rate, 1);
            break;
        case ROWS_ADAGRAD:
            loops->adagrad(tables + at, g, state + at, width, rate, epsilon, 0);
            break;
        case ROWS_ROWWISE_ADAGRAD:
            loops->rowwise(tables + at, g, state + rows->rows[k], width, rate, epsilon);
            break;
        }
    }
}
