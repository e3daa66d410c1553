/* SPDX-License-Identifier: MIT */
/* vector_reach walks a vector as alternating runs, in an extent (a pointer) or between
 * two (NULL: zeros); the others are loops over such runs. The values that are tested for
 * NaN are the ones then used: live memory is read once. */
#include "kernels/vector.h"

#include "kernels/kernels.h"

#include <stdint.h>
#include <string.h>

/* The first extent that ends after float at; n_extents: none. */
static size_t find_extent(const struct vector *v, size_t at)
{
    size_t low = 0, high = v->n_extents;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (v->extents[middle].at + v->extents[middle].n <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

size_t vector_reach(const struct vector *v, size_t at, const float **p)
{
    size_t k = find_extent(v, at);
    *p = NULL;
    if (k == v->n_extents)
        return SIZE_MAX;
    const struct extent *e = &v->extents[k];
    if (at < e->at)
        return e->at - at;
    *p = e->p + (at - e->at);
    return e->n - (at - e->at);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

bool vector_gather(const struct vector *v, struct chunk chunk, float *out, bool past)
{
    const struct kernels *kernels = kernels_best();
    bool finite = true;
    for (size_t i = 0, run; i < chunk.n; i += run) {
        const float *p;
        run = least(vector_reach(v, chunk.from + i, &p), chunk.n - i);
        if (!p)
            memset(out + i, 0, run * sizeof *out);
        else if (!(past ? kernels->copy_past : kernels->copy)(out + i, p, run))
            finite = false;
    }
    return finite;
}

/* Floats of `in` that fall into gaps are dropped. */
void vector_scatter(const struct vector *v, struct chunk chunk, const float *in)
{
    for (size_t k = find_extent(v, chunk.from), end = chunk.from + chunk.n;
         k < v->n_extents && v->extents[k].at < end; k++) {
        const struct extent *e = &v->extents[k];
        size_t from = e->at > chunk.from ? e->at : chunk.from;
        size_t to = least(e->at + e->n, end);
        kernels_best()->copy(e->p + (from - e->at), in + (from - chunk.from), to - from);
    }
}

bool vector_finite(const struct vector *v, size_t n)
{
    for (size_t at = 0, run; at < n; at += run) {
        const float *p;
        run = least(vector_reach(v, at, &p), n - at);
        if (p && !kernels_best()->finite(p, run))
            return false;
    }
    return true;
}

/* The copy in `out` is tested as a whole before W changes; where it has NaN or Inf, it
 * stays in `out`. */
bool vector_elastic(float *W, const struct vector *v, struct chunk chunk, float alpha,
                    float *out)
{
    if (!vector_gather(v, chunk, out, false))
        return false;
    for (size_t i = 0, run; i < chunk.n; i += run) {
        const float *p;
        run = least(vector_reach(v, chunk.from + i, &p), chunk.n - i);
        if (p)
            kernels_best()->elastic(W + chunk.from + i, out + i, out + i, alpha, run);
    }
    return true;
}
