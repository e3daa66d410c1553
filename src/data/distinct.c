/* SPDX-License-Identifier: MIT */
/* A number's hash chooses a register by its first bits, and the register keeps the most
 * zeros, and one, with which the other bits of a hash began. Of n numbers 2^-k n have k
 * of them, so the registers tell n. */
#include "data/distinct.h"

#include <math.h>

enum { N = 1 << DISTINCT_BITS, MOST = 64 - DISTINCT_BITS + 1 };

void distinct_add(struct distinct *d, uint64_t x)
{
    uint64_t hash = rng_mixed(x), rest = hash << DISTINCT_BITS;
    uint8_t *most = &d->most[hash >> (64 - DISTINCT_BITS)];
    uint8_t k = (uint8_t)(rest ? __builtin_clzll(rest) + 1 : MOST);

    *most = k > *most ? k : *most;
}

/* Ertl's sums over the registers that are empty, of the share x, and full. */
static double sum_empty(double x)
{
    double y = 1, z = x, before;

    if (x >= 1)
        return INFINITY;
    do {
        x *= x;
        before = z;
        z += x * y;
        y += y;
    } while (z > before);
    return z;
}

static double sum_full(double x)
{
    double y = 1, z = 1 - x, before;

    if (x <= 0 || x >= 1)
        return 0;
    do {
        x = sqrt(x);
        before = z;
        y *= 0.5;
        z -= (1 - x) * (1 - x) * y;
    } while (z < before);
    return z / 3;
}

double distinct_count(const struct distinct *d)
{
    double n[MOST + 1] = {0}, z;

    for (int k = 0; k < N; k++)
        n[d->most[k]]++;
    z = N * sum_full(1 - n[MOST] / N);
    for (int k = MOST - 1; k > 0; k--)
        z = 0.5 * (z + n[k]);
    z += N * sum_empty(n[0] / N);
    return (double)N * N / (2 * M_LN2 * z);
}

double collisions_share(double n, double rows)
{
    return n > 1 && rows > 1 ? -expm1((n - 1) * log1p(-1 / rows)) : n > 1;
}

double collisions_ids(double used, double rows)
{
    if (rows < 2)
        return used;
    used = used > rows - 0.5 ? rows - 0.5 : used;
    return log1p(-used / rows) / log1p(-1 / rows);
}
