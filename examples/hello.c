/* SPDX-License-Identifier: MIT */
#include <descant.h>
#include <stdio.h>

/* Why it failed, Descant has said on standard error; this says where. */
#define TRY(call)                                                                            \
    do {                                                                                     \
        if ((call) != DESCANT_OK) {                                                          \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #call);                       \
            return 1;                                                                        \
        }                                                                                    \
    } while (0)

int main(void)
{
    struct descant_options options = descant_options_default();
    struct descant *job;
    struct descant_members members;
    struct descant_stats stats;
    float *w;                                       /* the model's parameters */
    options.plan = "shadow-easgd";
    TRY(descant_open(&job, &options));
    TRY((w = descant_alloc(job, "w", 1000)) ? DESCANT_OK : DESCANT_MEMORY);
    TRY(descant_start(job));
    TRY(descant_members(job, &members));
    for (int step = 0; step < 100000; step++) {
        for (int i = 0; i < 1000; i++)              /* your optimizer's step */
            w[i] -= 0.01f * (w[i] - (float)i);
        TRY(descant_step(job));                     /* counts, and returns */
    }
    TRY(descant_finish(job, DESCANT_FINAL_MEAN));
    TRY(descant_stats(job, &stats));
    printf("w[7] = %.3f: trainer %d of %d, %llu rounds\n", (double)w[7], members.rank,
           members.size, (unsigned long long)stats.rounds);
    TRY(descant_close(job));
    return 0;
}
