/* SPDX-License-Identifier: MIT */
/* Steps that take longer, in programs that are linked with --wrap=model_gradient: a run that
 * others wait for then leaves the cores to them. */
#ifndef HARNESS_STEPS_H
#define HARNESS_STEPS_H

#include <unistd.h>

/* Of each step of this process, and of those that it forks from now on. Nobody else writes it. */
extern useconds_t each_batch_us;

#endif
