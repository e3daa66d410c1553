/* SPDX-License-Identifier: MIT */
/* Elastic exchanges of the ranks of a host, made together, over a simulated link in one thread
 * (mpi_loopback.h): what comes of them, what leaves a host, and who waits for whom. */
#include "harness/suite.h"
#include "harness/values.h"
#include "mpi_loopback.h"
#include "ranks/joint.h"

#include <math.h>
#include <stdio.h>

enum { RANKS = 16, SLICE_OF_PIECES = 2 * RANKS_PIECE + 5000 };

#define MS UINT64_C(1000000)

/* --- decisions --- */

/* As closing is said in joint.c, once more. */
static bool should_close(const struct joint_view *v)
{
    if ((v->all & ~v->here & ~v->away) == 0)
        return v->here != 0;
    for (int k = 0; k < 3; k++) {
        uint64_t waited = v->now_ns - v->came_ns[k], apart = v->came_ns[k] - v->closed_ns[k];
        if (v->here & 1U << k &&
            (waited >= 1000 * MS || waited >= (v->parks ? apart / 8 : apart)))
            return true;
    }
    return false;
}

/* Of three mates, of which two came at any times. */
START_TEST(closing_waits_for_those_that_came_the_last_time)
{
    static const uint64_t times[] = {0, 1 * MS, 10 * MS, 999 * MS, 1000 * MS, 5000 * MS};
    uint64_t came[3] = {0}, closed[3] = {7, 7, 7};
    int n_closed = 0, n = 0;

    for (int code = 0; code < 1024 * N(times) * N(times) * N(times); code++) {
        unsigned sets = (unsigned)code % 512;
        int t = code / 1024;
        struct joint_view v = {.all = sets & 7, .here = sets >> 3 & 7, .away = sets >> 6,
                               .parks = code / 512 % 2,
                               .came_ns = came, .closed_ns = closed};
        if ((v.here | v.away) & ~v.all || v.here & v.away)
            continue;
        came[0] = came[2] = 7 + times[t % N(times)];
        came[1] = 7 + times[t / N(times) % N(times)];
        v.now_ns = (came[0] > came[1] ? came[0] : came[1]) + times[t / N(times) / N(times)];
        ck_assert_int_eq(ranks_joint_closes(&v), should_close(&v));
        n_closed += ranks_joint_closes(&v);
        n++;
    }
    ck_assert_int_gt(n_closed, n / 8);
    ck_assert_int_lt(n_closed, n * 7 / 8);
}
END_TEST

/* One pull by A towards the mean is what the pulls are, one after another. */
START_TEST(pulls_are_one_pull)
{
    static const float some[] = {0, 0.125F, 0.5F, 0.9F, 1};
    double shares[4];
    float alphas[4];

    for (int code = 0; code < 5 * 5 * 5 * 5; code++)
        for (int k = 1; k <= 4; k++) {
            double W = 3, u = 0, all = 0;
            for (int i = 0, c = code; i < k; i++, c /= 5)
                alphas[i] = some[c % 5];
            double A = (double)ranks_joint_pull(alphas, k, shares);
            for (int i = 0; i < k; i++) {
                double w = 10 * i - 7;
                W += (double)alphas[i] * (w - W);
                u += shares[i] * w;
                all += shares[i];
                ck_assert_double_ge(shares[i], 0);
            }
            ck_assert_double_le(fabs(3 + A * (u - 3) - W), 1e-5);
            ck_assert(A <= 1 && (A > 0 ? fabs(all - 1) < 1e-12 : all == 0));
            ck_assert(k > 1 || (A == (double)alphas[0] && (A == 0 || shares[0] == 1)));
        }
}
END_TEST

/* --- exchanges --- */

struct job {
    struct loopback *world;
    int size, per_host;
    size_t n;
    struct fabric *f[RANKS];
    float *w[RANKS], *got[RANKS];
    struct extent extents[RANKS];
    struct vector in[RANKS];
    int parts[RANKS];
};

static const float alpha = 0.5F;

static void job_begin(struct job *j, int k, enum exchange_kind kind)
{
    const struct exchange x = {.kind = kind, .in = &j->in[k], .n = j->n, .alpha = alpha,
                               .priority = k == 0};
    j->parts[k] = 0;
    ck_assert_int_eq(j->f[k]->type->begin(j->f[k], &x), DESCANT_OK);
}

static float value_of(int rank, size_t i, int r)
{
    return (float)((rank * 31 + (int)(i % 1009) * 7 + r * 13) % 41 - 20) / 7;
}

static void job_fill(struct job *j, int r)
{
    for (int k = 0; k < j->size; k++)
        for (size_t i = 0; i < j->n; i++)
            j->w[k][i] = value_of(k, i, r);
}

/* Polls all until those of the set are done, or so long is over; the done ones. */
static unsigned job_run(struct job *j, unsigned set, uint64_t ms)
{
    uint64_t until = loopback_now(j->world) + ms * MS;
    struct fabric_part part;
    unsigned ended = 0;

    while ((ended & set) != set && loopback_now(j->world) < until)
        for (int k = 0; k < j->size; k++) {
            enum fabric_progress progress = j->f[k]->type->poll(j->f[k], &part);
            ck_assert_msg(progress != FABRIC_FAILED, "rank %d: %s", k, descant_last_error());
            if (progress == FABRIC_DONE)
                ended |= 1U << k;
            if (progress != FABRIC_PART)
                continue;
            j->parts[k]++;
            if (!part.own)
                memcpy(j->got[k] + part.from, part.out, part.n * sizeof(float));
        }
    return ended & set;
}

/* Polls all for so long. */
static void job_serve(struct job *j, uint64_t ms)
{
    uint64_t until = loopback_now(j->world) + ms * MS;
    struct fabric_part part;

    while (loopback_now(j->world) < until)
        for (int k = 0; k < j->size; k++)
            j->f[k]->type->poll(j->f[k], &part);
}

static void job_open(struct job *j, int size, int per_host, size_t n, const char *address)
{
    const unsigned all = (1U << size) - 1;

    *j = (struct job){.world = loopback_create_hosts(size, per_host, 3), .size = size,
                      .per_host = per_host, .n = n};
    for (int k = 0; k < size; k++) {
        const struct fabric_options options = {.rank = k, .start_s = 10, .address = address,
                                               .context = j->world};
        const struct fabric_start start = {.manifest = "x\n", .n = n, .room = n, .threads = 1,
                                           .center = true, .in_place = true};
        ck_assert_int_eq(fabric_loopback.open(&j->f[k], &options), DESCANT_OK);
        ck_assert_int_eq(fabric_loopback.start(j->f[k], &start), DESCANT_OK);
        j->w[k] = calloc(n, sizeof(float));
        j->got[k] = calloc(n, sizeof(float));
        j->extents[k] = (struct extent){0, n, j->w[k]};
        j->in[k] = (struct vector){n, 1, &j->extents[k]};
        job_begin(j, k, EXCHANGE_STATE);
    }
    job_fill(j, 0);
    ck_assert_uint_eq(job_run(j, all, 60000), all);
}

static void job_close(struct job *j)
{
    for (int k = 0; k < j->size; k++) {
        fabric_loopback.close(j->f[k]);
        free(j->w[k]);
        free(j->got[k]);
    }
    loopback_destroy(j->world);
}

static unsigned ranks_of_host(const struct job *j, int host)
{
    unsigned set = 0;

    for (int k = host * j->per_host; k < (host + 1) * j->per_host && k < j->size; k++)
        set |= 1U << k;
    return set;
}

static void job_exchange(struct job *j, unsigned set)
{
    for (int k = 0; k < j->size; k++)
        if (set & 1U << k)
            job_begin(j, k, EXCHANGE_ELASTIC);
    ck_assert_uint_eq(job_run(j, set, 60000), set);
}

/* --- what comes of them --- */

static const struct {
    int size, per_host;
    size_t n;
} worlds[] = {
    {4, 2, 700},                    /* slices shorter than a piece */
    {6, 3, 6 * SLICE_OF_PIECES},   /* of some pieces */
    {8, 3, 20000},                  /* hosts of 3, 3 and 2 ranks */
    {7, 3, 20000},                  /* the last host has one */
    {16, 8, 5},                     /* slices of nothing */
};

/* The ranks of one host after the other make exchanges: each gets what it would have got, had it met the
 * centre by itself, in the order of joint.c. Sums are rounded once more, in the owner's centre: by at most
 * a unit in the last place of the largest number for each pull. */
START_TEST(each_gets_what_it_would_get_by_itself)
{
    enum { TIMES = 3 };
    const double ulp = 0x1p-23 * 4;         /* of numbers up to 4 */
    struct job j;

    job_open(&j, worlds[_i].size, worlds[_i].per_host, worlds[_i].n, NULL);
    double *W = malloc(j.n * sizeof *W);
    for (size_t i = 0; i < j.n; i++)
        W[i] = value_of(0, i, 0);
    int pulls = 0, hosts = (j.size + j.per_host - 1) / j.per_host;
    for (int r = 1; r <= TIMES; r++)
        for (int host = 0; host < hosts; host++) {
            int first = host * j.per_host, last = first + j.per_host;
            int ranks = (last < j.size ? last : j.size) - first;
            job_fill(&j, r);
            job_exchange(&j, ranks_of_host(&j, host));
            for (int nth = 0; nth < ranks; nth++, pulls++) {
                int k = first + (ranks > 1 ? (r + nth) % ranks : nth);
                for (size_t i = 0; i < j.n; i++) {
                    W[i] += (double)alpha * (value_of(k, i, r) - W[i]);
                    ck_assert_msg(fabs((double)j.got[k][i] - W[i]) <= ulp * (pulls + 1),
                                  "rank %d, exchange %d, float %zu: %.9g, not %.9g", k, r, i,
                                  (double)j.got[k][i], W[i]);
                }
            }
        }
    free(W);
    job_close(&j);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* A host with one rank does what it did: the same bits as with messages alone. */
START_TEST(a_rank_alone_on_its_host_gets_the_same_bits)
{
    struct job j, plain;
    unsigned alone = 1U << 4;

    job_open(&j, 5, 2, 20000, NULL);
    job_open(&plain, 5, 2, 20000, "messages");
    for (int r = 1; r <= 3; r++) {
        job_fill(&j, r);
        job_fill(&plain, r);
        job_exchange(&j, alone);
        job_exchange(&plain, alone);
        ck_assert_int_eq(memcmp(j.got[4], plain.got[4], j.n * sizeof(float)), 0);
        ck_assert_int_eq(j.parts[4], plain.parts[4]);
    }
    job_close(&j);
    job_close(&plain);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* One rank's exchange is one pull: the same bits as with messages, also where its mates do not come. */
START_TEST(a_rank_that_comes_alone_gets_the_same_bits)
{
    struct job j, plain;

    job_open(&j, 6, 3, 20000, NULL);
    job_open(&plain, 6, 3, 20000, "messages");
    for (int r = 1; r <= 3; r++) {
        job_fill(&j, r);
        job_fill(&plain, r);
        job_exchange(&j, 1U << r);
        job_exchange(&plain, 1U << r);
        ck_assert_int_eq(memcmp(j.got[r], plain.got[r], j.n * sizeof(float)), 0);
    }
    job_close(&j);
    job_close(&plain);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* All at once: sum w + (1 - alpha) W stays what it was, and all see the same centre at the end. */
START_TEST(nothing_is_lost_where_all_exchange_at_once)
{
    enum { TIMES = 4 };
    struct job j;

    job_open(&j, worlds[_i].size, worlds[_i].per_host, worlds[_i].n, NULL);
    const unsigned all = (1U << j.size) - 1;
    job_fill(&j, 1);
    for (int r = 0; r < TIMES; r++) {
        job_exchange(&j, all);
        for (int k = 0; k < j.size; k++)
            for (size_t i = 0; i < j.n; i++)
                j.w[k][i] += alpha * (j.got[k][i] - j.w[k][i]);
    }
    for (int k = 0; k < j.size; k++) {
        const struct exchange x = {.kind = EXCHANGE_STATE, .in = &j.in[k], .n = j.n,
                                   .final = true};
        ck_assert_int_eq(j.f[k]->type->begin(j.f[k], &x), DESCANT_OK);
    }
    ck_assert_uint_eq(job_run(&j, all, 60000), all);
    for (size_t i = 0; i < j.n; i++) {
        double was = (1 - (double)alpha) * value_of(0, i, 0), is = (1 - (double)alpha) *
                                                                   j.f[0]->center[i];
        for (int k = 0; k < j.size; k++) {
            was += value_of(k, i, 1);
            is += j.w[k][i];
            ck_assert(j.f[k]->center[i] == j.f[0]->center[i]);
        }
        ck_assert_double_le(fabs(is - was), 1e-5 * j.size);
    }
    job_close(&j);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* Rank 1 has NaN in the second piece of a slice: its first pieces count, and none of its later ones; its
 * mates get all of theirs. */
START_TEST(nan_is_left_out)
{
    static const int order[] = {1, 2, 0};
    size_t n = 6 * SLICE_OF_PIECES;
    struct job j;

    job_open(&j, 6, 3, n, NULL);
    job_fill(&j, 1);
    for (int k = 0; k < 6; k++)
        memset(j.got[k], 0, n * sizeof(float));
    j.w[1][RANKS_PIECE + 100] = NAN;
    job_exchange(&j, 7);
    ck_assert(j.f[1]->own_bad && !j.f[0]->own_bad && !j.f[2]->own_bad);
    for (int slice = 0; slice < 6; slice++)
        for (size_t from = ranks_slice_at(n, 6, slice), i = from;
             i < ranks_slice_at(n, 6, slice + 1); i++) {
            double W = value_of(0, i, 0);
            for (int nth = 0; nth < 3; nth++) {
                int k = order[nth];
                if (k == 1 && i - from >= RANKS_PIECE) {
                    ck_assert(j.got[k][i] == 0);
                    continue;
                }
                W += (double)alpha * (value_of(k, i, 1) - W);
                ck_assert_double_le(fabs((double)j.got[k][i] - W), 1e-5);
            }
        }
    job_exchange(&j, 5);
    for (int k = 0; k < 6; k++)
        for (size_t i = 0; i < n; i++)
            ck_assert(isfinite(j.f[k]->center[i]));
    job_close(&j);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* Of 100 segments of 100 floats, a page each, the ranks of one host have these. */
static bool has_segment(int rank, size_t i)
{
    return rank != 1 || (i / 1024) % 3 != 1;
}

static bool has(int rank, size_t i)
{
    return i % 1024 < 100 && has_segment(rank, i);
}

/* A rank pulls at its own segments alone. Floats of no rank stay as they are, and are not pulled to 0.
 * They do not leave the host, either. */
START_TEST(gaps_are_left)
{
    enum { SEGMENTS = 100, GAPPED = SEGMENTS * 1024 };
    static struct extent extents[RANKS][SEGMENTS];
    struct job j;

    job_open(&j, 6, 3, GAPPED, NULL);
    job_fill(&j, 1);
    for (int k = 0; k < 6; k++) {
        size_t n = 0;
        for (size_t i = 0; i < GAPPED; i += 1024)
            if (has_segment(k, i))
                extents[k][n++] = (struct extent){i, 100, j.w[k] + i};
        j.in[k] = (struct vector){GAPPED, n, extents[k]};
    }
    uint64_t before = loopback_sent_out(j.world, 0);
    job_exchange(&j, 7);
    ck_assert_uint_le(loopback_sent_out(j.world, 0) - before,
                      SEGMENTS / 2 * (112 * sizeof(float) + sizeof(struct ask)));
    for (size_t i = 0; i < GAPPED; i++) {
        static const int order[] = {1, 2, 0};
        double W = value_of(0, i, 0);
        for (int nth = 0; nth < 3; nth++) {
            int k = order[nth];
            if (!has(k, i))
                continue;
            W += (double)alpha * (value_of(k, i, 1) - W);
            ck_assert_double_le(fabs((double)j.got[k][i] - W), 1e-5);
        }
        int owner = ranks_center_slice(ranks_of(j.f[0]), i);
        if (i % 1024 < 96 || i % 1024 >= 112)       /* the rest is in a unit that some have */
            ck_assert_double_le(fabs((double)j.f[owner]->center[i] - W), 1e-5);
    }
    job_close(&j);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* As center.c has it for asks: no pull at a centre that a state is about to replace. */
START_TEST(an_owner_that_has_not_had_the_state_moves_nothing)
{
    struct job j;

    job_open(&j, 6, 3, 1000, NULL);
    job_fill(&j, 1);
    ranks_of(j.f[1])->held.center--;
    job_begin(&j, 0, EXCHANGE_ELASTIC);
    job_begin(&j, 2, EXCHANGE_ELASTIC);
    ck_assert_uint_eq(job_run(&j, 5, 2000), 0);
    ck_assert(j.parts[0] > 0 && j.f[1]->center[200] == value_of(0, 200, 0));
    ranks_of(j.f[1])->held.center++;
    ck_assert_uint_eq(job_run(&j, 5, 20), 5);
    ck_assert(j.f[1]->center[200] != value_of(0, 200, 0));
    job_close(&j);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* --- what leaves a host --- */

/* 2 (h-1)/h of the vector, whatever the number of its ranks; by messages as much for each rank. */
START_TEST(little_leaves_a_host)
{
    enum { MIB = 262144, TIMES = 3 };
    static const int shapes[][2] = {{4, 4}, {2, 8}, {8, 2}};
    int hosts = shapes[_i][0], ranks = shapes[_i][1];

    for (int plain = 0; plain < 2; plain++) {
        struct job j;
        job_open(&j, hosts * ranks, ranks, MIB, plain ? "messages" : NULL);
        const unsigned all = (1U << j.size) - 1;
        uint64_t before = loopback_sent_out(j.world, 1);
        for (int r = 1; r <= TIMES; r++) {
            job_fill(&j, r);
            job_exchange(&j, all);
        }
        double mib = (double)(loopback_sent_out(j.world, 1) - before) / TIMES / 1048576;
        double law = 2.0 * (hosts - 1) / hosts * (plain ? ranks : 1);
        printf("%d hosts of %d ranks, %s: %.3f MiB\n", hosts, ranks,
               plain ? "messages" : "joint", mib);
        ck_assert_double_ge(mib, law);
        ck_assert_double_le(mib, law * 1.01);
        job_close(&j);
    }
}
END_TEST

/* --- who waits for whom --- */

static uint64_t took_ms(struct job *j, unsigned set)
{
    uint64_t began = loopback_now(j->world);
    job_exchange(j, set);
    return (loopback_now(j->world) - began) / MS;
}

/* Mates wait for one that does not come as long as they had been apart, a second at most; the next
 * time they do not, until it has come. */
START_TEST(a_mate_that_does_not_come_is_waited_for_once)
{
    struct job j;

    job_open(&j, 6, 3, 1000, NULL);
    job_exchange(&j, 7);
    job_serve(&j, 40);
    uint64_t first = took_ms(&j, 5);
    job_serve(&j, 200);
    uint64_t next = took_ms(&j, 5);
    ck_assert_msg(first >= 40 && first <= 60, "%d ms", (int)first);
    ck_assert_msg(next < 20, "%d ms", (int)next);
    job_serve(&j, 50);
    job_begin(&j, 1, EXCHANGE_ELASTIC);     /* it waits for them, too */
    job_serve(&j, 30);
    struct awaited awaited = fabric_hear(j.f[1]);
    ck_assert_int_eq(awaited.wait, FABRIC_WAIT_CENTER);
    ck_assert(awaited.n == 2 && awaited.ranks[0] == 0 && awaited.ranks[1] == 2);
    next = took_ms(&j, 5);
    ck_assert_msg(next < 20, "%d ms", (int)next);
    ck_assert_int_gt(j.parts[1], 0);
    job_serve(&j, 3000);                    /* all of them have come: they wait again */
    first = took_ms(&j, 5);
    ck_assert_msg(first >= 1000 && first <= 1020, "%d ms", (int)first);
    job_close(&j);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* A mate that has left is waited for by nobody, and serves its slice. */
START_TEST(a_mate_that_has_left_is_not_waited_for)
{
    struct job j;

    job_open(&j, 6, 3, 1000, NULL);
    job_exchange(&j, 7);
    job_serve(&j, 3000);
    fabric_loopback.close(j.f[1]);
    j.f[1] = j.f[5];
    uint64_t first = took_ms(&j, 5);
    ck_assert_msg(first < 20, "%d ms", (int)first);
    free(j.w[1]);
    free(j.got[1]);
    for (int k = 0; k < 6; k++)
        if (k != 1) {
            fabric_loopback.close(j.f[k]);
            free(j.w[k]);
            free(j.got[k]);
        }
    loopback_destroy(j.world);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

/* --- memory --- */

/* A rank that has no memory to start with says so, and leaves. */
START_TEST(no_memory_is_told)
{
    const struct fabric_start start = {.manifest = "x\n", .n = 1000, .room = 1000, .threads = 1,
                                       .center = true, .in_place = true};
    long k = 1;

    for (bool failed = true; failed; k++) {
        struct loopback *world = loopback_create_hosts(4, 2, 3);
        const struct fabric_options options = {.rank = 1, .start_s = 10, .context = world};
        struct fabric *f;
        ck_assert_int_eq(fabric_loopback.open(&f, &options), DESCANT_OK);
        memory_fail_at(k);
        descant_status status = fabric_loopback.start(f, &start);
        memory_fail_at(0);
        failed = status != DESCANT_OK;
        for (int turn = 0; turn < 100; turn++)
            ranks_serve(f);
        ranks_leave(f);
        for (int turn = 0; turn < 100; turn++)
            ranks_stay(f);
        ranks_free(f);
        loopback_destroy(world);
        ranks_free_kept();
        ck_assert_int_eq(memory_live(), 0);
    }
    ck_assert_int_gt(k, 20);
}
END_TEST

int main(void)
{
    TCase *decisions = new_case("decisions", 20), *joint = new_case("joint", 120);
    tcase_add_test(decisions, closing_waits_for_those_that_came_the_last_time);
    tcase_add_test(decisions, pulls_are_one_pull);
    tcase_add_loop_test(joint, each_gets_what_it_would_get_by_itself, 0, N(worlds));
    tcase_add_test(joint, a_rank_alone_on_its_host_gets_the_same_bits);
    tcase_add_test(joint, a_rank_that_comes_alone_gets_the_same_bits);
    tcase_add_loop_test(joint, nothing_is_lost_where_all_exchange_at_once, 0, N(worlds));
    tcase_add_test(joint, nan_is_left_out);
    tcase_add_test(joint, gaps_are_left);
    tcase_add_test(joint, an_owner_that_has_not_had_the_state_moves_nothing);
    tcase_add_loop_test(joint, little_leaves_a_host, 0, 3);
    tcase_add_test(joint, a_mate_that_does_not_come_is_waited_for_once);
    tcase_add_test(joint, a_mate_that_has_left_is_not_waited_for);
    tcase_add_test(joint, no_memory_is_told);
    return run_cases(decisions, joint, NULL);
}
