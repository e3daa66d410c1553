/* SPDX-License-Identifier: MIT */
/* Slices that come and go, as ranks do, while all train on.
 *
 * Each slice has one owner, who alone gives it away; a change of owner has a number, the
 * slice's epoch. Nothing is agreed upon: each rank says how much it wants (its share),
 * each owner finds by the same rule who is to have its slices (owned_map_target), and
 * gives away those that are another's. A slice goes from A to B as follows.
 *
 *   1. BEGIN, and then all of its rows (SET). A serves it meanwhile, and notes which rows
 *      change; these are sent again. COMPLETE; B says FOLLOWED. Or it says REFUSED, where
 *      it has no memory, or still answers for the slice itself, as in 3.
 *   2. A keeps its callers out for a moment, sends what has changed since, and END: B has
 *      the slice, and says so to all (OWN).
 *   3. A says MOVED to all. A rank C that hears it asks nobody about the slice for a
 *      while (it is shut), and tells A, behind all that it has asked there: FENCE. Until
 *      then A answers C from its copy, and passes C's pushes on to B. Behind these it
 *      passes the FENCE on (FENCED), and B tells C: OPEN. So what C asks B comes behind
 *      all that C had asked A: C reads its own pushes, no push is lost, and none comes
 *      twice. C may be A or B itself. Nobody waits for a C that is slow.
 *   4. When all have said FENCE, A gives the memory back, and tells B: SETTLED. Only then
 *      B may give the slice away, so no push is on its way through two that had it.
 *
 * Replicas: with follow_s each owner lets the next rank that has a share follow its
 * slices by the same means, BEGIN to FOLLOWED; then it sends rows that have changed every
 * follow_s / 2. Where an owner dies, a rank that has all rows of a slice, as a replica or
 * since it was to have it, takes it (CLAIM); the pushes since the last rows came are
 * lost. Of two that do the lower rank has it, and the other passes on what it is asked,
 * as if it had given it (3). Asks wait until then, and are sent anew. Where nobody
 * claims, rows are lost, and the job ends; without replicas at once. (No option turns
 * replicas on yet: between real processes some had rows that were too old.)
 *
 * Who comes late begins with the map of the start, and hears from each rank what has
 * moved (MAP) before it asks that one.
 *
 * Epochs: a gift adds 2, a claim 1. So where an owner dies right after it has given a
 * slice, the one that has it wins over the one that claims it. A rank that has heard of
 * the gift, and then of the claim alone, takes the claim: the slice did not arrive. */
#ifndef MOVES_H
#define MOVES_H

#include "owners/service.h"

enum moves_kind {
    /* ASK_SET: a table, n rows of 8 bytes, and n records. All others have n entries. */
    ASK_MAP = ASK_SET + 1,              /* rate: the sender's share */
    ASK_SHARE,                          /* the same, without entries */
    ASK_BEGIN,                          /* rate: 1: as a replica */
    ASK_COMPLETE, ASK_FOLLOWED, ASK_REFUSED, ASK_DROP, ASK_END, ASK_MOVED, ASK_FENCE,
    ASK_FENCED,                         /* of: whose FENCE */
    ASK_OPEN, ASK_SETTLED, ASK_OWN, ASK_CLAIM,
    MOVES_END
};
_Static_assert((int)MOVES_END <= (int)ASK_KINDS, "room for their numbers");

struct moves_entry {
    uint16_t slice, rank;
    uint32_t epoch;
};

enum { MOVES_QUEUED = 4 << 20 };        /* bytes of rows on their way, at most */
enum { NOBODY = -1 };

enum follow_state {
    FOLLOW_BEGINS, FOLLOW_COPIES, FOLLOW_ENDS, FOLLOW_FOLLOWS,
    FOLLOW_REFUSED                      /* it cannot have them now, and is asked again */
};

/* Somebody gets the rows of a slice. */
struct follow {
    int rank;                           /* NOBODY */
    enum follow_state state;
    int table;                          /* COPIES: the next rows, */
    size_t at;                          /* of this one */
};

/* To whom: it is to have the slice; it is to be a replica; it is one, until the other
 * is. */
enum { TO_MOVE, TO_FOLLOW, TO_OLD, TO_ALL };

/* What this rank knows of a slice, beside the map. */
struct moving {
    struct follow to[TO_ALL];           /* it owns it, and these get its rows */
    bool left;                          /* it has given it away, and some ranks have not
                                           said FENCE: */
    int owed;                           /* so many */
    int from;                           /* who sends it to this rank; NOBODY */
    bool complete;                      /* from: all has come */
    int giver;                          /* who has given it to its owner, and may still
                                           pass something on; NOBODY */
    bool orphan;                        /* its owner has gone, and may have come again */
    int says, claims;                   /* who has said that it has it, or claims it;
                                           NOBODY, */
    uint32_t said, claimed;             /* and its epoch then */
};

struct moves_peer {
    double share;
    bool counts;                        /* it may have slices, by its share */
    uint64_t owes[OWNED_SLICES / 64];   /* slices of which it has not said FENCE, */
    uint64_t opens[OWNED_SLICES / 64];  /* and of which it is to hear OPEN when it is
                                           there: its FENCE has come before it */
};

struct moves {                          /* the turning thread's, but for what says else */
    struct moving slices[OWNED_SLICES];
    struct moves_peer *peers;           /* (place.size), this rank among them */
    double follow_s;
    struct ask *held, **last;           /* asks with rows that are shut, in their order */
    int shut, left, coming;             /* slices; coming: from somebody */
    size_t queued;                      /* bytes of SET on their way */
    bool plan;                          /* who is to have what may have changed */
    bool routes;                        /* asks may go elsewhere now, */
    bool heard;                         /* and asks of others may be served */
    bool rests;                         /* no slice is to be copied or given */
    int at;                             /* the slice that is looked at next, */
    int sweep;                          /* and whose changed rows are sent; OWNED_SLICES:
                                           all were */
    uint64_t swept_ns;
    bool refused;                       /* some were, */
    uint64_t refused_ns;                /* since then; 0 */
    uint64_t waits_ns;                  /* some slices have no owner since then; 0 */
    bool holds_now;                     /* as the last turn has seen it */
    bool said;                          /* that there is no memory */
    _Atomic bool leaves;                /* any thread: this rank gives all away */
    _Atomic int holds;                  /* any thread: so many want that nothing moves */
    _Atomic bool still;                 /* for any thread: holds, and nothing moves */
    _Atomic bool away;                  /* for any thread: it leaves, and has nothing */
    _Atomic bool stuck;                 /* for any thread: nobody can take its slices */
    float *records;                     /* of one message, */
    uint64_t *rows;                     /* and their rows */
};

struct moves_options {
    const double *shares;               /* (n) of the ranks of the start */
    int n;
    double share;                       /* of this rank */
    bool late;                          /* it came after the start */
    double follow_s;                    /* 0: no replicas */
};

/* Slices of this service may move from now on; after service_init, before tables are
 * placed. False: no memory. */
bool moves_init(struct service *s, const struct moves_options *options);
void moves_fini(struct service *s);

/* --- moves.c: the turning thread's. False: the service has failed --- */

bool moves_come(struct service *s, int rank);
/* Where a slice's owner has gone, or who gave it to one that has not said OPEN: who has
 * it now, by what is known so far. */
bool moves_settle(struct service *s, int slice);
enum moves_loss { MOVES_FAILED, MOVES_LOST, MOVES_GOES_ON };
/* A peer has gone. LOST: so have rows that it had. */
enum moves_loss moves_go(struct service *s, int rank);
/* Lets slices move on. */
bool moves_turn(struct service *s, uint64_t now_ns, bool *worked);
bool moves_say(struct service *s, int rank, int kind, const struct moves_entry *entries,
               int n, float rate, int of);
bool moves_say_all(struct service *s, int kind, const struct moves_entry *entries, int n,
                   float rate);
bool moves_shut(struct service *s, int slice, bool shut);
bool moves_change(struct service *s, int slice, int owner, uint32_t epoch, bool shut);
/* A slice that this rank has claimed is another's. Those that have asked here for it are
 * told as if it were given. */
bool moves_yield(struct service *s, int slice, int to, uint32_t epoch);
bool moves_fenced(struct service *s, int slice, int rank);
bool moves_followed(struct service *s, int slice, int rank);
void moves_refused(struct service *s, int slice, int rank);
/* A slice, or its replica, is on its way to this rank; NOBODY: no longer. */
void moves_comes(struct service *s, int slice, int from);
/* Others need this rank: it has slices, or passes something on, or one is coming. */
bool moves_has(const struct service *s);
/* Memory for a slice that comes. */
bool moves_take_part(struct service *s, int slice);
void moves_give_part(struct service *s, int slice);
/* The share by which this rank keeps what it has, and gets no more. */
double moves_full(const struct service *s);
/* Pushes of an ask on rows that were given away. */
bool moves_pass_on(struct service *s, const struct read_ask *ask);

/* --- heard.c: the turning thread's --- */

/* What a peer says of slices. False: the service has failed, or, *no_ask: it breaks the
 * protocol. */
bool moves_heard(struct service *s, int rank, const unsigned char *message, size_t bytes,
           const char **no_ask);
/* An ask for rows is to wait, since their slice is about to be here. */
bool moves_early(struct service *s, const unsigned char *message, size_t bytes);

/* --- any thread --- */

void moves_leave(struct service *s);
void moves_hold(struct service *s, bool hold);

/* Whether this rank answers for a slice. */
static inline bool moves_serves(const struct service *s, int slice)
{
    return s->map.owner[slice] == s->rank || (s->moves && s->moves->slices[slice].left);
}

#endif
