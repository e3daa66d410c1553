/* SPDX-License-Identifier: MIT */
/* A job begins: open, segments and tables, start. Its rounds are driven in drive.c, its
 * end is in end.c, the workers' part in step.c, the sync thread in shadow.c, reloads and
 * outer state in outer.c, figures in figures.c. */
#include "sync/job.h"

#include "sync/launcher.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define START_MOST_S 1e9        /* 30 years, which a clock of nanoseconds can hold */
#define START_SAY_NS UINT64_C(5000000000)

struct descant_options descant_options_default(void)
{
    return (struct descant_options){.rank = -1, .workers = 1, .start_s = 300};
}

/* ------------------------------------------------------------------ open */

static descant_status make_parent_mark(struct descant *job)
{
    size_t page = machine_page();
    void *mark = memory_refuse() ? MAP_FAILED
                                 : mmap(NULL, page, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mark == MAP_FAILED)
        return log_fail(&job->log, DESCANT_MEMORY, "no memory for a page");
    if (madvise(mark, page, MADV_WIPEONFORK) != 0) {
        munmap(mark, page);
        return log_fail(&job->log, DESCANT_SYSTEM, "madvise(MADV_WIPEONFORK): %s",
                        strerror(errno));
    }
    *(unsigned char *)mark = 1;
    job->parent = mark;
    return DESCANT_OK;
}

static descant_status check_options(const struct descant_options *o,
                                    const struct log *log)
{
    if (o->size < 0)
        return log_fail(log, DESCANT_BAD_SIZE, "size %d: from 1, or 0 for the launcher's",
                        o->size);
    if (o->rank < -1)
        return log_fail(log, DESCANT_BAD_RANK,
                        "rank %d: from 0, or -1 for the launcher's", o->rank);
    if (o->workers < 1 || o->workers > WORKERS_MAX)
        return log_fail(log, DESCANT_INVALID, "workers %d: from 1 to %d", o->workers,
                        WORKERS_MAX);
    if (!(o->sync_cpu >= 0 && o->sync_cpu <= 1))
        return log_fail(log, DESCANT_INVALID, "sync_cpu %g: a share of one core, 0 to 1",
                        o->sync_cpu);
    if (!(o->sync_rate >= 0) || !(o->start_s >= 0))     /* nor NaN */
        return log_fail(log, DESCANT_INVALID, "sync_rate and start_s cannot be negative");
    return DESCANT_OK;
}

static descant_status open_fabric(struct descant *job, const struct descant_options *o)
{
    struct launcher launcher;
    descant_status status = launcher_read(&launcher, o, &job->log);
    if (status != DESCANT_OK)
        return status;
    if (launcher.size > 0 && !owners_fit(job, launcher.size))
        return DESCANT_INVALID;
    const struct fabric_type *type = NULL;
    const char *rest = "";
    job->numbered = launcher.numbered;
    status = launcher_fabric(&launcher, &type, &rest, &job->log);
    if (status != DESCANT_OK)
        return status;
    struct fabric_options options = {.address = rest,
                                     .rank = launcher.rank,
                                     .size = launcher.size,
                                     .start_s = job->start_s,
                                     .rate = job->plan.when == PLAN_SHADOW
                                                 ? job->sync_rate : 0,
                                     .wire = (enum wire)job->plan.wire,
                                     .parks = job->plan.when == PLAN_EVERY &&
                                              job->plan.delay == 0,
                                     .hub = o->hub != 0,
                                     .owned = o->owned != 0,
                                     .log = &job->log};
    status = type->open(&job->fabric, &options);
    if (status != DESCANT_OK)
        return status;
    job->hub = o->hub != 0;
    if (job->hub && !job->fabric->hub)
        return log_fail(&job->log, DESCANT_BAD_ADDRESS,
                        "\"%s\": the address of a hub is tcp:HOST:PORT,star",
                        launcher.address);
    job->log.rank = job->hub ? -1 : job->fabric->rank;
    char plan[256];
    plan_text(&job->plan, plan, sizeof plan);
    log_say(&job->log, DESCANT_DEBUG, "descant %s, job %s (%s), rank %d, plan %s",
            DESCANT_VERSION, launcher.address, launcher.why, job->fabric->rank, plan);
    return world_settle(job);
}

static descant_status fill(struct descant *job, const struct descant_options *o)
{
    descant_status status = check_options(o, &job->log);
    if (status != DESCANT_OK)
        return status;
    const char *given = o->plan ? o->plan : getenv("DESCANT_PLAN");
    const char *plan = o->hub ? NULL : given;   /* a hub has that of its trainers */
    status = plan_parse(&job->plan, plan && *plan ? plan : "shadow-easgd", &job->log);
    if (status == DESCANT_OK && job->plan.when == PLAN_CONTROL)
        status = log_fail(&job->log, DESCANT_UNSUPPORTED,
                          "the plan bsp is no plan of a job: its trainers give gradients "
                          "to a control process. descant bsp run is one, for programs "
                          "that use descant_ml.h; descant train --sync bsp has its own");
    if (status != DESCANT_OK)
        return status;
    job->workers_wanted = o->workers;
    job->start_s = o->start_s < START_MOST_S ? o->start_s : START_MOST_S;
    job->sync_cpu = o->sync_cpu;
    job->sync_rate = o->sync_rate;
    job->cores = machine_cores();
    status = owners_take_options(job, o);
    if (status == DESCANT_OK)
        status = make_parent_mark(job);
    if (status == DESCANT_OK)
        status = workers_init(&job->workers, &job->log);
    if (status == DESCANT_OK)
        status = open_fabric(job, o);
    if (status == DESCANT_OK)
        tables_init(&job->tables, job->fabric, &job->plan);
    return status;
}

descant_status descant_open(struct descant **out, const struct descant_options *options)
{
    if (out == NULL || options == NULL)
        return log_fail(NULL, DESCANT_INVALID, "descant_open: no %s",
                        out ? "options" : "job");
    struct log log = {.fn = options->log, .user = options->log_user, .rank = -1};
    descant_status logs = log.fn ? DESCANT_OK : log_default(&log);
    if (logs != DESCANT_OK)
        return logs;
    struct descant *job = memory_take(sizeof *job);
    if (job == NULL)
        return log_fail(&log, DESCANT_MEMORY, "no memory for a job");
    pthread_mutex_init(&job->machine, NULL);
    pthread_mutex_init(&job->breaking, NULL);
    pthread_mutex_init(&job->sharing, NULL);
    pthread_cond_init(&job->turn, NULL);
    job->log = log;
    events_init(&job->events, options);
    replica_init(&job->replica);
    descant_status status = fill(job, options);
    if (status != DESCANT_OK) {
        job_destroy(job, false);
        return status;
    }
    *out = job;
    return DESCANT_OK;
}

/* ------------------------------------------------------------------ segments */

float *descant_alloc(struct descant *job, const char *name, size_t n)
{
    size_t at;
    if (job_check(job, JOB_OPEN, "descant_alloc") != DESCANT_OK ||
        replica_check(&job->replica, name, n, &at, &job->log) != DESCANT_OK)
        return NULL;
    pthread_mutex_lock(&job->sharing);
    float *memory = job->fabric->type->alloc(job->fabric, at, n);
    pthread_mutex_unlock(&job->sharing);
    if (memory != NULL)
        replica_add(&job->replica, memory, n, false);
    return memory;
}

descant_status descant_attach(struct descant *job, const char *name, float *memory,
                              size_t n)
{
    size_t at;
    descant_status status = job_check(job, JOB_OPEN, "descant_attach");
    if (status == DESCANT_OK && memory == NULL)
        status = log_fail(&job->log, DESCANT_INVALID, "descant_attach: no memory");
    if (status == DESCANT_OK)
        status = replica_check(&job->replica, name, n, &at, &job->log);
    const struct replica_segment *other =
        status ? NULL : replica_overlap(&job->replica, memory, n);
    if (other != NULL)
        status = log_fail(&job->log, DESCANT_INVALID,
                          "the memory of '%s' overlaps that of '%s', which is attached: "
                          "each float is of one segment",
                          name, other->name);
    if (status == DESCANT_OK)
        replica_add(&job->replica, memory, n, true);
    return status;
}

descant_status descant_state(struct descant *job, const char *name, float *memory,
                             size_t n, int squares)
{
    descant_status status = job_check(job, JOB_OPEN, "descant_state");
    if (status == DESCANT_OK && squares && !plan_keeps_squares(&job->plan))
        status = log_fail(&job->log, DESCANT_UNSUPPORTED,
                          "'%s' must not fall below zero, and the merges of the plan %s, "
                          "which go beyond a mean, may take it there: use another plan, "
                          "or leave the state to each trainer",
                          name ? name : "", job->plan.preset);
    return status == DESCANT_OK ? descant_attach(job, name, memory, n) : status;
}

descant_status descant_detach(struct descant *job, const char *name)
{
    bool finished =
        job != NULL && *job->parent && atomic_load(&job->state) == JOB_FINISHED;
    descant_status status = job_check(job, finished ? JOB_FINISHED : JOB_STARTED,
                                      "descant_detach");
    if (status != DESCANT_OK)
        return status;
    struct replica_segment *s = name ? replica_find(&job->replica, name) : NULL;
    if (s == NULL)
        return log_fail(&job->log, DESCANT_INVALID, "there is no segment '%s'",
                        name ? name : "");
    pthread_mutex_lock(&job->machine);          /* no exchange reads the segment now */
    pthread_mutex_lock(&job->replica.lock);
    round_keep(&job->round, s);
    if (!replica_detach(&job->replica, s, !finished))
        status = log_fail(&job->log, DESCANT_MEMORY,
                          "no memory for the last values of '%s'", name);
    pthread_mutex_unlock(&job->replica.lock);
    pthread_mutex_unlock(&job->machine);
    return status;
}

descant_status descant_share(struct descant *job, const char *name, size_t bytes,
                             void **block)
{
    if (job == NULL || *job->parent == 0 || atomic_load(&job->failure) != 0)
        return job_check(job, JOB_OPEN, "descant_share");
    if (name == NULL || *name == '\0' || bytes == 0 || block == NULL)
        return log_fail(&job->log, DESCANT_INVALID,
                        "descant_share needs a name and bytes");
    pthread_mutex_lock(&job->sharing);
    descant_status status = job->fabric->type->share(job->fabric, name, bytes, block);
    pthread_mutex_unlock(&job->sharing);
    return status;
}

descant_status descant_table(struct descant *job, const char *name, size_t rows,
                             size_t width, float **table)
{
    descant_status status = job_check(job, JOB_OPEN, "descant_table");
    if (status == DESCANT_OK && table == NULL)
        status = log_fail(&job->log, DESCANT_INVALID, "descant_table: nowhere to put it");
    if (status != DESCANT_OK)
        return status;
    pthread_mutex_lock(&job->sharing);
    status = tables_add(&job->tables, name, rows, width, table);
    pthread_mutex_unlock(&job->sharing);
    return status;
}

descant_status descant_table_state(struct descant *job, const float *table, size_t width,
                                   float **state)
{
    descant_status status = job_check(job, JOB_OPEN, "descant_table_state");
    if (status == DESCANT_OK && state == NULL)
        status = log_fail(&job->log, DESCANT_INVALID,
                          "descant_table_state: nowhere to put it");
    if (status != DESCANT_OK)
        return status;
    pthread_mutex_lock(&job->sharing);
    status = tables_add_state(&job->tables, table, width, state);
    pthread_mutex_unlock(&job->sharing);
    return status;
}

/* ------------------------------------------------------------------ start */

static bool has_shadow(const struct descant *job)
{
    return job->plan.when == PLAN_SHADOW || tables_part_bytes(&job->tables) > 0 ||
           (job->plan.when == PLAN_EVERY && job->plan.delay > 0) || job_answers(job);
}

static descant_status start_fabric(struct descant *job)
{
    struct fabric *f = job->fabric;
    char plan[256];
    f->notes = &job->events.notes;
    peers_tell(job);
    plan_text(&job->plan, plan, sizeof plan);
    if (job->hub) {             /* whose rounds are those of others */
        job->plan.when = PLAN_SHADOW;
        job->plan.every = job->plan.delay = 0;
    }
    char *manifest = replica_manifest(&job->replica, plan);
    manifest = manifest ? tables_manifest(&job->tables, manifest) : NULL;
    manifest = owners_manifest(job, manifest);
    manifest = hub_manifest(job, manifest);
    if (manifest == NULL)
        return log_fail(&job->log, DESCANT_MEMORY, "no memory for the list of segments");
    if (job->plan.quorum > 0 && !f->quorums && f->size != 1) {
        memory_give(manifest);
        return log_fail(&job->log, DESCANT_UNSUPPORTED,
                        "the plan has quorum=, and rounds over %s wait for all trainers; "
                        "jobs over TCP or MPI do not: give tcp:HOST:PORT, or mpi",
                        f->type->name);
    }
    struct fabric_start start = round_needs(&job->plan, f, &job->replica);
    start.manifest = manifest;
    start.threads = job->workers_wanted + has_shadow(job);
    start.rows_bytes = job->hub_tables ? INT_MAX : tables_part_bytes(&job->tables);
    start.rows_base = tables_base(&job->tables);
    start.numbered = job->owners.n > 0;
    uint64_t until = clock_now_ns() + (uint64_t)(job->start_s * 1e9);
    descant_status status = world_meet(job, manifest, start.threads, until);
    pthread_mutex_lock(&job->sharing);
    if (status == DESCANT_OK)
        status = f->type->start(f, &start);
    pthread_mutex_unlock(&job->sharing);
    memory_give(manifest);
    if (status == DESCANT_OK)
        status = tables_start(&job->tables);
    if (status == DESCANT_OK && replica_fix(&job->replica) != DESCANT_OK)
        status =
            log_fail(&job->log, DESCANT_MEMORY, "no memory for the list of segments");
    if (status == DESCANT_OK)
        status = round_init(&job->round, &job->plan, f, &job->replica);
    if (status != DESCANT_OK)
        return status;
    job->round_made = true;
    return job_take_outer(job);
}

/* A trainer that joins under a plan that counts steps begins where the others are: at a
 * round's start. */
static descant_status join_round(struct descant *job, uint64_t until_ns)
{
    uint64_t waited = 0;
    bool delayed = job->plan.delay > 0;
    atomic_store(&job->t, (uint64_t)job->plan.every);
    job->next_due = 1;
    job_round_begins(job, 0, !delayed);
    if (delayed)                /* there steps count from `every` on */
        job->begun_steps = job->brought_steps = job->merged_steps =
            (uint64_t)job->plan.every;
    if (!delayed)
        return job_drive(job, false, until_ns, &waited);
    return round_open(&job->round) == ROUND_FAILED ? job_broken(job) : DESCANT_OK;
}

/* Logs the trainers that the start waits for, after 5, 10, 20, … seconds. */
static descant_status drive_start(struct descant *job, uint64_t until, uint64_t *waited)
{
    uint64_t began = clock_now_ns();
    for (uint64_t after = START_SAY_NS;; after *= 2) {
        bool last = began + after >= until;
        descant_status status = world_drive(job, last ? until : began + after, waited);
        if (status != DESCANT_TIMEOUT || last)
            return status;
        waits_say_start(job->fabric, job->start_s, &job->log);
    }
}

static descant_status meet(struct descant *job)
{
    uint64_t until = clock_now_ns() + (uint64_t)(job->start_s * 1e9), waited = 0;
    round_begin_state(&job->round, job->round.outer_loaded, false);
    descant_status status = drive_start(job, until, &waited);
    if (status == DESCANT_OK && job->fabric->joined && job->plan.when == PLAN_EVERY &&
        job->plan.what != PLAN_GRADIENT && job->plan.what != PLAN_ELASTIC)
        status = join_round(job, until);
    /* the pull brought a gradient; the next mean of the others brings the replica */
    if (status == DESCANT_OK && job->fabric->joined && job->plan.what == PLAN_GRADIENT)
        status = job_introduce(job, false, &waited);
    job->introduced = true;
    if (status == DESCANT_OK)
        status = tables_met(&job->tables);
    if (status == DESCANT_TIMEOUT)
        waits_timeout(job->fabric, job->start_s, &job->log);
    return status;
}

descant_status descant_start(struct descant *job)
{
    descant_status status = job_check(job, JOB_OPEN, "descant_start");
    if (status == DESCANT_OK && job->hub)
        status = hub_adopt(job);
    if (status != DESCANT_OK)
        return status;
    if (job->replica.n_segments == 0 && job->plan.what != PLAN_GRADIENT)
        return log_fail(&job->log, DESCANT_ORDER,
                        "descant_start: no segment was declared");
    pthread_mutex_lock(&job->machine);          /* other threads may ask for waits */
    status = start_fabric(job);
    if (status == DESCANT_OK) {
        job->started_ns = job->pace.paid_ns = clock_now_ns();
        status = meet(job);
    }
    pthread_mutex_unlock(&job->machine);
    if (status == DESCANT_OK && has_shadow(job))
        status = shadow_start(job);
    if (status == DESCANT_OK)
        status = owners_start(job);
    if (status == DESCANT_OK)
        status = events_start(job);
    if (status != DESCANT_OK && job->hub)
        job->fabric->type->refuse(job->fabric, status, descant_last_error());
    if (status != DESCANT_OK)           /* half started: only close is allowed */
        return job_break(job, status);
    job_becomes(job, JOB_OPEN, job->hub ? JOB_SERVES : JOB_STARTED);
    if (job->numbered)
        launcher_started();
    return DESCANT_OK;
}
