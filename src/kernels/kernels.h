/* SPDX-License-Identifier: MIT */
/* The loops over parameters, and the only places where replicas are read and written
 * while workers train: the races are deliberate (Hogwild), each float is moved whole, and
 * merges are increments. ThreadSanitizer passes over this file alone. Compiled once for
 * each instruction set; all give the same bits (no contraction, fixed orders). */
#ifndef KERNELS_H
#define KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sums of squares, of a merge: d = g - w (or g - snap), and g. */
struct distance {
    double d2, g2;
};

/* The outer step of a block, */
struct outer_step {
    float rate, momentum;       /* eta, mu */
    bool nesterov;
};

/* and sums of products: of b with s as it was before, and of each with itself. */
struct turn {
    double bs, b2, s2;
};

/* The constants of one step of Adam. */
struct adam {
    float beta1, beta2;
    float rest1, rest2;         /* 1 - beta */
    float epsilon;
    float rate;                 /* lr / (1 - beta1^t) */
    float root;                 /* 1 / sqrt(1 - beta2^t) */
    float l2, keep;             /* g + l2 w; then w * keep - ... */
};

struct kernels {
    const char *name;
    /* dst = src; false if a value is NaN or Inf (copied all the same) */
    bool (*copy)(float *dst, const float *src, size_t n);
    /* the same past the caches: for floats that others read later, and that are more than
     * a cache holds */
    bool (*copy_past)(float *dst, const float *src, size_t n);
    bool (*finite)(const float *src, size_t n);
    /* the sum of squares; not finite where a value is not, and only there */
    double (*square)(const float *src, size_t n);
    /* out = share src, in double, rounded once: src / d where share is 1 / d */
    void (*scale)(float *out, const float *src, double share, size_t n);
    /* out = sum of share[k] in[k], in double, rounded once; false if out has NaN or Inf.
     * stream: past the caches */
    bool (*mean)(float *out, const float *const *in, const double *share, int n_in,
                 size_t n, bool stream);
    /* sum += the same, not rounded; first: sum = */
    void (*sum)(double *sum, const float *const *in, const double *share, int n_in,
                size_t n, bool first);
    /* w += alpha (g - w) */
    void (*pull)(float *w, const float *g, float alpha, size_t n, struct distance *sum);
    /* w += alpha (g - snap) */
    void (*delta)(float *w, const float *g, const float *snap, float alpha, size_t n,
                  struct distance *sum);
    /* b = c - G; s = mu s + b; G += eta (nesterov ? b + mu s : s) */
    void (*block)(float *G, float *s, const float *c, struct outer_step step, size_t n,
                  struct turn *sum);
    /* W += alpha (w - W); out = W */
    void (*elastic)(float *W, const float *w, float *out, float alpha, size_t n);

    /* w += v - shown; shown = w; v = w - v, of the v that came; false if w has NaN or Inf
     */
    bool (*fold)(float *w, float *shown, float *v, size_t n);

    /* Of tables. out = w - base; false if it has NaN or Inf; *any: it is not all zero */
    bool (*less)(float *out, const float *w, const float *base, size_t n, bool *any);
    /* w += s d */
    void (*add)(float *w, const float *d, float s, size_t n);
    /* the first of n bytes, counted by others meanwhile, that is `least` or more; n: none
     */
    size_t (*hot)(const unsigned char *heat, size_t n, unsigned char least);
    /* counts[h] += how many of n bytes are h, for h above 0 */
    void (*tally)(const unsigned char *heat, size_t n, uint32_t *counts);

    /* Optimizers, as in PyTorch. v = m v + (g + l2 w); w -= lr v */
    void (*momentum)(float *w, const float *g, float *v, size_t n, float lr, float m,
                     float l2);
    void (*adagrad)(float *w, const float *g, float *s, size_t n, float lr, float epsilon,
                    float l2);
    void (*adam)(float *w, const float *g, float *m, float *v, size_t n,
                 const struct adam *a);
    /* *s += mean of squares of g */
    void (*rowwise)(float *w, const float *g, float *s, size_t n, float lr,
                    float epsilon);

    /* Encoded means (wire.h). Sums and differences stay within the range of bf16. r = a
     * (x - R) + b r; false if x has NaN or Inf, which counts as R */
    bool (*owe)(float *r, const float *x, const float *R, float a, float b, size_t n);
    /* out = u rounded, to nearest and even; u = a (u - out). q8: blocks of a scale and
     * 256 signed bytes, the last may be shorter; values below 2^-100 are rounded to 0 */
    void (*bf16_put)(void *out, float *u, float a, size_t n);
    void (*q8_put)(void *out, float *u, float a, size_t n);
    /* sum = from + a in; sum may be from */
    void (*bf16_add)(float *sum, const float *from, const void *in, float a, size_t n);
    void (*q8_add)(float *sum, const float *from, const void *in, float a, size_t n);
};

const struct kernels *kernels_best(void);       /* for this CPU */
extern const struct kernels kernels_base;       /* every CPU */

#endif
