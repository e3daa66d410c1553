/* SPDX-License-Identifier: MIT */
/* Lines and fields that the summaries of all runs have. */
#ifndef RUN_SUMMARY_H
#define RUN_SUMMARY_H

#include "run/evaluate.h"

#include <math.h>

/* A line of readable text; none where the value is not finite. */
void summary_row(FILE *out, const char *name, double value, const char *format);

/* classes: the model has several outputs; then only loss and accuracy are shown. */
void summary_held_out(FILE *out, const struct held_out *h, bool classes);

/* The age of gradients as they came to a model, and the number of those refused. */
struct lags {
    double mean, most;          /* versions; NaN: no gradient came */
    uint64_t stale, not_finite;
};
static inline double lag_mean(uint64_t lag, uint64_t gradients)
{
    return gradients ? (double)lag / (double)gradients : (double)NAN;
}

void summary_lags(FILE *out, const struct lags *l);
void lags_json(struct json *json, const struct lags *l);

#endif
