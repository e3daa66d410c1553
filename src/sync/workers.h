/* SPDX-License-Identifier: MIT */
/* The caller's threads that step: each has a counter on a cache line of its own, so that
 * a step costs one load and one store, whatever the others do. A thread is registered by
 * its first step and leaves by its end or descant_worker_done. */
#ifndef WORKERS_H
#define WORKERS_H

#include "base/base.h"

#include <pthread.h>

enum { WORKERS_MAX = 512 };

struct worker {
    /* steps: written by the worker alone, read by any thread; relaxed, it orders no other
     * memory */
    _Alignas(64) _Atomic uint64_t steps;
    struct workers *home;
    pthread_t thread;           /* guarded by workers.lock, valid while used */
    bool used;                  /* guarded by workers.lock */
};

struct workers {
    uint64_t serial;            /* tells this job's threads from those of a job that was
                                   here */
    pthread_key_t key;          /* its destructor sees a thread's end */
    pthread_mutex_t lock;
    pthread_cond_t moved;       /* registered, parked or generation has changed */
    _Atomic int n_slots;        /* slots ever used; written under lock, read by
                                   counters */
    int registered;             /* guarded by lock, like all below: the foreground
                                   round */
    int parked;
    bool due, running;
    uint64_t generation;
    struct worker slots[WORKERS_MAX];
};

descant_status workers_init(struct workers *w, const struct log *log);
void workers_fini(struct workers *w);

struct worker *workers_mine(struct workers *w);     /* registers; NULL: too many */
bool workers_has_me(const struct workers *w);       /* the calling thread */
void workers_leave(struct workers *w);              /* the calling thread */
/* t: the steps of all workers, also of those that left */
uint64_t workers_steps(struct workers *w);

/* Foreground rounds: the caller parks until all registered workers have; then one of them
 * runs the round, and all go on. Returns true to that one, which must call workers_unpark
 * after. */
bool workers_park(struct workers *w);
void workers_unpark(struct workers *w);

/* A round is due: the next step of every worker parks. */
void workers_call(struct workers *w);
bool workers_called(struct workers *w);

#endif
