/* SPDX-License-Identifier: MIT */
/* A local module: keeps one segment for control. What control asks of it is two things, a sum to
 * read out and a model to store; over a fabric they would be its `sum` and its `state`. One thread
 * at a time. */
#ifndef LOCAL_H
#define LOCAL_H

#include "bsp/segment.h"

struct local;

/* As segment_open. A segment that a dead keeper has left is taken over with the modules that are
 * attached; what they gave to that keeper is undone, and not read out. */
descant_status local_open(struct local **local, const struct segment_options *options);
void local_close(struct local *local);          /* ends the segment. NULL is allowed */
void local_end(struct local *local);            /* tells the modules; sums can still be read */

const char *local_name(const struct local *local);      /* of the segment */
bool local_taken_over(const struct local *local);
uint64_t local_version(const struct local *local);      /* of the newest model */

struct local_sums {
    uint64_t gradients, examples;
    uint64_t lag, lag_most;         /* versions behind as they came: sum, most */
    uint64_t undone;                /* gradients left out: on models of a run that was undone */
};

/* Adds to sum (n) what the slots hold, and to sums what it is made of. */
void local_read_out(struct local *local, float *sum, struct local_sums *sums);

/* Makes it the newest model. Gradients on versions below `since` are undone. */
void local_store(struct local *local, const float *model, uint64_t version, uint64_t since);

struct local_figures {
    uint64_t gradients, examples, stale, bad;   /* by all modules since local_open */
    uint64_t owners;                            /* that have attached since then */
    int attached;
};

void local_figures(const struct local *local, struct local_figures *figures);

/* Gradients that are refused for NaN or Inf since this was last asked, in the first slot that has
 * some; 0: none. *pid: whose the slot is now, 0: nobody's. */
uint64_t local_bad(struct local *local, int *pid);

int local_sweep(struct local *local);           /* as segment_sweep */

#endif
