/* SPDX-License-Identifier: MIT */
/* The frame of every long run, for training and for the BSP system's control. */
#ifndef RUN_H
#define RUN_H

#include "base/base.h"

#include <unistd.h>

/* The exit status of a run's process; after a signal it is 128 + the signal. */
enum { RUN_DONE, RUN_FAILED, RUN_BAD_USE };

/* A number that no other run has. */
static inline uint64_t run_number(void)
{
    return clock_now_ns() ^ (uint64_t)getpid() << 40;
}

#endif
