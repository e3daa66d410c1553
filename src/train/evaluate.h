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
    bool (*stopped)(void *of);      /* true gives the evaluation up, which is no failure; or NULL */
    void *of;
    const struct log *log;
};

/* MISMATCH: the files have not the inputs that the model takes. */
descant_status evaluate_fits(const struct model *model, const struct data_shape *have,
                             const struct data_options *data);
/* The same before a run begins, and whether there is an example with a label, where files can be
 * read more than once. */
descant_status evaluate_look(const struct model *model, const struct data_options *data);

/* INVALID: there is no example. *auc is NaN for a model with classes, or where one class is missing. A failure's words are this
 * thread's last error. */
descant_status evaluate(const struct evaluation *e, struct metrics *sum, double *auc);

#endif
