/* SPDX-License-Identifier: MIT */
/* The ledger: which peers are members, when a round closes, and which version of the
 * replicas' state is the job's. It is a pure state machine: events go in, decisions come
 * out. It has no clock, does no I/O, and takes no memory. docs/members.md has the rules
 * and says why they are safe.
 *
 * A driver owns the ledger and runs it in one thread:
 *
 *     ledger_hear(l, word, list);         and whatever else has happened
 *     g = ledger_gathering(l, list);
 *     if (g.may_close && !g.taken && what has arrived makes a round)
 *         ledger_close(l);
 *     while (ledger_next(l, &decision, list))
 *         obey(&decision);
 *
 * Words may be lost, doubled, late and in any order; owed words are said again
 * every `again_ns`. One thing is asked of the link: a word reaches the generation that it
 * was said to. */
#ifndef LEDGER_H
#define LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Names a round and the state that it left. {1, 0}: the state with which the job begins;
 * {0, 0}: none. */
struct ledger_version {
    uint64_t epoch, number;
};

static inline bool ledger_same(struct ledger_version a, struct ledger_version b)
{
    return a.epoch == b.epoch && a.number == b.number;
}

static inline bool ledger_newer(struct ledger_version a, struct ledger_version b)
{
    return a.epoch > b.epoch || (a.epoch == b.epoch && a.number > b.number);
}

/* Lists are arrays of entries, one for each rank. Generation 0: the rank is not in the
 * list. */
struct ledger_entry {
    uint64_t generation;
    uint64_t seq;               /* of an arrival */
};

enum ledger_what {
    LEDGER_HERE,        /* to a leader: all that it needs to know of the sender */
    LEDGER_FENCE,       /* to the members: promise this ballot, and give up the round */
    LEDGER_PROPOSE,    /* to peers that have `base`: accept this list as the next epoch */
    LEDGER_STANDS,      /* to anybody: this is the epoch */
    LEDGER_GO,          /* to the members: round `version` upon `base` has closed, so */
    LEDGER_TAKE,        /* to peers that lack `version`: peer `about` has it */

    /* The decisions that concern the driver alone, in the order in which they are
     * given. */
    LEDGER_VOID,        /* give the open round up; drop its pieces from now on */
    LEDGER_EPOCH,       /* another epoch stands, with this list */
    LEDGER_OUT,         /* this peer is no member now */
    LEDGER_MERGED,      /* the version that is held has this peer's arrival `seq` */
    LEDGER_OPEN,  /* do the round `version`; the list says who is in it, with which seq */
    LEDGER_FETCH        /* take `version` from peer `about`, then call ledger_took */
};

/* A word, or a decision. A word's numbers are input: they are tested before they are
 * used. */
struct ledger_decision {
    enum ledger_what what;
    int from, to;               /* ranks */
    uint64_t generation;        /* the sender's */
    uint64_t epoch;             /* that stands, as the sender knows */
    uint64_t ballot;            /* HERE: as promised */
    struct ledger_version version, base;
    uint64_t accepted;          /* HERE: the ballot whose list it accepted; 0: of none */
    uint64_t seq;               /* HERE: it has arrived with it; 0: it has not */
    bool final;                 /* HERE: and that was, or will be, its last */
    bool absent;                /* HERE: it brings nothing any more */
    bool cannot_give;           /* HERE: its vectors have a state that it brings for all.
                                   TAKE, FETCH: `about` gives only what is merged */
    bool hollow;                /* HERE: of its version it has only what is merged */
    int coordinator;            /* of the list: HERE (accepted), PROPOSE, STANDS, EPOCH */
    int about;                 /* HERE: a member that is silent to the sender; -1: none */
    bool fresh;                /* PROPOSE, HERE (accepted): the proposer chose the list */
    bool vouched;              /* and deaths were vouched for */
    bool leaves;                /* HERE */
    bool listed;                /* a list comes with it */
};

struct ledger_options {
    int rank, ranks;            /* this peer's; of the largest job */
    uint64_t generation;        /* not 0 */
    int quorum;           /* arrivals that close a round once the grace is over; 0: all */
    uint64_t grace_ns;
    uint64_t again_ns;
    /* Nobody comes, dies or leaves, and no word is lost: nothing is said again, and
     * members whose arrivals no round needs hear of none. */
    bool fixed;
    uint64_t lazy_ns;   /* a whole round may wait for the next arrival to tell of it */
    uint64_t dead_ns;   /* not 0; a promise holds off other candidates for so long */
};

struct ledger;

size_t ledger_bytes(int ranks);     /* of a ledger; it may be copied by memcpy */
/* In `memory`, the caller's. first: the members of epoch 1, alike in all of them, whose
 * coordinator is the lowest rank; NULL: this peer is a newcomer and asks `contact`. */
struct ledger *ledger_init(void *memory, const struct ledger_options *options,
                           uint64_t now_ns, const struct ledger_entry *first,
                           int contact);

/* --- what has happened --- */

/* list: for all ranks, where the word is listed; else it may be NULL. */
void ledger_hear(struct ledger *l, const struct ledger_decision *word,
                 const struct ledger_entry *list);
/* Not heard for dead_ns, or gone; any peer may be named. */
void ledger_silent(struct ledger *l, int rank);
void ledger_came(struct ledger *l, int rank);       /* words reach it from now on */
/* something of it came: it is not silent */
void ledger_heard(struct ledger *l, int rank);
/* Whether rounds wait for it if it is a newcomer; they do unless told otherwise. */
void ledger_await(struct ledger *l, int rank, bool awaits);
/* A newcomer is no member before it has said HERE again. */
void ledger_outdate(struct ledger *l, int rank);
/* An authority vouches that this member of the epoch is dead, and founded no epoch that
 * its peers do not know: the epoch is taken without it. */
void ledger_lost(struct ledger *l, int rank);
/* A contribution to the next round lies ready, made upon the version that is held.
 * Returns its seq, which stays the same until it is merged; 0: wait for the round that it
 * is in. To be called again whenever another version is held. final: it is the last, so
 * from now on rounds of members at work do not need this peer, and it is in none of
 * them. replaces: it is a state for all, so until another version is held this peer has
 * none to give. */
uint64_t ledger_ready(struct ledger *l, bool final, bool replaces);
void ledger_unready(struct ledger *l);              /* it is taken back */
void ledger_whole(struct ledger *l);             /* the round that is open here is done */
/* The version that was to be fetched, or a newer one that its donor held by then, is
 * here, with what is merged in it; hollow: and nothing else, so a contribution from here
 * is a state for all, for the case that nobody has the version's. False: the time for it
 * is over; drop it. */
bool ledger_took(struct ledger *l, struct ledger_version version,
                 const struct ledger_entry *merged, bool hollow);
void ledger_leave(struct ledger *l);                /* stay until LEDGER_OUT */
void ledger_retire(struct ledger *l);  /* it brings nothing more, and stays a member */
void ledger_time(struct ledger *l, uint64_t now_ns);

/* The members of the next round: those at work, or, where there is none, those at their
 * end; in neither case members that leave or are retired. The result of their arrivals
 * is the driver's business (fabric/ruling.h), and so the driver closes the round. */
struct ledger_gathering {
    int members, arrived;
    bool final;
    bool may_close;             /* all have arrived, or a quorum and the grace is over */
    bool taken;                 /* it may, but a newcomer takes the newest version, and is
                                   outrun unless the round waits; one that gives all the
                                   same state need not */
};
/* list: the generations of those members, with the seqs of those who have arrived; NULL:
 * only their numbers are asked for, which are kept. */
struct ledger_gathering ledger_gathering(struct ledger *l, struct ledger_entry *list);
/* The coordinator closes the round, with those who have arrived. False: it may not. */
bool ledger_close(struct ledger *l);
bool ledger_arrived(const struct ledger *l, int rank);      /* of whatever class */

/* --- what to do --- */

/* The next decision, or word to send. list: room for all ranks; it is valid only if the
 * decision is listed. False: there is none. */
bool ledger_next(struct ledger *l, struct ledger_decision *out,
                 struct ledger_entry *list);
uint64_t ledger_wakes(const struct ledger *l);     /* ledger_time's next time */

struct ledger_view {
    uint64_t epoch, lost;       /* lost: arrivals merged in versions that were given up */
    struct ledger_version held;
    struct ledger_version wanted;   /* is to be fetched; epoch 0: none is */
    int coordinator;
    bool member;                /* this peer is in the epoch's list */
    bool open;                  /* a round is under way here */
    bool hollow;                /* of what is held it has only what is merged */
    bool fenced;            /* it has promised a ballot: no round until an epoch stands */
};
struct ledger_view ledger_view(const struct ledger *l);
/* The list that it has accepted, and its coordinator, if any: it may be the next epoch's.
 */
bool ledger_accepted(const struct ledger *l, struct ledger_entry *list, int *coordinator);
/* It grows with each round, and is alike in all: of the one that has closed last. */
uint64_t ledger_series(const struct ledger *l);
uint64_t ledger_series_of(struct ledger_version version);
/* The arrivals that are merged in the version that is held: for each rank the newest seq
 * of its last generation. */
void ledger_merged(const struct ledger *l, struct ledger_entry *merged);

enum ledger_owners { LEDGER_OWNERS_MEMBERS, LEDGER_OWNERS_SOME, LEDGER_OWNERS_HUB };
/* The rank that owns slice i of the open round's n floats; -1: there are fewer slices.
 * MEMBERS: each of those in the round owns one. SOME: at most one for each 16384 floats.
 * HUB: the coordinator owns everything. */
int ledger_owner(const struct ledger *l, enum ledger_owners owners, uint64_t n, int i);

/* Of so many members. Two such sets of one epoch share a member. */
bool ledger_may_go_on(int members, int of_them, bool with_coordinator);

#endif
