/* SPDX-License-Identifier: MIT */
/* A cut through a run of several hosts whose rows have owners: the moment that a
 * checkpoint in shards is of. Pure: numbers in, decisions out (cuts.c does the rest).
 *
 *   1. The first rank takes the place in the data, and orders cut c.
 *   2. Each rank waits until the owners have stepped by all that it had pushed by then,
 *      and shows that it has settled c. So every chunk that is done in the place has all
 *      of its pushes in the rows, but for what a rank without rows that died had still
 *      to send.
 *   3. When all have settled, the first orders the owners to write, and each writes its
 *      shard of generation c, and shows that it has written it, or failed.
 *   4. When all have written, the first writes FILE, which names the shards, and then
 *      orders older ones to be removed.
 *
 * Training goes on meanwhile. What is pushed between 2 and the end of 3 is in some
 * shards, and its chunks are not done in the place: a run that goes on trains them again.
 *
 * An order and a mark are each one row of a table with owners, which one rank alone
 * changes. A reader may see some numbers of a row anew and others as they were. So a rank
 * changes the details of a row first (id, kept, rows), settles, and then changes the
 * numbers of cuts, which only grow; and whoever sees a new one of these reads the row
 * once more, for its details. The details of an order stay until all owners have
 * followed it, for they tidy before they do anything else. */
#ifndef CUT_H
#define CUT_H

#include "base/base.h"

enum { CUT_KEPT = 5 };          /* generations that files name */

/* The first rank's. Numbers of cuts: the last one of which that holds; 0: none. */
struct cut_order {
    uint64_t cut, write;        /* ordered; to be written, for all have settled */
    uint64_t tidy;              /* up to it generations that are not kept are removed */
    uint64_t id;                /* of the checkpoint of `cut` */
    uint64_t kept[CUT_KEPT];    /* 0: none */
    bool over;                  /* there will be no more cuts */
};

/* A rank's. */
struct cut_mark {
    bool there;                 /* it has begun */
    uint64_t settled, written, failed;
    uint64_t rows;              /* of the shard */
};

enum cut_act { CUT_RESTS, CUT_SETTLES, CUT_WRITES, CUT_TIDIES, CUT_ENDS };

/* What a rank does next. tidied: the last `tidy` that it has done. owns: it has rows, and
 * so shards. */
enum cut_act cut_act(const struct cut_order *order, const struct cut_mark *mine,
                     uint64_t tidied, bool owns);

enum cut_state { CUT_SETTLING, CUT_SETTLED, CUT_WRITTEN, CUT_FAILED };

/* How far the cut is, by the marks of n ranks, of which the first `owners` own rows. Any
 * other rank counts where it is there and not lost: once all are past finish, which has
 * flushed their pushes, the first takes those without rows for lost. *who: a rank that is
 * waited for, or that has failed. */
enum cut_state cut_judge(uint64_t cut, const struct cut_mark *marks, const bool *lost,
                         int n, int owners, int *who);

/* As a row of floats, each a whole number below 2^24. A float that is none becomes 0. */
enum { CUT_FLOATS = 16 };
void cut_put_order(const struct cut_order *order, float *row);
struct cut_order cut_get_order(const float *row);
void cut_put_mark(const struct cut_mark *mark, float *row);
struct cut_mark cut_get_mark(const float *row);

#endif
