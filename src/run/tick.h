/* SPDX-License-Identifier: MIT */
/* Waits for a condition with a limit, by the monotonic clock: a clock that is set
 * meanwhile neither ends a wait nor makes it longer. For threads that must look again now
 * and then whether the run has been stopped, because nothing wakes them for that. */
#ifndef TICK_H
#define TICK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* the caller destroys the condition */
static inline void tick_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* At most ns, up to 4 s. The caller holds the mutex and tests its condition again: a wait
 * may end for no reason. */
static inline void tick_wait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                             uint32_t ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ns;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(condition, mutex, &until);
}

#endif
