/* SPDX-License-Identifier: MIT */
/* descant_agree_mean, _any, _broadcast and descant_agreed: small values of all trainers,
 * which each calls in its own thread. An agreement sleeps until the others have made the
 * same one; nothing else of the job waits for it. Where messages must move, the caller
 * moves them whenever nobody else holds the round machine, since many plans have no other
 * thread that would; whoever holds the machine moves them, too. The rule is
 * fabric/agree.c. */
#include "sync/job.h"

#include <math.h>
#include <string.h>

/* The result may have come by another thread's hands, which wake no sleeper. */
#define LOOK_NS UINT64_C(2000000)
#define LOOK_SHARED_NS UINT64_C(100000000)      /* where others wake this one */
#define SAY_NS UINT64_C(10000000000)

/* ORDER: another thread of this trainer is in an agreement. */
static descant_status enter(struct descant *job, const char *call)
{
    descant_status status = job_check(job, JOB_STARTED, call);

    if (status == DESCANT_OK)
        status = events_refuse(job, call);
    if (status == DESCANT_OK && atomic_exchange(&job->agreeing, true))
        status = log_fail(&job->log, DESCANT_ORDER,
                          "%s: another thread of this trainer is in an agreement", call);
    return status;
}

static void say_wait(struct descant *job, const struct agree_value *value, uint64_t ns)
{
    char text[64], who[512];

    agree_say(value, text, sizeof text);
    waits_agreement(job, who, sizeof who);
    log_say(&job->log, DESCANT_WARNING,
            "trainer %d waits for %s to agree on %s, %.0f s so far", job->fabric->rank,
            who, text, (double)ns * 1e-9);
}

/* Lets messages move where no other thread does. */
static descant_status serve(struct descant *job)
{
    struct fabric *f = job->fabric;
    descant_status status = DESCANT_OK;

    if (!f->type->serve || pthread_mutex_trylock(&job->machine) != 0)
        return DESCANT_OK;
    f->type->serve(f);
    if (f->status != DESCANT_OK)
        status = job_broken(job);
    pthread_mutex_unlock(&job->machine);
    return status;
}

static descant_status wait(struct descant *job, struct agree_value *value)
{
    const struct fabric_agree *type = job->fabric->type->agree;
    uint64_t look = job->fabric->type->serve ? LOOK_NS : LOOK_SHARED_NS;
    uint64_t began = clock_now_ns(), say = SAY_NS;
    descant_status status = DESCANT_OK;
    struct agree_value result;

    while (status == DESCANT_OK && !type->look(job->fabric, &result)) {
        if (atomic_load(&job->failure) != 0)
            return job_broken(job);
        status = serve(job);
        if (status != DESCANT_OK || type->look(job->fabric, &result))
            break;
        uint64_t now = clock_now_ns();
        if (now - began >= say) {
            say_wait(job, value, now - began);
            say *= 2;
        }
        type->wait(job->fabric, now + look);
    }
    if (status == DESCANT_OK)
        memcpy(value, &result, agree_size(&result));
    return status;
}

/* value: the offer, and then the result. */
static descant_status agree(struct descant *job, const char *call,
                            struct agree_value *value)
{
    struct fabric *f = job->fabric;
    const struct agree_value mine = *value;
    descant_status status = DESCANT_OK;

    if (f->type->agree) {
        status = f->type->agree->offer(f, value);
        if (status == DESCANT_OK)
            status = wait(job, value);
    } else {
        struct agree_offer offer = {.rank = f->rank, .number = 1, .value = &mine};
        agree_fold(1, &offer, 1, value);
    }
    atomic_store(&job->agreeing, false);
    if (status == DESCANT_OK && value->status != DESCANT_OK)
        status = log_fail(&job->log, (descant_status)value->status, "%s: %.*s", call,
                          (int)value->n, (const char *)value->bytes);
    else if (status == DESCANT_OK && !agree_alike(value, &mine))
        status = log_fail(&job->log, DESCANT_MISMATCH,
                          "%s: the others have made another agreement without this "
                          "trainer: all make the same ones, in the same order", call);
    return status;
}

descant_status descant_agree_mean(struct descant *job, double *values, size_t n)
{
    const char *call = "descant_agree_mean";
    struct agree_value value = {.kind = AGREE_MEAN, .n = (uint32_t)(n * sizeof *values)};

    if (values == NULL || n < 1 || n > AGREE_MOST)
        return log_fail(job ? &job->log : NULL, DESCANT_INVALID,
                        "%s: %zu values: 1 to %d", call, values ? n : 0, (int)AGREE_MOST);
    descant_status status = enter(job, call);
    if (status != DESCANT_OK)
        return status;
    memcpy(value.bytes, values, value.n);
    status = agree(job, call, &value);
    if (status == DESCANT_OK)
        memcpy(values, value.bytes, value.n);
    return status;
}

descant_status descant_agree_any(struct descant *job, int *flag)
{
    const char *call = "descant_agree_any";
    struct agree_value value = {.kind = AGREE_ANY, .n = 1};

    if (flag == NULL)
        return log_fail(job ? &job->log : NULL, DESCANT_INVALID, "%s: no flag", call);
    descant_status status = enter(job, call);
    if (status != DESCANT_OK)
        return status;
    value.bytes[0] = *flag != 0;
    status = agree(job, call, &value);
    if (status == DESCANT_OK)
        *flag = value.bytes[0];
    return status;
}

descant_status descant_agree_broadcast(struct descant *job, void *bytes, size_t room,
                                       size_t *n, int from)
{
    const char *call = "descant_agree_broadcast";
    struct agree_value value = {.kind = AGREE_BROADCAST, .from = from};

    if (n == NULL || (bytes == NULL && room > 0) || from < 0)
        return log_fail(job ? &job->log : NULL, DESCANT_INVALID,
                        "%s: it wants memory, a number of bytes, and a rank", call);
    descant_status status = enter(job, call);
    if (status != DESCANT_OK)
        return status;
    bool gives = job->fabric->rank == from;
    if (gives && (*n > AGREE_BYTES || *n > room)) {     /* the others hear it, too */
        value.status = DESCANT_INVALID;
        value.n = 1 + (uint32_t)snprintf(
                          (char *)value.bytes, AGREE_BYTES,
                          "trainer %d gives %zu bytes, at most %zu", from, *n,
                          room < AGREE_BYTES ? room : (size_t)AGREE_BYTES);
    } else if (gives && *n) {
        value.n = (uint32_t)*n;
        memcpy(value.bytes, bytes, value.n);
    }
    status = agree(job, call, &value);
    if (status != DESCANT_OK)
        return status;
    if (value.n > room)
        return log_fail(&job->log, DESCANT_INVALID, "%s: %u bytes came, room for %zu",
                        call, value.n, room);
    if (value.n)
        memcpy(bytes, value.bytes, value.n);
    *n = value.n;
    return DESCANT_OK;
}

/* *ready: this trainer is a member, and knows what was made. One that is alone keeps
 * none. */
static descant_status look_at_made(struct descant *job, bool *ready, uint64_t *number,
                                   struct agree_value *last)
{
    const struct fabric_agree *type = job->fabric->type->agree;
    descant_status status = DESCANT_OK;

    *ready = true;
    *number = 0;
    pthread_mutex_lock(&job->machine);
    if (type)
        status = type->made(job->fabric, ready, number, last);
    pthread_mutex_unlock(&job->machine);
    return status;
}

descant_status descant_agreed(struct descant *job, uint64_t *made, double *values,
                              size_t n)
{
    const char *call = "descant_agreed";
    struct agree_value last = {.kind = AGREE_NONE};
    uint64_t number = 0;
    bool ready = false;

    if (made == NULL || (values == NULL && n > 0) || n > AGREE_MOST)
        return log_fail(job ? &job->log : NULL, DESCANT_INVALID,
                        "%s: it wants room for a number, and for 0 to %d values", call,
                        (int)AGREE_MOST);
    descant_status status = job_check(job, JOB_STARTED, call);
    if (status == DESCANT_OK)
        status = events_refuse(job, call);
    while (status == DESCANT_OK && !ready) {
        status = look_at_made(job, &ready, &number, &last);
        if (status == DESCANT_OK && !ready && atomic_load(&job->failure) != 0)
            return job_broken(job);
        if (status == DESCANT_OK && !ready)
            status = serve(job);
        if (status == DESCANT_OK && !ready)
            job->fabric->type->agree->wait(job->fabric, clock_now_ns() + LOOK_NS);
    }
    if (status != DESCANT_OK)
        return status;
    bool same = last.kind == AGREE_MEAN && last.status == DESCANT_OK &&
                last.n == n * sizeof *values;
    for (size_t k = 0; k < n; k++)
        values[k] = (double)NAN;
    if (same && n)
        memcpy(values, last.bytes, last.n);
    *made = number;
    return DESCANT_OK;
}
