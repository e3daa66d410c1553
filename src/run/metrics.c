/* SPDX-License-Identifier: MIT */
/* Figures of quality, from logits.
 *
 * Logistic: with z the logit signed so that below 0 is right, the loss of an example is
 * max(z, 0) + log(1 + exp(-|z|)), which neither overflows nor cancels. The logarithms of
 * BLOCK examples are one logarithm of a product: each factor is in (1, 2], so the product
 * stays below 2^BLOCK. What remains is one expf an example, whose error makes less than
 * 3e-8 of the loss. Softmax: log of the sum of exp(s - largest), plus the largest, minus
 * the label's score.
 *
 * Class 1 counts as the positive one. With more than two classes nothing is positive, and
 * entropy and calibration are NaN. A NaN among the scores makes the loss NaN; it is never
 * counted as correct.
 *
 * AUC: the share of pairs (positive, negative) in which the positive has the higher
 * score. Sorted by score, each group of equal scores adds its positives times (the
 * negatives below it, and half of its own). The sort goes by the bits, in three passes of
 * 11, or is qsort where there is no memory for a second array. */
#include "run/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 64,
    DIGIT_BITS = 11,
    DIGITS = 3,
    RADIX = 1 << DIGIT_BITS
};

static void add_logistic(struct metrics *m, const float *scores, const float *labels,
                         size_t n)
{
    double loss = 0, product = 1, predicted = 0;
    uint64_t positive = 0, correct = 0;
    for (size_t i = 0; i < n; i++) {
        bool click = labels[i] > 0.5f;
        float x = scores[i], z = click ? -x : x;
        double e = (double)expf(-fabsf(x));
        loss += z > 0 ? (double)z : 0;
        product *= 1 + e;
        predicted += (x > 0 ? 1 : e) / (1 + e);
        positive += click;
        correct += z < 0 || (z == 0 && !click);
        if (i % BLOCK == BLOCK - 1) {
            loss += log(product);
            product = 1;
        }
    }
    m->loss += loss + log(product);
    m->predicted += predicted;
    m->positive += positive;
    m->correct += correct;
}

static void add_softmax(struct metrics *m, const float *scores, float label,
                        size_t n_classes)
{
    size_t best = 0;
    double sum = 0;
    for (size_t c = 1; c < n_classes; c++)
        if (scores[c] > scores[best])
            best = c;
    for (size_t c = 0; c < n_classes; c++)
        sum += (double)expf(scores[c] - scores[best]);
    bool known = label >= 0 && label < (float)n_classes;
    size_t wanted = known ? (size_t)label : 0;
    m->loss += known ? log(sum) + (double)(scores[best] - scores[wanted]) : (double)NAN;
    m->correct += known && best == wanted && !isnan(sum);
    if (n_classes == 2) {
        m->predicted += (double)expf(scores[1] - scores[best]) / sum;
        m->positive += wanted == 1;
    }
}

void metrics_add(struct metrics *m, const float *scores, const float *labels, size_t n,
                 int n_classes)
{
    m->n += n;
    if (n_classes == 1) {
        add_logistic(m, scores, labels, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        add_softmax(m, scores + i * (size_t)n_classes, labels[i], (size_t)n_classes);
}

void metrics_merge(struct metrics *into, const struct metrics *from)
{
    into->n += from->n;
    into->positive += from->positive;
    into->correct += from->correct;
    into->loss += from->loss;
    into->predicted += from->predicted;
}

void metrics_drop(struct metrics *from, const struct metrics *part)
{
    from->n -= part->n;
    from->positive -= part->positive;
    from->correct -= part->correct;
    from->loss -= part->loss;
    from->predicted -= part->predicted;
}

static double ratio(double a, double b)
{
    return b != 0 ? a / b : (double)NAN;
}

double metrics_logloss(const struct metrics *m)
{
    return ratio(m->loss, (double)m->n);
}

double metrics_entropy(const struct metrics *m)
{
    double p = ratio((double)m->positive, (double)m->n);
    if (!(p > 0 && p < 1))
        return (double)NAN;
    return metrics_logloss(m) / -(p * log(p) + (1 - p) * log1p(-p));
}

double metrics_accuracy(const struct metrics *m)
{
    return ratio((double)m->correct, (double)m->n);
}

double metrics_calibration(const struct metrics *m)
{
    return ratio(m->predicted, (double)m->positive);
}

/* --- AUC --- */

static descant_status make_room(struct auc *a, size_t n)
{
    bool far = n > SIZE_MAX / 4 / sizeof *a->pairs - a->n;
    if (!far && memory_grow(&a->pairs, &a->room, a->n, a->n + n, sizeof *a->pairs))
        return DESCANT_OK;
    return log_fail(NULL, DESCANT_MEMORY, "no memory for %zu scores", a->n + n);
}

descant_status auc_add(struct auc *a, const float *scores, const float *labels, size_t n)
{
    descant_status status = make_room(a, n);
    if (status != DESCANT_OK)
        return status;
    for (size_t i = 0; i < n; i++)    /* + 0: -0 becomes 0, so that bits say what is
                                         equal */
        a->pairs[a->n++] = (struct auc_pair){scores[i] + 0.0f, labels[i]};
    return DESCANT_OK;
}

descant_status auc_merge(struct auc *into, const struct auc *from)
{
    descant_status status = make_room(into, from->n);
    if (status == DESCANT_OK && from->n) {
        memcpy(into->pairs + into->n, from->pairs, from->n * sizeof *from->pairs);
        into->n += from->n;
    }
    return status;
}

/* Bits that rise as the scores do. */
static uint32_t key(const struct auc_pair *pair)
{
    uint32_t bits;
    memcpy(&bits, &pair->score, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static int by_score(const void *a, const void *b)
{
    uint32_t x = key(a), y = key(b);
    return (x > y) - (x < y);
}

static void sort_digit(struct auc_pair *to, const struct auc_pair *from, size_t n,
                       int shift)
{
    size_t starts[RADIX] = {0}, at = 0;
    for (size_t i = 0; i < n; i++)
        starts[key(&from[i]) >> shift & (RADIX - 1)]++;
    for (size_t d = 0; d < RADIX; d++) {
        size_t count = starts[d];
        starts[d] = at;
        at += count;
    }
    for (size_t i = 0; i < n; i++)
        to[starts[key(&from[i]) >> shift & (RADIX - 1)]++] = from[i];
}

/* An odd number of passes: the sorted pairs lie in `other` at the end. */
static void auc_sort(struct auc *a)
{
    struct auc_pair *other = memory_take_array(a->n, sizeof *other);
    if (!other) {
        qsort(a->pairs, a->n, sizeof *a->pairs, by_score);
        return;
    }
    struct auc_pair *from = a->pairs, *to = other;
    for (int digit = 0; digit < DIGITS; digit++) {
        sort_digit(to, from, a->n, digit * DIGIT_BITS);
        struct auc_pair *swap = from;
        from = to;
        to = swap;
    }
    memcpy(a->pairs, other, a->n * sizeof *other);
    memory_give(other);
}

double auc_value(struct auc *a)
{
    double positives = 0, negatives = 0, area = 0;
    if (a->n == 0)
        return (double)NAN;
    auc_sort(a);
    /* a NaN lies at one of the ends */
    if (isnan(a->pairs[0].score) || isnan(a->pairs[a->n - 1].score))
        return (double)NAN;
    for (size_t i = 0, k; i < a->n; i = k) {
        double clicks = 0;
        for (k = i; k < a->n && key(&a->pairs[k]) == key(&a->pairs[i]); k++)
            clicks += a->pairs[k].label > 0.5f;
        double others = (double)(k - i) - clicks;
        area += clicks * (negatives + others / 2);
        positives += clicks;
        negatives += others;
    }
    return ratio(area, positives * negatives);
}

void auc_fini(struct auc *a)
{
    memory_give(a->pairs);
    *a = (struct auc){0};
}
