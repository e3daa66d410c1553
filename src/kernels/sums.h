/* SPDX-License-Identifier: MIT */
/* The loop over a gradient. Unlike the kernels of replicas it has no race, and
 * ThreadSanitizer looks at it. */
#ifndef SUMS_H
#define SUMS_H

#include <stdbool.h>
#include <stddef.h>

/* out = from + b g; from NULL: zeros. False: out has NaN or Inf. None overlaps another.
 */
bool sums_add(float *out, const float *from, const float *g, float b, size_t n);

#endif
