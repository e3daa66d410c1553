/* SPDX-License-Identifier: MIT */
/* Flat vectors that lie in pieces of memory, read as if they were whole, with zeros
 * between. */
#ifndef VECTOR_H
#define VECTOR_H

#include <stdbool.h>
#include <stddef.h>

/* Pieces of a flat vector in memory: ascending, not overlapping; floats between them are
 * zero. */
struct extent {
    size_t at, n;       /* floats */
    float *p;
};

struct vector {
    size_t n;           /* floats of the whole */
    size_t n_extents;
    struct extent *extents;
};

enum { ELASTIC_CHUNK = 16384 };     /* floats: so much of a centre is moved at a time */

struct chunk {
    size_t from, n;     /* floats */
};

/* How many floats from `at` on lie together at *p, or in a gap (*p NULL). The gap behind
 * the last extent has no end. */
size_t vector_reach(const struct vector *v, size_t at, const float **p);

/* out[0] is float chunk.from; past: past the caches. False: there is NaN or Inf in it. */
bool vector_gather(const struct vector *v, struct chunk chunk, float *out, bool past);
/* the other way */
void vector_scatter(const struct vector *v, struct chunk chunk, const float *in);
bool vector_finite(const struct vector *v, size_t n);

/* W <- W + alpha (v - W), and out is the new W: out[0] is float chunk.from. In gaps W
 * keeps its values and out is 0. False, and W is as it was: there is NaN or Inf in v. */
bool vector_elastic(float *W, const struct vector *v, struct chunk chunk, float alpha,
                    float *out);

#endif
