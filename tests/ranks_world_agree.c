/* SPDX-License-Identifier: MIT */
/* Agreements of the trainers of a world. The number of a trainer's next agreement decides its kind:
 * a mean, any, a broadcast, and so on; one that has had no result begins with a mean. In
 * a mean each brings 1 at its own place, and in the second half the number for which it offers. So:
 *
 *   1 all that live and have a result of one number have the same bits; but for ranks that were
 *     cut off while others vouched for the deaths of all who had their results
 *   2 a mean has its own offer in it, where it was a member all the time, others once at most, and
 *     none that was of the number before
 *   3 nobody that trains waits for ever (faults.c looks) */
#include "ranks_world.h"

#include <math.h>
#include <string.h>

static uint64_t next_of(const struct world_trainer *t)
{
    const struct trainer_agree *a = &t->agree;
    return a->n ? a->last[(a->n - 1) % AGREED_KEPT].number + 1 : 0;
}

static struct agree_value value_of(const struct ranks_world *w, int rank)
{
    uint64_t number = next_of(&w->trainers[rank]);
    size_t n = (size_t)w->options.ranks;
    struct agree_value value = {.kind = number ? (uint32_t)(AGREE_MEAN + number % 3)
                                               : AGREE_MEAN};
    double one = 1, stamp = (double)number;

    if (value.kind == AGREE_MEAN) {
        value.n = (uint32_t)(2 * n * sizeof one);
        memcpy(value.bytes + (size_t)rank * sizeof one, &one, sizeof one);
        memcpy(value.bytes + (n + (size_t)rank) * sizeof one, &stamp, sizeof stamp);
    } else if (value.kind == AGREE_ANY) {
        value.n = 1;
        value.bytes[0] = rank == (int)(number % n);
    } else {
        value.from = 0;         /* so that others are like it again soon */
        value.n = rank == value.from ? sizeof number : 0;
        memcpy(value.bytes, &number, value.n);
    }
    return value;
}

static uint64_t hash_of(const struct agree_value *value)
{
    return fnv_add(fnv_add(FNV_BEGIN, &value->status, sizeof value->status), value->bytes,
                   value->n);
}

/* Deaths that were vouched for took an epoch at least so far, which others do not know. */
enum { VOUCHED = 16 };

static uint64_t epoch_of(const struct world_trainer *t)
{
    return ledger_view(ranks_of(t->f)->ledger).epoch;
}

/* 1 */
static void check_others(struct ranks_world *w, int rank, const struct agreed *mine)
{
    for (int k = 0; k < w->options.ranks; k++) {
        const struct trainer_agree *a = &w->trainers[k].agree;
        for (int i = 0; w->trainers[k].f && simulated_lives(w->link, k) &&
                        i < (a->n < AGREED_KEPT ? a->n : AGREED_KEPT); i++)
            if (a->last[i].number == mine->number && a->last[i].hash != mine->hash &&
                a->last[i].epoch + VOUCHED > mine->epoch)
                world_fail(w, rank, "agreement %llu is not what rank %d has",
                           (unsigned long long)mine->number, k);
    }
}

/* 2 */
static void check_mean(struct ranks_world *w, int rank, const struct agree_value *value,
                       uint64_t number, uint64_t before)
{
    int n = w->options.ranks, n_in = 0;
    double x[2 * WORLD_MOST];

    memcpy(x, value->bytes, value->n);
    for (int k = 0; k < n; k++)
        n_in += x[k] > 0;
    for (int k = 0; k < n; k++) {
        double times = x[k] * n_in, stamp = x[n + k] * n_in;
        if (x[k] > 0 ? fabs(times - 1) > 1e-9 || stamp > (double)number + 0.1 ||
                           fabs(stamp - (double)number + 1) < 0.1 * (number > 1)
                     : stamp > 0)
            world_fail(w, rank, "agreement %llu of %d has %g of rank %d, for number %g",
                       (unsigned long long)number, n_in, times, k, stamp);
    }
    const struct world_trainer *t = &w->trainers[rank];
    if (!(x[rank] > 0) && epoch_of(t) == before)
        world_fail(w, rank, "agreement %llu lacks its own offer", (unsigned long long)number);
}

static void take(struct ranks_world *w, int rank, const struct agree_value *value)
{
    struct trainer_agree *a = &w->trainers[rank].agree;
    const struct agreed mine = {ranks_agree_number(ranks_of(w->trainers[rank].f)),
                                hash_of(value), epoch_of(&w->trainers[rank])};

    a->open = false;
    a->next_ns = simulated_now(w->link) + (uint64_t)(rng_uniform(&w->rng) * (double)w->agree_ns);
    w->agreements++;
    if (w->verbose)
        printf("  %.6f rank %d: agreement %llu, kind %u, status %u, %llx\n", world_now(w), rank,
               (unsigned long long)mine.number, value->kind, value->status,
               (unsigned long long)mine.hash);
    if (w->lied_to)
        return;
    uint64_t before = a->n ? a->last[(a->n - 1) % AGREED_KEPT].epoch : 0;
    a->last[a->n++ % AGREED_KEPT] = mine;
    check_others(w, rank, &mine);
    if (value->kind == AGREE_MEAN && !value->status)
        check_mean(w, rank, value, mine.number, before);
}

void world_agree_turn(struct ranks_world *w, int rank)
{
    struct world_trainer *t = &w->trainers[rank];
    struct trainer_agree *a = &t->agree;
    struct agree_value value;

    if (!w->agree_ns || !t->states)
        return;
    if (a->open && ranks_agree.look(t->f, &value))
        take(w, rank, &value);
    if (!a->open && !t->finishes && simulated_now(w->link) >= a->next_ns) {
        value = value_of(w, rank);
        a->open = true;
        ranks_agree.offer(t->f, &value);
    }
}

uint64_t world_agree_due(const struct ranks_world *w, int rank)
{
    const struct world_trainer *t = &w->trainers[rank];
    return w->agree_ns && t->states && !t->agree.open && !t->finishes ? t->agree.next_ns : 0;
}
