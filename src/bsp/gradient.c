/* SPDX-License-Identifier: MIT */
/* Compiled as sums.c is, so that the compiler uses whole vectors. Control's own memory: no other
 * thread touches it, and what is added is drained. */
#include "bsp/gradient.h"

#include <math.h>

enum { LANES = 8, BLOCK = 1024 };

void gradient_add(float *restrict sum, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += x[i];
}

/* In lanes, since a sum of doubles has its order. */
double gradient_mean(float *g, double examples, size_t n)
{
    double lanes[LANES] = {0}, all = 0;
    float by = (float)examples;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++) {
            float x = g[i + k] / by;
            g[i + k] = x;
            lanes[k] += (double)x * (double)x;
        }
    for (; i < n; i++) {
        g[i] /= by;
        all += (double)g[i] * (double)g[i];
    }
    for (size_t k = 0; k < LANES; k++)
        all += lanes[k];
    return all;
}

void gradient_scale(float *g, float factor, size_t n)
{
    for (size_t i = 0; i < n; i++)
        g[i] *= factor;
}

static bool block_finite(const float *x, size_t n)
{
    int bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= !(x[i] * 0.0f == 0.0f);
    return bad == 0;
}

size_t gradient_first_bad(const float *x, size_t n)
{
    for (size_t at = 0, m; at < n; at += m) {
        m = n - at < BLOCK ? n - at : BLOCK;
        if (block_finite(x + at, m))
            continue;
        while (isfinite(x[at]))
            at++;
        return at;
    }
    return n;
}
