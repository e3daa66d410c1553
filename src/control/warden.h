/* SPDX-License-Identifier: MIT */
/* Ends a run whose thread does not come back from a call, when SIGTERM asks for the
 * end. */
#ifndef CONTROL_WARDEN_H
#define CONTROL_WARDEN_H

#include "base/base.h"

#include <pthread.h>

struct warden {
    pthread_t thread, main;
    bool started;
    _Atomic bool ends;
    _Atomic uint64_t call;          /* calls begun and ended, by the run: odd while in
                                       one; or TAKEN, by the warden: the run is the
                                       warden's */
    void (*last)(void *of);
    void *of;
};

/* SIGTERM is blocked in all threads. last(of) is called before the process ends by the
 * warden. Without a thread for it, nobody waits. */
void warden_start(struct warden *w, void (*last)(void *of), void *of);
void warden_stop(struct warden *w);

/* The run's thread, around a call that may not return; of a warden that has taken the
 * run, leave does not return. The warden need not be started. */
void warden_enter(struct warden *w);
void warden_leave(struct warden *w);

#endif
