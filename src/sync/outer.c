/* SPDX-License-Identifier: MIT */
/* For checkpoints: pausing the rounds while the replica is overwritten, the reload that
 * gives it to all, and the outer state as bytes.
 *
 *   pause    takes the machine and gives up the open round, whose result would be old.
 *            From here until reload Descant touches neither replica nor G and s
 *   load     overwrites G and s in place; a centre, which others use, is kept aside.
 *            Before start, where there are none, the bytes are kept, and the first STATE
 *            gives them to all
 *   reload   this trainer's next round is a STATE, whose source is the first that
 *            reloads. The open rounds of others become one, too, or are merged before it
 *
 * The bytes are a header, the number of rounds that made the outer state (absent in
 * version 1: then 0), and the vectors, segment after segment without gaps. */
#include "sync/job.h"

#include <string.h>

/* ------------------------------------------------------------------ pause and reload */

descant_status descant_pause(struct descant *job)
{
    descant_status status = job_check(job, JOB_STARTED, "descant_pause");
    if (status != DESCANT_OK)
        return status;
    if (job->plan.when == PLAN_NEVER)
        return log_fail(&job->log, DESCANT_UNSUPPORTED,
                        "the plan none has no rounds to tell the others by");
    pthread_mutex_lock(&job->machine);
    round_abandon(&job->round);
    job->fabric->outer_loads = true;
    job->paused = true;
    job_becomes(job, JOB_STARTED, JOB_PAUSED);
    pthread_mutex_unlock(&job->machine);
    return DESCANT_OK;
}

descant_status descant_reload(struct descant *job)
{
    descant_status status = job_check(job, JOB_PAUSED, "descant_reload");
    if (status != DESCANT_OK)
        return status;
    pthread_mutex_lock(&job->machine);
    job->paused = false;
    atomic_store(&job->reload, true);
    job_becomes(job, JOB_PAUSED, JOB_STARTED);
    pthread_mutex_unlock(&job->machine);
    shadow_ring(job);
    return DESCANT_OK;
}

/* ------------------------------------------------------------------ outer state */

struct outer_header {
    char magic[8];
    uint32_t version, vectors;
    uint64_t floats, check;     /* check: FNV-1a of the bytes that follow */
};

enum { VERSION = 2, VERSION_WITHOUT_ROUNDS = 1 };

static const char outer_magic[8] = "dsc-out";

static int outer_vectors(const struct descant *job, float *vectors[2])
{
    struct fabric *f = job->fabric;
    vectors[0] = job->plan.what == PLAN_ELASTIC ? f->center : f->outer[0];
    vectors[1] = f->outer[1];
    return job->plan.what == PLAN_ELASTIC ? 1 : job->plan.what == PLAN_BLOCK ? 2 : 0;
}

static size_t outer_floats(const struct descant *job)
{
    size_t sum = 0;
    for (size_t i = 0; i < job->replica.n_segments; i++)
        sum += job->replica.segments[i].n;
    return sum;
}

/* A hub's replica is the last result, or the centre, and there is no trainer that has it
 * in its checkpoint: it is one vector more of the hub's outer state. */
static uint32_t count_vectors(const struct descant *job, float *vectors[2])
{
    return (uint32_t)(outer_vectors(job, vectors) + job->hub);
}

/* Copies to the bytes, or from them: one of the two is not NULL. */
static void move_outer(const struct descant *job, float *const vectors[2],
                       unsigned char *to, const unsigned char *from)
{
    float *unused[2];
    uint32_t n = count_vectors(job, unused);
    size_t at = 0;
    for (uint32_t v = 0; v < n; v++)
        for (size_t i = 0; i < job->replica.n_segments; i++) {
            const struct replica_segment *s = &job->replica.segments[i];
            size_t bytes = s->n * sizeof(float);
            bool replica = job->hub && v + 1 == n;
            float *p = replica ? s->memory : vectors[v] + s->at;
            if (to && replica && job->plan.what == PLAN_ELASTIC)
                p = vectors[0] + s->at;
            if (to)
                memcpy(to + at, p, bytes);
            else
                memcpy(p, from + at, bytes);
            at += bytes;
        }
}

descant_status descant_outer_save(struct descant *job, void *memory, size_t *bytes)
{
    int now = job != NULL && *job->parent ? atomic_load(&job->state) : JOB_STARTED;
    descant_status status = job_check(job, now == JOB_PAUSED || now == JOB_FINISHED ||
                                               now == JOB_SERVES
                                               ? (enum job_state)now : JOB_STARTED,
                                      "descant_outer_save");
    if (status != DESCANT_OK)
        return status;
    if (bytes == NULL)
        return log_fail(&job->log, DESCANT_INVALID, "descant_outer_save needs *bytes");
    float *vectors[2];
    struct outer_header header = {.version = VERSION,
                                  .vectors = count_vectors(job, vectors),
                                  .floats = outer_floats(job)};
    memcpy(header.magic, outer_magic, sizeof header.magic);
    size_t payload =
        sizeof(uint64_t) + header.vectors * (size_t)header.floats * sizeof(float);
    size_t room = *bytes;
    *bytes = sizeof header + payload;
    if (memory == NULL)
        return DESCANT_OK;
    if (room < *bytes)
        return log_fail(&job->log, DESCANT_INVALID,
                        "the outer state needs %zu bytes, not %zu", *bytes, room);
    unsigned char *body = (unsigned char *)memory + sizeof header;
    pthread_mutex_lock(&job->machine);
    while (job->round.state >= ROUND_STEPPING)      /* up to where G and s belong to one
                                                       round */
        if (round_advance(&job->round) == ROUND_DONE)
            job_round_done(job, workers_steps(&job->workers));
    memcpy(body, &job->round.outer_rounds, sizeof(uint64_t));
    move_outer(job, vectors, body + sizeof(uint64_t), NULL);
    pthread_mutex_unlock(&job->machine);
    header.check = fnv_add(FNV_BEGIN, body, payload);
    memcpy(memory, &header, sizeof header);
    return DESCANT_OK;
}

/* The vectors in these bytes, and the number of rounds that made them. fits: of this job's
 * segments, which a hub does not know before its start. */
static descant_status read_outer(struct descant *job, const void *memory, size_t bytes,
                                 bool fits, const unsigned char **vectors,
                                 uint64_t *rounds)
{
    struct outer_header header;
    float *own[2];
    uint32_t n = count_vectors(job, own);
    if (memory == NULL || bytes < sizeof header)
        return log_fail(&job->log, DESCANT_CORRUPT, "an outer state of %zu bytes is torn",
                        bytes);
    memcpy(&header, memory, sizeof header);
    if (memcmp(header.magic, outer_magic, sizeof header.magic) != 0 ||
        header.version < VERSION_WITHOUT_ROUNDS || header.version > VERSION)
        return log_fail(&job->log, DESCANT_CORRUPT,
                        "this is no outer state of version %d, nor of one before",
                        VERSION);
    bool floats_fit = n == 0 || header.floats == outer_floats(job);
    if (fits && (header.vectors != n || !floats_fit))
        return log_fail(
            &job->log, DESCANT_CORRUPT,
            "the outer state has %u vectors of %llu floats, this job %u of %zu",
            header.vectors, (unsigned long long)header.floats, n, outer_floats(job));
    size_t before = header.version == VERSION_WITHOUT_ROUNDS ? 0 : sizeof *rounds;
    size_t payload = before + header.vectors * (size_t)header.floats * sizeof(float);
    const unsigned char *body = (const unsigned char *)memory + sizeof header;
    if (bytes != sizeof header + payload ||
        fnv_add(FNV_BEGIN, body, payload) != header.check)
        return log_fail(&job->log, DESCANT_CORRUPT, "the outer state is damaged");
    *rounds = 0;
    memcpy(rounds, body, before);
    *vectors = body + before;
    return DESCANT_OK;
}

/* By the holder of the machine. */
static descant_status set_outer(struct descant *job, const void *memory, size_t bytes)
{
    const unsigned char *from;
    uint64_t rounds;
    float *vectors[2];
    descant_status status = read_outer(job, memory, bytes, true, &from, &rounds);
    if (status != DESCANT_OK)
        return status;
    outer_vectors(job, vectors);
    if (job->plan.what == PLAN_ELASTIC && job->round.loaded == NULL)
        job->round.loaded = memory_take_array(job->replica.n, sizeof(float));
    if (job->plan.what == PLAN_ELASTIC && job->round.loaded == NULL)
        return log_fail(&job->log, DESCANT_MEMORY, "no memory for %zu floats",
                        job->replica.n);
    vectors[0] = job->plan.what == PLAN_ELASTIC ? job->round.loaded : vectors[0];
    round_set_outer(&job->round, rounds);
    move_outer(job, vectors, NULL, from);
    job->round.outer_loaded = true;
    return DESCANT_OK;
}

/* Before start there are no vectors yet. */
static descant_status keep_outer(struct descant *job, const void *memory, size_t bytes)
{
    const unsigned char *vectors;
    uint64_t rounds;
    descant_status status =
        read_outer(job, memory, bytes, !job->hub, &vectors, &rounds);
    if (status != DESCANT_OK)
        return status;
    memory_give(job->outer_kept);
    job->outer_kept = memory_take(bytes);
    job->outer_kept_bytes = bytes;
    if (job->outer_kept == NULL)
        return log_fail(&job->log, DESCANT_MEMORY, "no memory for %zu bytes", bytes);
    memcpy(job->outer_kept, memory, bytes);
    return DESCANT_OK;
}

/* Segments that were declared since it was loaded are missing in it. */
descant_status job_take_outer(struct descant *job)
{
    if (job->outer_kept == NULL)
        return DESCANT_OK;
    descant_status status = set_outer(job, job->outer_kept, job->outer_kept_bytes);
    job->fabric->outer_loads = true;
    memory_give(job->outer_kept);
    job->outer_kept = NULL;
    return status;
}

descant_status descant_outer_load(struct descant *job, const void *memory, size_t bytes)
{
    bool open = job != NULL && *job->parent && atomic_load(&job->state) == JOB_OPEN;
    descant_status status =
        job_check(job, open ? JOB_OPEN : JOB_PAUSED, "descant_outer_load");
    if (status != DESCANT_OK)
        return status;
    pthread_mutex_lock(&job->machine);
    status = open ? keep_outer(job, memory, bytes) : set_outer(job, memory, bytes);
    pthread_mutex_unlock(&job->machine);
    return status;
}
