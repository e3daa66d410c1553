/* SPDX-License-Identifier: MIT */
/* Futexes that work between processes: the word may lie in shared memory. Waiting takes
 * an absolute time of the monotonic clock, so a wait begun again does not last longer.
 * Returns may be early; callers look at their condition again. */
#include "base/base.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NS_PER_S = 1000000000 };

void futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / NS_PER_S),
                             .tv_nsec = (long)(until_ns % NS_PER_S)};
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, until_ns ? &until : NULL, NULL,
            FUTEX_BITSET_MATCH_ANY);
}

void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void ticket_take(struct ticket_lock *lock)
{
    uint32_t mine = atomic_fetch_add_explicit(&lock->next, 1, memory_order_relaxed), now;

    while ((now = atomic_load_explicit(&lock->now, memory_order_acquire)) != mine)
        futex_wait(&lock->now, now, 0);
}

void ticket_give(struct ticket_lock *lock)
{
    atomic_fetch_add_explicit(&lock->now, 1, memory_order_release);
    futex_wake_all(&lock->now);
}
