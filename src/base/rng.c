/* SPDX-License-Identifier: MIT */
/* Chance: xoshiro256** by Blackman and Vigna, seeded by splitmix64, both in the public
 * domain. Integers and uniform values are the same bits everywhere. Normal ones are a sum
 * of twelve uniform values less six: exact additions in a fixed order, so no library's
 * log or cos decides the bits. Its tails end at ±6, which simulations and initial weights
 * do not notice. */
#include "base/base.h"

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

static uint64_t splitmix(uint64_t *state)
{
    return rng_mixed(*state += GOLDEN);
}

void rng_init(struct rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        rng->s[i] = splitmix(&seed);
}

static uint64_t rotate(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

uint64_t rng_next(struct rng *rng)
{
    uint64_t *s = rng->s;
    uint64_t result = rotate(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

double rng_uniform(struct rng *rng)
{
    return (double)(rng_next(rng) >> 11) * 0x1p-53;
}

double rng_normal(struct rng *rng)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += rng_uniform(rng);
    return sum;
}

void rng_row(float *row, size_t width, size_t zeros, double spread, uint64_t seed,
             uint64_t number)
{
    uint64_t at = rng_mixed(seed + number * GOLDEN);

    for (size_t k = 0; k < width; k++) {
        uint64_t bits = rng_mixed(at + (k + 1) * GOLDEN) >> 40;
        row[k] = k < zeros ? 0 : (float)spread * ((float)bits * 0x1p-23f - 1);
    }
}
