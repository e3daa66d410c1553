/* SPDX-License-Identifier: MIT */
/* Encoded means of ranks, over a link that is fixed and one where they come and go: the same bits as
 * the rule by itself, and as many bytes as promised, on the link, too. _i: which of them. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/suite.h"
#include "harness/wire.h"
#include "mpi_loopback.h"
#include "ranks/ranks.h"

enum { FIXED, FREE, LINKS };

struct wire_job {
    struct loopback *ranks;
    struct fabric *f[MEMBERS];
    struct extent extents[MEMBERS][2];      /* with a gap between them */
    struct vector in[MEMBERS];
    int k;
    size_t n;
    float *c[MEMBERS];                      /* the last results */
    bool open[MEMBERS];
};

enum { GAP_AT = 700, GAP_END = 4 * WIRE_BLOCK, TURNS = 1000000 };

static void job_open(struct wire_job *j, int link, enum wire wire, int k, size_t n)
{
    const struct fabric_start start = {.manifest = "x\n", .n = n, .room = n, .threads = 1,
                                       .collective = true, .n_outer = 1};
    *j = (struct wire_job){.k = k, .n = n};
    j->ranks = link == FREE ? loopback_create_free(MEMBERS, (uint64_t)k)
                            : loopback_create(k, (uint64_t)k);
    for (int i = 0; i < k; i++) {
        struct fabric_options o = {.rank = i, .size = k, .wire = wire,
                                   .context = j->ranks};
        ck_assert_int_eq(fabric_loopback.open(&j->f[i], &o), DESCANT_OK);
        ck_assert_int_eq(j->f[i]->wire, k > 1 || link == FREE ? wire : WIRE_F32);
        ck_assert_int_eq(fabric_loopback.start(j->f[i], &start), DESCANT_OK);
        float *x = j->f[i]->contribution;
        j->extents[i][0] = (struct extent){0, GAP_AT, x};
        j->extents[i][1] = (struct extent){GAP_END, n - GAP_END, x + GAP_END};
        j->in[i] = (struct vector){n, 2, j->extents[i]};
        j->c[i] = calloc(n, sizeof(float));
        ck_assert_ptr_nonnull(j->c[i]);
    }
}

static void job_shut(struct wire_job *j)
{
    for (int i = 0; i < j->k; i++) {
        fabric_loopback.close(j->f[i]);
        free(j->c[i]);
    }
    loopback_destroy(j->ranks);
    ck_assert_int_eq(memory_live(), 0);
}

static void begin(struct wire_job *j, int i, struct exchange x, double weight)
{
    x.n = j->n;
    x.in = &j->in[i];
    x.weight = weight;
    ck_assert_int_eq(fabric_loopback.begin(j->f[i], &x), DESCANT_OK);
    j->open[i] = true;
}

static void turn(struct wire_job *j, int i)
{
    struct fabric_part part;
    enum fabric_progress progress = fabric_loopback.poll(j->f[i], &part);
    ck_assert_int_ne(progress, FABRIC_FAILED);
    if (progress == FABRIC_PART)
        memcpy(j->c[i] + part.from, part.out, part.n * sizeof(float));
    j->open[i] &= progress != FABRIC_DONE;
}

/* Until those have what they have begun. */
static void finish(struct wire_job *j, int members)
{
    for (int spin = 0, left = 1; left; spin++) {
        ck_assert_msg(spin < TURNS, "an exchange does not end");
        left = 0;
        for (int i = 0; i < j->k; i++) {
            turn(j, i);
            left += i < members && j->open[i];
        }
    }
}

static void run(struct wire_job *j, struct exchange x, const double *weight)
{
    for (int i = 0; i < j->k; i++)
        begin(j, i, x, weight ? weight[i] : 1);
    finish(j, j->k);
}

static void run_state(struct wire_job *j)
{
    run(j, (struct exchange){.kind = EXCHANGE_STATE}, NULL);
}

/* What the round machine does after a mean. */
static void refer(struct wire_job *j, int members)
{
    for (int i = 0; i < members; i++)
        memcpy(j->f[i]->outer[0], j->c[i], j->n * sizeof(float));
}

static void fill(float *x, size_t n, struct rng *rng, const float *around)
{
    for (size_t k = 0; k < n; k++)
        if (k < GAP_AT || k >= GAP_END)
            x[k] = (around ? around[k] : 0) + (float)rng_normal(rng);
}

static void fill_all(struct wire_job *j, struct rng *rng, const float *around)
{
    for (int i = 0; i < j->k; i++)
        fill(j->f[i]->contribution, j->n, rng, around);
}

static double mean_of(const struct wire_job *j, size_t place)
{
    double mean = 0;
    for (int i = 0; i < j->k; i++)
        mean += (double)j->f[i]->contribution[place] / j->k;
    return mean;
}

static void check_same(const struct wire_job *j)
{
    for (int i = 1; i < j->k; i++)
        ck_assert_mem_eq(j->c[i], j->c[0], j->n * sizeof(float));
}

static void check_exact(const struct wire_job *j)
{
    check_same(j);
    for (size_t k = 0; k < j->n; k++)
        ck_assert_double_eq_tol((double)j->c[0][k], mean_of(j, k), 1e-6);
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

/* As counted, and as sent: but what a member without a share is counted for. */
static void check_bytes(const struct wire_job *j, const struct group *g,
                        const uint64_t *counted, const uint64_t *sent)
{
    bool all = true;
    for (int i = 0; i < g->k; i++)
        all = all && g->share[i] > 0;
    for (int i = 0; i < g->k; i++) {
        ck_assert_uint_eq(atomic_load(&j->f[i]->bytes) - counted[i], bytes_of(g, i));
        if (all)
            ck_assert_uint_eq(loopback_sent(j->ranks, i) - sent[i], bytes_of(g, i));
    }
}

static void note_bytes(const struct wire_job *j, uint64_t *counted, uint64_t *sent)
{
    for (int i = 0; i < j->k; i++) {
        counted[i] = atomic_load(&j->f[i]->bytes);
        sent[i] = loopback_sent(j->ranks, i);
    }
}

static double choose_weights(struct group *g, struct rng *rng, bool some, double *weight)
{
    double total = 0;
    for (int i = 0; i < g->k; i++)
        total += weight[i] = (double)(rng_next(rng) % 4 + some);
    for (int i = 0; i < g->k; i++)
        g->share[i] = total > 0 ? weight[i] / total : 1.0 / g->k;
    return total;
}

static void rule(int link, enum wire wire, int k)
{
    static struct group g;
    struct wire_job j;
    struct rng rng;
    uint64_t counted[MEMBERS], sent[MEMBERS];
    double weight[MEMBERS];
    rng_init(&rng, (uint64_t)k);
    job_open(&j, link, wire, k, N);
    run_state(&j);
    memset(&g, 0, sizeof g);
    g.wire = wire;
    g.k = k;
    for (int t = 0; t < 8; t++) {
        choose_weights(&g, &rng, t % 2 == 0, weight);
        for (int i = 0; i < k; i++) {
            fill(g.x[i], N, &rng, g.R);
            memcpy(j.f[i]->contribution, g.x[i], sizeof g.x[i]);
        }
        note_bytes(&j, counted, sent);
        run(&j, (struct exchange){.kind = EXCHANGE_MEAN}, weight);
        group_mean(&g);
        for (int i = 0; i < k; i++)
            ck_assert_mem_eq(j.c[i], g.c, sizeof g.c);
        check_bytes(&j, &g, counted, sent);
        memcpy(g.R, g.c, sizeof g.R);
        refer(&j, k);
    }
    job_shut(&j);
}

/* The same bits as a group of the calls of wire.h, for all; as many bytes. */
START_TEST(fabrics_do_what_the_rule_says)
{
    for (int w = 0; w < 2; w++)
        for (int k = 2; k <= MEMBERS; k++)
            rule(_i, wires[w], k);
}
END_TEST

/* A state that all take ends what is owed; a final mean, and one alone, is exact. */
START_TEST(states_and_last_means_are_exact)
{
    static float x[N];
    for (int w = 0; w < 2; w++) {
        struct wire_job j;
        struct rng rng;
        rng_init(&rng, 8);
        job_open(&j, _i, wires[w], 3, N);
        run_state(&j);
        fill_all(&j, &rng, NULL);
        run(&j, (struct exchange){.kind = EXCHANGE_MEAN}, NULL);
        run_state(&j);
        refer(&j, 3);
        memcpy(x, j.c[1], sizeof x);
        for (int i = 0; i < 3; i++)
            memcpy(j.f[i]->contribution, x, sizeof x);
        run(&j, (struct exchange){.kind = EXCHANGE_MEAN}, NULL);
        ck_assert_mem_eq(j.c[1], x, sizeof x);
        fill_all(&j, &rng, NULL);
        double sent = 0;
        for (int i = 0; i < 3; i++)
            sent -= (double)atomic_load(&j.f[i]->bytes);
        run(&j, (struct exchange){.kind = EXCHANGE_MEAN, .final = true}, NULL);
        for (int i = 0; i < 3; i++)
            sent += (double)atomic_load(&j.f[i]->bytes);
        ck_assert_double_eq_tol(sent, N * 4.0 * 4, 192);            /* slices of whole lines */
        check_exact(&j);
        job_shut(&j);
        job_open(&j, _i, wires[w], 1, N);
        run_state(&j);
        fill_all(&j, &rng, NULL);
        run(&j, (struct exchange){.kind = EXCHANGE_MEAN}, NULL);
        ck_assert_mem_eq(j.c[0], j.f[0]->contribution, sizeof x);
        job_shut(&j);
    }
}
END_TEST

START_TEST(a_bad_contribution_is_left_out)
{
    for (int w = 0; w < 2; w++) {
        struct wire_job j;
        struct rng rng;
        rng_init(&rng, 9);
        job_open(&j, _i, wires[w], 3, N);
        run_state(&j);
        for (int t = 0; t < 5; t++) {
            fill_all(&j, &rng, NULL);
            j.f[1]->contribution[5] = t % 2 ? NAN : INFINITY;
            run(&j, (struct exchange){.kind = EXCHANGE_MEAN}, NULL);
            ck_assert(j.f[1]->own_bad && !j.f[0]->own_bad);
            for (size_t k = 0; k < N; k++)
                ck_assert_double_eq_tol((double)j.c[2][k], ((double)j.f[0]->contribution[k] +
                                                            j.f[2]->contribution[k]) / 2, 0.3);
            check_same(&j);
            refer(&j, 3);
        }
        job_shut(&j);
    }
}
END_TEST

/* ------------------------------------------------------------------ many pieces */

enum { LONG = 900037, LONG_ROUNDS = 2 };

/* What was sent. Encoded: the bits are those of the rule. */
static uint64_t long_rounds(int link, enum wire wire, int k)
{
    static float x[MEMBERS][LONG], r[MEMBERS][LONG], R[LONG], encoded[LONG];
    const double share[MEMBERS] = {1.0 / k, 1.0 / k, 1.0 / k};
    struct long_group g = {wire, k, LONG, share, .R = R, .c = R, .sent = encoded};
    struct wire_job j;
    struct rng rng;
    memset(r, 0, sizeof r);
    memset(R, 0, sizeof R);
    uint64_t counted[MEMBERS], sent[MEMBERS], bytes = 0;
    rng_init(&rng, 11);
    job_open(&j, link, wire, k, LONG);
    run_state(&j);
    note_bytes(&j, counted, sent);
    for (int t = 0; t < LONG_ROUNDS; t++) {
        fill_all(&j, &rng, j.c[0]);
        for (int i = 0; i < k; i++) {
            memcpy(x[i], j.f[i]->contribution, sizeof x[i]);
            g.x[i] = x[i];
            g.r[i] = r[i];
        }
        run(&j, (struct exchange){.kind = EXCHANGE_MEAN}, NULL);
        check_same(&j);
        refer(&j, k);
        if (wire != WIRE_F32)
            long_group_mean(&g);
        if (wire != WIRE_F32)
            ck_assert_mem_eq(j.c[0], R, sizeof R);
    }
    for (int i = 0; i < k; i++)
        bytes += loopback_sent(j.ranks, i) - sent[i];
    job_shut(&j);
    return bytes;
}

/* More pieces than are in flight at once: the bits are those of the rule, and the bytes are half, or
 * a quarter and the scales, of what floats need. */
START_TEST(long_vectors_go_in_pieces)
{
    for (int k = 2; k <= 3; k++) {
        uint64_t plain = long_rounds(_i, WIRE_F32, k);
        ck_assert_uint_eq(plain, (uint64_t)2 * (uint64_t)(k - 1) * LONG * 4 * LONG_ROUNDS);
        for (int w = 0; w < 2; w++) {
            uint64_t bytes = long_rounds(_i, wires[w], k);
            ck_assert_uint_eq(bytes, 2 * (uint64_t)(k - 1) * wire_bytes(wires[w], LONG) *
                                         LONG_ROUNDS);
            ck_assert_double_le((double)bytes / (double)plain, w ? 0.2540 : 0.5);
        }
    }
}
END_TEST

enum { SLOWER = 40 };

/* The others need nothing of a member without a share, and come to the end of what they can do
 * before it has looked. */
START_TEST(a_slow_member_has_the_same)
{
    struct wire_job j;
    struct rng rng;
    rng_init(&rng, 13);
    job_open(&j, FIXED, WIRE_Q8, 3, LONG);
    run_state(&j);
    for (int t = 0; t < 2; t++) {
        fill_all(&j, &rng, NULL);
        for (int i = 0; i < 3; i++)
            begin(&j, i, (struct exchange){.kind = EXCHANGE_MEAN}, i < 2);
        for (int spin = 0; j.open[0] || j.open[1] || j.open[2]; spin++) {
            ck_assert_int_lt(spin, TURNS);
            turn(&j, spin % SLOWER ? spin % 2 : 2);
        }
        check_same(&j);
        refer(&j, 3);
    }
    job_shut(&j);
}
END_TEST

/* ------------------------------------------------------------------ who gives up */

static uint64_t sent_in_a_mean(struct wire_job *j, int members)
{
    uint64_t before = loopback_sent(j->ranks, 0);
    for (int i = 0; i < members; i++)
        begin(j, i, (struct exchange){.kind = EXCHANGE_MEAN}, 1);
    finish(j, j->k);
    return loopback_sent(j->ranks, 0) - before;
}

/* One begins anew while the others' round goes on with what it has given. It has not seen their
 * result, so the next mean is no difference from that, and the one after it is again. */
START_TEST(who_missed_a_result_gets_one_as_floats)
{
    struct wire_job j;
    struct rng rng;
    rng_init(&rng, 12);
    job_open(&j, FIXED, WIRE_Q8, 3, N);
    run_state(&j);
    fill_all(&j, &rng, NULL);
    for (int i = 0; i < 3; i++)
        begin(&j, i, (struct exchange){.kind = EXCHANGE_MEAN}, 1);
    for (int spin = 0; !ranks_of(j.f[2])->round.active; spin++) {
        ck_assert_int_lt(spin, TURNS);
        turn(&j, spin % 3);
    }
    begin(&j, 2, (struct exchange){.kind = EXCHANGE_MEAN}, 1);
    finish(&j, 2);
    ck_assert(j.open[2]);
    ck_assert_mem_eq(j.c[0], j.c[1], N * sizeof(float));
    for (size_t k = 0; k < N; k++)
        ck_assert_double_eq_tol((double)j.c[0][k], mean_of(&j, k), 0.1);
    refer(&j, 2);
    ck_assert_uint_gt(sent_in_a_mean(&j, 2), 4 * N);
    check_exact(&j);
    refer(&j, 3);
    fill_all(&j, &rng, NULL);
    ck_assert_uint_lt(sent_in_a_mean(&j, 3), 2 * N);
    check_same(&j);
    for (size_t k = 0; k < N; k++)
        ck_assert_double_eq_tol((double)j.c[0][k], mean_of(&j, k), 0.1);
    job_shut(&j);
}
END_TEST

int main(void)
{
    TCase *tests = new_case("wire fabrics", 120);
    tcase_add_loop_test(tests, fabrics_do_what_the_rule_says, 0, LINKS);
    tcase_add_loop_test(tests, states_and_last_means_are_exact, 0, LINKS);
    tcase_add_loop_test(tests, a_bad_contribution_is_left_out, 0, LINKS);
    tcase_add_loop_test(tests, long_vectors_go_in_pieces, 0, LINKS);
    tcase_add_test(tests, a_slow_member_has_the_same);
    tcase_add_test(tests, who_missed_a_result_gets_one_as_floats);
    return run_cases(tests, NULL);
}
