/* SPDX-License-Identifier: MIT */
/* A process of local modules whose control is rank 0 of a fabric: the other end of
 * remote.h. It keeps its segments whatever becomes of control. One thread; branch_turn
 * never waits. */
#ifndef BRANCH_H
#define BRANCH_H

#include "bsp/parcel.h"

struct branch_options {
    struct fabric *f;               /* with a post */
    const char *name;               /* its segments are NAME-k, k from (rank - first)
                                       modules on */
    int modules, slots;
    const struct log *log;
};

struct branch;

descant_status branch_open(struct branch **branch, const struct branch_options *options);
/* ends the segments. NULL is allowed */
void branch_close(struct branch *branch);

/* Hears parcels that have come, and sends those that are due. After the fabric's move.
 * Not OK, and logged: the branch cannot go on. *heard: something came. */
descant_status branch_turn(struct branch *branch, bool *heard);

void branch_say_crew(struct branch *branch, const struct crew_figures *crew);

int branch_locals(const struct branch *branch);     /* 0: no model has come yet */
struct local *branch_local(const struct branch *branch, int k);
/* the number in the job of its first module */
int branch_first(const struct branch *branch);
int branch_all(const struct branch *branch);        /* modules in the job */
/* control has said that the run is over */
bool branch_ended(const struct branch *branch);
bool branch_alone(const struct branch *branch);     /* there is no control now */

/* Ends the branch: tells the modules, and reads out a last time when branch_turn can send
 * the sum. */
void branch_end(struct branch *branch);
void branch_last(struct branch *branch);
bool branch_done(const struct branch *branch);      /* control has the last sum */
/* gradients that control has not taken */
uint64_t branch_untaken(const struct branch *branch);

#endif
