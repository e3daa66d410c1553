/* SPDX-License-Identifier: MIT */
/* The job that this process belongs to, by the caller's values, then DESCANT_JOB, then
 * the launcher's variables. */
#ifndef LAUNCHER_H
#define LAUNCHER_H

#include "fabric/fabric.h"

enum { LAUNCHER_ADDRESS = 1024 };

struct launcher {
    char address[LAUNCHER_ADDRESS];
    char why[64];           /* the source: "given", "from WORLD_SIZE", … */
    int rank, size;         /* rank -1: any; size 0: unknown */
    bool numbered;          /* the address counts the jobs that were started under the
                               launcher */
};

descant_status launcher_read(struct launcher *l, const struct descant_options *options,
                             const struct log *log);

/* A numbered job has started, here and in all its trainers: the next one has another
 * address. */
void launcher_started(void);

extern const struct fabric_type *const fabric_types[];      /* NULL at the end */
extern const struct fabric_type *const fabric_of_host; /* in the memory of one host */

/* The address that was given, else that of DESCANT_JOB; NULL: the launcher's. */
const char *launcher_job(const char *given);
bool launcher_may_be_mpi(const char *given);

/* The fabric that l->address names; *rest: the text after its name and colon. */
descant_status launcher_fabric(const struct launcher *l, const struct fabric_type **type,
                               const char **rest, const struct log *log);

#endif
