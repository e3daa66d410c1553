/* SPDX-License-Identifier: MIT */
/* A model's figures on a held-out set. */
#ifndef EVALUATE_H
#define EVALUATE_H

#include "data/data.h"
#include "nn/nn.h"
#include "train/metrics.h"

struct evaluation {
    const struct model *model;
    const float *w, *tables;
    struct data_options data;
    size_t batch;
    int threads;
    const struct log *log;
};

/* *auc is NaN for a model with classes, or where one class is missing. */
descant_status evaluate(const struct evaluation *e, struct metrics *sum, double *auc);

#endif
