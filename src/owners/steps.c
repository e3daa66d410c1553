/* SPDX-License-Identifier: MIT */
/* A row's first values, and its step by a gradient, which is that of its table's
 * optimizer. The record is the row's values, and behind them the optimizer's state. */
#include "owners/owned.h"

#include <math.h>

size_t owned_state(const struct descant_owned *shape)
{
    switch (shape->optimizer) {
    case DESCANT_ROWS_SGD:
        return shape->momentum > 0 ? shape->width : 0;
    case DESCANT_ROWS_ADAGRAD:
        return shape->width;
    case DESCANT_ROWS_ROWWISE_ADAGRAD:
        return 1;
    case DESCANT_ROWS_ADAM:
        return 2 * shape->width + 1;    /* and its pushes */
    }
    return 0;
}

void owned_first(const struct owned *table, uint64_t row, float *out)
{
    const struct descant_owned *o = &table->shape;

    rng_row(out, o->width, o->zeros, o->spread, o->seed, row);
}

static void adam(const struct owned *table, float *record, const float *g, float rate)
{
    const struct descant_owned *o = &table->shape;
    float *m = record + o->width, *v = m + o->width, one = 1, pushes;

    table->kernels->add(v + o->width, &one, 1, 1);
    table->kernels->copy(&pushes, v + o->width, 1);
    double t = pushes < 1 ? 1 : (double)pushes;         /* others count at once */
    struct adam a = {.beta1 = (float)o->beta1, .beta2 = (float)o->beta2,
                     .rest1 = (float)(1 - o->beta1), .rest2 = (float)(1 - o->beta2),
                     .epsilon = (float)o->epsilon,
                     .rate = (float)((double)rate / (1 - pow(o->beta1, t))),
                     .root = (float)(1 / sqrt(1 - pow(o->beta2, t))), .keep = 1};
    table->kernels->adam(record, g, m, v, o->width, &a);
}

void owned_step(const struct owned *table, float *record, const float *g, float rate)
{
    const struct descant_owned *o = &table->shape;
    float *state = record + o->width;

    switch (o->optimizer) {
    case DESCANT_ROWS_SGD:
        if (o->momentum > 0)
            table->kernels->momentum(record, g, state, o->width, rate,
                                     (float)o->momentum, 0);
        else
            table->kernels->add(record, g, -rate, o->width);
        break;
    case DESCANT_ROWS_ADAGRAD:
        table->kernels->adagrad(record, g, state, o->width, rate, (float)o->epsilon, 0);
        break;
    case DESCANT_ROWS_ROWWISE_ADAGRAD:
        table->kernels->rowwise(record, g, state, o->width, rate, (float)o->epsilon);
        break;
    case DESCANT_ROWS_ADAM:
        adam(table, record, g, rate);
        break;
    }
}
