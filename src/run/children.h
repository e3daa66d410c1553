/* SPDX-License-Identifier: MIT */
/* The processes that a run starts: how they begin, and their end in words. */
#ifndef RUN_CHILDREN_H
#define RUN_CHILDREN_H

#include "base/base.h"

#include <sys/types.h>

/* In a child, once its signal handlers are set: its parent's death sends it the signal
 * orphans_get, and signals are no longer blocked. */
void child_begin(pid_t parent, int orphans_get);

/* A status of waitpid in words: "was killed by signal 9", "has ended with status 3". */
const char *child_end_text(int status, char *text, size_t room);

#endif
