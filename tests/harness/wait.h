/* SPDX-License-Identifier: MIT */
/* Waiting for what another thread or process does. */
#ifndef HARNESS_WAIT_H
#define HARNESS_WAIT_H

#include "base/base.h"

enum { PATIENCE_S = 50 };     /* below the minute that most cases have */

/* Looks each millisecond whether the condition holds. A test that has waited so long
 * fails, with the condition and the rest, which is a format and its arguments as of
 * printf. */
#define WAIT_UNTIL(condition, ...)                                                      \
    for (uint64_t wait_began_ns = clock_now_ns(); !(condition);)                        \
        wait_on(wait_began_ns, __FILE__, __LINE__, #condition, __VA_ARGS__)

/* The same for a figure of another process; true. */
bool reaches(const _Atomic int *figure, int value);

/* Sleeps a millisecond, where it is not too late. */
void wait_on(uint64_t began_ns, const char *file, int line, const char *condition,
             const char *format, ...) __attribute__((format(printf, 5, 6)));

#endif
