/* SPDX-License-Identifier: MIT */
/* descant hub: the hub of a star (descant.h, options.hub) as a process, with its state on
 * disk, and a page of figures for `descant hub ADDRESS --status`. */
#ifndef HUB_H
#define HUB_H

#include "base/base.h"

struct hub_options {
    const char *address;        /* tcp:HOST:PORT and keys, `star` among them or not */
    int64_t trainers;           /* for which the job's beginning waits */
    const char *state;          /* FILE; NULL: nothing is kept on disk */
    double state_every;         /* seconds */
};

/* Ends with the job, or at a signal. The exit status. */
int hub_run(const struct hub_options *o, FILE *err);
int hub_status(const char *address, FILE *out, FILE *err);

/* --- kept.c: the state on disk --- */

/* *bytes of FILE in memory that the caller gives back. NULL with *bytes 0: there is no
 * FILE yet; else it cannot be read, which is logged. */
void *kept_read(const char *path, size_t *bytes, const struct log *log);
/* Whether FILE can be written, as far as can be seen without writing it; false is
 * logged. */
bool kept_check(const char *path, const struct log *log);
/* FILE is whole at any time: the bytes are synced before they get its name. False: it is
 * as it was, which is logged. */
bool kept_write(const char *path, const void *bytes, size_t n, const struct log *log);

/* --- page.c: the figures --- */

/* Of the hub at that address, by this user; "": the address has no port. */
void page_path(const char *address, char *path, size_t room);
/* job NULL: it waits for trainers. */
void page_write(const char *path, struct descant *job, uint64_t kept_ns);

#endif
