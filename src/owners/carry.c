/* SPDX-License-Identifier: MIT */
/* What all parts of the service use: its link, its failure, and a batch's end. */
#include "owners/service.h"

bool service_fail(struct service *s, descant_status status, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vsnprintf(s->why, sizeof s->why, format, list);
    va_end(list);
    log_say(&s->log, DESCANT_WARNING, "%s", s->why);
    atomic_store(&s->status, (int)status);
    futex_wake_all(&s->unqueued);
    return false;
}

bool service_works(struct service *s, bool works)
{
    return works || service_fail(s, DESCANT_SYSTEM, "rows of tables: %s",
                                 s->link->type->why(s->link));
}

bool service_send(struct service *s, int rank, int tag, const void *p, size_t bytes,
                  struct owners_op *op)
{
    struct link_message message = {.rank = rank, .tag = tag, .op = op};
    return service_works(s, s->link->type->send(s->link, p, bytes, &message));
}

bool service_receive(struct service *s, int rank, int tag, void *p, size_t bytes,
                     struct owners_op *op)
{
    struct link_message message = {.rank = rank, .tag = tag, .op = op};
    return service_works(s, s->link->type->receive(s->link, p, bytes, &message));
}

void service_wake(struct service *s)
{
    if (!s->link)
        return;
    if (s->link->type->wake) {
        s->link->type->wake(s->link);
        return;
    }
    atomic_fetch_add(&s->bell, 1);
    futex_wake_all(&s->bell);
}

void service_sleep(struct service *s, uint64_t most_ns, uint32_t *bell)
{
    if (s->link->type->wake)
        s->link->type->sleep(s->link, most_ns, 0);
    else
        futex_wait(&s->bell, *bell, clock_now_ns() + most_ns);
    *bell = atomic_load(&s->bell);
}

void owners_bad(struct service *s, const struct owned *table, size_t bad, uint64_t row)
{
    if (!bad)
        return;
    uint64_t before = atomic_fetch_add(&s->stats.bad, bad);
    if (before < 8)
        log_say(&s->log, DESCANT_WARNING, "table '%s', row %llu: its gradient has NaN or "
                "Inf, and is left out", table->name, (unsigned long long)row);
}

static void give(struct service *s, struct descant_rows *batch)
{
    pthread_mutex_lock(&s->lock);
    batch->next = s->free;
    s->free = batch;
    pthread_mutex_unlock(&s->lock);
}

void batch_let_go(struct service *s, struct descant_rows *batch)
{
    if (atomic_fetch_sub(&batch->held, 1) == 1)
        give(s, batch);
}
