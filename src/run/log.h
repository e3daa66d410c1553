/* SPDX-License-Identifier: MIT */
/* The log of a run: a file of JSON lines. A log that could not be written ends there, so
 * that only its last line may be torn; the run goes on, and exits with a failure at its
 * end. */
#ifndef RUN_LOG_H
#define RUN_LOG_H

#include "run/told.h"

struct run_log {
    FILE *file;                 /* NULL: not open, or ended */
    char path[4096];
    _Atomic uint32_t *failed;   /* one for all processes that write the log: the first
                                   that fails to write sets it and logs why */
    const struct log *log;
};

/* Opens l->path, once the other fields are set. The log of an earlier run becomes
 * PATH.old, unless this run goes on from it. `alone`: no other process writes the log
 * now, so that a torn last line may be cut off. False: errno says why not. */
bool run_log_open(struct run_log *l, bool goes_on, bool alone);
/* Begins the header, with all settings of the run; the caller ends it. */
void run_log_header(struct run_log *l, struct json *json, const struct told *told);
/* To be called after each line. error: 0, or the errno of a write that failed. now:
 * buffered lines are written at once. */
void run_log_written(struct run_log *l, int error, bool now);
void run_log_close(struct run_log *l);

#endif
