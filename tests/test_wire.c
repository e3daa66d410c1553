/* SPDX-License-Identifier: MIT */
/* Encodings and what they owe: the kernels alone, one who sends, and a group of members. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "harness/suite.h"
#include "harness/wire.h"
#include "kernels/kernels.h"

#define MOST_BF16 0x1.fep127f

enum { SETS = 3 };

#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512;
#endif

/* Those that this machine can run; NULL: it cannot. */
static const struct kernels *set(int i)
{
#if defined(__x86_64__)
    if (i == 1 && __builtin_cpu_supports("avx2"))
        return &kernels_avx2;
    if (i == 2 && __builtin_cpu_supports("avx512f"))
        return &kernels_avx512;
#endif
    return i == 0 ? &kernels_base : NULL;
}

static void put(const struct kernels *k, enum wire wire, void *out, float *u, float a, size_t n)
{
    (wire == WIRE_Q8 ? k->q8_put : k->bf16_put)(out, u, a, n);
}

static void add(const struct kernels *k, enum wire wire, float *sum, const void *in, float a,
                size_t n)
{
    (wire == WIRE_Q8 ? k->q8_add : k->bf16_add)(sum, sum, in, a, n);
}

static float any_float(struct rng *rng)
{
    union {
        uint32_t bits;
        float x;
    } u;
    do
        u.bits = (uint32_t)rng_next(rng);
    while (!(fabsf(u.x) <= MOST_BF16));
    return u.x;
}

/* ------------------------------------------------------------------ sizes */

START_TEST(bytes_are_as_promised)
{
    static const size_t rows[][4] = {{0, 0, 0, 0},       {1, 4, 2, 5},       {255, 1020, 510, 259},
                                     {256, 1024, 512, 260}, {257, 1028, 514, 265},
                                     {1000, 4000, 2000, 1016}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_assert_uint_eq(wire_bytes(WIRE_F32, rows[i][0]), rows[i][1]);
        ck_assert_uint_eq(wire_bytes(WIRE_BF16, rows[i][0]), rows[i][2]);
        ck_assert_uint_eq(wire_bytes(WIRE_Q8, rows[i][0]), rows[i][3]);
    }
    static float out[N + 8], blank[N + 8], u[N];
    struct rng rng;
    rng_init(&rng, 1);
    memset(blank, 0x5a, sizeof blank);
    for (size_t n = 0; n < 600; n++)
        for (int w = 0; w < 2; w++) {
            for (size_t k = 0; k < n; k++)
                u[k] = any_float(&rng);
            memset(out, 0x5a, sizeof out);
            put(kernels_best(), wires[w], out, u, 1, n);
            size_t past = wire_bytes(wires[w], n);
            ck_assert_mem_eq((const char *)out + past, (const char *)blank + past,
                             sizeof out - past);
        }
}
END_TEST

START_TEST(slices_are_whole_blocks)
{
    static const size_t sizes[] = {0, 1, 255, 256, 257, 1000, 100 * WIRE_BLOCK, N};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int k = 1; k < 70; k++) {
            size_t n = sizes[i], bytes = 0;
            ck_assert_uint_eq(wire_slice(n, k, 0), 0);
            ck_assert_uint_eq(wire_slice(n, k, k), n);
            for (int j = 0; j < k; j++) {
                size_t from = wire_slice(n, k, j), end = wire_slice(n, k, j + 1);
                ck_assert(from <= end && (from % WIRE_BLOCK == 0 || from == n));
                ck_assert_uint_le(end - from, n / (size_t)k + 2 * WIRE_BLOCK);
                bytes += wire_bytes(WIRE_Q8, end - from);
            }
            ck_assert_uint_eq(bytes, wire_bytes(WIRE_Q8, n));
        }
}
END_TEST

/* ------------------------------------------------------------------ rounding */

static float nearest_bf16(float x)
{
    union {
        float x;
        uint32_t bits;
    } low = {.x = x}, high;
    low.bits &= 0xffff0000u;
    high.bits = low.bits + 0x10000u;
    double under = fabs((double)x - low.x), over = fabs((double)high.x - x);
    bool even = (low.bits >> 16) % 2 == 0;
    return under < over || (!(over < under) && even) ? low.x : high.x;
}

START_TEST(bf16_rounds_to_nearest_and_even)
{
    static const float special[] = {0, -0.0f, 1, 0x1.01p0f, 0x1.03p0f, -0x1.01p0f, 0x1.ffp0f,
                                    0x1p-149f, -0x1p-133f, 0x1.8p-134f, 0x1p-126f, 0x1.fdfffep127f,
                                    MOST_BF16, -MOST_BF16};
    enum { SPECIAL = sizeof special / sizeof *special };
    static float u[N], x[N], m[N];
    static uint16_t out[N];
    struct rng rng;
    rng_init(&rng, 2);
    for (int run = 0; run < 80; run++) {
        for (size_t k = 0; k < N; k++)
            u[k] = x[k] = k < SPECIAL ? special[k] : any_float(&rng);
        memset(m, 0, sizeof m);
        kernels_best()->bf16_put(out, u, 1, N);
        kernels_best()->bf16_add(m, m, out, 1, N);
        for (size_t k = 0; k < N; k++) {
            ck_assert_msg(!(m[k] < nearest_bf16(x[k])) && !(m[k] > nearest_bf16(x[k])), "%a: %a",
                          (double)x[k], (double)m[k]);
            ck_assert(!(u[k] < x[k] - m[k]) && !(u[k] > x[k] - m[k]));
        }
    }
}
END_TEST

/* One block: what came out, and the scale. */
static float q8_block(const float *x, size_t n, float *m, float *left)
{
    float out[WIRE_BLOCK / 4 + 1] = {0};
    memcpy(left, x, n * sizeof *x);
    memset(m, 0, n * sizeof *m);
    kernels_best()->q8_put(out, left, 1, n);
    kernels_best()->q8_add(m, m, out, 1, n);
    for (size_t k = 0; k < n; k++)
        ck_assert_int_ge(((const signed char *)(out + 1))[k], -127);
    return out[0];
}

START_TEST(q8_errs_by_half_a_step)
{
    float x[WIRE_BLOCK], m[WIRE_BLOCK], left[WIRE_BLOCK];
    struct rng rng;
    rng_init(&rng, 3);
    for (int run = 0; run < 1500; run++) {
        size_t n = 1 + rng_next(&rng) % WIRE_BLOCK, at = 0;
        double size = exp2((double)(rng_next(&rng) % 220) - 98);
        for (size_t k = 0; k < n; k++) {
            x[k] = (float)(size * rng_normal(&rng));
            at = fabsf(x[k]) > fabsf(x[at]) ? k : at;
        }
        double scale = (double)q8_block(x, n, m, left), top = fabs((double)x[at]);
        ck_assert_double_eq_tol(scale, top / 127, 1e-6 * scale);
        ck_assert_double_eq_tol((double)m[at], (double)x[at], 1e-6 * top);
        for (size_t k = 0; k < n; k++) {
            ck_assert_double_le(fabs((double)x[k] - m[k]), 0.50002 * scale);
            ck_assert_double_eq_tol((double)left[k], (double)x[k] - m[k], 1e-6 * top);
        }
    }
}
END_TEST

START_TEST(q8_blocks_at_the_ends_of_range)
{
    float x[WIRE_BLOCK], m[WIRE_BLOCK], left[WIRE_BLOCK];
    static const float constants[] = {1, -3.3f, 1e-20f, -1e30f, MOST_BF16, -MOST_BF16, 0x1p-100f};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        for (size_t k = 0; k < WIRE_BLOCK; k++)
            x[k] = constants[i];
        q8_block(x, WIRE_BLOCK, m, left);
        for (size_t k = 0; k < WIRE_BLOCK; k++)
            ck_assert_double_eq_tol((double)m[k], (double)x[k], 1e-6 * fabs((double)x[k]));
    }
    static const float waits[] = {0, 0x1p-149f, 0x1p-126f, -0x1p-101f};     /* for more of it */
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        for (size_t k = 0; k < WIRE_BLOCK; k++)
            x[k] = k % 2 ? waits[i] : 0;
        ck_assert(!(q8_block(x, WIRE_BLOCK, m, left) > 0));
        for (size_t k = 0; k < WIRE_BLOCK; k++)
            ck_assert(!(m[k] > 0) && !(m[k] < 0) && !(left[k] > x[k]) && !(left[k] < x[k]));
    }
}
END_TEST

START_TEST(pieces_are_encoded_alone)
{
    static float u[N], again[N], whole[N], pieces[N];
    struct rng rng;
    rng_init(&rng, 4);
    for (int w = 0; w < 2; w++) {
        for (size_t k = 0; k < N; k++)
            u[k] = again[k] = (float)rng_normal(&rng);
        put(kernels_best(), wires[w], whole, u, 1, N);
        for (size_t at = 0, n; at < N; at += n) {
            n = WIRE_BLOCK * (1 + rng_next(&rng) % 3);
            n = n < N - at ? n : N - at;
            put(kernels_best(), wires[w], (char *)pieces + wire_bytes(wires[w], at), again + at, 1,
                n);
        }
        ck_assert_mem_eq(whole, pieces, wire_bytes(wires[w], N));
        ck_assert_mem_eq(u, again, sizeof u);
    }
}
END_TEST

START_TEST(all_instruction_sets_give_the_same_bits)
{
    static float r[SETS][N], sum[SETS][N], out[SETS][N], x[N], R[N];
    for (int run = 0; run < 60; run++)
        for (int w = 0; w < 2; w++)
            for (int s = 0; s < SETS; s++) {
                const struct kernels *k = set(s);
                struct rng rng;
                if (!k)
                    continue;
                size_t n = (size_t)(N - run);
                rng_init(&rng, (uint64_t)run);
                memset(out[s], 0, sizeof out[s]);
                for (size_t i = 0; i < n; i++) {
                    bool wild = run % 2;
                    x[i] = wild ? any_float(&rng) : (float)rng_normal(&rng);
                    R[i] = wild ? any_float(&rng) : (float)rng_normal(&rng);
                    r[s][i] = (float)rng_normal(&rng);
                    sum[s][i] = R[i];
                }
                x[run] = run % 3 == 0 ? NAN : INFINITY;
                ck_assert(!k->owe(r[s], x, R, 0.3f, 1 / 0.3f, n));
                put(k, wires[w], out[s], r[s], 0.37f, n);
                add(k, wires[w], sum[s], out[s], 0.6f, n);
                ck_assert_mem_eq(out[s], out[0], sizeof out[0]);
                ck_assert_mem_eq(r[s], r[0], n * sizeof **r);
                ck_assert_mem_eq(sum[s], sum[0], n * sizeof **sum);
            }
}
END_TEST

/* ------------------------------------------------------------------ what is owed */

START_TEST(the_sum_of_what_is_sent_follows_what_was_meant)
{
    static float x[N], R[N], r[N], sent[N], sum[N];
    const double share = 0.25;
    for (int w = 0; w < 2; w++) {
        struct rng rng;
        double meant[N] = {0};
        rng_init(&rng, 5);
        memset(r, 0, sizeof r);
        memset(sum, 0, sizeof sum);
        for (int t = 0; t < 2000; t++) {
            for (size_t k = 0; k < N; k++) {
                R[k] = (float)rng_normal(&rng);
                x[k] = R[k] + (float)((k % 100 ? 1e-3 : 1) * (1 + 0.1 * rng_normal(&rng)));
                meant[k] += share * ((double)x[k] - R[k]);
            }
            struct wire_part part = {wires[w], N, x, R, r, share};
            ck_assert(wire_send(&part, sent));
            part.r = sum;
            wire_add(&part, sent, share);
        }
        for (size_t k = 0; k < N; k++)
            ck_assert_double_eq_tol((double)sum[k], meant[k], share * 1.4 / 127 + 1e-4 * meant[k]);
    }
}
END_TEST

START_TEST(what_is_not_finite_counts_as_the_reference)
{
    static float x[N], R[N], r[N], sent[N], m[N];
    for (int w = 0; w < 2; w++) {
        for (size_t k = 0; k < N; k++) {
            R[k] = 2;
            x[k] = k == 7 ? NAN : k == 300 ? INFINITY : k == N - 1 ? -INFINITY : 2.5f;
        }
        memset(r, 0, sizeof r);
        memset(m, 0, sizeof m);
        struct wire_part part = {wires[w], N, x, R, r, 0.5};
        ck_assert(!wire_send(&part, sent));
        part.r = m;
        wire_add(&part, sent, 1);
        for (size_t k = 0; k < N; k++) {
            ck_assert(isfinite(r[k]));
            ck_assert_double_eq_tol((double)m[k], isfinite(x[k]) ? 0.5 : 0, 1e-6);
        }
    }
}
END_TEST

START_TEST(huge_differences_stay_finite)
{
    static float x[N], R[N], r[N], sent[N], c[N];
    for (int w = 0; w < 2; w++) {
        memset(r, 0, sizeof r);
        for (int t = 0; t < 20; t++) {
            for (size_t k = 0; k < N; k++) {
                x[k] = k % 2 ? 3.4e38f : -3.4e38f;
                R[k] = t ? c[k] : -x[k];
            }
            struct wire_part part = {wires[w], N, x, R, r, 0.001};
            ck_assert(wire_send(&part, sent));
            wire_take(wires[w], c, R, sent, N);
            for (size_t k = 0; k < N; k++)
                ck_assert(isfinite(r[k]) && isfinite(c[k]));
        }
        for (size_t k = 0; k < N; k++)
            ck_assert_double_eq_tol((double)c[k], (double)x[k], 0.01 * 3.4e38);
    }
}
END_TEST

/* ------------------------------------------------------------------ a group */

static double exact_mean(const struct group *g, size_t place)
{
    double mean = 0;
    for (int i = 0; i < g->k; i++)
        mean += g->share[i] * (double)g->x[i][place];
    return mean;
}

static double owed(const struct group *g, size_t place)
{
    double sum = 0;
    for (int i = 0; i < MEMBERS; i++)
        sum += (double)g->r[i][place];
    return sum;
}

static void choose_shares(struct group *g, struct rng *rng)
{
    double total = 0;
    g->k = 2 + (int)(rng_next(rng) % (MEMBERS - 1));
    for (int i = 0; i < g->k; i++)
        total += g->share[i] = 0.05 + rng_uniform(rng);
    for (int i = 0; i < g->k; i++)
        g->share[i] /= total;
}

/* c - mean = what was owed before - what is owed after, whoever takes part and with whatever share:
 * nothing is lost, and nothing is sent twice. */
START_TEST(what_a_result_lacks_is_owed)
{
    static struct group g;
    for (int w = 0; w < 2; w++) {
        struct rng rng;
        double off[N] = {0};
        rng_init(&rng, 6);
        memset(&g, 0, sizeof g);
        g.wire = wires[w];
        for (int t = 0; t < 300; t++) {
            choose_shares(&g, &rng);
            for (int i = 0; i < g.k; i++)
                for (size_t k = 0; k < N; k++)
                    g.x[i][k] = g.R[k] + (float)((k % 7 ? 0.01 : 1) * rng_normal(&rng));
            group_mean(&g);
            for (size_t k = 0; k < N; k++)
                off[k] += (double)g.c[k] - exact_mean(&g, k);
            memcpy(g.R, g.c, sizeof g.R);
        }
        for (size_t k = 0; k < N; k++) {
            ck_assert_double_eq_tol(off[k], -owed(&g, k), 1e-3);
            ck_assert_double_le(fabs(off[k]), 0.3);
        }
    }
}
END_TEST

/* Inputs that differ and stand still: each result is within a step, the mean of T within a T-th. */
START_TEST(results_of_what_stands_still_have_the_mean_as_theirs)
{
    static struct group g;
    enum { ROUNDS = 400 };
    for (int w = 0; w < 2; w++) {
        struct rng rng;
        double sum[N] = {0}, worst = 0;
        rng_init(&rng, 7);
        memset(&g, 0, sizeof g);
        g.wire = wires[w];
        choose_shares(&g, &rng);
        for (int i = 0; i < g.k; i++)
            for (size_t k = 0; k < N; k++)
                g.x[i][k] = (float)(rng_uniform(&rng) - 0.5);
        for (int t = 0; t < ROUNDS; t++) {
            group_mean(&g);
            memcpy(g.R, g.c, sizeof g.R);
            for (size_t k = 0; k < N; k++) {
                sum[k] += (double)g.c[k] / ROUNDS;
                worst = fmax(worst, fabs((double)g.c[k] - exact_mean(&g, k)));
            }
        }
        for (size_t k = 0; k < N; k++)
            ck_assert_double_eq_tol(sum[k], exact_mean(&g, k), 3.0 / 127 / ROUNDS);
        ck_assert_double_le(worst, 3.0 / 127);
    }
}
END_TEST

int main(void)
{
    TCase *tests = new_case("wire", 120);
    tcase_add_test(tests, bytes_are_as_promised);
    tcase_add_test(tests, slices_are_whole_blocks);
    tcase_add_test(tests, bf16_rounds_to_nearest_and_even);
    tcase_add_test(tests, q8_errs_by_half_a_step);
    tcase_add_test(tests, q8_blocks_at_the_ends_of_range);
    tcase_add_test(tests, pieces_are_encoded_alone);
    tcase_add_test(tests, all_instruction_sets_give_the_same_bits);
    tcase_add_test(tests, the_sum_of_what_is_sent_follows_what_was_meant);
    tcase_add_test(tests, what_is_not_finite_counts_as_the_reference);
    tcase_add_test(tests, huge_differences_stay_finite);
    tcase_add_test(tests, what_a_result_lacks_is_owed);
    tcase_add_test(tests, results_of_what_stands_still_have_the_mean_as_theirs);
    return run_cases(tests, NULL);
}
