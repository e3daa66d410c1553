/* SPDX-License-Identifier: MIT */
/* Jobs over every fabric, and drivers for them in one thread. */
#include "harness/fabrics.h"
#include "harness/values.h"
#include "ranks/elastic.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct fabric_row rows[N_ROWS] = {
    {.type = &fabric_self, .size = 1},
    {.type = &fabric_loopback, .size = 1, .free = true},
    {.type = &fabric_loopback, .size = 2, .free = true},
    {.type = &fabric_loopback, .size = 3, .free = true},
    {.type = &fabric_loopback, .size = 5, .free = true},
    {.type = &fabric_loopback, .size = 8, .free = true},
    {.type = &fabric_loopback, .size = 1, .fixed = true},
    {.type = &fabric_loopback, .size = 2, .fixed = true},
    {.type = &fabric_loopback, .size = 3, .fixed = true},
    {.type = &fabric_loopback, .size = 5, .fixed = true},
    {.type = &fabric_loopback, .size = 2, .fixed = true},
    {.type = &fabric_loopback, .size = 3, .fixed = true},
    {.type = &fabric_loopback, .size = 4, .fixed = true, .per_host = 2},
    {.type = &fabric_loopback, .size = 5, .fixed = true, .per_host = 2},
    {.type = &fabric_loopback, .size = 3, .fixed = true, .per_host = 2},
    {.type = &fabric_loopback, .size = 2, .fixed = true, .wire = WIRE_Q8},
    {.type = &fabric_loopback, .size = 3, .fixed = true, .wire = WIRE_BF16},
    {.type = &fabric_loopback, .size = 5, .fixed = true, .wire = WIRE_Q8},
    {.type = &fabric_shm, .size = 1},
    {.type = &fabric_shm, .size = 2},
    {.type = &fabric_shm, .size = 3},
    {.type = &fabric_shm, .size = 5},
    /* rows of an even number: some tests are in place on the odd ones */
    {.type = &fabric_shm, .size = 1, .elsewhere = true},
    {.type = &fabric_shm, .size = 3},
    {.type = &fabric_shm, .size = 2, .elsewhere = true},
    {.type = &fabric_shm, .size = 2},
    {.type = &fabric_shm, .size = 3, .elsewhere = true},
    {.type = &fabric_shm, .size = 1},
    {.type = &fabric_shm, .size = 5, .elsewhere = true},
};

static void keep_line(void *user, enum descant_level level, const char *line)
{
    struct job *job = user;
    if (level == DESCANT_ERROR)
        snprintf(job->line, sizeof job->line, "%s", line);
}

void job_init(struct job *job, int row, size_t n, bool in_place)
{
    static int number;
    memset(job, 0, sizeof *job);
    job->row = &rows[row];
    job->log = (struct log){keep_line, job, -1};
    snprintf(job->address, sizeof job->address, "test-%ld-%d", (long)getpid(), number++);
    job->elsewhere = job->row->elsewhere && !in_place;
    job->split = (in_place || job->elsewhere) && n > 1000;
    job->n = job->split ? fabric_round_up(1000) + n - 1000 : n;
    if (job->row->free)
        job->ranks = loopback_create_free(MOST, (uint64_t)row);
    else if (job->row->type == &fabric_loopback)
        job->ranks = loopback_create_hosts(
            job->row->size, job->row->per_host ? job->row->per_host : job->row->size,
            (uint64_t)row);
    job->start = (struct fabric_start){.manifest = "plan x\nsegment a 7\n", .n = job->n,
                                       .room = job->n, .in_place = in_place,
                                       .collective = true, .n_outer = 2, .threads = 1};
}

struct fabric_options options_of(struct job *job, int k)
{
    struct fabric_options options = {.address = job->address, .rank = k,
                                     .size = job->row->size, .start_s = 5, .dead_s = 1,
                                     .wire = job->row->wire, .log = &job->log};
    if (job->ranks) {
        options.joins = k >= job->row->size;
        options.address = "";
        options.context = job->ranks;
    }
    return options;
}

bool takes_joiners(const struct job *job)
{
    return job->row->type != &fabric_self && !job->row->fixed;
}

float *center_at(struct job *job, size_t i)
{
    int owner = 0, size = job->row->free ? MOST : job->row->size;
    while (job->ranks && i >= ranks_slice_at(job->n, size, owner + 1))
        owner++;
    if (job->ranks)
        owner = ranks_center_owner(ranks_of(job->peers[0].f), owner);
    return &job->peers[owner].f->center[i];
}

void peer_open(struct job *job, int k)
{
    struct peer *peer = &job->peers[k];
    struct fabric_options options = options_of(job, k);
    ck_assert_int_eq(job->row->type->open(&peer->f, &options), DESCANT_OK);
    ck_assert_int_eq(peer->f->rank, k);
    ck_assert_int_eq(peer->f->wire, job->row->wire);
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

void peer_start(struct job *job, int k)
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

void peer_close(struct job *job, int k)
{
    struct peer *peer = &job->peers[k];
    struct vector in = peer->in;
    struct extent extents[2] = {peer->extents[0], peer->extents[1]};
    if (peer->f)
        job->row->type->close(peer->f);
    free(peer->got);
    free(peer->outer);
    free(peer->memory);
    memset(peer, 0, sizeof *peer);
    peer->in = in;
    memcpy(peer->extents, extents, sizeof extents);
}

void job_fini(struct job *job)
{
    for (int k = 0; k < MOST; k++)
        peer_close(job, k);
    loopback_destroy(job->ranks);
    ck_assert_int_eq(memory_live(), 0);
}

ONE_THREAD float *at_float(const struct peer *peer, size_t i)
{
    for (size_t e = 0; e < peer->in.n_extents; e++)
        if (i >= peer->extents[e].at && i - peer->extents[e].at < peer->extents[e].n)
            return peer->extents[e].p + (i - peer->extents[e].at);
    return NULL;
}

void peer_fill(struct job *job, int k, int r)
{
    for (size_t i = 0; i < job->n; i++) {
        float *p = at_float(&job->peers[k], i);
        if (p)
            *p = value(k, i, r);
    }
}

void fill_all(struct job *job, int r)
{
    for (int k = 0; k < job->row->size; k++)
        peer_fill(job, k, r);
}

void peer_begin(struct job *job, int k, struct exchange x)
{
    struct peer *peer = &job->peers[k];
    x.in = &peer->in;
    x.n = job->n;
    peer->parts = 0;
    peer->alpha = (float)x.alpha;
    peer->final = x.final;
    ck_assert_int_eq(job->row->type->begin(peer->f, &x), DESCANT_OK);
    peer->open = true;
    peer->own = false;
}

void begin_all(struct job *job, struct exchange x)
{
    for (int k = 0; k < job->row->size; k++)
        peer_begin(job, k, x);
}

void begin_final(struct job *job, int k)
{
    bool mean = job->start.collective;
    peer_begin(job, k, (struct exchange){.kind = mean ? EXCHANGE_MEAN : EXCHANGE_STATE,
                                         .weight = 1, .final = true});
}

/* Where means are encoded all keep the last result, or the state, as the reference. */
ONE_THREAD static void refer(struct job *job, struct peer *peer, const struct fabric_part *part)
{
    float *R = peer->f->outer[0];
    if (job->row->wire == WIRE_F32 || peer->final || !R)
        return;
    for (size_t i = 0; i < job->n; i++) {
        const float *mine = at_float(peer, i);
        R[i] = !part->own ? part->out[i] : mine ? *mine : 0;
    }
}

static void use_part(struct job *job, struct peer *peer, const struct fabric_part *part)
{
    peer->parts++;
    peer->kind = part->kind;
    peer->own = part->own;
    if (part->kind == EXCHANGE_STATE)
        peer->note = part->note;
    else
        peer->members = part->members;
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
    refer(job, peer, part);
}

/* Polls one; false: it waits. */
bool peer_turn(struct job *job, struct peer *peer)
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

uint64_t job_now(const struct job *job)
{
    return job->ranks ? loopback_now(job->ranks) : clock_now_ns();
}

bool drive(struct job *job, int wanted, double seconds)
{
    uint64_t end = job_now(job) + (uint64_t)(seconds * 1e9);
    for (int spin = 0; spin < SPINS; spin++) {
        bool moved = false, open = false;
        struct peer *last = NULL;
        for (int k = 0; k < MOST; k++) {
            struct peer *peer = &job->peers[k];
            if (!peer->open && !(peer->f && job->ranks))
                continue;  /* idle ones serve the others only where these are far */
            moved = peer_turn(job, peer) || moved;
            open = open || (peer->open && (wanted < 0 || wanted == k));
            last = peer->open ? peer : last;
        }
        if (!open)
            return true;
        if (moved)
            continue;
        if (job_now(job) > end || job->row->type == &fabric_self) {
            return false;
        } else {
            job->row->type->wait(last->f, job_now(job) + 1000000);
        }
    }
    return false;
}

void finish(struct job *job)
{
    ck_assert_msg(drive(job, -1, BOUND_S), "%s of %d: an exchange does not end",
                  job->row->type->name, job->row->size);
}

void job_form(struct job *job)
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

void peer_again(struct job *job, int k, int r)
{
    peer_open(job, k);
    peer_start(job, k);
    peer_fill(job, k, r);
    peer_begin(job, k, (struct exchange){.kind = EXCHANGE_STATE});
}

/* Values are below 6, so differences from the last result below 12, of which a sender
 * and an owner may each leave out half a step, and add as much that they owe. */
static double wire_tolerance(const struct job *job)
{
    switch (job->row->wire) {
    case WIRE_Q8:
        return 4 * 0.5 * 12 / 127.0;
    case WIRE_BF16:
        return 4 * 12 / 512.0;
    case WIRE_F32:
        break;
    }
    return 0;
}

ONE_THREAD void check_mean(struct job *job, const struct peer *peer, const double *weight,
                           int n_in, int r)
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
        /* a host's is rounded, too */
        double part = job->row->per_host ? 0x1p-24 : 1e-14;
        if (!(fabs(peer->got[i] - sum) <= 0.5 * ulp + part * scale + wire_tolerance(job)))
            ck_abort_msg("float %zu is %.9g, not %.17g", i, (double)peer->got[i], sum);
    }
}

ONE_THREAD void check_state(struct job *job, int source, int r)
{
    for (int k = 0; k < job->row->size; k++) {
        const struct peer *peer = &job->peers[k];
        ck_assert_int_eq(peer->kind, EXCHANGE_STATE);
        ck_assert_int_eq(peer->own, k == source);
        for (size_t i = 0; k != source && i < job->n; i++)
            if (peer->got[i] != (at_float(peer, i) ? value(source, i, r) : 0))
                ck_abort_msg("float %zu is not the source's", i);
        for (int i = job->row->wire != WIRE_F32; k != source && i < 2; i++)
            ck_assert_float_eq(peer->outer[(size_t)i * job->n],
                               (float)(100 * (i + 1) + source));
    }
}

ONE_THREAD void check_taken(struct job *job, int k, int source, int r)
{
    const struct peer *peer = &job->peers[k];
    ck_assert_int_eq(peer->kind, EXCHANGE_STATE);
    ck_assert(!peer->own);
    for (size_t i = 0; i < job->n; i++)
        if (peer->got[i] != (at_float(peer, i) ? value(source, i, r) : 0))
            ck_abort_msg("float %zu is not the state of rank %d", i, source);
}
