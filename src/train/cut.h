/* SPDX-License-Identifier: MIT */
/* A cut through a run of several hosts whose rows have owners: the moment that a
 * checkpoint in shards is of. Pure: numbers in, decisions out (cuts.c does the rest).
 *
 *   1. The first rank takes the place in the data, and orders cut c. Each rank holds its
 *      rows (descant_owned_hold), so that none moves, and shows that it has held c.
 *   2. When all have held, the first orders a round of settling. Each rank waits until
 *      the owners have stepped by all that it had pushed by then, and shows how many of
 *      the parts of all rows it owns. So every chunk that is done in the place has all of
 *      its pushes in the rows, but for what a rank without rows that died had still to
 *      send. If the parts do not make up all, a rank owns some that has not shown itself
 *      yet, and there is another round: none is counted twice, since nobody who has held
 *      gives any away.
 *   3. When they do, the first orders the owners to write. Each writes its shard of
 *      generation c, the k-th of n, by the marks of all, and shows that it has written
 *      it, or failed.
 *   4. When all have, the first says that c is done, and all let their rows move. If it
 *      was written, the first writes FILE, which names the shards. Then it orders older
 *      ones to be removed.
 *
 * Training goes on meanwhile. What is pushed between 2 and the end of 3 is in some
 * shards, and its chunks are not done in the place: a run that goes on trains them again.
 *
 * Who comes during a cut gets no rows, and takes part once it has shown itself; who
 * leaves keeps its rows until the cut is done. A cut fails where an owner is lost.
 *
 * An order and a mark are each one row of a table with owners, which one rank alone
 * changes; of orders the first rank, and once that has left, the next one. A reader may
 * see some numbers of a row anew and others as they were. So a rank changes the details
 * of a row first (id, kept, parts, rows), settles, and then changes the numbers of cuts
 * and rounds, which only grow; and whoever sees a new one of these reads the row once
 * more, for its details. The details of an order stay until all ranks have followed it,
 * for they tidy before they do anything else. */
#ifndef CUT_H
#define CUT_H

#include "base/base.h"

enum { CUT_KEPT = 5 };          /* generations that files name */

/* The first rank's. Numbers of cuts: the last one of which that holds; 0: none. */
struct cut_order {
    uint64_t cut, settle;       /* ordered; to be settled, for all have held, */
    uint64_t round;             /* in this round, a number that grows over all cuts */
    uint64_t write, done;       /* to be written, for all have settled; over */
    uint64_t tidy;              /* up to it generations that are not kept are removed */
    uint64_t id;                /* of the checkpoint of `cut` */
    uint64_t kept[CUT_KEPT];    /* 0: none */
    bool over;                  /* there will be no more cuts */
};

/* A rank's. */
struct cut_mark {
    bool there;                 /* it has begun, and not left */
    uint64_t held;              /* cuts, as above */
    uint64_t settled;           /* a round */
    uint64_t written, failed;   /* cuts */
    uint64_t parts;             /* of all rows, as the last round has found; above 0: it
                                   has a shard of the cut */
    uint64_t rows;              /* of the shard */
};

enum cut_act {
    CUT_RESTS, CUT_HOLDS, CUT_SETTLES, CUT_WRITES, CUT_RELEASES, CUT_TIDIES, CUT_ENDS
};

/* Of a rank, what it shows nobody. */
struct cut_self {
    uint64_t tidied;            /* the last `tidy` that it has done */
    uint64_t holds;             /* rows, for that cut; 0: none */
    bool led;                   /* the rank that gives orders is there */
};

/* What a rank does next. */
enum cut_act cut_act(const struct cut_order *order, const struct cut_mark *mine,
                     const struct cut_self *self);

enum cut_state {
    CUT_HOLDING, CUT_HELD, CUT_SETTLING, CUT_MISSING, CUT_SETTLED, CUT_WRITING,
    CUT_WRITTEN, CUT_FAILED
};

/* What the first rank knows of n ranks. */
struct cut_ranks {
    const struct cut_mark *marks;
    const bool *lost;           /* died, or left */
    const bool *owns;           /* may own rows now */
    int n;
    bool finished;              /* finish has flushed all pushes, and ranks without rows
                                   may go without a word: owners alone are waited for */
    uint64_t parts;             /* of all rows */
};

/* How far the cut is that was ordered last. HELD, MISSING, SETTLED: a round of settling
 * is to be ordered, another one, the writing. *who: a rank that is waited for, or that
 * has failed. */
enum cut_state cut_judge(const struct cut_order *order, const struct cut_ranks *ranks,
                         int *who);
/* Whether rank k has a shard of the cut, once that is to be written. */
bool cut_writes(const struct cut_order *order, const struct cut_mark *mark);

/* As a row of floats, each a whole number below 2^24. A float that is none becomes 0. */
enum { CUT_FLOATS = 16 };
void cut_put_order(const struct cut_order *order, float *row);
struct cut_order cut_get_order(const float *row);
void cut_put_mark(const struct cut_mark *mark, float *row);
struct cut_mark cut_get_mark(const float *row);

#endif
