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
 * A rank that comes during a cut gets no rows, and takes part once it has shown itself; a
 * rank that leaves keeps its rows until the cut is done. A cut fails where an owner is
 * lost.
 *
 * The lowest rank that is there is the first one. Marks say which ranks have left, also
 * to ranks that came later. A rank that becomes the first looks at the marks and the
 * order once more before it gives its own: a lower rank may be there again, and the one
 * that led before may have ordered a cut since the last look. Such a cut is over, for the
 * rank that waited for it is not there. A first rank that has died untold is awaited,
 * also without a leader, up to the end of the run. A rank that hears, during a cut, that
 * the first rank has died marks the cut as gone before it lets its rows move. So a rank
 * that comes later, and has heard of no death, holds no rows for it; and a first rank
 * that was only cut off gives it up, for rows may have moved.
 *
 * An order and a mark are each one row of a table with owners, which one rank alone
 * changes. For a moment two ranks may take themselves for the first; each finds that the
 * row of the order is not as it has written it, gives its cut up, and begins anew from
 * the row. A reader may see some numbers of a row anew and others as they were. So a rank
 * changes the details of a row first (id, kept, parts, rows), settles, and then changes
 * the numbers of cuts and rounds, which only grow. A rank that sees a new number reads
 * the row once more, for its details, before it acts. The details of an order stay until
 * all ranks have followed it, for they tidy before they do anything else.
 *
 * With replicas, the last changes of a row are lost where its owner dies. So each rank
 * looks at its own row, too, and changes it anew where it is not as this rank left it.
 * The first rank stays for that, once it has said that there are no more cuts, until each
 * rank that is there has shown that it knows. */
#ifndef CUT_H
#define CUT_H

#include "base/base.h"

enum { CUT_KEPT = 5 };          /* generations that files name */
enum { CUT_RANKS = 1024 };      /* that can own rows, */
enum { CUT_PARTS = 1024 };      /* which are in so many parts (descant_owned_parts) */

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

/* FINISHED: with the others, after the last push. AWAY: it has never begun. ENDED: it
 * knows that there are no more cuts. */
enum cut_stand {
    CUT_AWAY, CUT_THERE, CUT_FINISHED, CUT_LEFT, CUT_ENDED, CUT_STANDS
};

/* A rank's. */
struct cut_mark {
    enum cut_stand stand;
    uint64_t held;              /* cuts, as above */
    uint64_t settled;           /* a round */
    uint64_t written, failed;   /* cuts */
    uint64_t gone;              /* a cut whose leader has died; so it is over */
    uint64_t parts;             /* of all rows, as the last round has found; above 0: it
                                   has a shard of the cut */
    uint64_t rows;              /* of the shard */
};

enum cut_act {
    CUT_RESTS, CUT_HOLDS, CUT_SETTLES, CUT_WRITES, CUT_DROPS, CUT_RELEASES, CUT_TIDIES,
    CUT_ENDS
};

/* The part of a rank's state that it shows nobody. */
struct cut_self {
    uint64_t tidied;            /* the last `tidy` that it has done */
    uint64_t holds;             /* rows, for that cut; 0: none */
    uint64_t gone;              /* the last such cut by any mark that it has seen */
    bool led;                   /* the rank that gives orders is there, as it has heard */
    bool ends;                  /* its run is over */
};

/* A rank's next act. A rank whose run is over ENDS without an order where no rank is
 * there to give one. */
enum cut_act cut_act(const struct cut_order *order, const struct cut_mark *mine,
                     const struct cut_self *self);

enum cut_state {
    CUT_HOLDING, CUT_HELD, CUT_SETTLING, CUT_MISSING, CUT_SETTLED, CUT_WRITING,
    CUT_WRITTEN, CUT_FAILED
};

/* The first rank's knowledge of n ranks. */
struct cut_ranks {
    const struct cut_mark *marks;
    const bool *lost;           /* died, or left */
    const bool *owns;           /* may own rows now */
    int n;
    bool finished;              /* finish has flushed all pushes, and ranks without rows
                                   may go without a word: only owners are waited for */
    uint64_t parts;             /* of all rows */
};

/* How far the cut is that was ordered last. HELD, MISSING, SETTLED: a round of settling
 * is to be ordered, another one, the writing. *who: a rank that is waited for, or that
 * has failed. A state for which cut_acts is true counts only if a second look at all
 * marks finds it again. */
enum cut_state cut_judge(const struct cut_order *order, const struct cut_ranks *ranks,
                         int *who);
/* Why the cut that was ordered last has failed, as a rank has said it or is seen to have
 * gone; ORDER: neither, and the order was lost, or another rank led meanwhile. */
enum cut_fault { CUT_FAULT_SHARD, CUT_FAULT_GONE, CUT_FAULT_DEAD, CUT_FAULT_ORDER };

enum cut_fault cut_fault(const struct cut_order *order, const struct cut_ranks *ranks,
                         int *who);
/* Whether rank `me`, the first one, may go: no other rank is there that does not know
 * that there are no more cuts. */
bool cut_all_know(const struct cut_ranks *ranks, int me);
/* Whether the first rank does something there, and does not just wait. */
bool cut_acts(enum cut_state state);
/* Whether rank k has a shard of the cut, once that is to be written. */
bool cut_writes(const struct cut_order *order, const struct cut_mark *mark);

/* By its mark rank k has left, or has never been there, though it does not belong to the
 * `size` ranks of the start: it is not the first rank, and is not awaited. */
bool cut_passed(const struct cut_mark *mark, int k, int size);

/* A rank that is the first one, or was, and has looked at the order. */
struct cut_chair {
    bool first;                 /* it is now */
    bool leads;                 /* it was at the last look */
    bool others;                /* the order is not as this rank has written it */
    uint64_t ordered;           /* the last cut, by the order that it goes on from */
    uint64_t wanted;            /* a caller waits for that cut; 0: none does */
    bool mine;                  /* this rank has ordered it */
};

/* Whether it begins anew from the order as it is. */
bool cut_takes_over(const struct cut_chair *chair);
/* Whether its caller is told that the cut has failed. */
bool cut_gives_up(const struct cut_chair *chair);
/* The order that it goes on from: no cut is under way, and no number is below one that
 * the row has, or this rank has given, or a mark of n has. Where an owner has died, the
 * row may be as it was some time ago. */
struct cut_order cut_goes_on(const struct cut_order *row, const struct cut_order *given,
                             const struct cut_mark *marks, int n);

/* As a row of floats, each a whole number below 2^24: numbers, and the details from one
 * float on. A float that is no such number becomes 0. The order has a sum over tidy and
 * kept: where two ranks have changed a row at once, it does not fit, and both become 0,
 * so that no rank removes what FILE names. */
enum { CUT_FLOATS = 16, CUT_ORDER_DETAILS = 7, CUT_MARK_DETAILS = 6 };
void cut_put_order(const struct cut_order *order, float *row);
struct cut_order cut_get_order(const float *row);
void cut_put_mark(const struct cut_mark *mark, float *row);
struct cut_mark cut_get_mark(const float *row);

#endif
