/* SPDX-License-Identifier: MIT */
/* A trainer's claims on the chunks of the data. On one machine they are on the board for
 * all trainers to see; between machines the job deals chunks (descant_deal_take). */
#ifndef CLAIMS_H
#define CLAIMS_H

#include "run/feed.h"
#include "train/board.h"

#include "descant.h"

struct claims {
    struct board *board;
    struct seat *seat;
    struct descant *deals;      /* the job, where it deals the chunks; else NULL */
    uint64_t limit;             /* examples of all trainers together; 0: all */
    bool heirs_only;            /* claims chunks of the dead, and no new ones; the job
                                   knows that itself */
    int rank;
    /* set by claims_begin */
    struct feed_claims calls;
    uint32_t old;               /* bit k: claimed[k] of the seat is a dead trainer's
                                   still; then the feed's */
    uint64_t dealt[BOARD_CHUNKS];       /* the chunk at each of the feed's places, which
                                           orders these accesses */
};

/* Once the fields above are set, before each feed. The calls are for one feed, and valid
 * as long as *c is. */
const struct feed_claims *claims_begin(struct claims *c);

#endif
