/* SPDX-License-Identifier: MIT */
/* The signals of a process of descant bsp are blocked, and taken where it sleeps. */
#include "cli/bsp.h"

#include <time.h>

#define SECOND_NS UINT64_C(1000000000)

void bsp_signals_hold(struct bsp_signals *s)
{
    sigemptyset(&s->held);
    sigaddset(&s->held, SIGINT);
    sigaddset(&s->held, SIGTERM);
    sigaddset(&s->held, SIGCHLD);
    sigaddset(&s->held, SIGPIPE);
    sigprocmask(SIG_BLOCK, &s->held, &s->old);
}

/* Those that nobody has taken stay with the run. */
void bsp_signals_give_back(struct bsp_signals *s)
{
    const struct timespec none = {0};
    while (sigtimedwait(&s->held, NULL, &none) > 0)
        continue;
    sigprocmask(SIG_SETMASK, &s->old, NULL);
}

/* A terminal and a parent that passes it on bring the same signal twice. */
static bool note(struct bsp_signals *s, int signal)
{
    uint64_t now = clock_now_ns();
    if (signal != SIGINT && signal != SIGTERM)
        return false;
    if (s->signal) {
        s->hurried |= now - s->noted_ns > SECOND_NS;
        return false;
    }
    s->signal = signal;
    s->noted_ns = now;
    return true;
}

bool bsp_signals_rest(struct bsp_signals *s, uint64_t when_ns)
{
    uint64_t now = clock_now_ns(), ns = when_ns > now ? when_ns - now : 0;
    const struct timespec most = {(time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS)};
    int signal = sigtimedwait(&s->held, NULL, &most);
    return signal > 0 && note(s, signal);
}

const char *bsp_signals_name(const struct bsp_signals *s)
{
    return s->signal == SIGINT ? "SIGINT" : "SIGTERM";
}
