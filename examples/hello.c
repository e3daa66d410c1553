/* SPDX-License-Identifier: MIT */
#include <descant.h>
#include <stdio.h>

int main(void)
{
    struct descant_options options = descant_options_default();
    struct descant *job;
    options.plan = "shadow-easgd";
    float *w = NULL;                                /* the model's parameters */
    if (descant_open(&job, &options) != DESCANT_OK ||
        (w = descant_alloc(job, "w", 1000)) == NULL || descant_start(job) != DESCANT_OK) {
        fprintf(stderr, "%s\n", descant_last_error());
        return 1;
    }
    for (int step = 0; step < 100000; step++) {
        for (int i = 0; i < 1000; i++)              /* your optimizer's step */
            w[i] -= 0.01f * (w[i] - (float)i);
        descant_step(job);                          /* counts, and returns */
    }
    descant_finish(job, DESCANT_FINAL_MEAN);
    printf("w[7] = %.3f\n", (double)w[7]);
    return descant_close(job) != DESCANT_OK;
}
