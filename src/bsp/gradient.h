/* SPDX-License-Identifier: MIT */
/* The loops of a superstep over whole vectors. Their arrays do not overlap. */
#ifndef GRADIENT_H
#define GRADIENT_H

#include <stdbool.h>
#include <stddef.h>

void gradient_add(float *sum, const float *x, size_t n);

/* g ÷ examples; returns the square of its length, which is not finite where a value is not. */
double gradient_mean(float *g, double examples, size_t n);
void gradient_scale(float *g, float factor, size_t n);

size_t gradient_first_bad(const float *x, size_t n);    /* the first NaN or Inf; n: none */

#endif
