/* SPDX-License-Identifier: MIT */
/* An MPI job whose ranks are all on one host exchanges over that host's memory, as a job
 * over shm, several times as fast as by messages. MPI keeps three tasks: it finds the
 * ranks, compares their manifests with the same messages as between hosts, and holds each
 * rank's close until all have left, since MPI_Finalize would burn a core for as long.
 *
 * A plan with a quorum stays with messages, for rounds over shm wait for all.
 *
 * 1. Ranks tell each other everything over the world until all have met over the memory.
 *    The world is polled until then, for MPI moves nothing by itself, and not again
 *    before close.
 * 2. All of it runs in open, start and close, in the caller's one thread. */
#include "sync/job.h"

#include "sync/launcher.h"

#define SERVE_NS UINT64_C(5000000)
#define SAY_NS UINT64_C(5000000000)

descant_status world_settle(struct descant *job)
{
    struct fabric *world = job->fabric;
    struct fabric_options options = {.address = world->machine_job, .rank = world->rank,
                                     .size = world->size, .start_s = job->start_s,
                                     .wire = (enum wire)job->plan.wire, .log = &job->log};
    if (world->machine_job == NULL || job->plan.quorum > 0)
        return DESCANT_OK;
    job->world = world;
    job->fabric = NULL;
    descant_status status = fabric_of_host->open(&job->fabric, &options);
    if (status == DESCANT_OK)
        log_say(&job->log, DESCANT_DEBUG,
                "all ranks are on one host, and exchange in its memory");
    return status;
}

descant_status world_meet(struct descant *job, const char *manifest, int threads,
                          uint64_t until)
{
    struct fabric *world = job->world;
    const struct fabric_start start = {.manifest = manifest, .n = 1, .room = 1,
                                       .collective = true, .threads = threads};
    struct fabric_part part;
    if (world == NULL)
        return DESCANT_OK;
    descant_status status = world->type->start(world, &start);
    if (status != DESCANT_OK)
        return status;
    /* a state of one float, which no rank takes: once it is done all agree */
    struct extent extent = {.n = 1, .p = world->contribution};
    struct vector in = {.n = 1, .n_extents = 1, .extents = &extent};
    const struct exchange x = {.kind = EXCHANGE_STATE, .in = &in, .n = 1};
    status = world->type->begin(world, &x);
    if (status != DESCANT_OK)
        return status;
    uint64_t say = clock_now_ns() + SAY_NS;
    for (;;) {
        switch (world->type->poll(world, &part)) {
        case FABRIC_DONE:
            return DESCANT_OK;
        case FABRIC_FAILED:
            return world->status;
        case FABRIC_WORKED:
        case FABRIC_PART:
            break;
        default:
            if (clock_now_ns() >= until)
                return waits_timeout(world, job->start_s, &job->log);
            world->type->wait(world, until);
            if (clock_now_ns() < say)
                break;
            waits_say_start(world, job->start_s, &job->log);
            say = UINT64_MAX;
        }
    }
}

descant_status world_drive(struct descant *job, uint64_t until, uint64_t *waited)
{
    struct fabric_part part;
    descant_status status;
    uint64_t bound;
    if (job->world == NULL)
        return job_drive(job, false, until, waited);
    do {
        job->world->type->poll(job->world, &part);
        bound = clock_now_ns() + SERVE_NS;
        status = job_drive(job, false, bound < until ? bound : until, waited);
    } while (status == DESCANT_TIMEOUT && bound < until);
    return status;
}
