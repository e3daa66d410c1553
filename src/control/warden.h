/* SPDX-License-Identifier: MIT */
/* Ends a run whose thread does not return from a call, when SIGTERM asks for the end. */
#ifndef CONTROL_WARDEN_H
#define CONTROL_WARDEN_H

#include "base/base.h"

#include <pthread.h>

struct warden {
    pthread_t thread, main;
    bool started;
    _Atomic bool ends;
    /* the number of calls that the run has begun and ended, odd within one; or TAKEN: the
     * warden has the run */
    _Atomic uint64_t call;
    void (*last)(void *of);
    void *of;
};

/* All threads have SIGTERM blocked. The warden calls last(of) before it ends the process.
 * Where no thread can be started, there is no warden. */
void warden_start(struct warden *w, void (*last)(void *of), void *of);
void warden_stop(struct warden *w);

/* The run's thread calls these around a call that may not return. If the warden has taken
 * the run, warden_leave does not return. Both may be called without a started warden. */
void warden_enter(struct warden *w);
void warden_leave(struct warden *w);

#endif
