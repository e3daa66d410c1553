/* SPDX-License-Identifier: MIT */
#include "harness/steps.h"

#include "nn/nn.h"

useconds_t each_batch_us;

double __real_model_gradient(struct work *work, const float *w, const float *tables,
                             const struct examples *examples, float *g, float *scores);
double __wrap_model_gradient(struct work *work, const float *w, const float *tables,
                             const struct examples *examples, float *g, float *scores);
double __wrap_model_gradient(struct work *work, const float *w, const float *tables,
                             const struct examples *examples, float *g, float *scores)
{
    if (each_batch_us)
        usleep(each_batch_us);
    return __real_model_gradient(work, w, tables, examples, g, scores);
}
