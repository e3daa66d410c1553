/* SPDX-License-Identifier: MIT */
/* Clocks, in nanoseconds. The monotonic one is the same for all processes of a machine,
 * so its values may be kept in shared memory. */
#include "base/base.h"

#include <errno.h>
#include <time.h>

enum { NS_PER_S = 1000000000 };

static uint64_t read_clock(clockid_t which)
{
    struct timespec now = {0};
    clock_gettime(which, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t clock_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t clock_thread_cpu_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

void clock_sleep_until(uint64_t when_ns)
{
    struct timespec when = {.tv_sec = (time_t)(when_ns / NS_PER_S),
                            .tv_nsec = (long)(when_ns % NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
        continue;
}
