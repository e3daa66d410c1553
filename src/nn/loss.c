/* SPDX-License-Identifier: MIT */
/* Losses of scores: logistic for one output, softmax cross-entropy for more.
 *
 * Both are taken from the scores directly, never from a probability, so that neither
 * log(0) nor an overflow can come: log(1 + e^-|s|) + max(s, 0) - y s, and log sum e^(s -
 * max). Sums are in double. A score that is NaN or infinite, or a label that is no class,
 * makes the loss NaN or infinite: the caller sees it. */
#include "nn/parts.h"

#include <math.h>

static double logistic(float *score, double scale, double label)
{
    double s = (double)*score, e = exp(-fabs(s));
    double probability = (s < 0 ? e : 1) / (1 + e);
    *score = (float)((probability - label) * scale);
    return log1p(e) + (s > 0 ? s : 0) - label * s;
}

static double softmax(float *scores, double scale, int n, float label)
{
    bool known = label >= 0 && label < (float)n;
    int class = known ? (int)label : 0;
    double most = (double)scores[0], sum = 0, own = (double)scores[class];
    for (int k = 1; k < n; k++)
        most = fmax(most, (double)scores[k]);
    for (int k = 0; k < n; k++)
        sum += exp((double)scores[k] - most);
    for (int k = 0; k < n; k++) {
        double probability = exp((double)scores[k] - most) / sum;
        scores[k] = (float)((probability - (k == class)) * scale);
    }
    return known ? log(sum) + most - own : (double)NAN;
}

double loss_and_gradient(struct matrix scores, size_t n, int outputs, const float *labels)
{
    double sum = 0, scale = 1 / (double)n;
    for (size_t i = 0; i < n; i++) {
        float *row = scores.at + i * scores.ld;
        sum += outputs == 1 ? logistic(row, scale, (double)labels[i])
                            : softmax(row, scale, outputs, labels[i]);
    }
    return sum;
}
