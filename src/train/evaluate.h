/* SPDX-License-Identifier: MIT */
/* A model's figures on a held-out set. */
#ifndef EVALUATE_H
#define EVALUATE_H

#include "data/data.h"
#include "nn/nn.h"
#include "train/metrics.h"

#include <stdio.h>

struct evaluation {
    const struct model *model;
    const float *w, *tables;
    struct data_options data;
    size_t batch;
    int threads;
    bool (*stopped)(void *of);      /* true gives the evaluation up, which is no failure; or NULL */
    void *of;
    struct seat *counts;            /* lines and bad ones are added to it; or NULL */
    const struct log *log;
};

/* MISMATCH: the files have not the inputs that the model takes. */
descant_status evaluate_fits(const struct model *model, const struct data_shape *have,
                             const struct data_options *data);
/* The same before a run begins, and whether there is an example with a label, where files can be
 * read more than once. */
descant_status evaluate_look(const struct model *model, const struct data_options *data);

/* A model's figures on the held-out set, and how far it was trained: what a point of a curve is. */
struct held_out {
    uint64_t at;                    /* examples trained as the evaluation began, */
    double seconds;                 /* of training, then */
    uint64_t n, positive;           /* of the set; n 0: there are no figures */
    double loss, entropy, auc, accuracy, calibration;
};

void held_out_set(struct held_out *h, const struct metrics *sum, double auc);
/* One line, at once; the errno of what could not be written. */
int held_out_log(FILE *log, const struct held_out *h);
const char *held_out_text(const struct held_out *h, char *text, size_t room);

/* "9999", "12.3 k", "4.56 M"; returns text. */
const char *count_text(double n, char *text, size_t room);

/* INVALID: there is no example. *auc is NaN for a model with classes, or where one class is
 * missing. A failure's words are this
 * thread's last error. */
descant_status evaluate(const struct evaluation *e, struct metrics *sum, double *auc);

#endif
