/* SPDX-License-Identifier: MIT */
/* A model's figures on a held-out set. */
#ifndef RUN_EVALUATE_H
#define RUN_EVALUATE_H

#include "data/data.h"
#include "nn/nn.h"
#include "run/ahead.h"
#include "run/feed.h"
#include "run/log.h"
#include "run/metrics.h"
#include "run/progress.h"

enum { EVALUATE_THREADS = 64, EVALUATE_BATCH = 512 };
struct evaluation {
    const struct model *model;
    const float *w;
    struct tables_at tables;
    struct data_options data;
    size_t batch;
    int threads;                    /* up to EVALUATE_THREADS */
    bool (*stopped)(void *of);      /* true gives the evaluation up, which is no failure;
                                       or NULL */
    void *of;
    struct feed_counts *counts;     /* lines and bad ones are added to it; or NULL */
    const struct log *log;
};

/* MISMATCH: the files lack inputs that the model takes. */
descant_status evaluate_fits(const struct model *model, const struct data_shape *have,
                             const struct data_options *data);
/* The same before a run begins. Where files can be read more than once, INVALID says that
 * they have no example with a label. */
descant_status evaluate_look(const struct model *model, const struct data_options *data);

/* A point of a curve: a model's figures on the held-out set, and how far it was
 * trained. */
struct held_out {
    uint64_t at;                    /* examples trained as the evaluation began, */
    double seconds;                 /* of training, then */
    uint64_t n, positive;           /* of the set; n 0: there are no figures */
    double loss, entropy, auc, accuracy, calibration;
};

void held_out_json(struct json *json, const struct held_out *h); /* loss, NE and so on */
void held_out_log(struct run_log *log, const struct held_out *h); /* one line, at once */
/* one line */
const char *held_out_text(const struct held_out *h, char *text, size_t room);
void held_out_show(const struct progress *p, const struct held_out *h);

/* The figures in h, whose `at` and `seconds` are the caller's. INVALID: there is no
 * example. The AUC is NaN for a model with classes, or where one class is missing. The
 * text of a failure is this thread's last error. */
descant_status evaluate(const struct evaluation *e, struct held_out *h);

#endif
