/* SPDX-License-Identifier: MIT */
/* Figures of quality over examples seen once: log loss, normalised entropy, exact AUC,
 * accuracy, calibration. Each thread has one struct; metrics_merge adds them up at the
 * end. */
#ifndef METRICS_H
#define METRICS_H

#include "base/base.h"

/* Sums, in constant memory: progressive validation. */
struct metrics {
    uint64_t n, positive, correct;
    double loss;                /* summed, natural logarithm */
    double predicted;           /* summed probabilities of class 1 */
};

/* Scores are logits: (n) where n_classes is 1, else (n, n_classes); labels are 0 and 1,
 * or the class. Of more than two classes entropy and calibration are NaN. */
void metrics_add(struct metrics *m, const float *scores, const float *labels, size_t n,
                 int n_classes);
void metrics_merge(struct metrics *into, const struct metrics *from);
/* `part` was merged into `from` */
void metrics_drop(struct metrics *from, const struct metrics *part);
double metrics_logloss(const struct metrics *m);    /* NaN where n is 0, as all below */
/* normalised: loss ÷ the entropy of the share of clicks */
double metrics_entropy(const struct metrics *m);
double metrics_accuracy(const struct metrics *m);
/* mean prediction ÷ share of clicks */
double metrics_calibration(const struct metrics *m);

/* Exact AUC of a held-out set: all scores are kept, ties count half. */
struct auc {
    size_t n, room;
    struct auc_pair {
        float score, label;
    } *pairs;
};

descant_status auc_add(struct auc *a, const float *scores, const float *labels, size_t n);
descant_status auc_merge(struct auc *into, const struct auc *from);
double auc_value(struct auc *a);        /* sorts; NaN if one class is missing */
void auc_fini(struct auc *a);

#endif
