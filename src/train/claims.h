/* SPDX-License-Identifier: MIT */
/* A trainer's claims on the chunks of the data, which are on the board for all trainers
 * to see. */
#ifndef CLAIMS_H
#define CLAIMS_H

#include "run/feed.h"
#include "train/board.h"

struct claims {
    struct board *board;
    struct seat *seat;
    uint64_t limit;             /* examples of all trainers together; 0: all */
    bool heirs_only;            /* claims chunks of the dead, and no new ones */
    int rank;
    /* set by claims_begin */
    struct feed_claims calls;
    uint64_t old[BOARD_CHUNKS]; /* held by a dead trainer of this very seat; then the
                                   feed's */
    int n_old;
};

/* Once the fields above are set, before each feed. The calls are for one feed, and valid
 * as long as *c is. */
const struct feed_claims *claims_begin(struct claims *c);

#endif
