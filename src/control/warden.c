/* SPDX-License-Identifier: MIT */
/* Open MPI, when it sees that a rank has died, does not come back from a call: the thread
 * that has the run is lost, between two supersteps, and the launcher's SIGTERM would be
 * in vain. So another one, the warden, waits for that, too. It hands it on, and if the
 * first one is still in the same call a while later, it takes the run from it and ends
 * the process. */
#include "control/warden.h"

#include <unistd.h>

#define STUCK_NS UINT64_C(200000000)
#define TAKEN UINT64_MAX

static void *ward(void *of)
{
    struct warden *w = of;
    sigset_t term;
    int signal;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    while (sigwait(&term, &signal) == 0 && !atomic_load(&w->ends)) {
        uint64_t call = atomic_load(&w->call);
        pthread_kill(w->main, SIGTERM);
        clock_sleep_until(clock_now_ns() + STUCK_NS);
        if (call % 2 == 0 || !atomic_compare_exchange_strong(&w->call, &call, TAKEN))
            continue;
        w->last(w->of);
        fflush(NULL);
        _exit(128 + SIGTERM);
    }
    return NULL;
}

void warden_start(struct warden *w, void (*last)(void *of), void *of)
{
    w->last = last;
    w->of = of;
    w->main = pthread_self();
    w->started = pthread_create(&w->thread, NULL, ward, w) == 0;
}

void warden_stop(struct warden *w)
{
    if (!w->started)
        return;
    atomic_store(&w->ends, true);
    pthread_kill(w->thread, SIGTERM);
    pthread_join(w->thread, NULL);
}

void warden_enter(struct warden *w)
{
    atomic_fetch_add(&w->call, 1);
}

void warden_leave(struct warden *w)
{
    uint64_t call = atomic_load(&w->call);
    if (call != TAKEN && atomic_compare_exchange_strong(&w->call, &call, call + 1))
        return;
    for (;;)
        pause();
}
