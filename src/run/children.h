/* SPDX-License-Identifier: MIT */
/* Processes that a run starts: their first moment, and how their end is told. */
#ifndef RUN_CHILDREN_H
#define RUN_CHILDREN_H

#include "base/base.h"

#include <sys/types.h>

/* In a child, once its handlers are those of a child: when its parent dies it gets that
 * signal, and no signal is blocked any more. */
void child_begin(pid_t parent, int orphans_get);

/* "was killed by signal 9", "has ended with status 3": of what waitpid has said. */
const char *child_end_text(int status, char *text, size_t room);

#endif
