/* SPDX-License-Identifier: MIT */
/* Slices that come and go, as ranks do, while all train on.
 *
 * Each slice has one owner, who alone gives it away; a change of owner has a number, the
 * slice's epoch. Nothing is agreed upon: each rank says how much it wants (its share),
 * each owner finds by the same rule who is to have its slices (owned_map_target), and
 * gives away those that are another's. A slice goes from A to B as follows.
 *
 *   1. A says BEGIN to B, and then sends all rows of the slice (SET). A serves the slice
 *      meanwhile, and notes which rows change; it sends these again. Then A says
 *      COMPLETE, and B answers FOLLOWED. B answers REFUSED where it has no memory, or
 *      still answers for the slice itself, as in 3. Each BEGIN has a number, which its
 *      answer names: an answer to an older BEGIN is ignored.
 *   2. A keeps its callers out for a moment, sends what has changed since, and END: B has
 *      the slice, and says so to all (OWN).
 *   3. A says MOVED to all. A rank C that hears it asks nobody about the slice for a
 *      while (it is shut), and tells A, behind all that it has asked there: FENCE. Until
 *      then A answers C from its copy, and passes C's pushes on to B. Behind these A
 *      passes the FENCE on (FENCED), and B tells C: OPEN. So what C asks B comes behind
 *      all that C had asked A: C reads its own pushes, no push is lost, and none comes
 *      twice. C may be A or B itself. Nobody waits for a C that is slow.
 *   4. When all have said FENCE, A gives the memory back, and tells B: SETTLED. Only then
 *      may B give the slice away, so no push is on its way through two that had it.
 *
 * Replicas. With follow_s the next rank that has a share follows each slice of an owner
 * by the same means, BEGIN to FOLLOWED. Then the owner sends rows that have changed every
 * follow_s / 2.
 *
 * When a slice moves from A to B, its replica R stays. END tells B of R, and MOVED tells
 * R of B. All rows that A had sent to R come before that MOVED, so R has what B has. R
 * answers B: FOLLOWED. B sends R no rows before that answer (JOINS). R answers REFUSED
 * where it does not have all rows. A slice that moves to R itself waits until another
 * rank has a whole replica.
 *
 * Where an owner dies (lost.c), a rank that has all rows of a slice, as a replica or
 * since it was to have it, takes the slice (CLAIM). The pushes since the last rows came
 * are lost. Asks wait until the slice is claimed, and are sent anew. Each rank answers a
 * CLAIM by FENCE. When all have, no other claim can come: only then may the slice move,
 * or have a replica. Where nobody claims, rows are lost, and the job ends; without
 * replicas it ends at once.
 *
 * Two ranks may claim the same slice. Then the lower rank keeps it, and the other one
 * yields: it says MOVED, as if it had given the slice away, and passes on the pushes that
 * still come (3). The pushes by which it stepped between its own CLAIM and that moment
 * are lost. So they are where a claim yields to a gift of a higher epoch.
 *
 * A push may still come to a rank that has not the slice, and will not get it: the ranks
 * that had it on the way have died. The push is lost, as others at a death, and its
 * sender is not to blame.
 *
 * An owner that has ended in order says so, and is no loss: it has given its slices away,
 * or nobody needs them (service.c).
 *
 * A rank that comes late begins with the map of the start. It hears from each rank what
 * has moved (UNSURE, MAP) before it asks that rank. A rank is sure of a slice that it may
 * use. It says that it wants slices once it has met all that own some: the replica of a
 * slice could not join an owner that it has not met, and the slice would have none.
 *
 * Epochs: a gift adds 2, a claim 1. So where an owner dies right after it has given a
 * slice, the rank that has it wins over one that claims it. A rank that has heard of the
 * gift, and then of the claim alone, takes the claim: the slice did not arrive.
 *
 * A rank that dies may come again before all have heard what it had. So a slice belongs
 * to a process: a rank and its generation (link.h). */
#ifndef MOVES_H
#define MOVES_H

#include "owners/service.h"

enum moves_kind {
    /* ASK_SET has n parts: struct moves_part, then its rows of 8 bytes, in a table that
     * grows their slots of 4, and their records. All others have n entries. */
    ASK_UNSURE = ASK_SET + 1,           /* before MAP: slices of which the sender has
                                           heard, but not from their owner */
    ASK_MAP,                            /* rate: the sender's share; of: 1: it is late */
    ASK_SHARE,                          /* the share, without entries */
    ASK_BEGIN,                          /* rate: 1: as a replica; of: its number */
    ASK_COMPLETE,
    ASK_FOLLOWED, ASK_REFUSED,          /* of: the number of the BEGIN that they answer;
                                           0: they answer END or MOVED */
    ASK_DROP,
    ASK_END,                            /* of: the replica; the new owner: there is none.
                                           The entry has the replica's generation */
    ASK_MOVED,                          /* of: the same */
    ASK_FENCE,
    ASK_FENCED,                         /* of: whose FENCE */
    ASK_OPEN, ASK_SETTLED, ASK_OWN, ASK_CLAIM,
    MOVES_END
};
_Static_assert((int)MOVES_END <= (int)ASK_KINDS, "room for their numbers");

struct moves_entry {
    uint16_t slice, rank;
    uint32_t epoch;
    uint64_t generation;                /* of that rank, where it has the slice */
};

struct moves_part {
    uint32_t table, n;
};

enum { MOVES_QUEUED = 4 << 20 };        /* bytes of rows on their way to a rank: then no
                                           copy of a slice goes on. No push waits for
                                           these rows, to however many ranks they go */
enum { MOVES_WIDEST = 8183 };           /* floats of a record */
_Static_assert(sizeof(struct ask_head) + sizeof(struct moves_part) + sizeof(uint64_t) +
                       sizeof(uint32_t) + MOVES_WIDEST * sizeof(float) == ASK_BYTES,
               "a message has room for one");

/* Bytes of a row in ASK_SET, beside its record. */
static inline size_t moves_row_bytes(const struct owned *table)
{
    return sizeof(uint64_t) + (table->shape.grows ? sizeof(uint32_t) : 0);
}

enum { NOBODY = -1 };

enum follow_state {
    FOLLOW_BEGINS, FOLLOW_COPIES, FOLLOW_ENDS, FOLLOW_FOLLOWS,
    FOLLOW_JOINS,                       /* it was the replica of the giver, and has not
                                           said yet that it has all rows */
    FOLLOW_REFUSED                      /* it cannot have them now, and is asked again */
};

/* Why a rank gets the rows of a slice: it is to own the slice; it is its replica, or is
 * to be; it was the replica, and is kept until the one that is TO_FOLLOW is whole. */
enum { TO_MOVE = 1, TO_FOLLOW = 2, TO_OLD = 4, TO_MOST = 3 };

/* A rank that gets the rows of a slice. */
struct follow {
    int rank;
    unsigned roles;                     /* bits of TO_…; 0: nobody */
    enum follow_state state;
    int number;                         /* of its BEGIN, which its answers name; JOINS: 0
                                         */
    int table;                          /* COPIES: the table whose rows are next, */
    size_t at;                          /* and the next one of the slice */
};

/* What this rank knows of a slice, beside the map. */
struct moving {
    struct follow to[TO_MOST];          /* this rank owns it, and these get its rows: a
                                           role has one rank, a rank one place */
    int early;                          /* a replica whose answer has come before the END
                                           of the slice; NOBODY */
    bool early_joins;                   /* early: it has all rows (FOLLOWED) */
    uint32_t early_of;                  /* early: the epoch that its answer names */
    int owed;                           /* so many have not, of its gift or its claim */
    int from;                           /* who sends it to this rank; NOBODY */
    uint32_t begun;                     /* from: as the owner of this epoch, */
    int number;                         /* by the BEGIN of this number */
    bool complete;                      /* from: all has come */
    bool joined;                        /* from: as a replica that came with the slice */
    int giver;                          /* who has given it to its owner, and may still
                                           pass something on; NOBODY */
    bool unsure;                        /* the giver has died before it had passed all on,
                                           or this rank has only heard of the gift from
                                           others: the owner's own word is awaited, or a
                                           claim */
    uint64_t waits_ns;                  /* it has no owner since then; 0 */
    int says;                           /* the rank that has last said that it owns the
                                           slice, until that rank goes or gives it away;
                                           NOBODY */
    uint32_t said;                      /* says: the epoch of that word */
    int claims;                         /* the same of the rank that claims it, */
    uint32_t claimed;                   /* and the epoch of the claim */
};

struct moves_peer {
    double share;
    bool counts;                        /* it may have slices, by its share */
    size_t queued;                      /* bytes of SET on their way to it */
    uint64_t owes[OWNED_SLICES / 64];   /* slices of which it has not said FENCE, */
    uint64_t opens[OWNED_SLICES / 64];  /* and of which it is to hear OPEN when it is
                                           there: its FENCE has come before it */
};

struct moves {                          /* the turning thread's, but for what says else */
    struct moving slices[OWNED_SLICES];
    /* of each slice, apart, as each row that is asked for looks here: */
    uint64_t owner_is[OWNED_SLICES];    /* the owner's generation; 0: it owns it from the
                                           start, and has not come yet */
    bool serves_on[OWNED_SLICES];       /* this rank has given it away, and still answers
                                           ranks that have not said FENCE */
    struct moves_peer *peers;           /* (place.size), this rank among them */
    double follow_s;
    struct ask *held, **last;           /* asks with rows that are shut, in their order */
    int shut, left, coming;             /* slices; coming: from somebody */
    bool plan;                          /* who is to have what may have changed */
    bool routes;                        /* asks may go elsewhere now, */
    bool heard;                         /* and asks of others may be served */
    bool rests;                         /* no slice is to be copied or given */
    int numbers;                        /* of BEGINs so far */
    int at;                             /* the slice that is looked at next: may it be
                                           copied or given? */
    int sweep;                          /* the slice at which the next sweep of changed
                                           rows begins */
    bool due[OWNED_SLICES];             /* slices whose changed rows are to be sent */
    int n_due;                          /* the number of slices that are due */
    uint64_t swept_ns;                  /* when all slices were last made due */
    bool sweeps;                        /* a slice that is due may be sent now */
    uint64_t looks_ns;                  /* the next look for slices without an owner */
    bool refused;                       /* some were, */
    uint64_t refused_ns;                /* since then; 0 */
    bool late;                          /* this rank has come after the start */
    bool met;                           /* it has met all that own slices, or is not late:
                                           before, it wants none */
    bool holds_now;                     /* as the last turn has seen it */
    bool said;                          /* that there is no memory */
    _Atomic bool leaves;                /* any thread: this rank gives all away */
    _Atomic int holds;                  /* any thread: so many want that nothing moves */
    _Atomic bool still;                 /* for any thread: holds, and nothing moves. The
                                           turning thread sets it, and a thread that
                                           begins to hold resets it: once it is set
                                           again, nothing moves while that thread holds */
    _Atomic bool away;                  /* for any thread: it leaves, and has nothing */
    _Atomic bool stuck;                 /* for any thread: nobody can take its slices */
    unsigned char *message;             /* (ASK_BYTES) a SET that is being made, */
    uint64_t *rows;                     /* and rows of a part of it, */
    uint32_t *slots;                    /* with their slots, in tables that grow, */
    float *records;                     /* and records */
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

/* --- slices.c: the turning thread's. False: the service has failed --- */

/* A message of so many bytes to a rank that is there. NULL: the service has failed. */
struct ask *moves_ask(struct service *s, int rank, enum ask_kind kind, size_t bytes);
bool moves_say(struct service *s, int rank, int kind, const struct moves_entry *entries,
               int n, float rate, int of);
bool moves_say_all(struct service *s, int kind, const struct moves_entry *entries, int n,
                   float rate, int of);
/* A slice as it is. */
struct moves_entry moves_entry_of(const struct service *s, int slice);
bool moves_shut(struct service *s, int slice, bool shut);
/* owner: its process that is there now, or was last. */
bool moves_change(struct service *s, int slice, int owner, uint32_t epoch, bool shut);
/* The same, of any process of that rank. */
bool moves_change_to(struct service *s, const struct moves_entry *e, bool shut);
/* The same, of one that has the gate. */
void moves_change_locked(struct service *s, const struct moves_entry *e, bool shut);
/* A slice, or its replica, is on its way to this rank; NOBODY: no longer. */
void moves_comes(struct service *s, int slice, int from);
/* Memory for a slice that comes. */
bool moves_take_part(struct service *s, int slice);
void moves_give_part(struct service *s, int slice);
/* The share by which this rank keeps what it has, and gets no more. */
double moves_full(const struct service *s);

/* --- follow.c: the turning thread's. False: the service has failed --- */

/* The rank that has the role; NULL. */
struct follow *moves_with_role(struct moving *of, unsigned role);
/* rank NOBODY: none is to have the role. A replica stays until the next one is whole. */
bool moves_set_role(struct service *s, int slice, unsigned role, int rank);
void moves_forget_followers(struct moving *of);
/* One of them is in that state. */
bool moves_one_is(const struct moving *of, enum follow_state state);
/* Fewer than `most` bytes of rows are on their way to that rank. */
bool moves_has_room(const struct service *s, int rank, size_t most);
/* From now on rows of a slice that change are noted. */
bool moves_note_changes(struct service *s, int slice);
/* BEGIN; some more of all rows, with COMPLETE behind the last of them; and those that
 * have changed, to all that have begun. */
bool moves_begin(struct service *s, int slice, struct follow *f);
bool moves_copy_some(struct service *s, int slice, struct follow *f);
bool moves_send_changed(struct service *s, int slice);
/* The changed rows of all slices, when they are due. */
bool moves_sweep(struct service *s, uint64_t now_ns);
/* Answers to BEGIN, END and MOVED. */
bool moves_followed(struct service *s, int rank, const struct moves_entry *e, int number);
void moves_refused(struct service *s, int rank, const struct moves_entry *e, int number);
/* Those that have refused are asked again, after a while. */
void moves_offer_again(struct service *s, uint64_t now_ns);

/* --- moves.c: the turning thread's --- */

bool moves_come(struct service *s, int rank);
/* Lets slices move on. */
bool moves_turn(struct service *s, uint64_t now_ns, bool *worked);
/* A slice that this rank has claimed is another's. Those that have asked here for it are
 * told as if it were given. */
bool moves_yield(struct service *s, const struct moves_entry *e);
/* All others are to say FENCE of it. */
void moves_owe(struct service *s, int slice);
bool moves_fenced(struct service *s, int rank, const struct moves_entry *e);
/* One has said so, or has gone. */
bool moves_end_owed(struct service *s, int slice);
/* Others need this rank: it has slices, or passes something on, or one is coming. */
bool moves_has(const struct service *s);
/* Pushes of an ask on rows that were given away. */
bool moves_pass_on(struct service *s, const struct read_ask *ask);

/* --- lost.c: the turning thread's --- */

/* Where a slice is an orphan, or its giver has died: who has it now, by what is known so
 * far. */
bool moves_settle(struct service *s, int slice);
/* A peer has come, and has said what it knows to have moved. */
bool moves_met(struct service *s, int rank, bool late);
/* False: nobody has taken a slice whose owner has died, for so long that it fails. */
bool moves_wait_for_claims(struct service *s, uint64_t now_ns);
/* A peer that is there goes. False: the service has failed. */
bool service_goes(struct service *s, int rank);
/* The service fails: so many rows have gone with that rank. False. */
bool service_loses(struct service *s, int rank);

/* --- heard.c: the turning thread's --- */

/* What a peer says of slices. False: the service has failed, or, *no_ask: it breaks the
 * protocol. */
bool moves_heard(struct service *s, int rank, const unsigned char *message, size_t bytes,
           const char **no_ask);

/* --- any thread --- */

void moves_leave(struct service *s);
void moves_hold(struct service *s, bool hold);

/* A SET of so many bytes has come there, or its rank has gone. */
static inline void moves_unqueue(struct service *s, int rank, size_t bytes)
{
    s->moves->peers[rank].queued -= bytes;
    s->moves->rests = false;
    s->moves->sweeps = true;
}

/* The process that owns a slice has died, as is known. */
static inline bool moves_orphan(const struct service *s, int slice)
{
    const struct owners_peer *owner = &s->peers[s->map.owner[slice]];
    uint64_t is = s->moves->owner_is[slice];

    return is && (owner->generation > is ||
                  (owner->generation == is && owner->gone && !owner->ended));
}

/* Where slices move: not those of a process of this rank before it. */
static inline bool moves_owns(const struct service *s, int slice)
{
    return s->map.owner[slice] == s->rank &&
           (!s->moves || s->moves->owner_is[slice] == s->place.generation);
}

/* Whether this rank answers for a slice. */
static inline bool moves_serves(const struct service *s, int slice)
{
    return (s->moves && s->moves->serves_on[slice]) || moves_owns(s, slice);
}

#endif
