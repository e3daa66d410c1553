/* SPDX-License-Identifier: MIT */
/* The loops over parameters (kernels.h has their formulas, and why races are allowed
 * here).
 *
 * Written with vectors of 16 floats that the compiler maps to the instruction set's
 * vectors. This file is compiled once for each set, with KERNELS naming the table. Rules
 * that keep the bits the same everywhere: no contraction of a*b+c, sums in a fixed order
 * of lanes, the mean in double and rounded once. A test of finiteness rides along: x*0 is
 * 0 for every finite x, NaN for the others, and a NaN stays in the sum. Runs on whichever
 * thread holds the data; keeps no state.
 *
 * Most loops have two parts: whole vectors, then the floats that are left, one by one, by
 * the same operations. A new loop has a slot in kernels.h with its formula, and a row in
 * the table at the end. */
#include "kernels/kernels.h"

#include "kernels/wire.h"

#include <stdint.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* Vectors pass between inlined functions only, so no calling convention is at stake. */
#pragma GCC diagnostic ignored "-Wpsabi"

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

/* aligned(4): a caller's tensor may lie anywhere */
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

extern const struct kernels KERNELS;

static inline const lanes *read_at(const float *p)
{
    return (const lanes *)p;
}

/* Of a test of finiteness: each lane is 0, or NaN, and one NaN makes the sum NaN. */
static bool all_zero(lanes test)
{
    float sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += test[i];
    return sum == 0;
}

/* Past the caches where the set has it and the address allows it. */
static inline void store_past(float *dst, lanes x)
{
#if defined(__AVX512F__)
    _mm512_stream_ps(dst, (__m512)x);
#elif defined(__SSE2__)
    typedef float quad __attribute__((vector_size(16)));
    union {
        lanes all;
        quad part[4];
    } u = {.all = x};
    for (int k = 0; k < 4; k++)
        _mm_stream_ps(dst + 4 * k, (__m128)u.part[k]);
#else
    *(lanes *)dst = x;
#endif
}

static bool copy(float *dst, const float *src, size_t n)
{
    lanes test = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes x = *read_at(src + i);
        test += x * 0.0f;
        *(lanes *)(dst + i) = x;
    }
    float rest = 0;
    for (; i < n; i++) {
        float x = src[i];
        rest += x * 0.0f;
        dst[i] = x;
    }
    return all_zero(test) && rest == 0;
}

/* A destination that is not aligned to vectors is written by way of the caches. */
static bool copy_past(float *dst, const float *src, size_t n)
{
    lanes test = {0};
    size_t i = 0;
    if ((uintptr_t)dst % sizeof(lanes) == 0) {
        for (; i + LANES <= n; i += LANES) {
            lanes x = *read_at(src + i);
            test += x * 0.0f;
            store_past(dst + i, x);
        }
#if defined(__SSE2__)
        _mm_sfence();       /* streamed stores are not ordered by a later release */
#endif
    }
    return copy(dst + i, src + i, n - i) && all_zero(test);
}

static bool all_finite(const float *src, size_t n)
{
    lanes test = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        test += *read_at(src + i) * 0.0f;
    float rest = 0;
    for (; i < n; i++)
        rest += src[i] * 0.0f;
    return all_zero(test) && rest == 0;
}

/* Of a mean: as many floats as make one vector of doubles, so that nothing leaves the
 * registers. */
#if defined(__AVX512F__)
#define FEW 8
#else
#define FEW 4
#endif
typedef float few __attribute__((vector_size(4 * FEW), aligned(4), may_alias));
typedef double many __attribute__((vector_size(8 * FEW)));

static inline many weighed(const float *p, double share)
{
#if defined(__AVX512F__)
    return (many)_mm512_cvtps_pd(_mm256_loadu_ps(p)) * share;   /* gcc makes five of it */
#else
    return __builtin_convertvector(*(const few *)p, many) * share;
#endif
}

static void scale(float *out, const float *src, double share, size_t n)
{
    size_t i = 0;
    for (; i + FEW <= n; i += FEW)
        *(few *)(out + i) = __builtin_convertvector(weighed(src + i, share), few);
    for (; i < n; i++)
        out[i] = (float)((double)src[i] * share);
}

/* In the lanes of all sets, since a sum of doubles has its order. */
static double square(const float *src, size_t n)
{
    many lane[LANES / FEW] = {{0}};
    double sum = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES / FEW; k++) {
            many x = weighed(src + i + k * FEW, 1);
            lane[k] += x * x;
        }
    for (; i < n; i++)
        sum += (double)src[i] * (double)src[i];
    for (int k = 0; k < LANES; k++)
        sum += lane[k / FEW][k % FEW];
    return sum;
}

/* LANES floats at once: a whole cache line, which is what streaming stores want. */
static inline void put_parts(float *dst, const few *x, bool stream)
{
#if defined(__AVX512F__)
    if (stream) {
        __m512d low = _mm512_castpd256_pd512((__m256d)x[0]);
        _mm512_stream_pd((double *)(void *)dst,
                         _mm512_insertf64x4(low, (__m256d)x[1], 1));
        return;
    }
#elif defined(__SSE2__)
    for (int k = 0; stream && k < LANES / FEW; k++)
        _mm_stream_ps(dst + k * FEW, (__m128)x[k]);
    if (stream)
        return;
#endif
    (void)stream;
    for (int k = 0; k < LANES / FEW; k++)
        *(few *)(dst + k * FEW) = x[k];
}

/* Inlined for each small n_in and each kind of store, so that the inner loop is unrolled
 * and its pointers stay in registers. Returns how far it came. */
static inline __attribute__((always_inline)) size_t
mean_of(float *out, const float *const *in, const double *share, const int n_in, size_t n,
        const bool stream, few *bad)
{
    enum { SMALL = 4, AHEAD = 512 };    /* floats: 2 KB, fetched before they are read */
    const float *p[SMALL];
    double w[SMALL];
    few test[LANES / FEW] = {{0}};
    size_t i = 0;

    for (int k = 0; k < n_in && k < SMALL; k++) {
        p[k] = in[k];
        w[k] = share[k];
    }
    for (; i + LANES <= n; i += LANES) {
        few x[LANES / FEW];
        for (int k = 0; k < n_in; k++)
            __builtin_prefetch((n_in <= SMALL ? p[k] : in[k]) + i + AHEAD);
        for (int h = 0; h < LANES / FEW; h++) {
            size_t at = i + (size_t)h * FEW;
            many sum =
                n_in <= SMALL ? weighed(p[0] + at, w[0]) : weighed(in[0] + at, share[0]);
            for (int k = 1; k < n_in; k++)
                sum += n_in <= SMALL ? weighed(p[k] + at, w[k])
                                     : weighed(in[k] + at, share[k]);
            x[h] = __builtin_convertvector(sum, few);
            test[h] += x[h] * 0.0f;
        }
        put_parts(out + i, x, stream);
    }
    *bad = test[0];
    for (int h = 1; h < LANES / FEW; h++)
        *bad += test[h];
    return i;
}

/* Calls mean_of with constants where the inputs are few, so that it is compiled for each
 * of them. A case is 2 n_in + stream. */
static size_t mean_any(float *out, const float *const *in, const double *share, int n_in,
                       size_t n, bool stream, few *bad)
{
    switch (2 * n_in + stream) {
    case 4:
        return mean_of(out, in, share, 2, n, false, bad);
    case 5:
        return mean_of(out, in, share, 2, n, true, bad);
    case 6:
        return mean_of(out, in, share, 3, n, false, bad);
    case 7:
        return mean_of(out, in, share, 3, n, true, bad);
    case 8:
        return mean_of(out, in, share, 4, n, false, bad);
    case 9:
        return mean_of(out, in, share, 4, n, true, bad);
    }
    return stream ? mean_of(out, in, share, n_in, n, true, bad)
                  : mean_of(out, in, share, n_in, n, false, bad);
}

static bool mean(float *out, const float *const *in, const double *share, int n_in,
                 size_t n, bool stream)
{
    few test;
    bool past = stream && (uintptr_t)out % sizeof(lanes) == 0;
    size_t i = mean_any(out, in, share, n_in, n, past, &test);
    float rest = 0;

#if defined(__SSE2__)
    if (past)
        _mm_sfence();       /* streamed stores are not ordered by a later release */
#endif
    for (; i < n; i++) {
        double sum = in[0][i] * share[0];
        for (int k = 1; k < n_in; k++)
            sum += in[k][i] * share[k];
        out[i] = (float)sum;
        rest += out[i] * 0.0f;
    }
    for (int k = 0; k < FEW; k++)
        rest += test[k];
    return rest == 0;
}

/* In the order in which `mean` adds. */
static void sum(double *out, const float *const *in, const double *share, int n_in,
                size_t n, bool first)
{
    size_t i = 0;

    for (; i + FEW <= n; i += FEW) {
        many *to = (many *)(void *)(out + i);
        many all =
            first ? weighed(in[0] + i, share[0]) : *to + weighed(in[0] + i, share[0]);
        for (int k = 1; k < n_in; k++)
            all += weighed(in[k] + i, share[k]);
        *to = all;
    }
    for (; i < n; i++) {
        double all = in[0][i] * share[0];
        out[i] = first ? all : out[i] + all;
        for (int k = 1; k < n_in; k++)
            out[i] += in[k][i] * share[k];
    }
}

/* Float lanes of squares are emptied into double often enough to keep their precision. */
enum { EMPTY_EVERY = 256 * LANES };

struct squares {
    lanes d2, g2;
};

static void squares_empty(struct squares *q, struct distance *sum)
{
    for (int i = 0; i < LANES; i++) {
        sum->d2 += (double)q->d2[i];
        sum->g2 += (double)q->g2[i];
    }
    *q = (struct squares){{0}, {0}};
}

static void pull(float *w, const float *g, float alpha, size_t n, struct distance *sum)
{
    struct squares q = {{0}, {0}};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes x = *read_at(w + i), y = *read_at(g + i), d = y - x;
        *(lanes *)(w + i) = x + alpha * d;
        q.d2 += d * d;
        q.g2 += y * y;
        if (i % EMPTY_EVERY == 0)
            squares_empty(&q, sum);
    }
    squares_empty(&q, sum);
    for (; i < n; i++) {
        float x = w[i], d = g[i] - x;
        w[i] = x + alpha * d;
        sum->d2 += (double)d * d;
        sum->g2 += (double)g[i] * g[i];
    }
}

static void delta(float *w, const float *g, const float *snap, float alpha, size_t n,
                  struct distance *sum)
{
    struct squares q = {{0}, {0}};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes y = *read_at(g + i), d = y - *read_at(snap + i);
        *(lanes *)(w + i) = *read_at(w + i) + alpha * d;
        q.d2 += d * d;
        q.g2 += y * y;
        if (i % EMPTY_EVERY == 0)
            squares_empty(&q, sum);
    }
    squares_empty(&q, sum);
    for (; i < n; i++) {
        float d = g[i] - snap[i];
        w[i] = w[i] + alpha * d;
        sum->d2 += (double)d * d;
        sum->g2 += (double)g[i] * g[i];
    }
}

struct turning {
    lanes bs, b2, s2;
};

static void turning_empty(struct turning *q, struct turn *sum)
{
    for (int i = 0; i < LANES; i++) {
        sum->bs += (double)q->bs[i];
        sum->b2 += (double)q->b2[i];
        sum->s2 += (double)q->s2[i];
    }
    *q = (struct turning){{0}, {0}, {0}};
}

static void block(float *G, float *s, const float *c, struct outer_step step, size_t n,
                  struct turn *sum)
{
    struct turning q = {{0}, {0}, {0}};
    float mu = step.momentum, eta = step.rate;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes old = *read_at(G + i), b = *read_at(c + i) - old, before = *read_at(s + i);
        lanes momentum = mu * before + b;
        *(lanes *)(s + i) = momentum;
        lanes ahead = momentum;
        if (step.nesterov)
            ahead = b + mu * momentum;
        *(lanes *)(G + i) = old + eta * ahead;
        q.bs += b * before;
        q.b2 += b * b;
        q.s2 += before * before;
        if (i % EMPTY_EVERY == 0)
            turning_empty(&q, sum);
    }
    turning_empty(&q, sum);
    for (; i < n; i++) {
        float b = c[i] - G[i], before = s[i];
        s[i] = mu * before + b;
        G[i] += eta * (step.nesterov ? b + mu * s[i] : s[i]);
        sum->bs += (double)b * before;
        sum->b2 += (double)b * b;
        sum->s2 += (double)before * before;
    }
}

static void elastic(float *W, const float *w, float *out, float alpha, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes old = *read_at(W + i), x = old + alpha * (*read_at(w + i) - old);
        *(lanes *)(W + i) = x;
        *(lanes *)(out + i) = x;
    }
    for (; i < n; i++) {
        W[i] += alpha * (w[i] - W[i]);
        out[i] = W[i];
    }
}

static bool fold(float *w, float *shown, float *v, size_t n)
{
    lanes test = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes x = *read_at(v + i), y = *read_at(w + i) + (x - *read_at(shown + i));
        test += y * 0.0f;
        *(lanes *)(w + i) = y;
        *(lanes *)(shown + i) = y;
        *(lanes *)(v + i) = y - x;
    }
    float rest = 0;
    for (; i < n; i++) {
        float x = v[i], y = w[i] + (x - shown[i]);
        rest += y * 0.0f;
        w[i] = y;
        shown[i] = y;
        v[i] = y - x;
    }
    return all_zero(test) && rest == 0;
}

/* Where the result is false, *any says nothing: vectors take a NaN for a difference, and
 * single floats do not. */
static bool less(float *out, const float *w, const float *base, size_t n, bool *any)
{
    typedef int bits __attribute__((vector_size(4 * LANES)));
    lanes test = {0};
    bits differ = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes d = *read_at(w + i) - *read_at(base + i);
        test += d * 0.0f;
        differ |= d != (lanes){0};
        *(lanes *)(out + i) = d;
    }
    float rest = 0;
    int seen = 0;
    for (; i < n; i++) {
        float d = w[i] - base[i];
        rest += d * 0.0f;
        seen |= d < 0 || d > 0;
        out[i] = d;
    }
    for (int k = 0; k < LANES; k++)
        seen |= differ[k];
    *any = seen != 0;
    return all_zero(test) && rest == 0;
}

static void add(float *w, const float *d, float s, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(lanes *)(w + i) = *read_at(w + i) + s * *read_at(d + i);
    for (; i < n; i++)
        w[i] += s * d[i];
}

enum { HEAT_AHEAD = 2048 };

/* How many of n bytes are blocks in which none is of that heat or more. */
INLINE size_t cold(const unsigned char *heat, size_t n, unsigned char least, size_t block)
{
    size_t i = 0;
    for (; i + block <= n; i += block) {
        unsigned char any = 0;
        for (size_t k = 0; k < block; k++)
            any |= heat[i + k] >= least;
        if (any)
            break;
        for (size_t k = 0; k < block && i + k + HEAT_AHEAD < n; k += 64)
            __builtin_prefetch(heat + i + k + HEAT_AHEAD);
    }
    return i;
}

/* Most bytes are cold: first large blocks of them are passed over, then smaller ones,
 * then bytes. */
static size_t hot(const unsigned char *heat, size_t n, unsigned char least)
{
    size_t i = cold(heat, n, least, 512);
    i += cold(heat + i, n - i, least, 64);
    while (i < n && heat[i] < least)
        i++;
    return i;
}

/* A bit in each byte that is not 0. */
static inline uint64_t not_zero(uint64_t bytes)
{
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
    return (((bytes & low) + low) | bytes) & ~low;
}

static void tally(const unsigned char *heat, size_t n, uint32_t *counts)
{
    typedef uint64_t eight __attribute__((aligned(1), may_alias));
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t all = *(const eight *)(heat + i);
        uint64_t left = not_zero(all);
        if (left == ~UINT64_C(0) / 255 * 128)
            for (size_t k = i; k < i + 8; k++)
                counts[heat[k]]++;
        else
            for (; left != 0; left &= left - 1)         /* most are 0, and have no turn */
                counts[all >> (__builtin_ctzll(left) - 7) & 0xff]++;
    }
    for (; i < n; i++)
        counts[heat[i]]++;
}

/* --- encoded means ---
 *
 * Plain loops, each float by itself: of conversions between widths, and of comparisons,
 * compilers make little with vectors wider than the machine's, and much with loops. */

enum { BLOCK = WIRE_BLOCK };

#define MOST 0x1.fep127f            /* of bf16 */
#define LEAST 0x1p-100f             /* of a block whose scale is no denormal */
#define INFINITE 0x7f800000         /* and above it NaN, as bits without a sign */
#define MAGIC 0x1.8p23f             /* adding it rounds to a whole number */

typedef uint32_t word __attribute__((may_alias));
typedef int32_t whole __attribute__((may_alias));

INLINE float of_bits(uint32_t bits)
{
    union {
        uint32_t bits;
        float x;
    } u = {bits};
    return u.x;
}

/* x within the range of bf16, and its largest value for a NaN. */
INLINE float bounded(float x)
{
    float low = x < MOST ? x : MOST;
    return low > -MOST ? low : -MOST;
}

static bool owe(float *r, const float *x, const float *R, float a, float b, size_t n)
{
    const word *bits = (const word *)x;
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        /* read once: it may change */
        uint32_t now = bits[i], magnitude = now & 0x7fffffff;
        float d = bounded(of_bits(now) - R[i]);
        most = magnitude > most ? magnitude : most;
        r[i] = bounded(a * (magnitude < INFINITE ? d : 0) + b * r[i]);
    }
    return most < INFINITE;
}

/* 0x7fff is just under half of the lowest bit that stays: that bit is added, too, so that
 * a tie goes to the even number. u is within bf16's range, so no rounding makes it
 * infinite. */
static void bf16_put(void *out, float *u, float a, size_t n)
{
    uint16_t *to = out;
    const word *bits = (const word *)u;
    for (size_t i = 0; i < n; i++) {
        uint32_t high = (bits[i] + 0x7fff + (bits[i] >> 16 & 1)) >> 16;
        to[i] = (uint16_t)high;
        u[i] = a * (u[i] - of_bits(high << 16));
    }
}

INLINE void bf16_add_to(float *sum, const float *from, const uint16_t *m, float a,
                        size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] = bounded(from[i] + a * of_bits((uint32_t)m[i] << 16));
}

/* Apart, lest the loop suspect that sum and from overlap otherwise. */
static void bf16_add(float *sum, const float *from, const void *in, float a, size_t n)
{
    if (sum == from)
        bf16_add_to(sum, sum, in, a, n);
    else
        bf16_add_to(sum, from, in, a, n);
}

/* The largest magnitude; without their signs floats are ordered as their bits are. */
INLINE float largest(const float *u, size_t n)
{
    const whole *bits = (const whole *)u;
    int32_t top = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t x = bits[i] & 0x7fffffff;
        top = x > top ? x : top;
    }
    return of_bits((uint32_t)top);
}

/* Writes the block's scale, then its bytes. The two sums with MAGIC round, so that the
 * compiler must not take them together. */
INLINE void q8_put_block(char *out, float *u, float a, size_t n)
{
    float top = largest(u, n), up = top < LEAST ? 0 : 127 / top;
    float down = top < LEAST ? 0 : top / 127;
    int8_t *to = (int8_t *)out + sizeof down;
    *(float *)(void *)out = down;
    for (size_t i = 0; i < n; i++) {
        float x = u[i], q = x * up + MAGIC - MAGIC;
        to[i] = (int8_t)(int)q;
        u[i] = a * (x - q * down);
    }
}

static void q8_put(void *out, float *u, float a, size_t n)
{
    char *to = out;
    for (; n >= BLOCK; n -= BLOCK, u += BLOCK, to += sizeof(float) + BLOCK)
        q8_put_block(to, u, a, BLOCK);
    if (n)
        q8_put_block(to, u, a, n);
}

INLINE void q8_add_block(float *sum, const float *from, const char *in, float a, size_t n)
{
    const int8_t *q = (const int8_t *)in + sizeof(float);
    float scale = *(const float *)(const void *)in;
    for (size_t i = 0; i < n; i++)
        sum[i] = bounded(from[i] + a * ((float)q[i] * scale));
}

static void q8_add(float *sum, const float *from, const void *in, float a, size_t n)
{
    const char *m = in;
    size_t at = 0;
    for (; n - at >= BLOCK; at += BLOCK, m += sizeof(float) + BLOCK)
        if (sum == from)        /* apart, as in bf16_add */
            q8_add_block(sum + at, sum + at, m, a, BLOCK);
        else
            q8_add_block(sum + at, from + at, m, a, BLOCK);
    if (at < n)
        q8_add_block(sum + at, from + at, m, a, n - at);
}

/* --- optimizers --- */

static void momentum(float *restrict w, const float *restrict g, float *restrict v,
                     size_t n, float lr, float m, float l2)
{
    for (size_t k = 0; k < n; k++) {
        v[k] = m * v[k] + (g[k] + l2 * w[k]);
        w[k] -= lr * v[k];
    }
}

static void adagrad(float *restrict w, const float *restrict g, float *restrict s,
                    size_t n, float lr, float epsilon, float l2)
{
    for (size_t k = 0; k < n; k++) {
        float x = g[k] + l2 * w[k];
        s[k] += x * x;
        w[k] -= lr * x / (__builtin_sqrtf(s[k]) + epsilon);
    }
}

static void adam(float *restrict w, const float *restrict g, float *restrict m,
                 float *restrict v, size_t n, const struct adam *a)
{
    struct adam c = *a;
    for (size_t k = 0; k < n; k++) {
        float x = g[k] + c.l2 * w[k];
        m[k] = c.beta1 * m[k] + c.rest1 * x;
        v[k] = c.beta2 * v[k] + c.rest2 * (x * x);
        w[k] =
            c.keep * w[k] - c.rate * m[k] / (__builtin_sqrtf(v[k]) * c.root + c.epsilon);
    }
}

static void rowwise(float *restrict w, const float *restrict g, float *restrict s,
                    size_t n, float lr, float epsilon)
{
    lanes sum = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sum += *read_at(g + i) * *read_at(g + i);
    float squares = 0;
    for (; i < n; i++)
        squares += g[i] * g[i];
    for (int k = 0; k < LANES; k++)
        squares += sum[k];
    *s += squares / (float)n;
    float rate = lr / (__builtin_sqrtf(*s) + epsilon);
    for (size_t k = 0; k < n; k++)
        w[k] -= rate * g[k];
}

#define TEXT(x) TEXT_OF(x)
#define TEXT_OF(x) #x

const struct kernels KERNELS = {
    .name = TEXT(KERNELS),
    .copy = copy,
    .copy_past = copy_past,
    .finite = all_finite,
    .square = square,
    .scale = scale,
    .mean = mean,
    .sum = sum,
    .pull = pull,
    .delta = delta,
    .block = block,
    .elastic = elastic,
    .fold = fold,
    .less = less,
    .add = add,
    .hot = hot,
    .tally = tally,
    .momentum = momentum,
    .adagrad = adagrad,
    .adam = adam,
    .rowwise = rowwise,
    .owe = owe,
    .bf16_put = bf16_put,
    .q8_put = q8_put,
    .bf16_add = bf16_add,
    .q8_add = q8_add,
};
