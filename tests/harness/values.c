/* SPDX-License-Identifier: MIT */
/* Numbers that differ from each other. */
#include "harness/values.h"

ONE_THREAD float noise(int i, uint64_t t, size_t k)
{
    uint64_t h = ((uint64_t)i * 1000003 + t) * 1000003 + k;
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 33;
    return (float)((double)(h >> 40) / (1 << 24) - 0.5);
}

ONE_THREAD float value(int k, size_t i, int r)
{
    return 2 * noise(k, (uint64_t)r, i) * (float)(k + 1);
}
