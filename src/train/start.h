/* SPDX-License-Identifier: MIT */
/* The agreement with which a run over several hosts begins (descant_agree_mean). Pure:
 * numbers in, decisions out (open.c does the rest).
 *
 * The ranks of the start go on from one checkpoint, or none does: where hosts have
 * folders of their own, one may have no FILE, an older one, or a torn shard. They also
 * agree on the run's number, which FILE has in its texts: so each rank that comes to
 * write FILE knows whether the FILE that is there is the job's. A run that goes on from a
 * FILE keeps its number; else the number comes of those that the ranks have drawn.
 *
 * A rank that comes late goes on from none, for the job has all: its values are zeros,
 * which change nothing but the number of ranks. It takes part only where the agreement is
 * still to be made, since the others wait for it then; else it knows the result, as each
 * rank of the job does (descant_agreed). */
#ifndef TRAIN_START_H
#define TRAIN_START_H

#include "base/base.h"

enum { START_VALUES = 6 };

struct start {
    bool late;                  /* its other fields count for nothing */
    bool resumed, failed;       /* it has found a checkpoint; and could not read it */
    uint64_t generation;        /* of the checkpoint, below 2^24; 0: not in shards */
    uint64_t run;               /* of the checkpoint, or drawn; below 2^48 */
};

void start_offer(const struct start *mine, double values[START_VALUES]);

/* NONE_THERE: another rank has no checkpoint. NONE_HERE: another one has. UNREAD: another
 * one could not read its own. OTHER: another one has found another checkpoint. */
enum start_state { START_GOOD, START_NONE_THERE, START_NONE_HERE, START_UNREAD,
                   START_OTHER };
enum start_state start_judge(const struct start *mine, const double agreed[START_VALUES]);

/* Of the job, the same in each rank; 0: no rank of the start has agreed. */
uint64_t start_run(const double agreed[START_VALUES]);
bool start_resumed(const double agreed[START_VALUES]);

#endif
