/* SPDX-License-Identifier: MIT */
/* Trainers' figures for each other. Each trainer's fabric asks for its bulletin when one
 * is due, in the thread that holds the round machine, and keeps those of the others,
 * which any thread reads here. Nothing is locked, and nobody waits. */
#include "sync/job.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#define MOST 1e18               /* fabric/bulletins.c takes no larger number */

static double number(double x)
{
    return x >= 0 ? fmin(x, MOST) : 0;      /* NaN: 0 */
}

static void own_bulletin(void *of, struct bulletin *own)
{
    struct descant *job = of;
    struct descant_stats s = {0};
    uint64_t depth = atomic_load_explicit(&job->depth, memory_order_acquire);

    descant_stats(job, &s);
    *own = (struct bulletin){
        .steps = s.steps,
        .rounds = s.rounds,
        .bytes = s.bytes,
        .stall_ns = s.stall_ns,
        .wall_ns = (uint64_t)(number(s.wall_s) * 1e9),
        .workers = (uint64_t)job->workers_wanted,
        .process = job->process,
        .depth = depth,
        .gap = number(s.gap_mean),
        .age_s = number(s.age_s),
        .exchange_s = number(s.exchange_p99_s),
        .distance = number(s.distance),
        .n_values = atomic_load_explicit(&job->n_shown, memory_order_acquire),
    };
    for (uint64_t i = 0; i < own->n_values; i++)
        own->values[i] = atomic_load_explicit(&job->shown[i], memory_order_relaxed);
}

void peers_tell(struct descant *job)
{
    if (job->hub)               /* which has none */
        return;
    job->process = (rng_mixed(clock_now_ns() ^ (uint64_t)getpid() << 44) >> 4) | 1;
    job->fabric->figures_of = job;
    job->fabric->figures = own_bulletin;
}

descant_status descant_show(struct descant *job, const double *values, size_t n)
{
    if (job == NULL || *job->parent == 0)
        return job_check(job, JOB_OPEN, "descant_show");
    if (values == NULL && n > 0)
        return log_fail(&job->log, DESCANT_INVALID, "descant_show: no values");
    if (n > DESCANT_VALUES)
        return log_fail(&job->log, DESCANT_INVALID,
                        "descant_show: %zu values: %d at most", n, (int)DESCANT_VALUES);
    for (size_t i = 0; i < n; i++)
        atomic_store_explicit(&job->shown[i], values[i], memory_order_relaxed);
    atomic_store_explicit(&job->n_shown, (uint32_t)n, memory_order_release);
    atomic_store_explicit(&job->depth,
                          atomic_exchange_explicit(&job->taken, 0, memory_order_relaxed),
                          memory_order_release);
    return DESCANT_OK;
}

descant_status descant_shown(struct descant *job, double *values, size_t room, size_t *n)
{
    struct bulletin b = {0};
    uint64_t heard_ns;
    int rank;

    if (job == NULL || *job->parent == 0)
        return job_check(job, JOB_OPEN, "descant_shown");
    if (n == NULL || (values == NULL && room > 0))
        return log_fail(&job->log, DESCANT_INVALID, "descant_shown: nowhere to put it");
    const struct fabric *f = job->fabric;
    const struct bulletin_slot *slots =
        atomic_load_explicit(&f->bulletins, memory_order_acquire);
    /* on one machine it is this process's own */
    bool told = f->many_hosts && slots && f->rank < f->n_bulletins &&
                bulletin_get(&slots[f->rank], &b, &rank, &heard_ns) &&
                rank == f->rank && bulletin_is_good(&b) && b.process != job->process;
    uint64_t depth = told ? b.depth + 1 : 1;
    *n = told ? b.n_values : 0;
    for (size_t i = 0; i < *n && i < room; i++)
        values[i] = b.values[i];
    atomic_store_explicit(&job->taken, depth, memory_order_relaxed);
    if (atomic_load_explicit(&job->n_shown, memory_order_relaxed) == 0)
        atomic_store_explicit(&job->depth, 1, memory_order_release);
    return DESCANT_OK;
}

static struct descant_peer peer_of(const struct descant *job, int rank,
                                   const struct bulletin *b, double heard_s)
{
    const struct fabric *f = job->fabric;
    bool counts = rank < EVENTS_RANKS && rank != f->rank;
    const char *host = f->host_names && rank < f->size
                           ? atomic_load_explicit(&f->host_names[rank],
                                                  memory_order_acquire)
                           : NULL;
    struct descant_peer peer = {
        .rank = rank,
        .workers = (int)b->workers,
        .last = counts ? (enum descant_event_kind)atomic_load_explicit(
                             &job->events.last[rank], memory_order_relaxed)
                       : DESCANT_EVENT_JOINED,
        .host = host ? host : "",
        .heard_s = heard_s,
        .steps = b->steps,
        .rounds = b->rounds,
        .bytes = b->bytes,
        .stall_ns = b->stall_ns,
        .gap_mean = b->gap,
        .age_s = b->age_s,
        .exchange_p99_s = b->exchange_s,
        .distance = b->distance,
        .wall_s = (double)b->wall_ns * 1e-9,
        .n_values = b->n_values < DESCANT_VALUES ? b->n_values : DESCANT_VALUES,
    };
    memcpy(peer.values, b->values, sizeof peer.values);
    return peer;
}

/* Keeps the `room` lowest ranks, ascending, and of one rank the figures that came last: a
 * slot of shared memory may still have those of the process before. */
static size_t add(struct descant_peer *out, size_t room, size_t n,
                  const struct descant_peer *peer)
{
    size_t held = n < room ? n : room, k = held;

    while (k > 0 && out[k - 1].rank > peer->rank)
        k--;
    if (k > 0 && out[k - 1].rank == peer->rank) {
        out[k - 1] = peer->heard_s < out[k - 1].heard_s ? *peer : out[k - 1];
        return n;
    }
    if (k < room) {
        size_t after = (held < room ? held : room - 1) - k;
        memmove(out + k + 1, out + k, after * sizeof *out);
        out[k] = *peer;
    }
    return n + 1;
}

descant_status descant_peers(struct descant *job, struct descant_peer *out, size_t room,
                             size_t *n)
{
    if (job == NULL || *job->parent == 0)
        return job_check(job, JOB_OPEN, "descant_peers");
    if (n == NULL || (out == NULL && room > 0))
        return log_fail(&job->log, DESCANT_INVALID, "descant_peers: nowhere to put it");
    const struct fabric *f = job->fabric;
    const struct bulletin_slot *slots =
        atomic_load_explicit(&f->bulletins, memory_order_acquire);
    uint64_t heard_ns, now = clock_now_ns();
    struct descant_peer peer;
    struct bulletin b;
    int rank;
    own_bulletin(job, &b);
    peer = peer_of(job, f->rank, &b, 0);
    size_t all = add(out, room, 0, &peer);
    for (int i = 0; slots && i < f->n_bulletins; i++) {
        if (!bulletin_get(&slots[i], &b, &rank, &heard_ns) || rank < 0 ||
            rank == f->rank || !bulletin_is_good(&b))
            continue;
        double heard_s = now > heard_ns ? (double)(now - heard_ns) * 1e-9 : 0;
        peer = peer_of(job, rank, &b, heard_s);
        all = add(out, room, all, &peer);
    }
    *n = all;
    return DESCANT_OK;
}
