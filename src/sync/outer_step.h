/* SPDX-License-Identifier: MIT */
/* The outer step of a block: its rate and momentum, and whether it is too long or too
 * short. */
#ifndef OUTER_STEP_H
#define OUTER_STEP_H

#include "kernels/kernels.h"
#include "sync/plan.h"

/* The step of round number `rounds`, from 0, among so many members. All trainers call it
 * with the same arguments, and get the same bits. */
struct outer_step outer_step_of(const struct plan *plan, uint64_t rounds, int members);

/* The angle of the last rounds' changes b to the momentum s before them. */
struct outer_watch {
    double cosine;              /* mean cosine of the last rounds */
    uint64_t rounds;            /* in it */
    bool said;
};

enum outer_verdict { OUTER_FITS, OUTER_OVERSHOOTS, OUTER_LAGS };

/* After a round's step: whether to log now that the step is too long or too short, which
 * is done once. */
enum outer_verdict outer_watch(struct outer_watch *watch, const struct plan *plan,
                               struct outer_step step, const struct turn *turn);

#endif
