/* SPDX-License-Identifier: MIT */
/* A thread beside a run that does one piece of work at a time: writes a checkpoint, or
 * evaluates a copy of the model. The run prepares the work while the thread is idle,
 * hands it over, goes on, and takes the result when the thread is idle again. The
 * hand-over orders the two threads, so that the work's memory needs no lock. */
#ifndef RUN_BESIDE_H
#define RUN_BESIDE_H

#include "base/base.h"

struct beside;

/* what: "checkpoints", for messages. The thread calls work(of); *out is set only once the
 * thread runs. */
descant_status beside_start(struct beside **out, const char *what,
                            void (*work)(void *of), void *of, const struct log *log);
/* Waits for the work under way, which may ask beside_stopping. NULL is allowed. */
void beside_stop(struct beside *b);

/* The run: one thread. */
bool beside_busy(struct beside *b);         /* false for NULL */
void beside_begin(struct beside *b);        /* only while it is not busy */

/* The work. */
bool beside_stopping(struct beside *b);

#endif
