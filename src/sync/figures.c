/* SPDX-License-Identifier: MIT */
/* The calls that any thread may make at any time: relaxed reads of counters that other
 * threads write. They lock nothing, and no thread waits for them. */
#include "sync/job.h"

#include <math.h>

descant_status descant_needs(struct descant *job, struct descant_needs *out)
{
    if (job == NULL || *job->parent == 0)
        return job_check(job, JOB_OPEN, "descant_needs");
    if (out == NULL)
        return log_fail(&job->log, DESCANT_INVALID, "descant_needs: nowhere to put it");
    *out = (struct descant_needs){.gradients = job->plan.what == PLAN_GRADIENT,
                                  .waits = job->plan.when == PLAN_EVERY,
                                  .squares = plan_keeps_squares(&job->plan),
                                  .central = plan_has_central(&job->plan)};
    return DESCANT_OK;
}

descant_status descant_members(struct descant *job, struct descant_members *out)
{
    if (job == NULL || *job->parent == 0)
        return job_check(job, JOB_OPEN, "descant_members");
    if (out == NULL)
        return log_fail(&job->log, DESCANT_INVALID, "descant_members: nowhere to put it");
    /* a bound that is past: the figures of now */
    job->fabric->type->wait(job->fabric, 1);
    *out = (struct descant_members){
        .rank = job->fabric->rank,
        .size = atomic_load_explicit(&job->fabric->members, memory_order_relaxed),
        .epoch = atomic_load_explicit(&job->fabric->epoch, memory_order_relaxed),
        .host = job->fabric->host,
        .hosts = job->fabric->hosts ? job->fabric->begins_with : 1,
        .local_rank = job->fabric->hosts ? job->fabric->local_rank : job->fabric->rank,
        .late = atomic_load(&job->state) != JOB_OPEN && job->fabric->joined};
    return DESCANT_OK;
}

descant_status descant_is_member(struct descant *job, int rank, int *is)
{
    if (job == NULL || *job->parent == 0)
        return job_check(job, JOB_OPEN, "descant_is_member");
    const struct fabric *f = job->fabric;
    if (is == NULL || rank < 0)
        return log_fail(&job->log, DESCANT_INVALID,
                        "descant_is_member: it wants a rank, and room for the answer");
    *is = rank < f->size && (!f->takes_part || atomic_load(&f->takes_part[rank]));
    return DESCANT_OK;
}

static uint64_t get(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

descant_status descant_stats(struct descant *job, struct descant_stats *out)
{
    if (job == NULL || *job->parent == 0)
        return job_check(job, JOB_OPEN, "descant_stats");
    if (out == NULL)
        return log_fail(&job->log, DESCANT_INVALID, "descant_stats: nowhere to put it");
    const struct stats *s = &job->stats;
    const struct fabric *f = job->fabric;
    const struct tables_stats *rows = &job->tables.stats;
    const struct owners_stats *owned = &job->owners.service.stats;
    struct slab_figures grown = owners_figures(job);
    uint64_t rounds = get(&s->rounds), since_ns = get(&rows->since_ns);
    uint64_t now = clock_now_ns();
    double gap = rounds ? (double)get(&s->gap_sum) / (double)rounds : 0;
    *out = (struct descant_stats){
        .steps = workers_steps(&job->workers),
        .rounds = rounds,
        .restarts = get(&f->restarts),
        .bad = get(&f->bad),
        .missed = get(&f->missed),
        .merged = get(&s->merged),
        .bytes = get(&f->bytes),
        .stall_ns = get(&s->stall_ns),
        .copy_ns = get(&s->copy_ns),
        .gap_mean = gap,
        .gap_p50 = stats_below(s->gaps, 0.5),
        .gap_p99 = stats_below(s->gaps, 0.99),
        .gap_per_worker = gap / job->workers_wanted,
        .age_steps = (double)get(&s->age_steps),
        .age_s = (double)get(&s->age_ns) * 1e-9,
        .exchange_p50_s = stats_below(s->exchanges, 0.5) * 1e-9,
        .exchange_p99_s = stats_below(s->exchanges, 0.99) * 1e-9,
        .shadow_cpu_s = (double)(get(&s->shadow_cpu_ns) + get(&s->events_cpu_ns) +
                                 get(&f->cpu_ns)) * 1e-9,
        .wall_s = job->started_ns ? (double)(now - job->started_ns) * 1e-9 : 0,
        .budget = atomic_load_explicit(&job->budget, memory_order_relaxed),
        .rows_rounds = get(&rows->rounds),
        .rows_sent = get(&rows->sent),
        .rows_bad = get(&rows->bad) + get(&owned->bad),
        .rows_bytes = get(&f->rows_bytes) + get(&owned->bytes),
        .rows_waiting = get(&rows->waiting),
        .rows_age_s =
            since_ns != 0 && since_ns < now ? (double)(now - since_ns) * 1e-9 : 0,
        .distance = sqrt(atomic_load_explicit(&s->distance, memory_order_relaxed)),
        .rows_fetched = get(&owned->fetched),
        .rows_cached = get(&owned->cached),
        .rows_pushed = get(&owned->pushed),
        .rows_served = get(&owned->served),
        .rows_stall_ns = get(&owned->stall_ns),
        .rows_cpu_s = (double)get(&owned->cpu_ns) * 1e-9,
        .rows_moved = get(&owned->moved),
        .rows_live = grown.live,
        .rows_evicted = grown.evicted,
        .rows_refused = grown.refused,
        .outer_rate = atomic_load_explicit(&s->outer_rate, memory_order_relaxed),
        .outer_momentum = atomic_load_explicit(&s->outer_momentum, memory_order_relaxed),
        .outer_cosine = atomic_load_explicit(&s->outer_cosine, memory_order_relaxed),
    };
    out->gap_max = get(&s->gap_max);    /* after the gaps, which it is not below */
    return DESCANT_OK;
}
