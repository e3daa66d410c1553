/* SPDX-License-Identifier: MIT */
/* Whether a process lives, in two forms: a word in memory that can be looked up, and a
 * descriptor that poll waits on. A process is dead when all its threads are: it will not
 * touch memory any more. One that is stopped lives.
 *
 * The word is a number that no later process has: {pid 24, start 40}, the start in the
 * kernel's ticks since boot. Never 0. */
#ifndef MACHINE_PROCESS_H
#define MACHINE_PROCESS_H

#include "base/base.h"

/* 0: /proc cannot be read, and that is logged. */
uint64_t process_self(const struct log *log);
bool process_alive(uint64_t process);
uint64_t process_namespace(void);           /* of process numbers; 0: not known */

int process_watch(int pid);    /* its descriptor, or -1 and errno: ESRCH, there is none */
bool pidfd_dead(int pidfd);

static inline int process_pid(uint64_t process)
{
    return (int)(process >> 40);
}

#endif
