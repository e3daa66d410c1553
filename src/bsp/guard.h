/* SPDX-License-Identifier: MIT */
/* Mapped files that another process may cut short: the missing bytes then read as zeros,
 * instead of ending this process by SIGBUS. */
#ifndef GUARD_H
#define GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* Watches a mapping. False: there is no room for one more. */
bool guard_watch(void *at, size_t bytes);
bool guard_tripped(const void *at);     /* the file was cut short, and touched behind its
                                           end */
void guard_drop(const void *at);        /* before unmapping; does nothing for memory that
                                           is not watched */

#endif
