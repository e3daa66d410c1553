/* SPDX-License-Identifier: MIT */
/* The job that this process belongs to, by the caller's values and then by the launcher's
 * variables. */
#ifndef LAUNCHER_H
#define LAUNCHER_H

#include "fabric/fabric.h"

struct launcher {
    char address[160];
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

bool launcher_may_be_mpi(const char *job);      /* job: an address; NULL: the
                                                   launcher's */

/* The fabric that l->address names; *rest: the text after its name and colon. */
descant_status launcher_fabric(const struct launcher *l, const struct fabric_type **type,
                               const char **rest, const struct log *log);

#endif
