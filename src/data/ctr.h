/* SPDX-License-Identifier: MIT */
/* The planted model of ctr.c: rows drawn from it, and the probability that a row is a
 * click. */
#ifndef CTR_H
#define CTR_H

#include "data/data.h"

enum { CTR_DENSE = 13, CTR_FIELDS = 26, CTR_PAIRS = 8, CTR_NOISES = 8 };

struct ctr_model {
    uint64_t key;                   /* of all hashes */
    double zipf, bias;
    int n_noises;                   /* 1 without noise */
    double noises[CTR_NOISES];      /* (n_noises) added to a logit, each with
                                       equal chance */
    struct {
        int64_t size;               /* categories */
        double reach, power;        /* of the inverse distribution */
    } fields[CTR_FIELDS];
    struct {
        /* The mean and the spread are those of a value's logarithm, the weight and the
         * square its factors in the logit, missing the share of rows without a value. */
        double mean, spread, weight, square, missing;
    } dense[CTR_DENSE];
};

struct ctr_row {
    int64_t dense[CTR_DENSE];
    bool missing[CTR_DENSE];
    uint32_t ranks[CTR_FIELDS];     /* 0: the field's most frequent category */
};

void ctr_model_init(struct ctr_model *model, const struct ctr_options *options);
void ctr_draw(const struct ctr_model *model, struct rng *rng, struct ctr_row *row);
double ctr_logit(const struct ctr_model *model, const struct ctr_row *row);
double ctr_probability(const struct ctr_model *model, double logit);

#endif
