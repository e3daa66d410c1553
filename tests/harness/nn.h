/* SPDX-License-Identifier: MIT */
/* What the tests of models share: shapes, random batches, a model with its parameters. */
#ifndef HARNESS_NN_H
#define HARNESS_NN_H

#include "nn/nn.h"

extern const struct model_shape shapes[12];

enum { MOST = 200, MOST_IDS = MOST * 26 * 4 };

struct batch {
    struct examples examples;
    float dense[MOST * 13], labels[MOST], values[MOST_IDS];
    uint32_t ids[MOST_IDS], offsets[MOST * 26 + 1];
};

/* Few different ids, so that rows come twice; bags: of 0 to 3 ids, with values. */
void batch_fill(struct batch *b, const struct model_shape *s, size_t n, bool bags,
                struct rng *rng);

struct trained {
    struct model *model;
    struct work *work;
    float *w, *tables;
};

struct trained trained_create(const struct model_shape *shape, size_t max_batch);
void trained_destroy(struct trained *t);

/* Every parameter moved, so that none is 0. */
void shake(struct trained *t, struct rng *rng);

/* --- gradients.c: finite differences --- */

/* The largest |g - finite difference| ÷ max(1e-3, |g| + |difference|) over `samples`
 * parameters, dense and of rows, drawn by seed; *worst names the tensor. */
double model_check(const struct model *model, float *w, float *tables,
                   const struct examples *batch, int samples, uint64_t seed,
                   const char **worst);

void assert_near(const float *a, const float *b, size_t n, double tolerance,
                 const char *what);

#endif
