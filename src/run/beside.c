/* SPDX-License-Identifier: MIT */
/* The mutex guards `busy`: the run sets it, and the thread clears it. The work itself is
 * done without the mutex. The run's own writes before beside_begin are seen by the work,
 * and the work's by a run that has found the thread idle, since each takes the mutex in
 * between.
 *
 * Work that was begun is always done, also where beside_stop comes before the thread has
 * taken it up: a checkpoint that was handed over must be written. */
#include "run/beside.h"

#include <pthread.h>
#include <string.h>

struct beside {
    void (*work)(void *of);
    void *of;
    pthread_t thread;
    pthread_mutex_t mutex;          /* guards the fields below */
    pthread_cond_t moved;
    bool busy, stop;
};

static void *run(void *of)
{
    struct beside *b = of;
    pthread_mutex_lock(&b->mutex);
    while (!b->stop || b->busy) {
        if (!b->busy) {
            pthread_cond_wait(&b->moved, &b->mutex);
            continue;
        }
        pthread_mutex_unlock(&b->mutex);
        b->work(b->of);
        pthread_mutex_lock(&b->mutex);
        b->busy = false;
    }
    pthread_mutex_unlock(&b->mutex);
    return NULL;
}

static void destroy(struct beside *b)
{
    pthread_cond_destroy(&b->moved);
    pthread_mutex_destroy(&b->mutex);
    memory_give(b);
}

descant_status beside_start(struct beside **out, const char *what,
                            void (*work)(void *of), void *of, const struct log *log)
{
    struct beside *b = memory_take(sizeof *b);
    if (!b)
        return log_fail(log, DESCANT_MEMORY, "no memory for %s", what);
    b->work = work;
    b->of = of;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->moved, NULL);
    *out = b;                       /* the work may ask for it at once */
    int error = pthread_create(&b->thread, NULL, run, b);
    if (error == 0)
        return DESCANT_OK;
    *out = NULL;
    destroy(b);
    return log_fail(log, DESCANT_SYSTEM, "no thread for %s: %s", what, strerror(error));
}

/* beside_stopping is true from here on, so that work which may be cut short ends soon. */
void beside_stop(struct beside *b)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->mutex);
    b->stop = true;
    pthread_cond_signal(&b->moved);
    pthread_mutex_unlock(&b->mutex);
    pthread_join(b->thread, NULL);
    destroy(b);
}

bool beside_busy(struct beside *b)
{
    if (!b)
        return false;
    pthread_mutex_lock(&b->mutex);
    bool busy = b->busy;
    pthread_mutex_unlock(&b->mutex);
    return busy;
}

void beside_begin(struct beside *b)
{
    pthread_mutex_lock(&b->mutex);
    b->busy = true;
    pthread_cond_signal(&b->moved);
    pthread_mutex_unlock(&b->mutex);
}

bool beside_stopping(struct beside *b)
{
    pthread_mutex_lock(&b->mutex);
    bool stop = b->stop;
    pthread_mutex_unlock(&b->mutex);
    return stop;
}
