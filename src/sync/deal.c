/* SPDX-License-Identifier: MIT */
/* Work by need: descant_deal_begin and the calls that follow it; descant_deal_limit and
 * the two calls after it do the same with units of a limit. The fabric deals. A call
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

static descant_status begin(struct descant *job, const struct fabric_deal *deal,
                            enum deal_kind kind, struct fabric_work *work)
{
    work->waits = job->plan.when == PLAN_EVERY && job->plan.delay == 0;
    return deal->begin(job->fabric, kind, work)
               ? DESCANT_OK
               : log_fail(&job->log, DESCANT_MEMORY, "no memory for items");
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
    return begin(job, deal, DEAL_ITEMS,
                 &(struct fabric_work){.done = done, .n = n, .each = 1});
}

descant_status descant_deal_end(struct descant *job, uint64_t end)
{
    descant_status status;
    const struct fabric_deal *deal = enter(job, "descant_deal_end", &status);
    if (deal != NULL)
        deal->end(job->fabric, DEAL_ITEMS, end);
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

static uint64_t after(double wait_s)
{
    return clock_now_ns() + (uint64_t)(wait_s < 1e9 ? wait_s * 1e9 : 1e18);
}

/* Returns false at the time `until`. */
static bool look_again(uint64_t until)
{
    uint64_t now = clock_now_ns();
    if (now < until)
        clock_sleep_until(now + LOOK_NS < until ? now + LOOK_NS : until);
    return now < until;
}

static descant_status take(struct descant *job, enum deal_kind kind, double wait_s,
                           uint64_t most, struct descant_items *items)
{
    const struct fabric_deal *deal = job->fabric->type->deal;
    uint64_t until = after(wait_s);
    while (!deal->take(job->fabric, kind, most, items)) {
        if (atomic_load(&job->failure) != 0)
            return job_broken(job);
        descant_status status = serve(job);
        if (status != DESCANT_OK || deal->take(job->fabric, kind, most, items))
            return status;
        if (!look_again(until))
            return DESCANT_TIMEOUT;
    }
    return DESCANT_OK;
}

descant_status descant_deal_take(struct descant *job, double wait_s, uint64_t *item)
{
    descant_status status;
    struct descant_items items;
    if (enter(job, "descant_deal_take", &status) == NULL)
        return status;
    if (item == NULL || !(wait_s >= 0))
        return log_fail(&job->log, DESCANT_INVALID, "descant_deal_take: wait_s %g",
                        wait_s);
    status = take(job, DEAL_ITEMS, wait_s, 1, &items);
    if (status == DESCANT_OK)
        *item = items.from;
    return status;
}

/* Where no exchange carries steps, they are where they are to be at once. */
static bool merges_at_once(const struct descant *job)
{
    return job->plan.when == PLAN_NEVER || job->plan.what == PLAN_GRADIENT;
}

static void done(struct descant *job, enum deal_kind kind,
                 const struct descant_items *items)
{
    const struct fabric_deal *deal = job->fabric->type->deal;
    deal->done(job->fabric, kind, items);
    if (merges_at_once(job)) {
        deal->brings(job->fabric);
        deal->merged(job->fabric);
    }
}

descant_status descant_deal_done(struct descant *job, uint64_t item)
{
    descant_status status;
    if (enter(job, "descant_deal_done", &status) != NULL)
        done(job, DEAL_ITEMS, &(struct descant_items){item, item + 1});
    return status;
}

descant_status descant_deal_back(struct descant *job, uint64_t item)
{
    descant_status status;
    const struct fabric_deal *deal = enter(job, "descant_deal_back", &status);
    if (deal != NULL)
        deal->back(job->fabric, DEAL_ITEMS, &(struct descant_items){item, item + 1});
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

descant_status descant_deal_limit(struct descant *job, uint64_t spent, uint64_t limit,
                                  uint64_t each)
{
    descant_status status;
    const struct descant_items done = {0, spent};
    const struct fabric_deal *deal = enter(job, "descant_deal_limit", &status);
    if (deal == NULL)
        return status;
    if (each == 0)
        return log_fail(&job->log, DESCANT_INVALID, "descant_deal_limit: each 0");
    deal->end(job->fabric, DEAL_UNITS, limit);
    return begin(job, deal, DEAL_UNITS,
                 &(struct fabric_work){.done = &done, .n = spent > 0, .each = each});
}

descant_status descant_deal_spend(struct descant *job, double wait_s, uint64_t most,
                                  struct descant_items *units)
{
    descant_status status;
    struct descant_items items;
    if (enter(job, "descant_deal_spend", &status) == NULL)
        return status;
    if (units == NULL || most == 0 || !(wait_s >= 0))
        return log_fail(&job->log, DESCANT_INVALID, "descant_deal_spend: wait_s %g",
                        wait_s);
    status = take(job, DEAL_UNITS, wait_s, most, &items);
    if (status == DESCANT_OK)
        *units = items;
    return status;
}

descant_status descant_deal_spent(struct descant *job, const struct descant_items *units,
                                  int made)
{
    descant_status status;
    const struct fabric_deal *deal = enter(job, "descant_deal_spent", &status);
    if (deal == NULL)
        return status;
    if (units == NULL || units->from >= units->to)
        return log_fail(&job->log, DESCANT_INVALID, "descant_deal_spent: no units");
    if (made)
        done(job, DEAL_UNITS, units);
    else
        deal->back(job->fabric, DEAL_UNITS, units);
    return DESCANT_OK;
}

/* --- items with bytes --- */

descant_status descant_deal_feed(struct descant *job, int rank, size_t most)
{
    descant_status status;
    const struct fabric_deal *deal = enter(job, "descant_deal_feed", &status);
    if (deal == NULL)
        return status;
    if (rank < 0 || rank >= job->fabric->size || most == 0)
        return log_fail(&job->log, DESCANT_INVALID,
                        "descant_deal_feed: rank %d of %d, %zu bytes", rank,
                        job->fabric->size, most);
    if (!deal->feed(job->fabric, rank, most))
        return log_fail(&job->log, DESCANT_MEMORY, "no memory for the bytes of items");
    return courier_start(job);
}

/* What has not come, or has no room, may come or have room by and by, but for what is
 * under way when the job has ended. */
static descant_status settle(struct descant *job, enum deal_bytes got, uint64_t until)
{
    switch (got) {
    case DEAL_NONE:
        return DESCANT_ENDED;
    case DEAL_STARVED:
        return log_fail(&job->log, DESCANT_MEMORY, "no memory for the bytes of items");
    case DEAL_LATER:
        if (atomic_load(&job->failure) != 0)
            return job_broken(job);
        if (atomic_load(&job->state) == JOB_FINISHED)
            return DESCANT_ENDED;
        return look_again(until) ? DESCANT_OK : DESCANT_TIMEOUT;
    default:
        return DESCANT_OK;
    }
}

/* After each item the thread that moves messages may have something to do. */
descant_status descant_deal_put(struct descant *job, double wait_s, const void *bytes,
                                size_t n)
{
    descant_status status;
    const struct fabric_deal *deal = enter(job, "descant_deal_put", &status);
    enum deal_bytes got = DEAL_LATER;
    if (deal == NULL)
        return status;
    if (bytes == NULL || n == 0 || !(wait_s >= 0))
        return log_fail(&job->log, DESCANT_INVALID,
                        "descant_deal_put: %zu bytes, wait_s %g", n, wait_s);
    uint64_t until = after(wait_s);
    while (got == DEAL_LATER && status == DESCANT_OK) {
        got = deal->put(job->fabric, bytes, n);
        if (got == DEAL_LARGER)
            return log_fail(&job->log, DESCANT_INVALID,
                            "descant_deal_put: an item of %zu bytes is more than "
                            "descant_deal_feed allows", n);
        status = serve(job);
        if (status == DESCANT_OK)
            status = settle(job, got, until);
    }
    return status;
}

descant_status descant_deal_get(struct descant *job, double wait_s, uint64_t item,
                                void *bytes, size_t room, size_t *n)
{
    descant_status status;
    const struct fabric_deal *deal = enter(job, "descant_deal_get", &status);
    enum deal_bytes got = DEAL_LATER;
    if (deal == NULL)
        return status;
    if (n == NULL || (bytes == NULL && room > 0) || !(wait_s >= 0))
        return log_fail(&job->log, DESCANT_INVALID,
                        "descant_deal_get: nowhere to put it, or wait_s %g", wait_s);
    const struct deal_room to = {bytes, room, n};
    uint64_t until = after(wait_s);
    while (got == DEAL_LATER && status == DESCANT_OK) {
        got = deal->get(job->fabric, item, &to);
        if (got == DEAL_WRONG)
            return log_fail(&job->log, DESCANT_INVALID,
                            "descant_deal_get: item %llu is not in hand, or its bytes "
                            "were given out", (unsigned long long)item);
        status = serve(job);
        if (status == DESCANT_OK)
            status = settle(job, got, until);
    }
    return status;
}
