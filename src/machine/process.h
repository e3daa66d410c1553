/* SPDX-License-Identifier: MIT */
/* A process as a number that no later process has: {pid 24, start 40}, the start in the kernel's
 * ticks since boot. Never 0. */
#ifndef MACHINE_PROCESS_H
#define MACHINE_PROCESS_H

#include "base/base.h"

/* 0: /proc cannot be read, and that is logged. */
uint64_t process_self(const struct log *log);
bool process_alive(uint64_t process);       /* false: it will not touch memory any more */
uint64_t process_namespace(void);           /* of process numbers; 0: it cannot be told */

static inline int process_pid(uint64_t process)
{
    return (int)(process >> 40);
}

#endif
