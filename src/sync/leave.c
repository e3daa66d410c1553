/* SPDX-License-Identifier: MIT */
/* The end of a job: what is given back, and what stays with the caller. */
#include "sync/job.h"

#include <sys/mman.h>

/* What this machine has said to take is taken, or the table that it leaves to its other trainers
 * is not the one on which all machines agree. */
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

static void keep_segments(struct descant *job)
{
    for (size_t i = 0; i < job->replica.n_segments; i++) {
        struct segment *s = &job->replica.segments[i];
        if (s->keeps && !kept_settle(s->keeps))
            log_say(&job->log, DESCANT_WARNING, "the memory of '%s' cannot be made this process's "
                    "own: who joins the job may change it", s->name);
    }
}

void job_destroy(struct descant *job, bool keeps)
{
    shadow_stop(job);
    events_stop(job);
    take_rows(job);
    tables_stop(&job->tables);
    if (keeps)
        keep_segments(job);
    if (job->fabric != NULL)
        job->fabric->type->close(job->fabric);
    if (job->world != NULL)
        job->world->type->close(job->world);
    tables_fini(&job->tables);
    if (job->round_made)
        round_fini(&job->round);
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

descant_status descant_close(struct descant *job)
{
    if (job == NULL)
        return DESCANT_OK;
    if (*job->parent == 0)
        return log_fail(NULL, DESCANT_FORKED, "descant_close: the job is the parent's");
    descant_status status = events_refuse(job, "descant_close");
    if (status == DESCANT_OK)
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
        struct segment *s = &r->segments[i];
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
    if (job == NULL)
        return DESCANT_OK;
    if (*job->parent == 0)
        return log_fail(NULL, DESCANT_FORKED, "descant_leave: the job is the parent's");
    descant_status status = events_refuse(job, "descant_leave");
    if (status != DESCANT_OK)
        return status;
    if (!prepare_to_keep(&job->replica, job->fabric->type->shared))
        return log_fail(&job->log, DESCANT_MEMORY, "no memory to keep what the job has lent");
    job_destroy(job, true);
    return DESCANT_OK;
}

descant_status descant_free(float *memory)
{
    if (memory != NULL && !kept_give(memory))
        return log_fail(NULL, DESCANT_INVALID, "descant_free: descant_leave has kept no memory "
                        "that begins there");
    return DESCANT_OK;
}
