/* SPDX-License-Identifier: MIT */
/* Vectors in pieces against flat ones, and what every fabric decides alike. */
#include "fabric/ruling.h"
#include "harness/suite.h"
#include "kernels/kernels.h"
#include "kernels/vector.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 5000, MOST_EXTENTS = 12 };

static float flat[N], memory[N], W[N], moved[N];
static const float zeros[N];
static bool gap[N];
static struct extent extents[MOST_EXTENTS];

/* Extents of chance, some empty, some side by side; what lies in none is a gap. */
static struct vector by_chance(struct rng *rng)
{
    struct vector v = {N, 0, extents};
    memset(flat, 0, sizeof flat);
    memset(gap, 1, sizeof gap);
    for (size_t at = rng_next(rng) % 300; at < N && v.n_extents < MOST_EXTENTS;) {
        size_t n = rng_next(rng) % 3 ? rng_next(rng) % 900 : 0;
        n = n < N - at ? n : N - at;
        extents[v.n_extents++] = (struct extent){at, n, memory + at};
        for (size_t i = at; i < at + n; i++) {
            flat[i] = memory[i] = (float)rng_normal(rng);
            gap[i] = false;
        }
        at += n + (rng_next(rng) % 2 ? rng_next(rng) % 400 : 0);
    }
    return v;
}

START_TEST(pieces_read_as_one)
{
    struct rng rng;
    float out[N];
    rng_init(&rng, 1);
    for (int turn = 0; turn < 300; turn++) {
        struct vector v = by_chance(&rng);
        size_t from = rng_next(&rng) % N, n = rng_next(&rng) % (N - from + 1);
        memset(out, 0xff, sizeof out);
        ck_assert(vector_gather(&v, (struct chunk){from, n}, out, turn % 2));
        ck_assert_mem_eq(out, flat + from, n * sizeof(float));
        ck_assert(n == N || isnan(out[n]));
        ck_assert(vector_finite(&v, N));
    }
}
END_TEST

START_TEST(the_centre_moves_where_there_is_memory)
{
    struct rng rng;
    rng_init(&rng, 2);
    for (int turn = 0; turn < 300; turn++) {
        struct vector v = by_chance(&rng);
        size_t from = rng_next(&rng) % N, n = rng_next(&rng) % (N - from + 1);
        for (size_t i = 0; i < N; i++)
            W[i] = (float)i;
        ck_assert(vector_elastic(W, &v, (struct chunk){from, n}, 0.25f, moved));
        for (size_t i = 0; i < N; i++) {
            bool inside = i >= from && i - from < n;
            float want = inside && !gap[i] ? (float)i + 0.25f * (flat[i] - (float)i) : (float)i;
            float out = !inside ? 0 : moved[i - from] - (gap[i] ? 0 : W[i]);
            if (!(fabsf(W[i] - want) <= 1e-6f * (1 + fabsf(want))) || out < 0 || out > 0)
                ck_abort_msg("[%zu] is %g, not %g", i, (double)W[i], (double)want);
        }
    }
}
END_TEST

START_TEST(what_is_not_finite_moves_nothing)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct rng rng;
    rng_init(&rng, 3);
    for (int turn = 0; turn < 30; turn++) {
        struct vector v = by_chance(&rng);
        size_t i = rng_next(&rng) % N;
        memory[i] = bad[turn % 3];
        memset(W, 0, sizeof W);
        ck_assert_int_eq(vector_finite(&v, N), gap[i]);
        ck_assert_int_eq(vector_elastic(W, &v, (struct chunk){0, N}, 0.5f, moved), gap[i]);
        if (!gap[i])
            ck_assert_mem_eq(W, zeros, sizeof W);
        memory[i] = 0;
    }
}
END_TEST

/* Of every length up to four vectors of the kernels and more; no bit differs. */
START_TEST(a_fold_is_that_of_plain_loops)
{
    enum { MOST = 70 };
    bool (*const fold)(float *, float *, float *, size_t) =
        (_i ? &kernels_base : kernels_best())->fold;
    float w[MOST], shown[MOST], v[MOST], wanted[MOST], added[MOST];
    struct rng rng;
    rng_init(&rng, 4);
    for (size_t n = 0; n < MOST; n++) {
        for (size_t i = 0; i < n; i++) {
            w[i] = (float)rng_normal(&rng);
            shown[i] = (float)rng_normal(&rng);
            v[i] = (float)rng_normal(&rng);
            wanted[i] = w[i] + (v[i] - shown[i]);
            added[i] = wanted[i] - v[i];
        }
        ck_assert(fold(w, shown, v, n));
        ck_assert_mem_eq(w, wanted, n * sizeof *w);
        ck_assert_mem_eq(shown, wanted, n * sizeof *w);
        ck_assert_mem_eq(v, added, n * sizeof *w);
        for (size_t i = 0; i < n; i++) {
            v[i] = i % 2 ? NAN : INFINITY;
            ck_assert(!fold(w, shown, v, n));
            ck_assert(!isfinite(w[i]) && !isfinite(shown[i]) && isnan(v[i]));
            w[i] = shown[i] = v[i] = 0;
        }
    }
}
END_TEST

START_TEST(a_segment_that_is_left_out_keeps_its_floats)
{
    float first[2] = {1, 2}, last[1] = {5};
    float shown[6] = {1, 1, 7, 7, 7, 5}, values[6] = {1, 4, 8, 8, 8, 6};
    float *const segments[] = {first, NULL, last};
    ck_assert_int_eq(descant_fold(segments, (size_t[]){2, 3, 1}, 3, shown, values), 1);
    ck_assert_mem_eq(first, ((float[]){1, 5}), sizeof first);
    ck_assert_mem_eq(last, ((float[]){6}), sizeof last);
    ck_assert_mem_eq(shown, ((float[]){1, 5, 7, 7, 7, 6}), sizeof shown);
    ck_assert_mem_eq(values, ((float[]){0, 1, 8, 8, 8, 0}), sizeof values);
    values[2] = NAN;
    ck_assert_int_eq(descant_fold(segments, (size_t[]){2, 3, 1}, 3, shown, values), 1);
    values[5] = NAN;
    ck_assert_int_eq(descant_fold(segments, (size_t[]){2, 3, 1}, 3, shown, values), 0);
}
END_TEST

START_TEST(shares_add_up_to_one)
{
    static const struct {
        double weight[3], share[3];
    } cases[] = {
        {{1, 2, 1}, {0.25, 0.5, 0.25}},
        {{0, 0, 0}, {1 / 3.0, 1 / 3.0, 1 / 3.0}},
        {{0, 5, 0}, {0, 1, 0}},
        {{1.7e308, 1.7e308, 0}, {0.5, 0.5, 0}},
        {{4e-324, 4e-324, 4e-324}, {1 / 3.0, 1 / 3.0, 1 / 3.0}},
        {{1e308, 1, 0}, {1, 0, 0}},
    };
    double share[3];
    memcpy(share, cases[_i].weight, sizeof share);
    weights_to_shares(share, 3);
    for (int k = 0; k < 3; k++)
        ck_assert_double_eq_tol(share[k], cases[_i].share[k], 1e-15);
}
END_TEST

START_TEST(the_line_that_differs_is_named)
{
    static const struct {
        const char *theirs, *mine, *says;
    } cases[] = {
        {"plan x\na 7\n", "plan x\na 7\n", NULL},
        {"", "", NULL},
        {"plan x\na 7\n", "plan x\na 8\n", "the job has \"a 7\", here it is \"a 8\""},
        {"plan x\na 7\n", "plan x\n", "the job has \"a 7\", and this trainer nothing like "
         "it: every trainer must declare the same segments: give optimizer= in all of them, or in "
         "none"},
        {"plan x\n", "plan xy\n", "the job has \"plan x\", here it is \"plan xy\""},
        {"", "b", "this trainer has \"b\", and the job nothing like it: every trainer must declare "
         "the same segments: give optimizer= in all of them, or in none"},
    };
    descant_status status = manifest_check(cases[_i].theirs, cases[_i].mine, NULL);
    ck_assert_int_eq(status, cases[_i].says ? DESCANT_MISMATCH : DESCANT_OK);
    if (cases[_i].says)
        ck_assert_str_eq(descant_last_error(), cases[_i].says);
}
END_TEST

int main(void)
{
    TCase *all = new_case("vector", 60);
    tcase_add_test(all, pieces_read_as_one);
    tcase_add_loop_test(all, a_fold_is_that_of_plain_loops, 0, 2);
    tcase_add_test(all, a_segment_that_is_left_out_keeps_its_floats);
    tcase_add_test(all, the_centre_moves_where_there_is_memory);
    tcase_add_test(all, what_is_not_finite_moves_nothing);
    tcase_add_loop_test(all, shares_add_up_to_one, 0, 6);
    tcase_add_loop_test(all, the_line_that_differs_is_named, 0, 6);
    return run_cases(all, NULL);
}
