/* SPDX-License-Identifier: MIT */
/* The arithmetic outside matrix products, and with them the only places where parameters
 * are read and written while other workers train on them: the races are deliberate
 * (Hogwild), each float is moved whole. ThreadSanitizer passes over loops.c alone.
 * Compiled once for each instruction set; they agree to rounding, not to the bit. */
#ifndef LOOPS_H
#define LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LANES = 16,             /* vectors of an interaction are padded to a multiple of
                               this */
    ROWS_AHEAD = 48         /* row numbers that may be read past an example's, to
                               prefetch */
};

/* The ids of one example, as rows of tables. Bag f is [offsets[f], offsets[f + 1]),
 * counted from offsets[0]. */
struct bags {
    int n_fields;
    const uint32_t *offsets;    /* (n_fields + 1); NULL: each bag is one id */
    const uint64_t *rows;       /* (ids and ROWS_AHEAD more) */
    const float *values;        /* (ids); NULL: all 1 */
};

/* The constants of one step of FTRL-proximal. */
struct ftrl {
    float alpha, beta, l1, l2;
    float scale;                /* of the inputs that w is multiplied with */
};

struct loops {
    const char *name;

    /* --- layers: n rows of `width` floats, ld apart --- */

    /* each row of y = b (width) */
    void (*fill)(float *y, size_t ld, const float *b, size_t n, size_t width);
    /* y = y < 0 ? 0 : y */
    void (*relu)(float *y, size_t ld, size_t n, size_t width);
    /* d = y > 0 ? d : 0 (y NULL: d stays); sums (width) = the columns' sums of d */
    void (*mask)(float *d, size_t ld_d, const float *y, size_t ld_y, size_t n,
                 size_t width, float *sums);
    /* to = beta to + alpha x; beta 0: also where `to` is not finite */
    void (*add)(float *to, const float *x, size_t n, float alpha, float beta);

    /* --- a layer of one output: x (n, width), w (width), y and d (n) --- */

    /* y += x w */
    void (*dot)(float *y, size_t ld_y, const float *x, size_t ld_x, const float *w,
                size_t n, size_t width);
    /* dx[i] = d[i] w */
    void (*outer)(float *dx, size_t ld_dx, const float *d, size_t ld_d, const float *w,
                  size_t n, size_t width);
    /* sums (width) = sum of d[i] x[i] */
    void (*weigh)(float *sums, const float *d, size_t ld_d, const float *x, size_t ld_x,
                  size_t n, size_t width);

    /* --- dlrm, one example. t: vectors of `width` floats, `stride` apart, zeros between
     * --- */

    /* t[f] = sum of value * row over the bag of field f */
    void (*pool)(float *t, size_t stride, const float *tables, size_t width,
                 const struct bags *bags);
    /* row += alpha value dt[f], for each id */
    void (*scatter)(float *tables, size_t width, const struct bags *bags, const float *dt,
                    size_t stride, float alpha);
    /* out[i (i - 1) / 2 + j] = t[i] . t[j] for i > j. Up to LANES floats after out are
     * spoilt. turned: room for width * (n up to LANES) floats */
    void (*dots)(float *out, const float *t, size_t stride, size_t n, size_t width,
                 float *turned);
    /* dt[i] = sum over j of g(i, j) t[j], for g symmetric, given as dots gives its output
     */
    void (*dots_back)(float *dt, const float *g, const float *t, size_t stride, size_t n);

    /* --- linear (width 0) and fm, one example. A row: its weight, then `width` factors
     * --- */

    /* Returns the weights' part of the score and the factors'. sums (2, width) = sum of
     * value * factors, and of its squares; products (ids, width), or NULL: value *
     * factors */
    float (*factors)(float *sums, float *products, const float *tables, size_t width,
                     const struct bags *bags);
    /* row += d value (1, sums - products) */
    void (*factors_back)(float *tables, size_t width, const struct bags *bags,
                         const float *sums, const float *products, float d);

    /* --- FTRL-proximal (kernels.h has the other optimizers) --- */

    /* z is 0 but where l1 holds w at 0 */
    void (*ftrl)(float *w, const float *g, float *n, float *z, size_t count,
                 const struct ftrl *f);
    /* The root mean square of a row's inputs, of which `met` has the number and the sum
     * of squares, after those of a batch (given as the same two; NULL: none) have come; w
     * keeps its effect. */
    float (*ftrl_meet)(float *w, float *met, const float *inputs, size_t width);
};

/* For this CPU, or the set that DESCANT_LOOPS names, if this CPU has it. */
const struct loops *loops_best(void);
/* DESCANT_LOOPS where this CPU has no such set, else NULL. */
const char *loops_lacking(void);
/* base, avx2, avx512, or NULL: the best; NULL if this CPU has no such set. */
const struct loops *loops_named(const char *name);
extern const struct loops loops_base;       /* every CPU */

#endif
