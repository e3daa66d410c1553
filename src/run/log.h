/* SPDX-License-Identifier: MIT */
/* The log of a run: a file of JSON lines. A log that could not be written ends there, so
 * that only its last line may be torn; the run goes on, and fails for it at its end. */
#ifndef RUN_LOG_H
#define RUN_LOG_H

#include "run/told.h"

struct run_log {
    FILE *file;                 /* NULL: it is not open, or has ended */
    char path[4096];
    _Atomic uint32_t *failed;   /* one for all processes that write it: the first that
                                   could not sets it, and says why */
    const struct log *log;
};

/* The log of an earlier run becomes PATH.old, where this one does not go on from it.
 * Nobody else's line is cut while it is written: `alone`. False: errno says why not. The
 * other fields are set. */
bool run_log_open(struct run_log *l, bool goes_on, bool alone);
/* Begins the header, with all that the run was told; it is the caller's to end. */
void run_log_header(struct run_log *l, struct json *json, const struct told *told);
/* After a line, of which so much has failed: 0, or an errno. now: what is buffered is
 * written. */
void run_log_written(struct run_log *l, int error, bool now);
void run_log_close(struct run_log *l);

#endif
