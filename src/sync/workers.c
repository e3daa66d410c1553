/* SPDX-License-Identifier: MIT */
/* Worker threads: counting without sharing, and parking for foreground rounds.
 *
 * The fast path is workers_mine: a thread-local pair (serial, slot) for each of a few
 * jobs that were opened one after the other. The serial is unique in the process, so that
 * a slot remembered from a closed job is never taken for one of a new job at the same
 * address. Slots keep their counts when a thread leaves: t never falls. */
#include "sync/workers.h"

static _Atomic uint64_t last_serial;

enum { MINE = 4 };      /* jobs that a thread steps in turn without a lock; a power of
                           two */

struct mine {
    uint64_t serial;
    struct worker *slot;
};

/* the last job's, and others by serial */
static _Thread_local struct mine mine, others[MINE];

static void leave(struct worker *slot)
{
    struct workers *w = slot->home;
    pthread_mutex_lock(&w->lock);
    if (slot->used) {
        slot->used = false;
        w->registered--;
        pthread_cond_broadcast(&w->moved);
    }
    pthread_mutex_unlock(&w->lock);
}

static void thread_ends(void *slot)
{
    leave(slot);
}

descant_status workers_init(struct workers *w, const struct log *log)
{
    if (memory_refuse() || pthread_key_create(&w->key, thread_ends) != 0)
        return log_fail(log, DESCANT_SYSTEM, "no thread key is left");
    w->serial = atomic_fetch_add_explicit(&last_serial, 1, memory_order_relaxed) + 1;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->moved, NULL);
    return DESCANT_OK;
}

void workers_fini(struct workers *w)
{
    if (w->serial == 0)
        return;
    pthread_key_delete(w->key);
    pthread_cond_destroy(&w->moved);
    pthread_mutex_destroy(&w->lock);
}

static struct worker *enroll(struct workers *w)
{
    struct worker *found = NULL;
    pthread_mutex_lock(&w->lock);
    int n = atomic_load_explicit(&w->n_slots, memory_order_relaxed);
    for (int i = 0; i < n && found == NULL; i++)
        if (w->slots[i].used && pthread_equal(w->slots[i].thread, pthread_self()))
            found = &w->slots[i];
    for (int i = 0; i < WORKERS_MAX && found == NULL; i++) {
        if (w->slots[i].used)
            continue;
        found = &w->slots[i];
        found->home = w;
        found->thread = pthread_self();
        found->used = true;
        w->registered++;
        if (i >= n)
            atomic_store_explicit(&w->n_slots, i + 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&w->lock);
    if (found != NULL)
        pthread_setspecific(w->key, found);
    return found;
}

struct worker *workers_mine(struct workers *w)
{
    if (__builtin_expect(mine.serial != w->serial || mine.slot == NULL, 0)) {
        struct mine *known = &others[w->serial % MINE];
        if (known->serial != w->serial || known->slot == NULL)
            *known = (struct mine){w->serial, enroll(w)};
        mine = *known;
    }
    return mine.slot;
}

bool workers_has_me(const struct workers *w)
{
    return pthread_getspecific(w->key) != NULL;
}

void workers_leave(struct workers *w)
{
    struct worker *slot = pthread_getspecific(w->key);
    if (slot == NULL)
        return;
    pthread_setspecific(w->key, NULL);
    if (mine.serial == w->serial)
        mine.slot = NULL;
    if (others[w->serial % MINE].serial == w->serial)
        others[w->serial % MINE].slot = NULL;
    leave(slot);
}

uint64_t workers_steps(struct workers *w)
{
    uint64_t sum = 0;
    int n = atomic_load_explicit(&w->n_slots, memory_order_relaxed);
    for (int i = 0; i < n; i++)
        sum += atomic_load_explicit(&w->slots[i].steps, memory_order_relaxed);
    return sum;
}

void workers_call(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    w->due = true;
    pthread_mutex_unlock(&w->lock);
}

bool workers_called(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    bool due = w->due;
    pthread_mutex_unlock(&w->lock);
    return due;
}

bool workers_park(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t generation = w->generation;
    bool chosen = false;
    w->parked++;
    while (w->due && w->generation == generation && !chosen) {
        if (w->parked >= w->registered && !w->running)
            chosen = w->running = true;
        else
            pthread_cond_wait(&w->moved, &w->lock);
    }
    if (!chosen && w->generation == generation)
        w->parked--;        /* the call was served before this worker came */
    pthread_mutex_unlock(&w->lock);
    return chosen;
}

void workers_unpark(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    w->due = w->running = false;
    w->parked = 0;
    w->generation++;
    pthread_cond_broadcast(&w->moved);
    pthread_mutex_unlock(&w->lock);
}
