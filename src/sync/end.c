/* SPDX-License-Identifier: MIT */
/* The end of a job: finish, which makes the final model; part, the end of one trainer
 * while the others go on; close and leave, which give back the job's memory, or let the
 * caller keep it. job_destroy takes a half-opened job, too: open has no other way to
 * clean up. */
#include "sync/job.h"

#include <string.h>
#include <sys/mman.h>

#define PART_MOST_S 1e9

/* ------------------------------------------------------------------ finish */

/* A reload that others have not taken yet is given first. Else the round in hand goes as
 * far as it can without waiting: another trainer's reload may have come in it, which is
 * taken. Where late members carry their work it goes to its end, for work that a result
 * has may not stay in the replica as well. */
static descant_status end_reload(struct descant *job)
{
    const struct round *r = &job->round;
    uint64_t waited = 0, steps = workers_steps(&job->workers);
    enum round_progress progress = ROUND_WORKED;
    bool wanted = atomic_load(&job->reload);
    if (wanted && job->plan.what == PLAN_GRADIENT)
        return job_introduce(job, false, &waited);
    if (wanted)
        job_round_begins(job, steps, true);
    while (!wanted && progress == ROUND_WORKED && r->state > ROUND_SNAPSHOT)
        progress = round_advance(&job->round);
    if (progress == ROUND_DONE)
        job_round_done(job, steps);
    if (progress == ROUND_FAILED)
        return job_broken(job);
    bool in_state = r->state != ROUND_IDLE &&
                    (r->exchange.kind == EXCHANGE_STATE || r->reloaded);
    bool carries = plan_carries(&job->plan) && r->state != ROUND_IDLE;
    if (!wanted && !in_state && !carries)
        return DESCANT_OK;
    descant_status status = job_drive(job, false, 0, &waited);
    if (status == DESCANT_OK && carries)
        job_round_done(job, steps);
    return status;
}

static void from_flat(void *context, float *memory, size_t at, size_t n)
{
    const float *flat = context;
    memcpy(memory, flat + at, n * sizeof(float));
}

/* A final state is of trainers that have taken the last reload; a global version is of
 * those among them that have seen the most rounds. */
static descant_status final_round(struct descant *job, enum descant_final which)
{
    uint64_t waited = 0;
    uint64_t rounds =
        which == DESCANT_FINAL_CENTRAL ? atomic_load(&job->stats.rounds) : 0;
    if (which == DESCANT_FINAL_MEAN)
        round_begin_final_mean(&job->round);
    else
        round_begin_state(&job->round, job->round.states << 48 | rounds, true);
    job->round.exchange.agree = 1 + (uint64_t)which;
    descant_status status = job_drive(job, false, 0, &waited);
    if (status == DESCANT_OK && which == DESCANT_FINAL_MEAN)
        stats_add(&job->stats.merged, workers_steps(&job->workers) - job->brought_steps);
    if (status != DESCANT_OK || which != DESCANT_FINAL_CENTRAL)
        return status;
    pthread_mutex_lock(&job->replica.lock);
    replica_each(&job->replica, 0, job->replica.n, from_flat,
                 job->fabric->center ? job->fabric->center : job->fabric->outer[0]);
    pthread_mutex_unlock(&job->replica.lock);
    return DESCANT_OK;
}

/* Other machines may have rows for this one as long as one of them trains. */
static descant_status end_tables(struct descant *job)
{
    while (!tables_ended(&job->tables)) {
        enum round_progress progress = job_rows(job);
        if (progress == ROUND_FAILED)
            return job_broken(job);
        if (progress == ROUND_WORKED || progress == ROUND_DONE)
            continue;
        /* idle: this trainer serves others */
        if (round_advance(&job->round) == ROUND_FAILED)
            return job_broken(job);
        job->fabric->type->wait(job->fabric, clock_now_ns() + ROWS_PATIENCE_NS);
    }
    return DESCANT_OK;
}

descant_status descant_finish(struct descant *job, enum descant_final which)
{
    bool paused = job != NULL && *job->parent && atomic_load(&job->state) == JOB_PAUSED;
    bool hub = job != NULL && *job->parent && job->hub;
    enum job_state before = paused ? JOB_PAUSED : hub ? JOB_SERVES : JOB_STARTED;
    descant_status status = job_check(job, before, "descant_finish");
    if (status == DESCANT_OK)
        status = events_refuse(job, "descant_finish");
    if (status == DESCANT_OK && hub)
        return hub_finish(job);
    if (status != DESCANT_OK)
        return status;
    if ((int)which < DESCANT_FINAL_LOCAL || which > DESCANT_FINAL_CENTRAL)
        return log_fail(&job->log, DESCANT_INVALID, "descant_finish: no such final %d",
                        (int)which);
    if (which == DESCANT_FINAL_CENTRAL && !plan_has_central(&job->plan))
        return log_fail(&job->log, DESCANT_UNSUPPORTED,
                        "the plan %s keeps no central or global version",
                        job->plan.preset);
    status = owners_flush(job);
    if (status != DESCANT_OK)
        return status;
    courier_stop(job);
    shadow_stop(job);
    pthread_mutex_lock(&job->machine);
    status = end_reload(job);
    round_abandon(&job->round);
    job->round.settled = paused;
    tables_stop(&job->tables);
    if (status == DESCANT_OK)
        status = final_round(job, which);
    if (status == DESCANT_OK)
        status = end_tables(job);
    pthread_mutex_unlock(&job->machine);
    if (status == DESCANT_OK)
        job_becomes(job, before, JOB_FINISHED);
    return status;
}

/* ------------------------------------------------------------------ parting */

descant_status descant_tell(struct descant *job)
{
    if (job == NULL || *job->parent == 0)
        return job_check(job, JOB_STARTED, "descant_tell");
    if (atomic_load(&job->failure) != 0)
        return job_broken(job);
    atomic_store_explicit(&job->fabric->told, true, memory_order_relaxed);
    shadow_ring(job);
    /* where neither a shadow nor a step polls */
    enum round_progress progress = ROUND_RESTING;
    if (atomic_load(&job->state) != JOB_STARTED ||
        pthread_mutex_trylock(&job->machine) != 0)
        return DESCANT_OK;
    if (job->round.state == ROUND_IDLE)
        progress = round_advance(&job->round);
    if (progress == ROUND_WORKED)
        progress = round_open(&job->round);
    pthread_mutex_unlock(&job->machine);
    return progress == ROUND_FAILED ? job_broken(job) : DESCANT_OK;
}

/* The round in hand, and one more where steps were made since it began. */
static descant_status last_rounds(struct descant *job, uint64_t until_ns)
{
    bool counts = job->plan.when == PLAN_EVERY && job->plan.delay > 0;
    bool open = job->round.state != ROUND_IDLE;
    uint64_t waited = 0;
    uint64_t steps = counts ? atomic_load(&job->t) : workers_steps(&job->workers);
    descant_status status = open ? job_drive(job, false, until_ns, &waited) : DESCANT_OK;
    if (status == DESCANT_OK && open)
        job_round_done(job, steps);
    if (status != DESCANT_OK || steps <= job->begun_steps)
        return status;
    job_round_begins(job, steps, true);
    status = job_drive(job, false, until_ns, &waited);
    if (status == DESCANT_OK)
        job_round_done(job, steps);
    return status;
}

/* Rounds of rows until all of this machine's are in one; other trainers of the machine
 * take over what they have touched. */
static descant_status last_rows(struct descant *job, uint64_t until_ns)
{
    struct tables *t = &job->tables;
    while (!tables_ended(t) && t->leads && tables_stopping(t)) {
        enum round_progress progress = job_rows(job);
        if (progress == ROUND_FAILED || round_advance(&job->round) == ROUND_FAILED)
            return job_broken(job);
        if (progress == ROUND_DONE && t->last)
            break;
        if (progress == ROUND_WORKED || progress == ROUND_DONE)
            continue;
        if (clock_now_ns() >= until_ns)
            return DESCANT_TIMEOUT;
        job->fabric->type->wait(job->fabric, clock_now_ns() + ROWS_PATIENCE_NS);
    }
    return round_open(&job->round) == ROUND_FAILED ? job_broken(job) : DESCANT_OK;
}

/* Gradients are in the means of the steps that they are of. */
descant_status descant_part(struct descant *job, double most_s)
{
    descant_status status = job_check(job, JOB_STARTED, "descant_part");
    if (status == DESCANT_OK)
        status = events_refuse(job, "descant_part");
    if (status == DESCANT_OK && !(most_s >= 0))     /* nor NaN */
        status = log_fail(&job->log, DESCANT_INVALID, "descant_part: %g seconds", most_s);
    if (status != DESCANT_OK)
        return status;
    most_s = most_s < PART_MOST_S ? most_s : PART_MOST_S;
    uint64_t until = clock_now_ns() + (uint64_t)(most_s * 1e9);
    status = owners_leave(job, until);
    if (status == DESCANT_OK)
        status = owners_flush(job);
    if (status != DESCANT_OK)
        return status;
    bool rounds = job->plan.when != PLAN_NEVER && job->plan.what != PLAN_GRADIENT;
    courier_stop(job);
    shadow_stop(job);
    pthread_mutex_lock(&job->machine);
    tables_stop(&job->tables);
    if (rounds)
        status = last_rounds(job, until);
    round_abandon(&job->round);
    if (status == DESCANT_OK)
        status = last_rows(job, until);
    pthread_mutex_unlock(&job->machine);
    if (status == DESCANT_TIMEOUT)
        log_fail(&job->log, status, "the others did not come within %g s to the last "
                 "round of this trainer, which leaves without it", most_s);
    if (status == DESCANT_OK || status == DESCANT_TIMEOUT)
        job_becomes(job, JOB_STARTED, JOB_FINISHED);
    return status;
}

/* ------------------------------------------------------------------ close and leave */

/* Takes the round of rows that this machine has promised to take. Without that the table
 * that it leaves to its other trainers would not be the one on which all machines
 * agree. */
static void take_rows(struct descant *job)
{
    struct fabric *f = job->fabric;
    if (job->tables.board == NULL)
        return;
    while (f->type->rows->leave(f)) {
        enum round_progress progress = tables_advance(&job->tables);
        if (progress == ROUND_FAILED)
            return;
        if (progress != ROUND_WORKED && progress != ROUND_DONE)
            f->type->wait(f, clock_now_ns() + ROWS_PATIENCE_NS);
    }
}

void job_destroy(struct descant *job, bool keeps)
{
    courier_stop(job);
    shadow_stop(job);
    events_stop(job);
    owners_stop(job);
    take_rows(job);
    tables_stop(&job->tables);
    for (size_t i = 0; keeps && i < job->replica.n_segments; i++) {
        struct replica_segment *s = &job->replica.segments[i];
        if (s->keeps && !kept_settle(s->keeps))
            log_say(&job->log, DESCANT_WARNING,
                    "the memory of '%s' cannot be made this process's own: a trainer "
                    "that joins the job may change it",
                    s->name);
    }
    if (job->fabric != NULL)
        job->fabric->type->close(job->fabric);
    if (job->world != NULL)
        job->world->type->close(job->world);
    tables_fini(&job->tables);
    if (job->round_made)
        round_fini(&job->round);
    memory_give(job->outer_kept);
    memory_give(job->hub_tables);
    events_fini(&job->events);
    workers_fini(&job->workers);
    replica_fini(&job->replica);
    if (job->parent != NULL)
        munmap((void *)(uintptr_t)job->parent, machine_page());
    pthread_cond_destroy(&job->turn);
    pthread_mutex_destroy(&job->breaking);
    pthread_mutex_destroy(&job->sharing);
    pthread_mutex_destroy(&job->machine);
    memory_give(job);
}

static descant_status check_end(const struct descant *job, const char *call)
{
    return *job->parent != 0
               ? events_refuse(job, call)
               : log_fail(NULL, DESCANT_FORKED, "%s: the job is the parent's", call);
}

descant_status descant_close(struct descant *job)
{
    descant_status status = job ? check_end(job, "descant_close") : DESCANT_OK;
    if (job && status == DESCANT_OK)
        job_destroy(job, false);
    return status;
}

static bool prepare_to_keep(struct replica *r, bool shared)
{
    size_t bytes = 0, i;

    for (i = 0; shared && i < r->n_segments; i++)
        bytes += r->segments[i].lent ? r->segments[i].n * sizeof(float) : 0;
    bool can = bytes <= machine_memory_free();
    for (i = 0; can && i < r->n_segments; i++) {
        struct replica_segment *s = &r->segments[i];
        if (s->lent)
            s->keeps = kept_add(s->lent, s->n * sizeof(float), shared);
        can = !s->lent || s->keeps;
    }
    while (!can && i-- > 0)
        if (r->segments[i].keeps) {
            kept_give(r->segments[i].lent);
            r->segments[i].keeps = NULL;
        }
    return can;
}

descant_status descant_leave(struct descant *job)
{
    descant_status status = job ? check_end(job, "descant_leave") : DESCANT_OK;
    if (job == NULL || status != DESCANT_OK)
        return status;
    if (!prepare_to_keep(&job->replica, job->fabric->type->shared))
        return log_fail(&job->log, DESCANT_MEMORY,
                        "no memory to leave the lent memory to the caller");
    job_destroy(job, true);
    return DESCANT_OK;
}

descant_status descant_free(float *memory)
{
    if (memory != NULL && !kept_give(memory))
        return log_fail(
            NULL, DESCANT_INVALID,
            "descant_free: descant_leave has kept no memory that begins there");
    return DESCANT_OK;
}
