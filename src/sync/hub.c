/* SPDX-License-Identifier: MIT */
/* The hub of a star: a rank that all others are connected with, and that owns all slices
 * of the vector. It has no workers, and no model of its own: it takes the plan and the
 * segments of the first trainer that comes, and the names of its tables. From then on it
 * is a job whose shadow does nothing but come to each round when it is called, and bring
 * nothing. So it has G and s, or the centre, as each trainer has, and gives them to those
 * that come late. */
#include "sync/job.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_NS UINT64_C(50000000)

/* A line of the manifest without its end. */
static char *next_line(char **at)
{
    char *line = *at, *end = strchr(line, '\n');

    if (!*line)
        return NULL;
    *at = end ? end + 1 : line + strlen(line);
    if (end)
        *end = '\0';
    return line;
}

static const char *after(const char *line, const char *word)
{
    size_t length = strlen(word);
    return strncmp(line, word, length) == 0 ? line + length : NULL;
}

static descant_status adopt_segment(struct descant *job, const char *text)
{
    const char *space = strrchr(text, ' ');
    char name[LOG_LINE], *end = NULL;
    bool digits = space && space[1] >= '0' && space[1] <= '9';
    size_t n = digits ? strtoull(space + 1, &end, 10) : 0;

    if (!n || n == SIZE_MAX || *end || space == text ||
        (size_t)(space - text) >= sizeof name)
        return log_fail(&job->log, DESCANT_CORRUPT, "the trainer's segment \"%s\"", text);
    snprintf(name, sizeof name, "%.*s", (int)(space - text), text);
    size_t at;
    descant_status status = replica_check(&job->replica, name, n, &at, &job->log);
    if (status != DESCANT_OK)
        return status;
    float *memory = job->fabric->type->alloc(job->fabric, at, n);
    if (memory == NULL)
        return DESCANT_MEMORY;
    replica_add(&job->replica, memory, n, false);
    return DESCANT_OK;
}

static descant_status adopt_plan(struct descant *job, const char *text)
{
    descant_status status = plan_parse(&job->plan, text, &job->log);

    if (status == DESCANT_OK && job->plan.what != PLAN_MEAN &&
        job->plan.what != PLAN_BLOCK && job->plan.what != PLAN_ELASTIC)
        status = log_fail(&job->log, DESCANT_UNSUPPORTED,
                          "a hub has no part in the plan %s", text);
    job->fabric->wire = (enum wire)job->plan.wire;
    return status;
}

/* Tables are the trainers', who give each other their rows; the hub keeps their lines. */
static descant_status adopt_table(struct descant *job, const char *line)
{
    size_t had = job->hub_tables ? strlen(job->hub_tables) : 0, n = strlen(line);
    char *more = memory_take(had + n + 2);

    if (more == NULL)
        return log_fail(&job->log, DESCANT_MEMORY, "no memory for the list of tables");
    snprintf(more, had + n + 2, "%s%s\n", had ? job->hub_tables : "", line);
    memory_give(job->hub_tables);
    job->hub_tables = more;
    return DESCANT_OK;
}

/* Lines that are not known are compared with the own ones at the start. */
static descant_status adopt_lines(struct descant *job, char *at)
{
    descant_status status = DESCANT_OK;
    const char *text;

    for (char *line; status == DESCANT_OK && (line = next_line(&at));)
        if ((text = after(line, "plan ")))
            status = adopt_plan(job, text);
        else if ((text = after(line, "segment ")))
            status = adopt_segment(job, text);
        else if (after(line, "table "))
            status = adopt_table(job, line);
    return status;
}

descant_status hub_adopt(struct descant *job)
{
    struct fabric *f = job->fabric;
    uint64_t until = clock_now_ns() + (uint64_t)(job->start_s * 1e9);
    const char *manifest;

    while (!(manifest = f->type->manifest(f)) && f->status == DESCANT_OK) {
        if (clock_now_ns() >= until)
            return log_fail(&job->log, DESCANT_TIMEOUT, "no trainer came in %g s",
                            job->start_s);
        f->type->wait(f, clock_now_ns() + LOOK_NS);
    }
    if (f->status != DESCANT_OK)
        return job_broken(job);
    char *copy = memory_take(strlen(manifest) + 1);
    if (copy == NULL)
        return log_fail(&job->log, DESCANT_MEMORY, "no memory for the list of segments");
    memcpy(copy, manifest, strlen(manifest) + 1);
    descant_status status = adopt_lines(job, copy);
    memory_give(copy);
    if (status != DESCANT_OK)
        f->type->refuse(f, status, descant_last_error());
    return status;
}

/* The own manifest, which is in memory, with the lines of tables. */
char *hub_manifest(const struct descant *job, char *manifest)
{
    if (job->hub_tables == NULL || manifest == NULL)
        return manifest;
    size_t room = strlen(manifest) + strlen(job->hub_tables) + 1;
    char *text = memory_take(room);
    if (text != NULL)
        snprintf(text, room, "%s%s", manifest, job->hub_tables);
    memory_give(manifest);
    return text;
}

/* A job without tables waits for trainers that come again; of one with tables the hub has
 * but a part. */
descant_status hub_finish(struct descant *job)
{
    const struct fabric *f = job->fabric;
    bool alone = false;

    while (!(atomic_load_explicit(&f->ended, memory_order_relaxed) && alone)) {
        if (job->hub_tables != NULL && alone)
            return job_break(job, log_fail(&job->log, DESCANT_ENDED,
                                           "all trainers have gone, and the tables with "
                                           "them: start the job anew"));
        if (atomic_load(&job->failure) != 0)
            return job_broken(job);
        clock_sleep_until(clock_now_ns() + LOOK_NS);
        alone = atomic_load_explicit(&f->others, memory_order_acquire) == 0;
    }
    shadow_stop(job);
    job_becomes(job, JOB_SERVES, JOB_FINISHED);
    return DESCANT_OK;
}
