/* SPDX-License-Identifier: MIT */
/* Adding a gradient to a sum. A test of finiteness rides along: x*0 is 0 for every finite
 * x and NaN for the others. The new sum is tested: the old one was finite, so the test
 * also tells when a sum overflows. Compiled for speed (Makefile). */
#include "kernels/sums.h"

/* -0 + x has the bits of x, whatever its sign. */
bool sums_add(float *restrict out, const float *restrict from, const float *restrict g,
              float b, size_t n)
{
    int bad = 0;
    for (size_t i = 0; i < n; i++) {
        float x = (from ? from[i] : -0.0f) + b * g[i];
        bad |= !(x * 0.0f == 0.0f);
        out[i] = x;
    }
    return bad == 0;
}
