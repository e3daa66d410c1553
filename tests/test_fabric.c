/* SPDX-License-Identifier: MIT */
/* One conformance suite over every fabric: what fabric.h promises, seen from its callers. All
 * trainers live in this thread and are polled in turn; when all wait, the simulated clock goes
 * to the next event, and a real fabric is given a millisecond. Nothing here waits for ever. */
#include "fabric/sim.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 10, WALL_S = 10, SPINS = 20000000 };

struct row {
    const struct fabric_type *type;
    int size;
    bool elsewhere;             /* what is not in place is in memory of the callers' own */
};

static const struct row rows[] = {
    {.type = &fabric_self, .size = 1},
    {.type = &fabric_sim, .size = 1}, {.type = &fabric_sim, .size = 2},
    {.type = &fabric_sim, .size = 3}, {.type = &fabric_sim, .size = 5},
    {.type = &fabric_sim, .size = 8},
#ifndef WITHOUT_SHM
    {.type = &fabric_shm, .size = 1}, {.type = &fabric_shm, .size = 2},
    {.type = &fabric_shm, .size = 3}, {.type = &fabric_shm, .size = 5},
    /* rows of an even number: some tests are in place on the odd ones */
    {.type = &fabric_shm, .size = 1, .elsewhere = true},
    {.type = &fabric_shm, .size = 3},
    {.type = &fabric_shm, .size = 2, .elsewhere = true},
    {.type = &fabric_shm, .size = 2},
    {.type = &fabric_shm, .size = 3, .elsewhere = true},
    {.type = &fabric_shm, .size = 1},
    {.type = &fabric_shm, .size = 5, .elsewhere = true},
#endif
};

#define N_ROWS ((int)(sizeof rows / sizeof *rows))

static const size_t sizes[] = {1, 1000, 70000};

struct peer {
    struct fabric *f;
    struct extent extents[2];
    struct vector in;
    float *got;                 /* the last result */
    float *outer;               /* of the last state */
    float *memory;              /* elsewhere: the vector, one float off a cache line */
    enum exchange_kind kind;
    float alpha;
    int parts;
    bool own, open;
};

struct job {
    const struct row *row;
    struct sim_world *world;
    char address[64], line[512];
    struct log log;
    struct fabric_start start;
    size_t n;
    bool elsewhere;
    bool split;                 /* not the contribution: two extents with a gap between */
    struct peer peers[MOST];
};

static void keep_line(void *user, enum descant_level level, const char *line)
{
    struct job *job = user;
    if (level == DESCANT_ERROR)
        snprintf(job->line, sizeof job->line, "%s", line);
}

static void job_init(struct job *job, int row, size_t n, bool in_place)
{
    static int number;
    memset(job, 0, sizeof *job);
    job->row = &rows[row];
    job->log = (struct log){keep_line, job, -1};
    snprintf(job->address, sizeof job->address, "test-%ld-%d", (long)getpid(), number++);
    job->elsewhere = job->row->elsewhere && !in_place;
    job->split = (in_place || job->elsewhere) && n > 1000;
    job->n = job->split ? fabric_round_up(1000) + n - 1000 : n;
    if (job->row->type == &fabric_sim) {
        struct sim_options options = {{1e9, 1e-4}, 1e-4, 1e-3, 7, 0};
        job->world = sim_world_create(&options);
        ck_assert_ptr_nonnull(job->world);
    }
    job->start = (struct fabric_start){.manifest = "plan x\nsegment a 7\n", .n = job->n,
                                       .room = job->n, .in_place = in_place,
                                       .collective = true, .n_outer = 2, .threads = 1};
}

static void peer_open(struct job *job, int k)
{
    struct peer *peer = &job->peers[k];
    struct fabric_options options = {job->address, k, job->row->size, 5, &job->log, job->world};
    ck_assert_int_eq(job->row->type->open(&peer->f, &options), DESCANT_OK);
    ck_assert_int_eq(peer->f->rank, k);
    peer->got = calloc(job->n + 1, sizeof(float));
    peer->outer = calloc(2 * job->n + 1, sizeof(float));
    ck_assert(peer->got && peer->outer);
    peer->in = (struct vector){job->n, 1, peer->extents};
    peer->extents[0] = (struct extent){0, job->n, NULL};
    if (job->split) {
        size_t at = fabric_round_up(1000);
        peer->in.n_extents = 2;
        peer->extents[0].n = 1000;
        peer->extents[1] = (struct extent){at, job->n - at, NULL};
    }
    for (size_t i = 0; job->start.in_place && i < peer->in.n_extents; i++) {
        struct extent *e = &peer->extents[i];
        e->p = job->row->type->alloc(peer->f, e->at, e->n);
        ck_assert_ptr_nonnull(e->p);
        ck_assert(e->p[0] == 0 && e->p[e->n - 1] == 0);
    }
}

static void peer_start(struct job *job, int k)
{
    struct peer *peer = &job->peers[k];
    ck_assert_int_eq(job->row->type->start(peer->f, &job->start), DESCANT_OK);
    ck_assert(!peer->f->contribution == job->start.in_place);
    ck_assert(!peer->f->center == !job->start.center);
    if (job->elsewhere) {
        ck_assert(peer->f->any_memory);
        peer->memory = calloc(job->n + 1, sizeof(float));
        ck_assert_ptr_nonnull(peer->memory);
        for (size_t i = 0; i < peer->in.n_extents; i++)
            peer->extents[i].p = peer->memory + 1 + peer->extents[i].at;
    } else if (!job->start.in_place) {
        peer->extents[0].p = peer->f->contribution;
    }
    for (int i = 0; i < job->start.n_outer; i++)
        peer->f->outer[i][0] = (float)(100 * (i + 1) + k);
}

static void peer_close(struct job *job, int k)
{
    struct peer *peer = &job->peers[k];
    if (peer->f)
        job->row->type->close(peer->f);
    free(peer->got);
    free(peer->outer);
    free(peer->memory);
    memset(peer, 0, sizeof *peer);
}

static void job_fini(struct job *job)
{
    for (int k = 0; k < MOST; k++)
        peer_close(job, k);
    sim_world_destroy(job->world);
    ck_assert_int_eq(memory_live(), 0);
}

/* The value of trainer k at float i, in round r. */
static float value(int k, size_t i, int r)
{
    return (float)sin((double)i * 0.37 + k * 1.7 + r * 0.9) * (float)(k + 1);
}

static float *at_float(const struct peer *peer, size_t i)
{
    for (size_t e = 0; e < peer->in.n_extents; e++)
        if (i >= peer->extents[e].at && i - peer->extents[e].at < peer->extents[e].n)
            return peer->extents[e].p + (i - peer->extents[e].at);
    return NULL;
}

static void peer_fill(struct job *job, int k, int r)
{
    for (size_t i = 0; i < job->n; i++) {
        float *p = at_float(&job->peers[k], i);
        if (p)
            *p = value(k, i, r);
    }
}

static void peer_begin(struct job *job, int k, struct exchange x)
{
    struct peer *peer = &job->peers[k];
    x.in = &peer->in;
    x.n = job->n;
    peer->parts = 0;
    peer->alpha = (float)x.alpha;
    ck_assert_int_eq(job->row->type->begin(peer->f, &x), DESCANT_OK);
    peer->open = true;
    peer->own = false;
}

static void use_part(struct job *job, struct peer *peer, const struct fabric_part *part)
{
    peer->parts++;
    peer->kind = part->kind;
    peer->own = part->own;
    ck_assert(part->from + part->n <= job->n);
    if (part->kind == EXCHANGE_ELASTIC) {
        for (size_t i = 0; i < part->n; i++) {
            float *w = at_float(peer, part->from + i);
            if (w)
                *w += peer->alpha * (part->out[i] - *w);
        }
        return;
    }
    ck_assert(part->from == 0 && part->n == job->n);
    if (!part->own)
        memcpy(peer->got, part->out, part->n * sizeof(float));
    for (size_t i = 0; i < 2 && part->kind == EXCHANGE_STATE && part->outer[i]; i++)
        memcpy(peer->outer + i * job->n, part->outer[i], job->n * sizeof(float));
}

/* Polls one; false: it waits. */
static bool peer_turn(struct job *job, struct peer *peer)
{
    struct fabric_part part;
    switch (job->row->type->poll(peer->f, &part)) {
    case FABRIC_WAITING:
    case FABRIC_CALLED:
        return false;
    case FABRIC_WORKED:
        return true;
    case FABRIC_PART:
        use_part(job, peer, &part);
        return true;
    case FABRIC_DONE:
        peer->open = false;
        return true;
    case FABRIC_FAILED:
        break;
    }
    ck_abort_msg("rank %d failed: %s", peer->f->rank, job->line);
    return false;
}

/* Until trainer `wanted` (-1: everybody) has nothing open; false: all wait for something else. */
static bool drive(struct job *job, int wanted, double wall_s)
{
    uint64_t end = clock_now_ns() + (uint64_t)(wall_s * 1e9);
    for (int spin = 0; spin < SPINS; spin++) {
        bool moved = false, open = false;
        struct peer *last = NULL;
        for (int k = 0; k < MOST; k++) {
            struct peer *peer = &job->peers[k];
            if (!peer->open)
                continue;
            moved = peer_turn(job, peer) || moved;
            open = open || (peer->open && (wanted < 0 || wanted == k));
            last = peer;
        }
        if (!open)
            return true;
        if (moved)
            continue;
        if (job->world) {
            uint64_t next = sim_world_next(job->world);
            if (next == UINT64_MAX)
                return false;
            sim_world_advance(job->world, next);
        } else if (clock_now_ns() > end || job->row->type == &fabric_self) {
            return false;
        } else {
            job->row->type->wait(last->f, clock_now_ns() + 1000000);
        }
    }
    return false;
}

static void finish(struct job *job)
{
    ck_assert_msg(drive(job, -1, WALL_S), "%s of %d: an exchange does not end",
                  job->row->type->name, job->row->size);
}

static void begin_all(struct job *job, struct exchange x)
{
    for (int k = 0; k < job->row->size; k++)
        peer_begin(job, k, x);
}

/* All open, started, and given the first one's state. */
static void job_form(struct job *job)
{
    for (int k = 0; k < job->row->size; k++)
        peer_open(job, k);
    for (int k = 0; k < job->row->size; k++) {
        peer_start(job, k);
        peer_fill(job, k, 0);
    }
    begin_all(job, (struct exchange){.kind = EXCHANGE_STATE});
    finish(job);
}

static void fill_all(struct job *job, int r)
{
    for (int k = 0; k < job->row->size; k++)
        peer_fill(job, k, r);
}

/* peer's result is the mean with these weights, within half a unit in the last place. */
static void check_mean(struct job *job, const struct peer *peer, const double *weight, int n_in,
                       int r)
{
    double total = 0;
    for (int k = 0; k < n_in; k++)
        total += weight[k];
    ck_assert_int_eq(peer->parts > 0, 1);
    ck_assert_int_eq(peer->kind, EXCHANGE_MEAN);
    for (size_t i = 0; i < job->n; i++) {
        double sum = 0, scale = 0;
        for (int k = 0; k < n_in; k++) {
            sum += weight[k] / total * value(k, i, r);
            scale += fabs(weight[k] / total * value(k, i, r));
        }
        if (!at_float(peer, i))
            sum = scale = 0;
        double ulp = nextafterf(fabsf(peer->got[i]), INFINITY) - fabsf(peer->got[i]);
        if (!(fabs(peer->got[i] - sum) <= 0.5 * ulp + 1e-14 * scale))
            ck_abort_msg("float %zu is %.9g, not %.17g", i, (double)peer->got[i], sum);
    }
}

/* --- the tests: _i is the row --- */

START_TEST(mean_is_exact_and_the_same_for_all)
{
    for (int mode = 0; mode < 6; mode++) {
        struct job job;
        job_init(&job, _i, sizes[mode / 2], mode % 2);
        job_form(&job);
        for (int r = 1; r <= 3; r++) {
            double weight[MOST], used[MOST];
            fill_all(&job, r);
            for (int k = 0; k < job.row->size; k++) {
                weight[k] = r == 3 ? 0 : r == 2 ? (k + 1) % 3 + 0.25 * (k == 0) : 1 + k;
                used[k] = r == 3 ? 1 : weight[k];
                peer_begin(&job, k, (struct exchange){.weight = weight[k]});
            }
            finish(&job);
            check_mean(&job, &job.peers[0], used, job.row->size, r);
            for (int k = 0; k < job.row->size; k++) {
                ck_assert_int_eq(job.peers[k].parts, 1);
                ck_assert_int_eq(job.peers[k].f->members, job.row->size);
                ck_assert_mem_eq(job.peers[k].got, job.peers[0].got, job.n * sizeof(float));
            }
        }
        job_fini(&job);
    }
}
END_TEST

static void check_state(struct job *job, int source, int r)
{
    for (int k = 0; k < job->row->size; k++) {
        const struct peer *peer = &job->peers[k];
        ck_assert_int_eq(peer->kind, EXCHANGE_STATE);
        ck_assert_int_eq(peer->own, k == source);
        for (size_t i = 0; k != source && i < job->n; i++)
            if (peer->got[i] != (at_float(peer, i) ? value(source, i, r) : 0))
                ck_abort_msg("float %zu is not the source's", i);
        for (int i = 0; k != source && i < 2; i++)
            ck_assert_float_eq(peer->outer[(size_t)i * job->n], (float)(100 * (i + 1) + source));
    }
}

START_TEST(state_comes_from_the_first_or_by_priority)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job_form(&job);
    check_state(&job, 0, 0);
    int last = job.row->size - 1;
    fill_all(&job, 1);
    for (int k = 0; k < job.row->size; k++)     /* a STATE among means makes it one for all */
        peer_begin(&job, k, (struct exchange){
            .kind = k == 0 || k == last ? EXCHANGE_STATE : EXCHANGE_MEAN, .weight = 1,
            .priority = k == last ? 2 : 1});
    finish(&job);
    check_state(&job, last, 1);
    job_fini(&job);
}
END_TEST

START_TEST(elastic_keeps_the_sum)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job.start.center = true;
    job.start.collective = false;
    job.start.n_outer = 0;
    job_form(&job);
    int size = job.row->size;
    float *center = job.peers[0].f->center;
    for (size_t i = 0; i < job.n; i++)
        if (center[i] != (at_float(&job.peers[0], i) ? value(0, i, 0) : 0))
            ck_abort_msg("float %zu of the centre is not the source's", i);
    double alpha = 0.25, sum = 0, after = 0, moved = 0, keep = center[5];
    for (int r = 0; r < 3; r++) {
        fill_all(&job, r + 1);
        sum = after = 0;
        for (size_t i = 0; i < job.n; i++) {
            sum += (1 - alpha) * center[i];
            for (int k = 0; k < size; k++)
                sum += at_float(&job.peers[k], i) ? *at_float(&job.peers[k], i) : 0;
        }
        begin_all(&job, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = alpha});
        finish(&job);
        for (size_t i = 0; i < job.n; i++) {
            after += (1 - alpha) * center[i];
            for (int k = 0; k < size; k++)
                after += at_float(&job.peers[k], i) ? *at_float(&job.peers[k], i) : 0;
        }
        ck_assert_msg(fabs(after - sum) < 0.02, "%g became %g", sum, after);
    }
    moved = fabs(center[5] - keep);
    ck_assert(moved > 1e-3);
    job_fini(&job);
}
END_TEST

START_TEST(elastic_needs_nobody)
{
    struct job job;
    job_init(&job, _i, 1000, false);
    job.start.center = true;
    job.start.collective = false;
    job_form(&job);
    int last = job.row->size - 1;
    float W = job.peers[0].f->center[3];
    peer_fill(&job, last, 1);
    peer_begin(&job, last, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = 0.5});
    finish(&job);
    ck_assert_float_eq_tol(job.peers[0].f->center[3], W + 0.5f * (value(last, 3, 1) - W),
                           1e-6f);
    job_fini(&job);
}
END_TEST

/* What lies between the segments, or was one that is detached, is nobody's to pull at. */
START_TEST(elastic_leaves_gaps)
{
    struct job job;
    job_init(&job, _i, 70000, true);
    job.start.center = true;
    job.start.collective = false;
    job.start.n_outer = 0;
    job_form(&job);
    float *center = job.peers[0].f->center, keep = center[job.n - 1];
    size_t gap = fabric_round_up(1000) - 1;
    ck_assert_ptr_null(at_float(&job.peers[0], gap));
    center[gap] = 5;
    for (int k = 0; k < job.row->size; k++)
        job.peers[k].extents[1].n = 0;
    fill_all(&job, 1);
    begin_all(&job, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = 0.5});
    finish(&job);
    ck_assert_float_eq(center[gap], 5);
    ck_assert_float_eq(center[job.n - 1], keep);
    ck_assert_float_ne(center[5], value(0, 5, 0));
    job_fini(&job);
}
END_TEST

/* Whatever the members show of themselves: the centre is the state of now. */
START_TEST(joiner_gets_the_centre)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job.start.center = true;
    job.start.collective = false;
    job.start.n_outer = 0;
    job_form(&job);
    int size = job.row->size;
    if (job.row->type != &fabric_self) {
        fill_all(&job, 1);
        begin_all(&job, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = 0.5});
        finish(&job);
        peer_open(&job, size);
        peer_start(&job, size);
        peer_begin(&job, size, (struct exchange){.kind = EXCHANGE_STATE});
        finish(&job);
        ck_assert_int_eq(job.peers[size].kind, EXCHANGE_STATE);
        ck_assert_mem_eq(job.peers[size].got, job.peers[size].f->center,
                         job.n * sizeof(float));
    }
    job_fini(&job);
}
END_TEST

/* Lengths, or ends, that are not the same: all fail, and know why. */
START_TEST(what_differs_fails_for_all)
{
    for (int mode = 0; mode < 4; mode++) {
        struct job job;
        job_init(&job, _i, 70000, false);
        job_form(&job);
        int size = job.row->size, last = size - 1, failed = 0;
        fill_all(&job, 1);
        for (int k = 0; k < size && size > 1; k++) {
            struct exchange x = {.weight = 1, .in = &job.peers[k].in, .n = job.n,
                                 .agree = mode > 0 && k == last, .final = mode > 1};
            x.n -= mode == 0 && k == last;
            x.kind = mode == 3 && k == last ? EXCHANGE_STATE : EXCHANGE_MEAN;
            ck_assert_int_eq(job.row->type->begin(job.peers[k].f, &x), DESCANT_OK);
        }
        while (size > 1 && failed < size) {
            failed = 0;
            for (int k = 0; k < size; k++) {
                struct fabric_part part;
                enum fabric_progress p = job.row->type->poll(job.peers[k].f, &part);
                ck_assert(p != FABRIC_PART && p != FABRIC_DONE);
                failed += p == FABRIC_FAILED;
                if (p == FABRIC_FAILED)
                    ck_assert_int_eq(job.peers[k].f->status, DESCANT_MISMATCH);
            }
        }
        job_fini(&job);
    }
}
END_TEST

/* Many chunks, one trainer far ahead of the others, and one that peers can read in place. */
START_TEST(mean_out_of_any_memory)
{
    if (!rows[_i].elsewhere)
        return;
    struct job job;
    job_init(&job, _i, 600011, false);
    int size = job.row->size, last = size - 1;
    for (int k = 0; k < size; k++) {
        job.start.in_place = k > 0 && k == last;
        job.elsewhere = !job.start.in_place;
        peer_open(&job, k);
        peer_start(&job, k);
        peer_fill(&job, k, 0);
    }
    begin_all(&job, (struct exchange){.kind = EXCHANGE_STATE});
    finish(&job);
    for (int r = 1; r <= 4; r++) {
        double weight[MOST];
        fill_all(&job, r);
        if (r == 2)
            *at_float(&job.peers[0], 200000) = INFINITY;
        for (int k = 0; k < size; k++) {
            weight[k] = r == 2 && k == 0 ? 0 : k + 1;
            peer_begin(&job, k, (struct exchange){.weight = k + 1});
        }
        for (int k = last; k >= 0; k--)     /* one ahead, as far as it gets */
            while (job.peers[k].open && peer_turn(&job, &job.peers[k]))
                ;
        for (int turn = 0; turn < 1000 && job.peers[r % size].open; turn++)
            peer_turn(&job, &job.peers[r % size]);
        finish(&job);
        for (int k = 0; k < size; k++) {
            ck_assert_int_eq(job.peers[k].f->own_bad, r == 2 && k == 0);
            if (r == 2 && size == 1)
                ck_assert_int_eq(job.peers[k].parts, 0);
            else
                check_mean(&job, &job.peers[k], weight, size, r);
            ck_assert_mem_eq(job.peers[k].got, job.peers[0].got, job.n * sizeof(float));
        }
    }
    job_fini(&job);
}
END_TEST

/* Its memory is not read any more; the round begins again with the state that it gives now. */
START_TEST(giving_up_takes_other_memory_back)
{
    if (!rows[_i].elsewhere || rows[_i].size == 1)
        return;
    struct job job;
    job_init(&job, _i, 70000, false);
    job_form(&job);
    fill_all(&job, 1);
    peer_begin(&job, 0, (struct exchange){.weight = 1});
    ck_assert(!drive(&job, -1, 0.02));
    float *old = job.peers[0].memory;
    job.peers[0].memory = NULL;
    for (size_t i = 0; i < 2; i++) {
        struct extent *e = &job.peers[0].extents[i];
        e->p = job.peers[0].f->contribution + e->at;
    }
    peer_fill(&job, 0, 2);
    peer_begin(&job, 0, (struct exchange){.kind = EXCHANGE_STATE});
    free(old);
    for (int k = 1; k < job.row->size; k++)
        peer_begin(&job, k, (struct exchange){.weight = 1});
    finish(&job);
    check_state(&job, 0, 2);
    job_fini(&job);
}
END_TEST

START_TEST(bad_contribution_is_left_out)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job_form(&job);
    int size = job.row->size, last = size - 1;
    for (int r = 1; r <= 2; r++) {      /* the second round is good again */
        double weight[MOST];
        fill_all(&job, r);
        if (r == 1)
            *at_float(&job.peers[last], 69999) = NAN;
        for (int k = 0; k < size; k++) {
            weight[k] = r == 1 && k == last ? 0 : k + 1;
            peer_begin(&job, k, (struct exchange){.weight = k + 1});
        }
        finish(&job);
        for (int k = 0; k < size; k++) {
            const struct peer *peer = &job.peers[k];
            ck_assert_int_eq(peer->f->own_bad, r == 1 && k == last);
            ck_assert_uint_eq(peer->f->bad, 1);
            if (r == 1 && size == 1)
                ck_assert_int_eq(peer->parts, 0);
            else
                check_mean(&job, peer, weight, size, r);
        }
    }
    job_fini(&job);
}
END_TEST

START_TEST(leaving_lets_the_others_finish)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job_form(&job);
    int last = job.row->size - 1;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (last > 0) {
        fill_all(&job, 1);
        begin_all(&job, (struct exchange){.weight = 1});
        uint32_t epoch = job.peers[0].f->epoch;
        peer_close(&job, last);
        finish(&job);
        for (int k = 0; k < last; k++) {
            check_mean(&job, &job.peers[k], weight, last, 1);
            ck_assert_int_eq(job.peers[k].f->members, last);
            ck_assert_uint_ne(job.peers[k].f->epoch, epoch);
            if (job.world)
                ck_assert_uint_eq(job.peers[k].f->restarts, 1);
        }
    }
    job_fini(&job);
}
END_TEST

START_TEST(round_waits_for_the_living_only)
{
    struct job job;
    job_init(&job, _i, 1000, true);
    job_form(&job);
    int last = job.row->size - 1;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (last > 0) {
        fill_all(&job, 1);
        for (int k = 0; k < last; k++)
            peer_begin(&job, k, (struct exchange){.weight = 1});
        ck_assert(!drive(&job, -1, 0.02));
        struct fabric_part part;
        ck_assert_int_eq(job.row->type->poll(job.peers[last].f, &part), FABRIC_CALLED);
        peer_close(&job, last);
        finish(&job);
        check_mean(&job, &job.peers[0], weight, last, 1);
    }
    job_fini(&job);
}
END_TEST

START_TEST(joiner_gets_state_and_takes_part)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job_form(&job);
    int size = job.row->size;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    if (job.row->type != &fabric_self) {
        fill_all(&job, 1);
        peer_open(&job, size);
        peer_start(&job, size);
        peer_begin(&job, size, (struct exchange){.kind = EXCHANGE_STATE});
        ck_assert(!drive(&job, -1, 0.02));      /* nobody has begun */
        begin_all(&job, (struct exchange){.weight = 1});
        ck_assert(drive(&job, size, WALL_S));
        struct peer *joiner = &job.peers[size];
        ck_assert(joiner->kind == EXCHANGE_STATE && !joiner->own);
        int source = (int)joiner->outer[0] - 100;
        ck_assert(source >= 0 && source < size);
        ck_assert_float_eq(joiner->outer[job.n], (float)(200 + source));
        for (size_t i = 0; i < job.n; i++)
            if (joiner->got[i] != (at_float(joiner, i) ? value(source, i, 1) : 0))
                ck_abort_msg("float %zu is not the source's", i);
        ck_assert(job.peers[0].open);           /* the round waits for it */
        peer_fill(&job, size, 1);
        peer_begin(&job, size, (struct exchange){.weight = 1});
        finish(&job);
        for (int k = 0; k <= size; k++) {
            check_mean(&job, &job.peers[k], weight, size + 1, 1);
            ck_assert_int_eq(job.peers[k].f->members, size + 1);
        }
    }
    job_fini(&job);
}
END_TEST

START_TEST(final_waits_for_all)
{
    struct job job;
    job_init(&job, _i, 1000, false);
    job_form(&job);
    int size = job.row->size, last = size - 1;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    fill_all(&job, 1);
    for (int k = 0; k < last; k++)
        peer_begin(&job, k, (struct exchange){.weight = 1, .final = true});
    if (last > 0)
        ck_assert(!drive(&job, -1, 0.02));
    double only[MOST] = {0};
    only[last] = 1;
    peer_begin(&job, last, (struct exchange){.weight = 1});     /* goes on alone */
    ck_assert(drive(&job, last, WALL_S));
    check_mean(&job, &job.peers[last], only, size, 1);
    peer_begin(&job, last, (struct exchange){.weight = 1, .final = true});
    finish(&job);
    for (int k = 0; k < size; k++)
        check_mean(&job, &job.peers[k], weight, size, 1);
    job_fini(&job);
}
END_TEST

START_TEST(begin_gives_up_what_was_open)
{
    struct job job;
    job_init(&job, _i, 1000, false);
    job_form(&job);
    int size = job.row->size, last = size - 1;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    fill_all(&job, 1);
    if (last > 0) {
        peer_begin(&job, 0, (struct exchange){.weight = 1});
        ck_assert(!drive(&job, -1, 0.02));
        peer_begin(&job, 0, (struct exchange){.weight = 1, .final = true});
        for (int k = 1; k < size; k++)
            peer_begin(&job, k, (struct exchange){.weight = 1});
        weight[0] = 0;
        ck_assert(drive(&job, last, WALL_S));
        check_mean(&job, &job.peers[last], weight, size, 1);
        ck_assert(job.peers[0].open);
    }
    job_fini(&job);
}
END_TEST

START_TEST(manifests_must_agree)
{
    struct job job;
    job_init(&job, _i, 1000, false);
    if (job.row->size > 1) {
        peer_open(&job, 0);
        peer_open(&job, 1);
        peer_start(&job, 0);
        struct fabric_start other = job.start;
        other.manifest = "plan x\nsegment b 7\n";
        ck_assert_int_eq(job.row->type->start(job.peers[1].f, &other), DESCANT_MISMATCH);
        ck_assert_msg(strstr(job.line, "segment a 7") && strstr(job.line, "segment b 7"),
                      "the message is \"%s\"", job.line);
    }
    job_fini(&job);
}
END_TEST

START_TEST(share_gives_one_block)
{
    struct job job;
    job_init(&job, _i, 1, false);
    void *first = NULL, *block = NULL;
    for (int k = 0; k < job.row->size; k++) {
        peer_open(&job, k);
        ck_assert_int_eq(job.row->type->share(job.peers[k].f, "x", 100, &block), DESCANT_OK);
        ck_assert_int_eq(((char *)block)[99], k);       /* zero at first, then one for all */
        ((char *)block)[99]++;
        ck_assert_int_eq(job.row->type->share(job.peers[k].f, "y", 100, &first), DESCANT_OK);
        ck_assert_int_eq(((char *)first)[99], 0);
    }
    job_fini(&job);
}
END_TEST

START_TEST(taken_rank_is_refused)
{
    struct job job;
    job_init(&job, _i, 1, false);
    peer_open(&job, 0);
    if (job.row->type != &fabric_self) {
        struct fabric *f = NULL;
        struct fabric_options options = {job.address, 0, job.row->size, 5, &job.log,
                                         job.world};
        ck_assert_int_eq(job.row->type->open(&f, &options), DESCANT_BAD_RANK);
        ck_assert_ptr_null(f);
    }
    job_fini(&job);
}
END_TEST

/* --- what goes wrong --- */

static void begin_final(struct job *job, int k)
{
    bool mean = job->start.collective;
    peer_begin(job, k, (struct exchange){.kind = mean ? EXCHANGE_MEAN : EXCHANGE_STATE,
                                         .weight = 1, .final = true});
}

static void peer_again(struct job *job, int k, int r)
{
    peer_open(job, k);
    peer_start(job, k);
    peer_fill(job, k, r);
    peer_begin(job, k, (struct exchange){.kind = EXCHANGE_STATE});
}

static void check_taken(struct job *job, int k, int source, int r)
{
    const struct peer *peer = &job->peers[k];
    ck_assert_int_eq(peer->kind, EXCHANGE_STATE);
    ck_assert(!peer->own);
    for (size_t i = 0; i < job->n; i++)
        if (peer->got[i] != (at_float(peer, i) ? value(source, i, r) : 0))
            ck_abort_msg("float %zu is not the state of rank %d", i, source);
}

START_TEST(a_final_state_leaves_the_center)
{
    struct job job;
    job_init(&job, _i, 1000, _i % 2);
    job.start.center = true;
    job.start.collective = false;
    job_form(&job);
    float *center = job.peers[0].f->center;
    float keep[3] = {0.5f, 1.5f, 2.5f};
    memcpy(center, keep, sizeof keep);
    fill_all(&job, 1);
    int last = job.row->size - 1;
    for (int k = 0; k <= last; k++)
        peer_begin(&job, k, (struct exchange){.kind = EXCHANGE_STATE, .final = true,
                                              .priority = (uint64_t)k});
    finish(&job);
    check_state(&job, last, 1);
    ck_assert_mem_eq(center, keep, sizeof keep);
    job_fini(&job);
}
END_TEST

/* A trainer dies and comes again when all others are at their end: it goes on from them. */
static void end_with_a_newcomer(int row, bool collective, bool in_place)
{
    struct job job;
    job_init(&job, row, 70000, in_place);
    job.start.collective = collective;
    job.start.center = !collective;
    job_form(&job);
    int last = job.row->size - 1;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    if (last > 0) {
        fill_all(&job, 1);
        if (!collective)
            memset(job.peers[0].f->center, 0, job.n * sizeof(float));
        for (int k = 0; k < last; k++)
            begin_final(&job, k);
        ck_assert(!drive(&job, -1, 0.02));
        int again = job.world ? last + 1 : last;    /* there it comes before the other goes */
        if (again != last)
            peer_again(&job, again, 1);
        peer_close(&job, last);
        if (again == last)
            peer_again(&job, again, 1);
        weight[last] = again == last;
        ck_assert(drive(&job, again, WALL_S));
        ck_assert(job.peers[again].f->joined);
        if (collective)
            check_taken(&job, again, (int)job.peers[again].outer[0] - 100, 1);
        else                                /* the centre, which it leaves as it is */
            ck_assert(!job.peers[again].own && job.peers[again].got[3] == 0);
        ck_assert(job.peers[0].open);
        begin_final(&job, again);
        finish(&job);
        if (collective)
            check_mean(&job, &job.peers[0], weight, again + 1, 1);
        else
            ck_assert_float_eq(job.peers[0].f->center[3], 0);
    }
    job_fini(&job);
}

START_TEST(a_newcomer_joins_those_at_their_end)
{
    for (int mode = 0; mode < 4; mode++)
        end_with_a_newcomer(_i, mode < 2, mode % 2);
}
END_TEST

/* The only member admits a joiner, and comes to its end before that has looked. */
START_TEST(who_admits_may_come_to_its_end)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job_form(&job);
    int size = job.row->size, last = size - 1;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    if (job.row->type != &fabric_self) {
        fill_all(&job, 1);
        for (int k = 0; k < last; k++)
            begin_final(&job, k);
        for (int k = size; k < size + 2; k++) {
            peer_again(&job, k, 1);
            while (peer_turn(&job, &job.peers[k]))
                ;
        }
        peer_begin(&job, last, (struct exchange){.weight = 1});
        while (peer_turn(&job, &job.peers[last]))
            ;
        begin_final(&job, last);
        for (int k = size; k < size + 2; k++)
            if (job.peers[k].open && !drive(&job, k, 0.2))
                ck_assert(!drive(&job, k, 0.02));
        int first = job.peers[size].open ? size + 1 : size;
        ck_assert(!job.peers[first].open);
        for (int j = 0; j < 2; j++) {
            int k = j ? 2 * size + 1 - first : first;
            ck_assert(drive(&job, k, WALL_S));
            check_taken(&job, k, (int)job.peers[k].outer[0] - 100, 1);
            ck_assert(job.peers[k].f->joined);
            begin_final(&job, k);
        }
        finish(&job);
        for (int k = 0; k < size + 2 && size + 2 <= 9; k++)
            check_mean(&job, &job.peers[k], weight, size + 2, 1);
    }
    job_fini(&job);
}
END_TEST

/* Slots in the order of ranks, or the other way round: then the source does not lead. */
static void state_without_its_source(int row, bool center, bool reversed, int turns)
{
    struct job job;
    job_init(&job, row, 140000, false);
    int size = job.row->size;
    job.start.collective = !center;
    job.start.center = center;
    for (int k = 0; k < size; k++)
        peer_open(&job, reversed ? size - 1 - k : k);
    for (int k = 0; k < size; k++) {
        peer_start(&job, k);
        peer_fill(&job, k, 0);
    }
    begin_all(&job, (struct exchange){.kind = EXCHANGE_STATE});
    for (int turn = 0; turn < turns; turn++)
        for (int k = 0; k < size; k++)
            if (job.peers[k].open)
                peer_turn(&job, &job.peers[k]);
    if (job.world)
        sim_world_advance(job.world, sim_world_next(job.world));
    for (int k = 1; k < size; k++)      /* they hold the part of rank 0, and have not said so */
        if (job.world)
            peer_turn(&job, &job.peers[k]);
    if (size > 1 && job.peers[0].open) {
        peer_close(&job, 0);
        for (int spin = 0; spin < 1000; spin++)     /* those who do not lead first */
            for (int k = reversed ? 1 : size - 1; k != (reversed ? size : 0);
                 k += reversed ? 1 : -1)
                if (job.peers[k].open)
                    peer_turn(&job, &job.peers[k]);
        finish(&job);
        int source = job.peers[1].own;  /* or all was done when it died */
        for (int k = 1 + source; k < size; k++)
            check_taken(&job, k, source, 0);
        for (size_t i = 0; center && i < job.n; i++)
            if (job.peers[1].f->center[i] !=
                (at_float(&job.peers[1], i) ? value(source, i, 0) : 0))
                ck_abort_msg("float %zu of the centre is not the source's", i);
    }
    job_fini(&job);
}

START_TEST(the_source_of_a_state_dies)
{
    for (int turns = 1; turns <= 6; turns++)
        for (int mode = 0; mode < 4; mode++)
            state_without_its_source(_i, mode % 2, mode / 2, turns);
}
END_TEST

START_TEST(elastic_goes_on_without_the_caller_of_a_state)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job.start.center = true;
    job.start.collective = false;
    job_form(&job);
    int last = job.row->size - 1;
    if (last > 0) {
        fill_all(&job, 1);
        peer_begin(&job, last, (struct exchange){.kind = EXCHANGE_STATE, .priority = 9});
        while (peer_turn(&job, &job.peers[last]))
            ;
        peer_close(&job, last);
        for (int k = 0; k < last; k++)
            peer_begin(&job, k, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = 0.5});
        finish(&job);
        for (int k = 0; k < last; k++) {
            ck_assert_int_gt(job.peers[k].parts, 0);
            ck_assert_int_eq(job.peers[k].kind, EXCHANGE_ELASTIC);
        }
    }
    job_fini(&job);
}
END_TEST

START_TEST(weights_may_be_huge)
{
    struct job job;
    job_init(&job, _i, 1000, _i % 2);
    job_form(&job);
    double huge[MOST], one[MOST];
    for (int r = 1; r <= 3; r++) {
        fill_all(&job, r);
        for (int k = 0; k < job.row->size; k++) {
            huge[k] = r == 1 ? 1.7e308 : r == 2 ? 4e-324 : k ? 0 : 1e308;
            one[k] = r == 3 && k ? 0 : 1;
            peer_begin(&job, k, (struct exchange){.weight = huge[k]});
        }
        finish(&job);
        check_mean(&job, &job.peers[0], one, job.row->size, r);
    }
    job_fini(&job);
}
END_TEST

START_TEST(exchanges_are_checked)
{
    struct job job;
    job_init(&job, _i, 1000, false);
    peer_open(&job, 0);
    struct peer *peer = &job.peers[0];
    struct exchange x = {.in = &peer->in, .n = job.n, .weight = 1};
    ck_assert_int_eq(job.row->type->begin(peer->f, &x), DESCANT_ORDER);  /* not started */
    peer_start(&job, 0);
    ck_assert_int_eq(job.row->type->begin(peer->f, &x), DESCANT_ORDER);  /* the state is first */
    peer_close(&job, 0);
    job_form(&job);
    peer = &job.peers[0];
    x.in = &peer->in;
    const double weights[] = {-1, NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        x.weight = weights[i];
        ck_assert_int_eq(job.row->type->begin(peer->f, &x), DESCANT_INVALID);
    }
    x.weight = 1;
    x.n = job.n + 1;
    ck_assert_int_eq(job.row->type->begin(peer->f, &x), DESCANT_INVALID);
    x.n = 1;
    x.kind = EXCHANGE_ELASTIC;
    ck_assert_int_eq(job.row->type->begin(peer->f, &x), DESCANT_INVALID);  /* no centre */
    job_fini(&job);
}
END_TEST

/* While one waits to join, the members are called. */
START_TEST(members_are_called_while_one_waits_to_join)
{
    struct job job;
    struct fabric_part part;
    job_init(&job, _i, 1000, _i % 2);
    job_form(&job);
    int size = job.row->size;
    if (job.row->type != &fabric_self) {
        fill_all(&job, 1);
        ck_assert_int_eq(job.row->type->poll(job.peers[0].f, &part), FABRIC_WAITING);
        peer_again(&job, size, 1);
        ck_assert_int_eq(job.row->type->poll(job.peers[0].f, &part), FABRIC_CALLED);
        peer_close(&job, size);
    }
    job_fini(&job);
}
END_TEST

/* --- what only the simulation can show --- */

static int row_of(const struct fabric_type *type, int size)
{
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].type == type && rows[i].size == size)
            return i;
    return -1;
}

START_TEST(source_killed_before_all_have_pulled)
{
    struct job job;
    job_init(&job, row_of(&fabric_sim, 3), 1000, false);
    job_form(&job);
    fill_all(&job, 1);
    begin_all(&job, (struct exchange){.kind = EXCHANGE_STATE});
    sim_world_advance(job.world, sim_world_next(job.world));
    ck_assert(peer_turn(&job, &job.peers[1]));          /* holds the part of rank 0 */
    sim_world_kill(job.world, job.peers[0].f);
    job.peers[0].open = false;
    finish(&job);
    ck_assert(job.peers[1].own && !job.peers[2].own);
    ck_assert_float_eq(job.peers[2].got[7], value(1, 7, 1));
    ck_assert_uint_eq(job.peers[2].f->restarts, 1);
    job_fini(&job);
}
END_TEST

START_TEST(source_of_a_joiner_killed)
{
    struct job job;
    job_init(&job, row_of(&fabric_sim, 2), 1000, false);
    job_form(&job);
    fill_all(&job, 1);
    peer_open(&job, 2);
    peer_start(&job, 2);
    peer_fill(&job, 2, 1);
    peer_begin(&job, 2, (struct exchange){.kind = EXCHANGE_STATE});
    peer_begin(&job, 0, (struct exchange){.weight = 1});
    for (int k = 0; k < 2; k++) {
        sim_world_kill(job.world, job.peers[k].f);
        job.peers[k].open = false;
    }
    finish(&job);                       /* nobody is left: it is the source itself */
    ck_assert(job.peers[2].own);
    job_fini(&job);
}
END_TEST

START_TEST(a_thousand_meet)
{
    enum { MANY = 1100 };
    struct sim_options options = {{0, 0}, 0, 1e-3, 3, 0};
    struct sim_world *w = sim_world_create(&options);
    static struct fabric *f[MANY];
    static struct extent extents[MANY];
    static struct vector in[MANY];
    struct fabric_part part;
    for (int k = 0; k < MANY; k++) {
        struct fabric_options o = {NULL, -1, MANY, 1, NULL, w};
        struct fabric_start start = {.manifest = "", .n = 3, .room = 3, .collective = true};
        ck_assert_int_eq(fabric_sim.open(&f[k], &o), DESCANT_OK);
        ck_assert_int_eq(f[k]->rank, k);
        ck_assert_int_eq(fabric_sim.start(f[k], &start), DESCANT_OK);
        extents[k] = (struct extent){0, 3, f[k]->contribution};
        in[k] = (struct vector){3, 1, &extents[k]};
        f[k]->contribution[1] = (float)k;
    }
    for (int kind = EXCHANGE_STATE; kind >= EXCHANGE_MEAN; kind -= EXCHANGE_STATE) {
        int finished = 0;
        for (int k = 0; k < MANY; k++) {
            struct exchange x = {.kind = (enum exchange_kind)kind, .in = &in[k], .n = 3};
            ck_assert_int_eq(fabric_sim.begin(f[k], &x), DESCANT_OK);
        }
        sim_world_advance(w, sim_world_next(w));
        for (int turn = 0; turn < 4; turn++)
            for (int k = 0; k < MANY; k++) {
                enum fabric_progress p = fabric_sim.poll(f[k], &part);
                finished += p == FABRIC_DONE;
                if (p == FABRIC_PART && part.kind == EXCHANGE_MEAN)
                    ck_assert_float_eq(part.out[1], (MANY - 1) / 2.0f);
            }
        ck_assert_int_eq(finished, MANY);
    }
    for (int k = 0; k < MANY; k++)
        fabric_sim.close(f[k]);
    sim_world_destroy(w);
    ck_assert_int_eq(memory_live(), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fabric");
    TCase *all = tcase_create("conformance");
    tcase_set_timeout(all, 60);
    tcase_add_loop_test(all, mean_is_exact_and_the_same_for_all, 0, N_ROWS);
    tcase_add_loop_test(all, state_comes_from_the_first_or_by_priority, 0, N_ROWS);
    tcase_add_loop_test(all, elastic_keeps_the_sum, 0, N_ROWS);
    tcase_add_loop_test(all, elastic_needs_nobody, 0, N_ROWS);
    tcase_add_loop_test(all, elastic_leaves_gaps, 0, N_ROWS);
    tcase_add_loop_test(all, joiner_gets_the_centre, 0, N_ROWS);
    tcase_add_loop_test(all, what_differs_fails_for_all, 0, N_ROWS);
    tcase_add_loop_test(all, mean_out_of_any_memory, 0, N_ROWS);
    tcase_add_loop_test(all, giving_up_takes_other_memory_back, 0, N_ROWS);
    tcase_add_loop_test(all, bad_contribution_is_left_out, 0, N_ROWS);
    tcase_add_loop_test(all, leaving_lets_the_others_finish, 0, N_ROWS);
    tcase_add_loop_test(all, round_waits_for_the_living_only, 0, N_ROWS);
    tcase_add_loop_test(all, joiner_gets_state_and_takes_part, 0, N_ROWS);
    tcase_add_loop_test(all, final_waits_for_all, 0, N_ROWS);
    tcase_add_loop_test(all, begin_gives_up_what_was_open, 0, N_ROWS);
    tcase_add_loop_test(all, manifests_must_agree, 0, N_ROWS);
    tcase_add_loop_test(all, share_gives_one_block, 0, N_ROWS);
    tcase_add_loop_test(all, taken_rank_is_refused, 0, N_ROWS);
    tcase_add_loop_test(all, a_final_state_leaves_the_center, 0, N_ROWS);
    tcase_add_loop_test(all, a_newcomer_joins_those_at_their_end, 0, N_ROWS);
    tcase_add_loop_test(all, who_admits_may_come_to_its_end, 0, N_ROWS);
    tcase_add_loop_test(all, the_source_of_a_state_dies, 0, N_ROWS);
    tcase_add_loop_test(all, elastic_goes_on_without_the_caller_of_a_state, 0, N_ROWS);
    tcase_add_loop_test(all, weights_may_be_huge, 0, N_ROWS);
    tcase_add_loop_test(all, exchanges_are_checked, 0, N_ROWS);
    tcase_add_loop_test(all, members_are_called_while_one_waits_to_join, 0, N_ROWS);
    suite_add_tcase(suite, all);
    TCase *sim = tcase_create("simulation");
    tcase_add_test(sim, source_killed_before_all_have_pulled);
    tcase_add_test(sim, source_of_a_joiner_killed);
    tcase_add_test(sim, a_thousand_meet);
    suite_add_tcase(suite, sim);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
