/* SPDX-License-Identifier: MIT */
/* The courier: a thread that moves the bytes of items (descant_deal_feed). A shadow rests
 * for what its budget says, and some plans have no shadow, but a trainer that waits for
 * bytes cannot train. So the courier sleeps on the fabric and, whenever something has
 * come, lets messages move, unless another thread does so just then. It begins nothing by
 * itself, and its CPU time is not the shadow's. */
#include "sync/job.h"

#define LOOK_NS UINT64_C(20000000)      /* items that were read are told after so long */

static void *run(void *of)
{
    struct descant *job = of;
    struct fabric *f = job->fabric;

    while (!atomic_load(&job->courier_stop)) {
        bool held = pthread_mutex_trylock(&job->machine) == 0;
        if (held && atomic_load(&job->failure) == 0) {
            f->type->serve(f);
            if (f->status != DESCANT_OK)
                job_broken(job);
        }
        if (held)
            pthread_mutex_unlock(&job->machine);
        uint64_t until = clock_now_ns() + LOOK_NS;
        if (held && atomic_load(&job->failure) == 0)
            f->type->wait(f, until);
        else
            clock_sleep_until(until - LOOK_NS / 2);
    }
    return NULL;
}

descant_status courier_start(struct descant *job)
{
    sigset_t before;

    if (job->courier_runs || job->fabric->type->serve == NULL)
        return DESCANT_OK;
    signals_hold(&before);
    int error = memory_refuse() ? -1 : pthread_create(&job->courier, NULL, run, job);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return log_fail(&job->log, DESCANT_SYSTEM,
                        "the thread that moves items cannot be started");
    job->courier_runs = true;
    return DESCANT_OK;
}

void courier_stop(struct descant *job)
{
    if (!job->courier_runs)
        return;
    atomic_store(&job->courier_stop, true);
    if (job->fabric->type->wake)
        job->fabric->type->wake(job->fabric);
    pthread_join(job->courier, NULL);
    job->courier_runs = false;
}
