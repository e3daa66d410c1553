/* SPDX-License-Identifier: MIT */
/* The calls of workers: descant_step, descant_worker_done, descant_mean, descant_touch.
 *
 *   shadow, none   the worker counts in a slot of its own, and returns
 *   delayed        t is counted exactly. The worker whose step makes the count holds the
 *                  machine, merges first (waiting if the exchange has not arrived), then
 *                  snapshots; events are numbered, so that two workers serve them in
 *                  order
 *   foreground     all registered workers park; the last to come runs the round
 *   allreduce      descant_mean runs a round over the caller's buffer
 *
 * Time spent waiting goes to stall_ns, the rest of the time in a call to copy_ns. Shadow
 * plans touch neither. */
#include "sync/job.h"

#include <string.h>

static descant_status check(struct descant *job, const char *call)
{
    if (JOB_LIKELY(job != NULL && *job->parent &&
                   atomic_load_explicit(&job->state, memory_order_relaxed) ==
                       JOB_STARTED))
        return DESCANT_OK;
    return job_check(job, JOB_STARTED, call);
}

static descant_status merge_now(struct descant *job, uint64_t t, uint64_t *waited)
{
    round_release(&job->round);
    descant_status status = job_drive(job, false, 0, waited);
    if (status == DESCANT_OK)
        job_round_done(job, t);
    return status;
}

static descant_status delayed_step(struct descant *job, uint64_t t)
{
    int due = plan_due(&job->plan, t);
    if (due == 0)
        return DESCANT_OK;
    uint64_t came = clock_now_ns(), waited = 0, rounds = t / (uint64_t)job->plan.every;
    /* the number of this step's event, from 0; a merge and a snapshot are one event where
     * delay is `every` */
    uint64_t number = job->plan.delay == job->plan.every ? rounds - 1
                      : due & PLAN_DUE_SNAPSHOT          ? 2 * (rounds - 1)
                                                         : 2 * rounds - 1;
    descant_status status = DESCANT_OK;
    pthread_mutex_lock(&job->machine);
    while (job->next_due < number && !atomic_load(&job->failure))
        pthread_cond_wait(&job->turn, &job->machine);
    waited += clock_now_ns() - came;
    if (atomic_load(&job->failure))
        status = job_broken(job);
    if (status == DESCANT_OK && round_open(&job->round) == ROUND_FAILED)
        status = job_broken(job);
    if (status == DESCANT_OK && round_ends(&job->round, due))
        status = merge_now(job, t, &waited);
    if (status == DESCANT_OK && (due & PLAN_DUE_SNAPSHOT)) {
        job_round_begins(job, t, false);
        if (round_open(&job->round) == ROUND_FAILED)
            status = job_broken(job);
        else
            shadow_ring(job);
    }
    job->next_due = number + 1;
    pthread_cond_broadcast(&job->turn);
    pthread_mutex_unlock(&job->machine);
    stats_add(&job->stats.stall_ns, waited);
    stats_add(&job->stats.copy_ns, clock_now_ns() - came - waited);
    return status;
}

static descant_status foreground_step(struct descant *job, uint64_t t)
{
    if (plan_due(&job->plan, t) != 0)
        workers_call(&job->workers);
    if (!workers_called(&job->workers))
        return DESCANT_OK;
    uint64_t came = clock_now_ns(), waited = 0;
    descant_status status = DESCANT_OK;
    if (!workers_park(&job->workers)) {
        stats_add(&job->stats.stall_ns, clock_now_ns() - came);
        return atomic_load(&job->failure) ? job_broken(job) : DESCANT_OK;
    }
    waited = clock_now_ns() - came;
    pthread_mutex_lock(&job->machine);
    uint64_t steps = workers_steps(&job->workers);
    job_round_begins(job, steps, true);
    status = job_drive(job, false, 0, &waited);
    if (status == DESCANT_OK)
        job_round_done(job, steps);
    pthread_mutex_unlock(&job->machine);
    workers_unpark(&job->workers);
    stats_add(&job->stats.stall_ns, waited);
    stats_add(&job->stats.copy_ns, clock_now_ns() - came - waited);
    return status;
}

descant_status descant_step(struct descant *job)
{
    descant_status status = check(job, "descant_step");
    if (!JOB_LIKELY(status == DESCANT_OK))
        return status;
    struct worker *worker = workers_mine(&job->workers);
    if (!JOB_LIKELY(worker != NULL))
        return log_fail(&job->log, DESCANT_UNSUPPORTED, "more than %d worker threads",
                        WORKERS_MAX);
    uint64_t steps = atomic_load_explicit(&worker->steps, memory_order_relaxed);
    atomic_store_explicit(&worker->steps, steps + 1, memory_order_relaxed);
    if (JOB_LIKELY(job->plan.when != PLAN_EVERY) || job->plan.what == PLAN_GRADIENT)
        return DESCANT_OK;
    uint64_t t = atomic_fetch_add_explicit(&job->t, 1, memory_order_relaxed) + 1;
    return job->plan.delay > 0 ? delayed_step(job, t) : foreground_step(job, t);
}

descant_status descant_worker_done(struct descant *job)
{
    descant_status status = check(job, "descant_worker_done");
    if (status == DESCANT_OK)
        workers_leave(&job->workers);
    return status;
}

descant_status descant_touch(struct descant *job, const float *table,
                             const uint64_t *rows, size_t n)
{
    descant_status status = check(job, "descant_touch");
    if (status == DESCANT_OK && !tables_touch(&job->tables, table, rows, n))
        status = log_fail(&job->log, DESCANT_INVALID,
                          "descant_touch: there is no such table, or no such row in it");
    return status;
}

struct mean_piece {
    float *buffer;
    size_t n, left;         /* left: floats of the caller's mean from here on */
};

/* A round over a piece of the caller's buffer. *state is set if the round became a state,
 * which in this plan is a call: a trainer that is new, or has reloaded, wants all to give
 * states. */
static descant_status mean_piece(struct descant *job, const struct mean_piece *piece,
                                 bool *state, uint64_t *waited)
{
    float *buffer = piece->buffer;
    size_t n = piece->n;
    struct fabric *f = job->fabric;
    const struct kernels *kernels = job->round.kernels;
    struct extent extent = {.n = n, .p = f->any_memory ? buffer : f->contribution};
    struct vector in = {.n = n, .n_extents = 1, .extents = &extent};
    struct exchange exchange = {.kind = EXCHANGE_MEAN, .in = &in, .n = n, .weight = 1,
                                .agree = piece->left};
    if (!f->any_memory)
        kernels->copy(f->contribution, buffer, n);
    descant_status status = f->type->begin(f, &exchange);
    if (status != DESCANT_OK)
        return job_break(job, status);
    for (;;) {
        struct fabric_part part;
        enum fabric_progress progress = f->type->poll(f, &part);
        job_moves(job);
        switch (progress) {
        case FABRIC_PART:
            if (part.kind == EXCHANGE_STATE)
                *state = true;
            else
                kernels->copy(buffer + part.from, part.out, part.n);
            break;
        case FABRIC_WORKED:
            break;
        case FABRIC_DONE:
            return DESCANT_OK;
        case FABRIC_FAILED:
            return job_broken(job);
        case FABRIC_WAITING:
        case FABRIC_CALLED:
            status = job_wait(job, 0, waited);
            if (status != DESCANT_OK)
                return status;
        }
    }
}

/* Two rounds: one that turns the mean of all into a call, one in which states are
 * given. */
descant_status job_introduce(struct descant *job, bool called, uint64_t *waited)
{
    descant_status status = DESCANT_OK;
    bool reload = atomic_exchange(&job->reload, false);
    uint64_t priority = reload ? 2 : job->introduced ? 1 : 0;
    for (int k = called ? 1 : 0; k < 2 && status == DESCANT_OK; k++) {
        round_begin_state(&job->round, priority, false);
        job->round.call = k == 0;
        status = job_drive(job, false, 0, waited);
    }
    job->introduced = true;
    return status;
}

static descant_status mean_all(struct descant *job, float *buffer, size_t n,
                               uint64_t *waited)
{
    size_t room = round_room(&job->plan, &job->replica);
    for (size_t at = 0; at < n;) {
        struct mean_piece piece = {buffer + at, n - at < room ? n - at : room, n - at};
        bool called = false;
        descant_status status = DESCANT_OK;
        if (atomic_load(&job->reload))
            status = job_introduce(job, false, waited);
        if (status == DESCANT_OK)
            status = mean_piece(job, &piece, &called, waited);
        if (status == DESCANT_OK && called)
            status = job_introduce(job, true, waited);
        else if (status == DESCANT_OK)
            at += piece.n;
        if (status != DESCANT_OK)
            return status;
    }
    return DESCANT_OK;
}

descant_status descant_mean(struct descant *job, float *buffer, size_t n)
{
    descant_status status = check(job, "descant_mean");
    if (status != DESCANT_OK)
        return status;
    if (job->plan.what != PLAN_GRADIENT)
        return log_fail(&job->log, DESCANT_UNSUPPORTED,
                        "descant_mean belongs to the plan allreduce, this is %s",
                        job->plan.preset);
    if (buffer == NULL || n == 0)
        return log_fail(&job->log, DESCANT_INVALID, "descant_mean needs a buffer");
    uint64_t came = clock_now_ns(), waited = 0;
    pthread_mutex_lock(&job->machine);
    waited += clock_now_ns() - came;
    /* + 1: the step that the mean is made in is counted after it */
    uint64_t began = clock_now_ns(), steps = workers_steps(&job->workers) + 1;
    status = mean_all(job, buffer, n, &waited);
    if (status == DESCANT_OK) {
        uint64_t took = clock_now_ns() - began;
        stats_round(&job->stats, &(struct stats_merge){.gap = steps - job->merged_steps,
                                                       .age_ns = took,
                                                       .exchange_ns = took});
        job->merged_steps = steps;
    }
    pthread_mutex_unlock(&job->machine);
    stats_add(&job->stats.stall_ns, waited);
    stats_add(&job->stats.copy_ns, clock_now_ns() - came - waited);
    return status;
}
