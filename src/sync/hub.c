/* SPDX-License-Identifier: MIT */
/* The hub of a star: a rank that all others are connected with, and that owns all slices
 * of the vector. It has no workers, and no model of its own: it takes the plan and the
 * segments of the first trainer that comes. From then on it is a job whose shadow does
 * nothing but come to each round when it is called, and bring nothing. So it has G and s,
 * or the centre, as each trainer has, and gives them to those that come late. */
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
    size_t n = space ? strtoull(space + 1, &end, 10) : 0;

    if (!n || *end || space == text || (size_t)(space - text) >= sizeof name)
        return log_fail(&job->log, DESCANT_CORRUPT, "the trainer's segment \"%s\"", text);
    snprintf(name, sizeof name, "%.*s", (int)(space - text), text);
    return descant_alloc(job, name, n) ? DESCANT_OK : DESCANT_MEMORY;
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
        else if ((text = after(line, "table ")))
            status = log_fail(&job->log, DESCANT_UNSUPPORTED,
                              "a hub does not hold tables yet: %s", text);
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
    return status;
}

/* A death after the last round ends nothing: there is no more to be done. */
descant_status hub_finish(struct descant *job)
{
    const struct fabric *f = job->fabric;

    while (!(atomic_load_explicit(&f->ended, memory_order_relaxed) &&
             atomic_load_explicit(&f->others, memory_order_relaxed) == 0)) {
        if (atomic_load(&job->failure) != 0)
            return job_broken(job);
        clock_sleep_until(clock_now_ns() + LOOK_NS);
    }
    shadow_stop(job);
    job_becomes(job, JOB_STARTED, JOB_FINISHED);
    return DESCANT_OK;
}
