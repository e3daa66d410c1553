/* SPDX-License-Identifier: MIT */
/* The loops over parameters (kernels.h says what each computes, and why races are allowed here).
 *
 * Written with vectors of 16 floats that the compiler maps to what the instruction set has. This
 * file is compiled once for each set, with KERNELS naming the table. Rules that keep the bits the
 * same everywhere: no contraction of a*b+c, sums in a fixed order of lanes, the mean in double
 * and rounded once. A test of finiteness rides along: x*0 is 0 for every finite x, NaN for the
 * others, and a NaN stays in the sum. Runs on whichever thread holds the data; keeps no state. */
#include "fabric/kernels.h"

#include <stdint.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* Vectors pass between inlined functions only, so no calling convention is at stake. */
#pragma GCC diagnostic ignored "-Wpsabi"

#define LANES 16

/* aligned(4): a caller's tensor may lie anywhere */
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

extern const struct kernels KERNELS;

static inline const lanes *read_at(const float *p)
{
    return (const lanes *)p;
}

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

/* Of a mean: as many floats as make one vector of doubles, so that nothing leaves the registers. */
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

/* LANES floats at once: a whole cache line, which is what streaming stores want. */
static inline void put_parts(float *dst, const few *x, bool stream)
{
#if defined(__AVX512F__)
    if (stream) {
        __m512d low = _mm512_castpd256_pd512((__m256d)x[0]);
        _mm512_stream_pd((double *)(void *)dst, _mm512_insertf64x4(low, (__m256d)x[1], 1));
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

/* Inlined for each small n_in and each kind of store, so that the inner loop is unrolled and its
 * pointers stay in registers. Returns how far it came. */
static inline __attribute__((always_inline)) size_t mean_of(float *out, const float *const *in,
                                                            const double *share, const int n_in,
                                                            size_t n, const bool stream, few *bad)
{
    enum { SMALL = 4, AHEAD = 512 };    /* floats; twice as fast as without, see decisions.md */
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
            many sum = n_in <= SMALL ? weighed(p[0] + at, w[0]) : weighed(in[0] + at, share[0]);
            for (int k = 1; k < n_in; k++)
                sum += n_in <= SMALL ? weighed(p[k] + at, w[k]) : weighed(in[k] + at, share[k]);
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

static size_t mean_any(float *out, const float *const *in, const double *share, int n_in, size_t n,
                       bool stream, few *bad)
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

static bool mean(float *out, const float *const *in, const double *share, int n_in, size_t n,
                 bool stream)
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

static void block(float *G, float *s, const float *c, float mu, float eta, bool nesterov,
                  size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes old = *read_at(G + i), b = *read_at(c + i) - old;
        lanes momentum = mu * *read_at(s + i) + b;
        *(lanes *)(s + i) = momentum;
        lanes ahead = momentum;
        if (nesterov)
            ahead = b + mu * momentum;
        *(lanes *)(G + i) = old + eta * ahead;
    }
    for (; i < n; i++) {
        float b = c[i] - G[i];
        s[i] = mu * s[i] + b;
        G[i] += eta * (nesterov ? b + mu * s[i] : s[i]);
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

static void add(float *w, const float *d, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(lanes *)(w + i) = *read_at(w + i) + *read_at(d + i);
    for (; i < n; i++)
        w[i] += d[i];
}

static size_t hot(const unsigned char *heat, size_t n, unsigned char least)
{
    enum { BLOCK = 64 };
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        unsigned char any = 0;
        for (int k = 0; k < BLOCK; k++)
            any |= heat[i + (size_t)k] >= least;
        if (any)
            break;
    }
    while (i < n && heat[i] < least)
        i++;
    return i;
}

static void tally(const unsigned char *heat, size_t n, uint32_t *counts)
{
    typedef uint64_t eight __attribute__((aligned(1), may_alias));
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        if (*(const eight *)(heat + i) != 0)
            for (size_t k = i; k < i + 8; k++)
                counts[heat[k]]++;
    for (; i < n; i++)
        counts[heat[i]]++;
}

#define TEXT(x) TEXT_OF(x)
#define TEXT_OF(x) #x

const struct kernels KERNELS = {
    .name = TEXT(KERNELS),
    .copy = copy,
    .copy_past = copy_past,
    .finite = all_finite,
    .mean = mean,
    .pull = pull,
    .delta = delta,
    .block = block,
    .elastic = elastic,
    .less = less,
    .add = add,
    .hot = hot,
    .tally = tally,
};
