/* SPDX-License-Identifier: MIT */
/* A logistic regression with planted weights, trained by several processes, each on examples of
 * its own. Which plan and where the others are is the environment's business:
 *
 *   cc -O3 -o logistic logistic.c $(pkg-config --cflags --libs descant) -lm
 *   for r in 0 1; do
 *       RANK=$r WORLD_SIZE=2 MASTER_PORT=29500 DESCANT_PLAN=dasgd ./logistic &
 *   done; wait
 *
 * ./logistic JOB SECONDS says where else they meet, and how long they train (5): JOB is as
 * "shm:demo,rate=1gbit,rtt=1ms", and needs no MASTER_PORT. Prints one line of JSON at the end. */
#include <descant.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FEATURES = 8192, BATCH = 32 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Uniform in [-1, 1): splitmix64. */
static float noise(unsigned long long *state)
{
    unsigned long long z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (float)((z ^ (z >> 31)) >> 40) / (float)(1 << 23) - 1;
}

static float dot(const float *a, const float *b)
{
    float sum[8] = {0};
    for (int i = 0; i < FEATURES; i += 8)
        for (int k = 0; k < 8; k++)
            sum[k] += a[i + k] * b[i + k];
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/* The gradient of the mean loss over a batch; returns that loss. */
static double gradient(const float *w, const float *planted, float *g, unsigned long long *seed)
{
    static float x[FEATURES];
    double loss = 0;
    memset(g, 0, FEATURES * sizeof *g);
    for (int b = 0; b < BATCH; b++) {
        for (int i = 0; i < FEATURES; i++)
            x[i] = noise(seed);
        float y = dot(planted, x) > 0 ? 1 : -1, margin = y * dot(w, x);
        float pull = -y / (1 + expf(margin)) / BATCH;
        loss += (margin > 0 ? log1p(exp(-margin)) : -margin + log1p(exp(margin))) / BATCH;
        for (int i = 0; i < FEATURES; i++)
            g[i] += pull * x[i];
    }
    return loss;
}

static int fail(struct descant *job)
{
    fprintf(stderr, "logistic: %s\n", descant_last_error());
    descant_close(job);
    return 1;
}

int main(int argc, char **argv)
{
    static float planted[FEATURES], g[FEATURES];
    struct descant_options options = descant_options_default();
    struct descant *job = NULL;
    struct descant_members members;
    struct descant_stats stats;
    struct descant_needs needs;
    options.job = argc > 1 ? argv[1] : NULL;
    char none[] = "", *end = none;
    double seconds = argc > 2 ? strtod(argv[2], &end) : 5, loss = 0.7, shown = 0;
    const char *plan = getenv("DESCANT_PLAN");

    if (*end || !(seconds > 0) || argc > 3) {
        fputs("usage: logistic [JOB] [SECONDS]\n", stderr);
        return 2;
    }
    if (descant_open(&job, &options) != DESCANT_OK)
        return fail(job);
    float *w = descant_alloc(job, "w", FEATURES);
    if (!w || descant_needs(job, &needs) != DESCANT_OK || descant_start(job) != DESCANT_OK ||
        descant_members(job, &members) != DESCANT_OK)
        return fail(job);
    unsigned long long seed = 1;
    for (int i = 0; i < FEATURES; i++)
        planted[i] = noise(&seed);
    seed = 1000 + (unsigned long long)members.rank;

    long steps = 0;
    double start = now(), t = start;
    for (; t - start < seconds; steps++, t = now()) {
        loss = 0.95 * loss + 0.05 * gradient(w, planted, g, &seed);
        if (needs.gradients && descant_mean(job, g, FEATURES) != DESCANT_OK)
            return fail(job);
        for (int i = 0; i < FEATURES; i++)
            w[i] -= 0.05f * g[i];
        if (descant_step(job) != DESCANT_OK)
            return fail(job);
        if (members.rank == 0 && isatty(2) && t - shown > 0.2) {
            fprintf(stderr, "\r%-13s %4.1f s  loss %.4f ", plan ? plan : "", t - start, loss);
            shown = t;
        }
    }
    if (shown > 0)
        fputs("\r\033[K", stderr);
    if (descant_worker_done(job) != DESCANT_OK || descant_stats(job, &stats) != DESCANT_OK ||
        descant_finish(job, DESCANT_FINAL_MEAN) != DESCANT_OK)
        return fail(job);
    loss = 0;               /* of the final model, on examples that nobody has seen */
    seed = 999;
    for (int i = 0; i < 20; i++)
        loss += gradient(w, planted, g, &seed) / 20;
    printf("{\"rank\":%d,\"examples_per_s\":%.0f,\"loss\":%.4f,\"stall\":%.4f,\"gap\":%.1f}\n",
           members.rank, (double)steps * BATCH / (t - start), loss,
           (double)stats.stall_ns * 1e-9 / (t - start), stats.gap_mean);
    return descant_close(job) != DESCANT_OK;
}
