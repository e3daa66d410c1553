/* SPDX-License-Identifier: MIT */
/* Optimizers, as PyTorch computes them. With g the gradient (l2 w added, but for adamw):
 *
 *   sgd              v = momentum v + g;  w -= lr v
 *   adagrad          s += g g;  w -= lr g / (sqrt(s) + epsilon)
 *   adam, adamw      m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g g
 *                    w -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + epsilon)
 *                    adamw: w *= 1 - lr l2 first (decoupled)
 *   ftrl             FTRL-proximal (McMahan et al. 2013), alpha = lr:
 *                    w = argmin of sum g w + sum sigma (w - w_s)^2 / 2 + l1 |w| + l2 w^2
 *                    / 2, with sums of sigma = (beta + sqrt(s)) / alpha, s += g g
 *   rows sgd         w -= lr g, for the rows that the batch touched
 *   rows adagrad     as adagrad; epsilon the same
 *   rowwise adagrad  s += mean(g g), one s a row;  w -= lr g / (sqrt(s) + epsilon)
 *   rows ftrl        as ftrl, on inputs divided by their root mean square, one a row
 *
 * FTRL is usually written with z = sum g - sum sigma w as its state and w made from it,
 * which would undo what a merge has done to w. Here w is the state, from which z follows,
 * and z is kept only where l1 holds w at 0. Without l1 a step is w -= g / (l2 + (beta +
 * sqrt(s)) / alpha).
 *
 * A step of ftrl is alpha or so in each row's score, whatever the gradient's size; that
 * is why rows ftrl divides inputs by their own scale, which thus needs no care in the
 * data, as Vowpal Wabbit's normalised updates do (Ross, Mineiro, Langford 2013). The mean
 * square and not the largest, as there: it is made of sums, which may be added up over
 * machines.
 *
 * Here the state is laid out and the constants of a step are computed, in double; the
 * loops are in loops.c and kernels.c, since others may be changing w at the same time. */
#include "kernels/kernels.h"
#include "nn/loops.h"
#include "nn/nn.h"

#include <math.h>

enum { MET = 2 };       /* floats of a row's state before its sums: see ftrl_meet */

size_t optimizer_floats(const struct optimizer *o, size_t n)
{
    switch (o->kind) {
    case OPTIMIZER_SGD:
        return o->momentum == 0 ? 0 : n;
    case OPTIMIZER_ADAGRAD:
        return n;
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW:
    case OPTIMIZER_FTRL:
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
    case ROWS_FTRL:
        return n_rows * (MET + 2 * (size_t)width);
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

static struct ftrl ftrl_of(const struct optimizer *o, double lr, float scale)
{
    return (struct ftrl){(float)lr, (float)o->beta, (float)o->l1, (float)o->l2, scale};
}

void optimizer_step(const struct optimizer *o, float *w, const float *g, float *state,
                    size_t n, double lr, uint64_t step)
{
    const struct optimizer_piece all = {w, g, state, 0, n, n};
    optimizer_step_piece(o, &all, lr, step);
}

void optimizer_step_piece(const struct optimizer *o, const struct optimizer_piece *p,
                          double lr, uint64_t step)
{
    const struct loops *loops = loops_best();
    const struct kernels *kernels = kernels_best();
    struct adam adam;
    struct ftrl ftrl;
    switch (o->kind) {
    case OPTIMIZER_SGD:
        if (o->momentum == 0)
            loops->add(p->w, p->g, p->n, (float)-lr, (float)(1 - lr * o->l2));
        else
            kernels->momentum(p->w, p->g, p->state + p->at, p->n, (float)lr,
                              (float)o->momentum, (float)o->l2);
        break;
    case OPTIMIZER_ADAGRAD:
        kernels->adagrad(p->w, p->g, p->state + p->at, p->n, (float)lr,
                         (float)o->epsilon, (float)o->l2);
        break;
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW:
        adam = adam_of(o, lr, step);
        kernels->adam(p->w, p->g, p->state + p->at, p->state + p->all + p->at, p->n,
                      &adam);
        break;
    case OPTIMIZER_FTRL:
        ftrl = ftrl_of(o, lr, 1);
        if (lr > 0)
            loops->ftrl(p->w, p->g, p->state + p->at, p->state + p->all + p->at, p->n,
                        &ftrl);
        break;
    }
}

double optimizer_rows_meet(const struct optimizer *o, float *tables, float *state,
                           const struct row_grads *rows)
{
    const struct loops *loops = loops_best();
    size_t width = (size_t)rows->width;
    double sum = 0;
    if (o->rows != ROWS_FTRL)
        return 0;
    for (size_t k = 0; k < rows->n; k++) {
        float *met = state + rows->rows[k] * (MET + 2 * width);
        const float *inputs = rows->inputs + 2 * k;
        float scale =
            loops->ftrl_meet(tables + rows->rows[k] * width, met, inputs, width);
        sum += scale > 0 ? (double)(inputs[1] / (scale * scale)) : 0;
    }
    return sum;
}

/* The floats of a vector share its rate, as features share theirs: by their number to the
 * power of 3/4, with which `make bench-peers` does best (1/2: better on most sets, worse
 * on the smallest). */
static void step_ftrl(const struct optimizer *o, const struct row_grads *rows, size_t k,
                      float *tables, float *state, double lr)
{
    const struct loops *loops = loops_best();
    size_t width = (size_t)rows->width, n = (size_t)rows->n_weights, more = width - n;
    float *w = tables + rows->rows[k] * width,
          *met = state + rows->rows[k] * (MET + 2 * width);
    float *sums = met + MET, *held = sums + width;
    const float *g = rows->grads + k * width;
    struct ftrl ftrl = ftrl_of(o, lr, loops->ftrl_meet(w, met, NULL, width));
    loops->ftrl(w, g, sums, held, n, &ftrl);
    if (!more)
        return;
    ftrl.alpha /= sqrtf((float)more * sqrtf((float)more));
    loops->ftrl(w + n, g + n, sums + n, held + n, more, &ftrl);
}

void optimizer_rows_step(const struct optimizer *o, float *tables, float *state,
                         const struct row_grads *rows, double lr)
{
    const struct loops *loops = loops_best();
    const struct kernels *kernels = kernels_best();
    size_t width = (size_t)rows->width;
    float rate = (float)lr, epsilon = (float)o->epsilon;
    size_t n = o->rows != ROWS_FTRL || lr > 0 ? rows->n : 0; /* it divides by the rate */
    for (size_t k = 0; k < n; k++) {
        size_t at = rows->rows[k] * width;
        const float *g = rows->grads + k * width;
        switch (o->rows) {
        case ROWS_SGD:
            loops->add(tables + at, g, width, -rate, 1);
            break;
        case ROWS_ADAGRAD:
            kernels->adagrad(tables + at, g, state + at, width, rate, epsilon, 0);
            break;
        case ROWS_ROWWISE_ADAGRAD:
            kernels->rowwise(tables + at, g, state + rows->rows[k], width, rate,
                             epsilon);
            break;
        case ROWS_FTRL:
            step_ftrl(o, rows, k, tables, state, lr);
            break;
        }
    }
}
