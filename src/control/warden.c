/* SPDX-License-Identifier: MIT */
/* A call of Open MPI that sees a rank die does not return: the run's thread is lost,
 * between two supersteps, and the launcher's SIGTERM would be in vain. So another thread,
 * the warden, waits for SIGTERM, too. The warden passes the signal on, and if the run's
 * thread is still in the same call a while later, the warden takes the run from it and
 * ends the process. */
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
        /* read before the signal goes on: if the run's thread returns meanwhile, the
         * number moves on, and the exchange fails */
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
