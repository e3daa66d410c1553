/* SPDX-License-Identifier: MIT */
/* Mapped files that another process may cut short: what is gone reads as zeros then,
 * instead of ending this process by SIGBUS. */
#ifndef GUARD_H
#define GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* False: there is no room for one more. */
bool guard_watch(void *at, size_t bytes);
bool guard_tripped(const void *at);     /* it was cut short, and touched there */
void guard_drop(const void *at);        /* before it is unmapped; one that is not watched
                                           is none */

#endif
