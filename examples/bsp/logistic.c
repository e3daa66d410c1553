/* SPDX-License-Identifier: MIT */
/* An ML module in C: logistic regression on examples that it makes up, from planted weights of
 * 2, -2, 2, ... and a bias of 0.5. Any number of them train one model:
 *
 *     descant bsp run --modules 2 --params weight=20,bias=1 --lr 0.5 --supersteps 500 \
 *         --checkpoint model.safetensors -- build/gcc/examples/bsp/logistic
 *
 * Here is what a module does, and all that it does; control has the optimizer. */
#include <descant_ml.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 64, TELL = 20000 };

static double sigmoid(double score)
{
    return 1 / (1 + exp(-score));
}

static double uniform(unsigned *seed)
{
    return (double)rand_r(seed) / RAND_MAX;
}

/* Makes up one example and adds its part of the gradient. Returns the loss. */
static double learn(const float *w, float *gradient, double *x, size_t n, unsigned *seed)
{
    double truth = 0.5, score = (double)w[n - 1];
    for (size_t i = 0; i + 1 < n; i++) {
        x[i] = 2 * uniform(seed) - 1;
        truth += (i % 2 ? -2 : 2) * x[i];
        score += (double)w[i] * x[i];
    }
    x[n - 1] = 1;
    int click = uniform(seed) < sigmoid(truth);
    double p = sigmoid(score), error = p - click;
    for (size_t i = 0; i < n; i++)
        gradient[i] += (float)(error * x[i] / BATCH);
    return -log(click ? p : 1 - p);
}

int main(void)
{
    struct descant_ml *ml;
    struct descant_ml_model model;
    const char *number = getenv("DESCANT_MODULE");
    unsigned seed = number ? 1 + (unsigned)atoi(number) : 1;
    double loss = 0;
    if (descant_ml_attach(&ml, NULL, 60) != DESCANT_OK) {
        fprintf(stderr, "%s\n", descant_last_error());
        return 1;
    }
    size_t n = descant_ml_size(ml);
    float *gradient = malloc(n * sizeof *gradient);
    double *x = malloc(n * sizeof *x);
    descant_status status = gradient && x ? DESCANT_OK : DESCANT_MEMORY;
    for (int k = 1; status == DESCANT_OK || status == DESCANT_STALE; k++) {
        status = descant_ml_pin(ml, &model);
        if (status != DESCANT_OK)
            break;
        for (size_t i = 0; i < n; i++)
            gradient[i] = 0;
        for (int b = 0; b < BATCH; b++)
            loss += learn(model.values, gradient, x, n, &seed) / BATCH;
        status = descant_ml_add(ml, gradient, BATCH);
        if (k % TELL == 0)
            fprintf(stderr, "module %s: loss %.4f\n", number ? number : "-", loss / TELL);
        loss = k % TELL ? loss : 0;
    }
    if (status != DESCANT_ENDED)
        fprintf(stderr, "%s\n", descant_last_error());
    free(gradient);
    free(x);
    descant_ml_detach(ml);
    return status != DESCANT_ENDED;
}
