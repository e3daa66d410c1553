/* SPDX-License-Identifier: MIT */
/* Work by need: descant_deal_begin and the calls that follow it. The fabric deals. A call
 * that waits moves messages whenever nobody else does, since many plans have no thread
 * that would (agree.c does so, too). What an exchange brings, and that it has merged, is
 * told to the fabric in drive.c. */
#include "sync/job.h"

#define LOOK_NS UINT64_C(2000000)

static const struct fabric_deal *enter(struct descant *job, const char *call,
                                       descant_status *status)
{
    *status = DESCANT_OK;
    if (job == NULL || *job->parent == 0 || atomic_load(&job->failure) != 0)
        *status = job_check(job, JOB_STARTED, call);
    else if (atomic_load(&job->state) == JOB_OPEN)
        *status = log_fail(&job->log, DESCANT_ORDER, "%s: the job has not started", call);
    else if (!job->fabric->type->deal)
        *status = log_fail(&job->log, DESCANT_UNSUPPORTED,
                           "%s: all trainers of this job are on one machine, and can "
                           "count in its memory", call);
    return *status == DESCANT_OK ? job->fabric->type->deal : NULL;
}

descant_status descant_deal_begin(struct descant *job, const struct descant_items *done,
                                  size_t n)
{
    descant_status status;
    const struct fabric_deal *deal = enter(job, "descant_deal_begin", &status);
    if (deal == NULL)
        return status;
    for (size_t k = 0; k < n; k++)
        if (done[k].from >= done[k].to)
            return log_fail(&job->log, DESCANT_INVALID,
                            "descant_deal_begin: items from %llu to %llu",
                            (unsigned long long)done[k].from,
                            (unsigned long long)done[k].to);
    bool waits = job->plan.when == PLAN_EVERY && job->plan.delay == 0;
    return deal->begin(job->fabric, done, n, waits)
               ? DESCANT_OK
               : log_fail(&job->log, DESCANT_MEMORY, "no memory for items");
}

descant_status descant_deal_end(struct descant *job, uint64_t end)
{
    descant_status status;
    const struct fabric_deal *deal = enter(job, "descant_deal_end", &status);
    if (deal != NULL)
        deal->end(job->fabric, end);
    return status;
}

/* After finish no messages move, and none need to. */
static descant_status serve(struct descant *job)
{
    struct fabric *f = job->fabric;
    descant_status status = DESCANT_OK;
    if (atomic_load(&job->state) == JOB_FINISHED ||
        pthread_mutex_trylock(&job->machine) != 0)
        return DESCANT_OK;
    f->type->serve(f);
    if (f->status != DESCANT_OK)
        status = job_broken(job);
    pthread_mutex_unlock(&job->machine);
    return status;
}

descant_status descant_deal_take(struct descant *job, double wait_s, uint64_t *item)
{
    descant_status status;
    const struct fabric_deal *deal = enter(job, "descant_deal_take", &status);
    if (deal == NULL)
        return status;
    if (item == NULL || !(wait_s >= 0))
        return log_fail(&job->log, DESCANT_INVALID, "descant_deal_take: wait_s %g",
                        wait_s);
    uint64_t until = clock_now_ns() + (uint64_t)(wait_s < 1e9 ? wait_s * 1e9 : 1e18);
    while (!deal->take(job->fabric, item)) {
        if (atomic_load(&job->failure) != 0)
            return job_broken(job);
        status = serve(job);
        if (status != DESCANT_OK || deal->take(job->fabric, item))
            return status;
        uint64_t now = clock_now_ns();
        if (now >= until)
            return DESCANT_TIMEOUT;
        clock_sleep_until(now + LOOK_NS < until ? now + LOOK_NS : until);
    }
    return DESCANT_OK;
}

/* Where no exchange carries steps, they are where they are to be at once. */
static bool merges_at_once(const struct descant *job)
{
    return job->plan.when == PLAN_NEVER || job->plan.what == PLAN_GRADIENT;
}

descant_status descant_deal_done(struct descant *job, uint64_t item)
{
    descant_status status;
    const struct fabric_deal *deal = enter(job, "descant_deal_done", &status);
    if (deal == NULL)
        return status;
    deal->done(job->fabric, item);
    if (merges_at_once(job)) {
        deal->brings(job->fabric);
        deal->merged(job->fabric);
    }
    return DESCANT_OK;
}

descant_status descant_deal_back(struct descant *job, uint64_t item)
{
    descant_status status;
    const struct fabric_deal *deal = enter(job, "descant_deal_back", &status);
    if (deal != NULL)
        deal->back(job->fabric, item);
    return status;
}

descant_status descant_deal_known(struct descant *job, struct descant_items *out,
                                  size_t room, size_t *n)
{
    descant_status status;
    const struct fabric_deal *deal = enter(job, "descant_deal_known", &status);
    if (deal == NULL)
        return status;
    if (n == NULL || (out == NULL && room > 0))
        return log_fail(&job->log, DESCANT_INVALID,
                        "descant_deal_known: nowhere to put it");
    *n = deal->known(job->fabric, out, room);
    return DESCANT_OK;
}

descant_status descant_deal_rest(struct descant *job)
{
    descant_status status;
    const struct fabric_deal *deal = enter(job, "descant_deal_rest", &status);
    if (deal != NULL)
        deal->rest(job->fabric);
    return status;
}
