/* SPDX-License-Identifier: MIT */
/* The round machine and the rows' machine, driven; and the failure that breaks a job. All
 * other files of a job stand on it.
 *
 * 1 Only job_drive blocks: it advances the round machine and sleeps in the fabric.
 * 2 A forked child is refused by one byte on a page that the kernel wipes there.
 * 3 The first failure of a round breaks the job: every later call returns it, with its
 *   text. */
#include "sync/job.h"

#define ROWS_LULL_NS UINT64_C(20000000)     /* after a sweep that found no touched row */

/* ------------------------------------------------------------------ checks */

descant_status job_check(struct descant *job, enum job_state state, const char *call)
{
    static const char *const names[] = {"opened", "started", "paused", "finished",
                                        "broken", "a hub"};
    if (job == NULL)
        return log_fail(NULL, DESCANT_INVALID, "%s: there is no job", call);
    if (*job->parent == 0)
        return log_fail(NULL, DESCANT_FORKED, "%s: the job belongs to the parent process",
                        call);
    if (atomic_load(&job->failure) != 0)
        return job_broken(job);
    int now = atomic_load(&job->state);
    if (now == (int)state)
        return DESCANT_OK;
    return log_fail(&job->log, DESCANT_ORDER,
                    "%s: wants a job that is %s, this one is %s", call, names[state],
                    names[now]);
}

void job_becomes(struct descant *job, enum job_state from, enum job_state to)
{
    int expected = (int)from;
    atomic_compare_exchange_strong(&job->state, &expected, (int)to);
}

/* The first failure keeps its thread's log line, which later callers get as their last
 * error. */
descant_status job_break(struct descant *job, descant_status status)
{
    pthread_mutex_lock(&job->breaking);
    if (atomic_load(&job->failure) == 0) {
        snprintf(job->failure_line, sizeof job->failure_line, "%s", descant_last_error());
        atomic_store(&job->failure, (int)status);
        atomic_store(&job->state, JOB_BROKEN);
        pthread_cond_broadcast(&job->turn);
    }
    log_recall(job->failure_line);
    pthread_mutex_unlock(&job->breaking);
    notes_ring(&job->events.notes);
    return (descant_status)atomic_load(&job->failure);
}

descant_status job_broken(struct descant *job)
{
    descant_status status = job->fabric ? job->fabric->status : DESCANT_OK;
    return job_break(job, status != DESCANT_OK ? status : DESCANT_SYSTEM);
}

/* ------------------------------------------------------------------ driving rounds */

void job_round_begins(struct descant *job, uint64_t steps, bool released)
{
    double weight = (double)(steps - job->begun_steps);
    if (atomic_exchange(&job->reload, false))
        round_begin_state(&job->round, 1, false);
    else
        round_begin(&job->round, weight, released);
    if (job->fabric->type->deal)
        job->fabric->type->deal->brings(job->fabric);
    job->begun_steps = steps;
    job->begun_ns = clock_now_ns();
    job->arrived_ns = 0;
}

/* A trainer that missed rounds brings its work to a later one, in which it is then; or,
 * where it carries nothing, with its next exchange. A state of another trainer replaces
 * it. */
static void end_items(struct descant *job, bool merged)
{
    const struct fabric_deal *deal = job->fabric->type->deal;
    const struct round *r = &job->round;
    uint64_t missed = atomic_load_explicit(&job->fabric->missed, memory_order_relaxed);
    if (deal != NULL && r->reloaded && !r->part.own)
        deal->lost(job->fabric);
    else if (deal != NULL && merged && (plan_carries(&job->plan) || missed == r->missed))
        deal->merged(job->fabric);
}

void job_round_done(struct descant *job, uint64_t steps)
{
    uint64_t now = clock_now_ns(), arrived = job->arrived_ns ? job->arrived_ns : now;
    bool merged = !job->round.reloaded && !job->round.bad;
    uint64_t brought = job->begun_steps - job->brought_steps;
    job->brought_steps = job->begun_steps;
    end_items(job, merged);
    stats_round(&job->stats, &(struct stats_merge){
        .gap = steps - job->merged_steps,
        .merged = merged ? brought : 0,
        .age_steps = steps > job->begun_steps ? steps - job->begun_steps : 0,
        .age_ns = now - job->begun_ns,
        .exchange_ns = arrived - job->begun_ns,
        .distance = job->round.distance,
        .outer_rate = (double)job->round.step.rate,
        .outer_momentum = (double)job->round.step.momentum,
        .outer_cosine = job->round.watch.cosine});
    job->merged_steps = steps;
}

descant_status job_drive(struct descant *job, bool held, uint64_t until_ns,
                         uint64_t *waited_ns)
{
    for (;;) {
        enum round_progress progress = job_advance(job);
        job_moves(job);
        switch (progress) {
        case ROUND_WORKED:
            break;
        case ROUND_DONE:
        case ROUND_RESTING:
        case ROUND_CALLED:
            return DESCANT_OK;
        case ROUND_HELD:
            if (held)
                return DESCANT_OK;
            round_release(&job->round);
            break;
        case ROUND_FAILED:
            return job_broken(job);
        case ROUND_WAITING: {
            if (until_ns != 0 && clock_now_ns() >= until_ns)
                return DESCANT_TIMEOUT;
            descant_status status = job_wait(job, until_ns, waited_ns);
            if (status != DESCANT_OK)
                return status;
        }
        }
    }
}

bool pace_allows(struct rate_limit *pace, double rate, uint64_t bytes, uint64_t now_ns)
{
    if (rate <= 0)
        return true;
    if (pace->paid_ns + PACE_SAVED_NS < now_ns)
        pace->paid_ns = now_ns - PACE_SAVED_NS;
    pace->paid_ns += (uint64_t)((double)(bytes - pace->bytes) / rate * 1e9);
    pace->bytes = bytes;
    return pace->paid_ns <= now_ns;
}

bool job_link_allows(struct descant *job)
{
    const struct fabric *f = job->fabric;
    uint64_t bytes = atomic_load_explicit(&f->rows_bytes, memory_order_relaxed);
    if (job->plan.when == PLAN_SHADOW)
        bytes += atomic_load_explicit(&f->bytes, memory_order_relaxed);
    return pace_allows(&job->pace, job->sync_rate, bytes, clock_now_ns());
}

enum round_progress job_rows(struct descant *job)
{
    struct tables *t = &job->tables;
    enum round_progress progress = tables_advance(t);
    uint64_t now = clock_now_ns();
    if (progress == ROUND_FAILED)
        job_broken(job);
    if (progress == ROUND_DONE && t->empty)
        job->rows_after_ns = now + ROWS_LULL_NS;
    if ((progress != ROUND_RESTING && progress != ROUND_CALLED) || !tables_can_begin(t))
        return progress;
    bool due = progress == ROUND_CALLED || now >= job->rows_after_ns;
    if (!tables_stopping(t) && !(due && job_link_allows(job)))
        return progress;
    tables_begin(t, now);
    return ROUND_WORKED;
}

void job_moves(struct descant *job)
{
    uint64_t now;
    if (job->told.since_ns == 0)
        return;
    now = clock_now_ns();
    waits_tell(&job->told, job->fabric, now, now, &job->log);
}

descant_status job_wait(struct descant *job, uint64_t until_ns, uint64_t *waited_ns)
{
    uint64_t before = clock_now_ns(), bound = waits_due(&job->told, before);
    bool rows = !tables_ended(&job->tables);
    enum round_progress progress = ROUND_WAITING;
    if (until_ns != 0 && until_ns < bound)
        bound = until_ns;
    if (rows && bound > before + ROWS_PATIENCE_NS)
        bound = before + ROWS_PATIENCE_NS;
    job->fabric->type->wait(job->fabric, bound);
    if (rows && clock_now_ns() >= bound)
        progress = job_rows(job);
    uint64_t now = clock_now_ns();
    waits_tell(&job->told, job->fabric, before, now, &job->log);
    *waited_ns += now - before;
    return progress == ROUND_FAILED ? job_broken(job) : DESCANT_OK;
}
