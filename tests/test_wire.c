/* SPDX-License-Identifier: MIT */
/* Encoded means: the kernels alone, a group of members by the calls of wire.h, the same on the sim
 * fabric, and whole jobs. A group is written here once more, from the rule in docs/wire.md. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fabric/kernels.h"
#include "sync/round.h"
#include "sync/simulation.h"

#define MOST_BF16 0x1.fep127f

enum { N = 9 * WIRE_BLOCK + 37, MEMBERS = 5, SETS = 3 };

static const enum wire wires[] = {WIRE_BF16, WIRE_Q8};

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

struct group {
    enum wire wire;
    int k;
    double share[MEMBERS];
    float x[MEMBERS][N], r[MEMBERS][N], R[N], c[N];
};

static void group_mean(struct group *g)
{
    static float sent[N];
    for (int j = 0; j < g->k; j++) {
        size_t from = wire_slice(N, g->k, j), n = wire_slice(N, g->k, j + 1) - from;
        struct wire_part own = {g->wire, n, g->x[j] + from, g->R + from, g->r[j] + from,
                                g->share[j]};
        if (g->share[j] > 0)
            wire_own(&own);
        for (int i = 0; i < g->k; i++) {
            struct wire_part part = {g->wire, n, g->x[i] + from, g->R + from, g->r[i] + from,
                                     g->share[i]};
            if (i == j || !(g->share[i] > 0))
                continue;
            wire_send(&part, sent);
            wire_add(&own, sent, g->share[i]);
        }
        wire_settle(&own, sent);
        wire_take(g->wire, g->c + from, g->R + from, sent, n);
    }
}

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

/* ------------------------------------------------------------------ the sim fabric */

struct sim {
    struct sim_world *world;
    struct fabric *f[MEMBERS];
    struct extent extents[MEMBERS][2];      /* with a gap between them */
    struct vector in[MEMBERS];
    int k;
    float c[MEMBERS][N];
};

enum { GAP_AT = 700, GAP_END = 4 * WIRE_BLOCK };

#define RATE 1e6
#define RTT 0.25

static void sim_open(struct sim *s, enum wire wire, int k)
{
    struct sim_options world = {.link = {RATE, RTT}};
    const struct fabric_start start = {.manifest = "x\n", .n = N, .room = N, .threads = 1,
                                       .collective = true, .n_outer = 1};
    *s = (struct sim){.world = sim_world_create(&world), .k = k};
    for (int i = 0; i < k; i++) {
        struct fabric_options o = {.rank = i, .size = k, .wire = wire, .context = s->world};
        ck_assert_int_eq(fabric_sim.open(&s->f[i], &o), DESCANT_OK);
        ck_assert_int_eq(s->f[i]->wire, wire);
        ck_assert_int_eq(fabric_sim.start(s->f[i], &start), DESCANT_OK);
        float *x = s->f[i]->contribution;
        s->extents[i][0] = (struct extent){0, GAP_AT, x};
        s->extents[i][1] = (struct extent){GAP_END, N - GAP_END, x + GAP_END};
        s->in[i] = (struct vector){N, 2, s->extents[i]};
    }
}

static void sim_shut(struct sim *s)
{
    for (int i = 0; i < s->k; i++)
        fabric_sim.close(s->f[i]);
    sim_world_destroy(s->world);
}

static void sim_run(struct sim *s, struct exchange x, const double *weight)
{
    bool done[MEMBERS] = {false};
    x.n = N;
    for (int i = 0; i < s->k; i++) {
        x.in = &s->in[i];
        x.weight = weight ? weight[i] : 1;
        ck_assert_int_eq(fabric_sim.begin(s->f[i], &x), DESCANT_OK);
    }
    for (int left = s->k; left > 0;) {
        for (int i = 0; i < s->k; i++) {
            struct fabric_part part;
            enum fabric_progress progress = FABRIC_WORKED;
            while (!done[i] && progress != FABRIC_WAITING && progress != FABRIC_DONE) {
                progress = fabric_sim.poll(s->f[i], &part);
                ck_assert_int_ne(progress, FABRIC_FAILED);
                if (progress == FABRIC_PART)
                    memcpy(s->c[i] + part.from, part.out, part.n * sizeof(float));
            }
            left -= !done[i] && progress == FABRIC_DONE;
            done[i] = done[i] || progress == FABRIC_DONE;
        }
        if (left > 0 && sim_world_next(s->world) != UINT64_MAX)
            sim_world_advance(s->world, sim_world_next(s->world));
    }
}

static void sim_state(struct sim *s)
{
    sim_run(s, (struct exchange){.kind = EXCHANGE_STATE}, NULL);
}

/* What the round machine does after a mean. */
static void sim_refer(struct sim *s)
{
    for (int i = 0; i < s->k; i++)
        memcpy(s->f[i]->outer[0], s->c[i], sizeof s->c[i]);
}

static void fill(float *x, struct rng *rng, const float *around)
{
    for (size_t k = 0; k < N; k++)
        if (k < GAP_AT || k >= GAP_END)
            x[k] = around[k] + (float)rng_normal(rng);
}

static uint64_t bytes_of(const struct group *g, int i)
{
    uint64_t bytes = 0;
    for (int j = 0; j < g->k; j++) {
        size_t n = wire_slice(N, g->k, j + 1) - wire_slice(N, g->k, j);
        bytes += wire_bytes(g->wire, n) * (uint64_t)(j == i ? g->k - 1 : 1);
    }
    return bytes;
}

/* The same bits as a group of the calls of wire.h, for all; as many bytes, and as long. */
START_TEST(sim_does_what_the_rule_says)
{
    static struct group g;
    static struct sim s;
    for (int w = 0; w < 2; w++)
        for (int k = 2; k <= MEMBERS; k++) {
            struct rng rng;
            rng_init(&rng, (uint64_t)k);
            sim_open(&s, wires[w], k);
            sim_state(&s);
            memset(&g, 0, sizeof g);
            g.wire = wires[w];
            for (int t = 0; t < 8; t++) {
                double weight[MEMBERS], total = 0;
                for (g.k = 0; g.k < k; g.k++)
                    total += weight[g.k] = (double)(rng_next(&rng) % 4 + (t % 2 == 0));
                for (int i = 0; i < k; i++) {
                    fill(g.x[i], &rng, g.R);
                    memcpy(s.f[i]->contribution, g.x[i], sizeof g.x[i]);
                    g.share[i] = total > 0 ? weight[i] / total : 1.0 / k;
                }
                uint64_t before = atomic_load(&s.f[k - 1]->bytes), began = sim_world_now(s.world);
                sim_run(&s, (struct exchange){.kind = EXCHANGE_MEAN}, weight);
                group_mean(&g);
                for (int i = 0; i < k; i++)
                    ck_assert_mem_eq(s.c[i], g.c, sizeof g.c);
                ck_assert_uint_eq(atomic_load(&s.f[k - 1]->bytes) - before, bytes_of(&g, k - 1));
                double seconds = 2.0 * (k - 1) / k * (double)wire_bytes(wires[w], N) / RATE +
                                 2 * RTT;
                ck_assert_double_eq_tol((double)(sim_world_now(s.world) - began) * 1e-9, seconds,
                                        1e-6);
                memcpy(g.R, g.c, sizeof g.R);
                sim_refer(&s);
            }
            sim_shut(&s);
        }
}
END_TEST

/* A state that all take ends what is owed; a final mean, and one alone, is exact. */
START_TEST(states_and_last_means_are_exact)
{
    static struct sim s;
    static float x[N], zero[N];
    for (int w = 0; w < 2; w++) {
        struct rng rng;
        rng_init(&rng, 8);
        sim_open(&s, wires[w], 3);
        sim_state(&s);
        for (int i = 0; i < 3; i++)
            fill(s.f[i]->contribution, &rng, zero);
        sim_run(&s, (struct exchange){.kind = EXCHANGE_MEAN}, NULL);
        sim_state(&s);
        sim_refer(&s);
        memcpy(x, s.c[0], sizeof x);
        for (int i = 0; i < 3; i++)
            memcpy(s.f[i]->contribution, x, sizeof x);
        sim_run(&s, (struct exchange){.kind = EXCHANGE_MEAN}, NULL);
        ck_assert_mem_eq(s.c[1], x, sizeof x);
        for (int i = 0; i < 3; i++)
            fill(s.f[i]->contribution, &rng, zero);
        uint64_t before = atomic_load(&s.f[0]->bytes);
        sim_run(&s, (struct exchange){.kind = EXCHANGE_MEAN, .final = true}, NULL);
        ck_assert_uint_eq(atomic_load(&s.f[0]->bytes) - before, (uint64_t)(N * 4.0 * 4 / 3));
        for (size_t k = 0; k < N; k++) {
            double mean = 0;
            for (int i = 0; i < 3; i++)
                mean += (double)s.f[i]->contribution[k] / 3;
            ck_assert_double_eq_tol((double)s.c[0][k], mean, 1e-6);
        }
        sim_shut(&s);
        sim_open(&s, wires[w], 1);
        sim_state(&s);
        fill(s.f[0]->contribution, &rng, zero);
        sim_run(&s, (struct exchange){.kind = EXCHANGE_MEAN}, NULL);
        for (size_t k = 0; k < N; k++)
            ck_assert(!(s.c[0][k] < s.f[0]->contribution[k]) &&
                      !(s.c[0][k] > s.f[0]->contribution[k]));
        sim_shut(&s);
    }
}
END_TEST

START_TEST(a_bad_contribution_is_left_out)
{
    static struct sim s;
    static float zero[N];
    for (int w = 0; w < 2; w++) {
        struct rng rng;
        rng_init(&rng, 9);
        sim_open(&s, wires[w], 3);
        sim_state(&s);
        for (int t = 0; t < 5; t++) {
            for (int i = 0; i < 3; i++)
                fill(s.f[i]->contribution, &rng, zero);
            s.f[1]->contribution[5] = t % 2 ? NAN : INFINITY;
            sim_run(&s, (struct exchange){.kind = EXCHANGE_MEAN}, NULL);
            ck_assert(s.f[1]->own_bad && !s.f[0]->own_bad);
            for (size_t k = 0; k < N; k++)
                ck_assert_double_eq_tol((double)s.c[2][k], ((double)s.f[0]->contribution[k] +
                                                            s.f[2]->contribution[k]) / 2, 0.3);
            sim_refer(&s);
        }
        sim_shut(&s);
    }
}
END_TEST

/* ------------------------------------------------------------------ jobs */

enum { PARAMETERS = 600 };

static float apart(int i, size_t k)
{
    return (float)(sin((double)k * 3 + i) * (k % 10 ? 0.01 : 1));
}

static void apart_once(void *context, int i, uint64_t t, const float *w, float *g, size_t n)
{
    (void)context, (void)w;
    for (size_t k = 0; k < n; k++)
        g[k] = t == 1 ? apart(i, k) : 0;
}

static const char *const still[] = {"ma,every=2", "shadow-ma", "dasgd,every=2,delay=1",
                                    "dasgd-delta,every=2,delay=2", "ma,every=2,weight=steps"};

/* Nobody trains: all come to the exact mean of where they stood. */
START_TEST(replicas_that_stand_still_come_to_their_mean)
{
    enum { TRAINERS = 3 };
    for (int w = 0; w < 2; w++) {
        char plan[100];
        snprintf(plan, sizeof plan, "%s,wire=%s", still[_i], wire_names[wires[w]]);
        struct simulation_options o = {.plan = plan, .trainers = TRAINERS, .n = PARAMETERS,
                                       .gradient = apart_once, .rate = 1, .steps = 120,
                                       .step_s = 1, .world = {.latency_s = 0.3, .seed = 1}};
        struct simulation *s;
        ck_assert_int_eq(simulation_run(&s, &o), DESCANT_OK);
        for (size_t k = 0; k < PARAMETERS; k++) {
            double mean = 0;
            for (int i = 0; i < TRAINERS; i++)
                mean -= (double)apart(i, k) / TRAINERS;
            for (int i = 0; i < TRAINERS; i++)
                ck_assert_double_eq_tol((double)simulation_look(s, i).w[k], mean, 1e-6);
        }
        simulation_destroy(s);
    }
}
END_TEST

/* Already the first mean is of differences: large parameters cost it nothing. */
START_TEST(large_parameters_do_not_coarsen_the_step)
{
    static const char *const plans[] = {"ma,every=1,wire=q8", "ma,every=1,wire=bf16",
                                        "bmuf,every=1,momentum=0,wire=q8"};
    float start[PARAMETERS];
    for (size_t k = 0; k < PARAMETERS; k++)
        start[k] = k % 2 ? 1000 : -1000;
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        struct simulation_options o = {.plan = plans[p], .trainers = 2, .n = PARAMETERS,
                                       .start = start, .gradient = apart_once, .rate = 1,
                                       .steps = 1, .step_s = 1};
        struct simulation *s;
        ck_assert_int_eq(simulation_run(&s, &o), DESCANT_OK);
        for (size_t k = 0; k < PARAMETERS; k++)
            ck_assert_double_eq_tol((double)simulation_look(s, 1).w[k],
                                    (double)start[k] - (apart(0, k) + apart(1, k)) / 2, 0.02);
        simulation_destroy(s);
    }
}
END_TEST

static void uneven_slope(void *context, int i, uint64_t t, const float *w, float *g, size_t n)
{
    (void)context, (void)i, (void)t, (void)w;
    for (size_t k = 0; k < n; k++)
        g[k] = k % 64 == 0 ? -1 : -1e-3f;
}

/* What is smaller than half a step beside its neighbours is not lost, however often it is. */
START_TEST(small_progress_beside_large_is_kept)
{
    static const char *const plans[] = {"ma,every=4,wire=q8", "dasgd-delta,wire=q8",
                                        "bmuf,every=4,momentum=0,wire=q8"};
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        struct simulation_options o = {.plan = plans[p], .trainers = 3, .n = PARAMETERS,
                                       .gradient = uneven_slope, .rate = 1, .steps = 4000,
                                       .step_s = 1, .world = {.latency_s = 0.5, .seed = 1}};
        struct simulation *s;
        ck_assert_int_eq(simulation_run(&s, &o), DESCANT_OK);
        for (size_t k = 0; k < PARAMETERS; k++)
            ck_assert_double_eq_tol((double)simulation_look(s, 1).w[k],
                                    k % 64 == 0 ? 4000 : 4, k % 64 == 0 ? 8 : 0.1);
        simulation_destroy(s);
    }
}
END_TEST

static void towards(void *context, int i, uint64_t t, const float *w, float *g, size_t n)
{
    (void)context;
    for (size_t k = 0; k < n; k++)
        g[k] = w[k] - (float)k / PARAMETERS + 0.1f * (float)sin((double)(t * 7 + k) + i);
}

static const char *const shaken[] = {"ma,every=3", "bmuf,every=3", "dasgd", "shadow-ma",
                                     "shadow-bmuf", "diloco-delta,every=6,delay=3"};

/* Somebody dies, somebody comes: all still hold the same reference, which sim asserts at each mean,
 * and train to where they do without encoding. */
START_TEST(members_come_and_go)
{
    double slow[4] = {1, 1, 1.5, 1}, join[4] = {0, 0, 0, 40.5};
    uint64_t die[4] = {0, 61, 0, 0};
    for (int w = 0; w < 2; w++) {
        char plan[100];
        snprintf(plan, sizeof plan, "%s,wire=%s", shaken[_i], wire_names[wires[w]]);
        struct simulation_options o = {.plan = plan, .trainers = 4, .n = PARAMETERS,
                                       .gradient = towards, .rate = 0.1, .steps = 200, .step_s = 1,
                                       .spread = 0.3, .slow = slow, .die_at = die, .join_s = join,
                                       .world = {.latency_s = 0.7, .jitter_s = 0.5, .seed = 4}};
        struct simulation *s;
        ck_assert_int_eq(simulation_run(&s, &o), DESCANT_OK);
        ck_assert(simulation_look(s, 1).dead && simulation_look(s, 3).rounds > 3);
        for (int i = 0; i < 4; i++)
            for (size_t k = 0; i != 1 && k < PARAMETERS; k++)
                ck_assert_double_eq_tol((double)simulation_look(s, i).w[k],
                                        (double)k / PARAMETERS, 0.15);
        simulation_destroy(s);
    }
}
END_TEST

/* ------------------------------------------------------------------ reloads */

enum { PAIR = 2 };

struct pair {
    struct sim_world *world;
    struct plan plan;
    struct fabric *f[PAIR];
    struct replica replica[PAIR];
    struct round round[PAIR];
    float *w[PAIR];
};

static void pair_open(struct pair *p, const char *plan)
{
    struct sim_options world = {.latency_s = 1};
    *p = (struct pair){.world = sim_world_create(&world)};
    ck_assert_int_eq(plan_parse(&p->plan, plan, NULL), DESCANT_OK);
    for (int i = 0; i < PAIR; i++) {
        struct fabric_options o = {.rank = i, .size = PAIR, .wire = (enum wire)p->plan.wire,
                                   .context = p->world};
        struct replica *replica = &p->replica[i];
        size_t at;
        replica_init(replica);
        ck_assert_int_eq(fabric_sim.open(&p->f[i], &o), DESCANT_OK);
        ck_assert_int_eq(replica_check(replica, "w", PARAMETERS, &at, NULL), DESCANT_OK);
        p->w[i] = fabric_sim.alloc(p->f[i], at, PARAMETERS);
        replica_add(replica, p->w[i], PARAMETERS, false);
        struct fabric_start start = round_needs(&p->plan, p->f[i], replica);
        start.manifest = plan;
        ck_assert_int_eq(fabric_sim.start(p->f[i], &start), DESCANT_OK);
        ck_assert_int_eq(replica_fix(replica), DESCANT_OK);
        ck_assert_int_eq(round_init(&p->round[i], &p->plan, p->f[i], replica), DESCANT_OK);
    }
}

static void pair_close(struct pair *p)
{
    for (int i = 0; i < PAIR; i++) {
        round_fini(&p->round[i]);
        fabric_sim.close(p->f[i]);
        replica_fini(&p->replica[i]);
    }
    sim_world_destroy(p->world);
}

/* What both have begun, to its end. */
static void pair_run(struct pair *p)
{
    bool done[PAIR] = {false};
    while (!done[0] || !done[1]) {
        bool moved = false;
        for (int i = 0; i < PAIR; i++) {
            enum round_progress progress = done[i] ? ROUND_WAITING : round_advance(&p->round[i]);
            ck_assert_int_ne(progress, ROUND_FAILED);
            moved = moved || progress != ROUND_WAITING;
            done[i] = done[i] || progress == ROUND_DONE;
        }
        if (!moved)
            sim_world_advance(p->world, sim_world_next(p->world));
    }
}

/* What was overwritten owes nothing: after a reload a mean of what stands still is that, exactly,
 * and the reference is what was loaded. */
START_TEST(a_reload_begins_anew)
{
    static const char *const plans[] = {"ma,every=1,wire=q8", "ma,every=1,wire=bf16",
                                        "bmuf,every=1,momentum=0,wire=q8"};
    struct pair p;
    for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
        float loaded[PARAMETERS];
        pair_open(&p, plans[k]);
        for (int i = 0; i < PAIR; i++)
            round_begin_state(&p.round[i], 0, false);
        pair_run(&p);
        for (int i = 0; i < PAIR; i++) {
            for (size_t n = 0; n < PARAMETERS; n++)
                p.w[i][n] += apart(i, n);
            round_begin(&p.round[i], 1, true);
        }
        pair_run(&p);
        for (size_t n = 0; n < PARAMETERS; n++)
            loaded[n] = p.w[1][n] = 100 + apart(5, n);
        round_begin(&p.round[0], 1, true);
        round_begin_state(&p.round[1], 1, false);
        pair_run(&p);
        for (int i = 0; i < PAIR; i++) {
            ck_assert_mem_eq(p.f[i]->outer[0], loaded, sizeof loaded);
            round_begin(&p.round[i], 1, true);
        }
        pair_run(&p);
        for (int i = 0; i < PAIR; i++)
            ck_assert_mem_eq(p.w[i], loaded, sizeof loaded);
        pair_close(&p);
    }
}
END_TEST

/* ------------------------------------------------------------------ where nothing is sent */

struct heard {
    char text[4000];
};

static void hear(void *user, enum descant_level level, const char *line)
{
    struct heard *heard = user;
    size_t used = strlen(heard->text);
    (void)level;
    snprintf(heard->text + used, sizeof heard->text - used, "%s\n", line);
}

START_TEST(one_machine_sends_nothing)
{
    static struct heard heard;
    struct descant_options o = descant_options_default();
    struct descant *job = NULL;
    char address[100];
    o.plan = "ma,every=1,wire=q8";
    o.log = hear;
    o.log_user = &heard;
    o.size = 1;
    o.job = address;
    snprintf(address, sizeof address, "shm:wire-%d,rate=1gbit", (int)getpid());
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "wire=q8 and rate="));
    for (int shm = 0; shm < 2; shm++) {
        snprintf(address, sizeof address, shm ? "shm:wire-%d" : "self", (int)getpid());
        heard.text[0] = 0;
        ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
        ck_assert_int_eq(strstr(heard.text, "wire=q8 changes nothing here") != NULL, shm);
        float *w = descant_alloc(job, "w", PARAMETERS);
        ck_assert_ptr_nonnull(w);
        ck_assert_int_eq(descant_start(job), DESCANT_OK);
        w[3] = 1;
        w[4] = 1e-6f;
        ck_assert_int_eq(descant_step(job), DESCANT_OK);
        ck_assert(w[4] > 0.9e-6f);
        ck_assert_int_eq(descant_close(job), DESCANT_OK);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wire");
    TCase *tests = tcase_create("wire");
    tcase_set_timeout(tests, 120);
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
    tcase_add_test(tests, sim_does_what_the_rule_says);
    tcase_add_test(tests, states_and_last_means_are_exact);
    tcase_add_test(tests, a_bad_contribution_is_left_out);
    tcase_add_loop_test(tests, replicas_that_stand_still_come_to_their_mean, 0,
                        (int)(sizeof still / sizeof *still));
    tcase_add_test(tests, large_parameters_do_not_coarsen_the_step);
    tcase_add_test(tests, small_progress_beside_large_is_kept);
    tcase_add_loop_test(tests, members_come_and_go, 0, (int)(sizeof shaken / sizeof *shaken));
    tcase_add_test(tests, a_reload_begins_anew);
    tcase_add_test(tests, one_machine_sends_nothing);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
