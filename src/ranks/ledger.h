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
 * Words may be lost, doubled, late and in any order; owed words are said again every
 * `again_ns`. The link owes one thing: a word reaches no other generation of a rank than
 * the one that it was said to. */
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
    LEDGER_HERE,        /* to a leader: the sender's state */
    LEDGER_FENCE,       /* to the members: promise this ballot, and give up the round */
    LEDGER_PROPOSE,    /* to peers that have `base`: accept this list as the next epoch */
    LEDGER_STANDS,      /* to any peer: this is the epoch */
    LEDGER_GO,          /* to the members: round `version` upon `base` has closed */
    LEDGER_TAKE,        /* to peers that lack `version`: peer `about` has it */

    /* Decisions for the driver alone, in the order in which they are given. */
    LEDGER_VOID,        /* give the open round up; drop its pieces from now on */
    LEDGER_EPOCH,       /* another epoch stands, with this list */
    LEDGER_OUT,         /* this peer is no member now */
    LEDGER_MERGED,      /* the version that is held has this peer's arrival `seq` */
    LEDGER_OPEN,  /* do the round `version`; the list has the peers in it, with their
                     seqs */
    LEDGER_FETCH        /* take `version` from peer `about`, then call ledger_took */
};

/* A word, or a decision. A word's numbers are input, and are tested before they are
 * used. */
struct ledger_decision {
    enum ledger_what what;
    int from, to;               /* ranks */
    uint64_t generation;        /* the sender's */
    uint64_t epoch;             /* that stands, as far as the sender knows */
    uint64_t ballot;            /* HERE: that the sender has promised */
    struct ledger_version version, base;
    uint64_t accepted;          /* HERE: the ballot whose list the sender accepted; 0:
                                   none */
    uint64_t seq;               /* HERE: of the sender's arrival; 0: it has not arrived */
    bool final;                 /* HERE: the arrival was, or will be, its last */
    bool absent;                /* HERE: the sender brings nothing any more */
    /* HERE: the sender's vectors have a state that it brings for all. TAKE, FETCH:
     * `about` gives only the list of what is merged */
    bool cannot_give;
    bool hollow;                /* HERE: of its version the sender has only the list of
                                   what is merged */
    int coordinator;            /* of the list: HERE (accepted), PROPOSE, STANDS, EPOCH */
    int about;                 /* HERE: a member that is silent to the sender; -1: none */
    bool fresh;                /* PROPOSE, HERE (accepted): the proposer chose the list */
    bool vouched;              /* PROPOSE, HERE (accepted): other ranks have vouched for
                                  deaths */
    bool leaves;                /* HERE */
    int slow;                   /* HERE: the member for which the sender waited longest in
                                   the round that left `version`; -1: none */
    uint64_t slow_ns;           /* HERE: how long */
    bool listed;                /* a list comes with the word */
};

/* When rounds of members at work close without the others. */
struct ledger_quorum {
    double arrivals;    /* that are enough once the grace is over: a number, below 1 a
                           share of the members; 0: all */
    uint64_t grace_ns;  /* the grace, */
    double grace_share; /* and so many times what the quorum took */
    bool leavers_give;  /* who leaves has the state of its version as long as it is
                           there */
};

struct ledger_options {
    int rank, ranks;            /* this peer; ranks of the largest job */
    uint64_t generation;        /* not 0 */
    struct ledger_quorum quorum;
    uint64_t again_ns;
    /* No peer comes, dies or leaves, and no word is lost: words are said once, and unless
     * there is a quorum, members whose arrivals no round needs are told of no round. */
    bool fixed;
    /* The last rank is a hub: a member that brings nothing, and is in each round all the
     * same, since it owns all slices. Rounds neither count it nor close without its
     * arrival, and it coordinates as soon as it is a member */
    bool star;
    uint64_t lazy_ns;   /* the end of a round may wait so long for the next arrival to
                           tell of it */
    uint64_t dead_ns;   /* not 0; a promise holds off other candidates for so long */
};

struct ledger;

size_t ledger_bytes(int ranks);     /* of a ledger, which may be copied by memcpy */
/* Makes a ledger in the caller's `memory`. first: the members of epoch 1, the same for
 * all, whose coordinator is the lowest rank; NULL: this peer is a newcomer and asks
 * `contact`. */
struct ledger *ledger_init(void *memory, const struct ledger_options *options,
                           uint64_t now_ns, const struct ledger_entry *first,
                           int contact);

void ledger_set_quorum(struct ledger *l, const struct ledger_quorum *quorum);

/* --- events --- */

/* list: entries for all ranks where the word is listed; else it may be NULL. */
void ledger_hear(struct ledger *l, const struct ledger_decision *word,
                 const struct ledger_entry *list);
/* The rank, which may be any peer, was not heard for dead_ns, or has gone. */
void ledger_silent(struct ledger *l, int rank);
void ledger_came(struct ledger *l, int rank);       /* words reach the rank from now on */
/* something came from the rank, so it is not silent */
void ledger_heard(struct ledger *l, int rank);
/* Whether rounds wait for the rank if it is a newcomer, which they do unless told
 * otherwise. */
void ledger_await(struct ledger *l, int rank, bool awaits);
/* The newcomer becomes no member before it has said HERE again. */
void ledger_outdate(struct ledger *l, int rank);
/* An authority vouches that this member of the epoch is dead, and founded no epoch that
 * its peers do not know. From now on the epoch counts without the member. */
void ledger_lost(struct ledger *l, int rank);
/* A contribution to the next round lies ready, made upon the version that is held.
 * Returns the contribution's seq, which stays the same until it is merged; 0: wait for
 * the round that this peer is in. To be called again whenever another version is held.
 * final: the contribution is the last, so from now on this peer is in no round of members
 * at work. replaces: the contribution is a state for all, so until another version is
 * held this peer has no state to give. */
uint64_t ledger_ready(struct ledger *l, bool final, bool replaces);
/* The next contribution gets a seq of its own, also if the last one was taken back and
 * may not be merged. */
void ledger_renumber(struct ledger *l);
void ledger_unready(struct ledger *l);              /* the contribution is taken back */
void ledger_whole(struct ledger *l, uint64_t now_ns);   /* the round that is open here is
                                                           done */
/* In the round that is open here this peer has waited so long for that member, and for no
 * other one longer. Call it before ledger_whole. */
void ledger_waited(struct ledger *l, int rank, uint64_t ns);
void ledger_pardon(struct ledger *l, int rank);     /* put the member aside no more */
/* Rounds of the coordinator go on without the member (ledger_aside.c), for so long in
 * all. */
bool ledger_is_aside(const struct ledger *l, int rank);
uint64_t ledger_aside_ns(const struct ledger *l, int rank);
/* The version that was to be fetched, or a newer one that its donor held by then, is here
 * with the list of what is merged in it. hollow: the state is missing, so a contribution
 * of this peer is offered as a state for all, which counts where no peer has the
 * version's. False: the version is no longer wanted; drop it. */
bool ledger_took(struct ledger *l, struct ledger_version version,
                 const struct ledger_entry *merged, bool hollow);
/* The donor lacks the version that was to be fetched: this peer is to be told of another
 * one. */
void ledger_not_given(struct ledger *l);
void ledger_leave(struct ledger *l);                /* stay until LEDGER_OUT */
void ledger_retire(struct ledger *l);  /* this peer brings nothing more, and stays a
                                          member */
void ledger_time(struct ledger *l, uint64_t now_ns);
/* The time of what follows; ledger_time alone acts upon it. */
void ledger_now(struct ledger *l, uint64_t now_ns);

/* The round that gathers. Its members are those at work or, where no member is at work,
 * those at their end; members that leave or are retired are in neither. The driver
 * decides what the arrivals make (fabric/ruling.h), and so the driver closes the
 * round. */
struct ledger_gathering {
    int members, arrived;       /* arrived: and in the round, if it closes now */
    int present;                /* members, and those at their end */
    bool final;
    /* a quorum has arrived, and the round waits for nobody else or has waited long
     * enough. The first time for each version the slow members are judged by this call */
    bool may_close;
    /* a newcomer is taking the newest version, and would be outrun unless the round
     * waits; a round that gives all the same state need not wait */
    bool taken;
};
/* list: filled with the generations of the members, and with the seqs of those that have
 * arrived. NULL: only the numbers are wanted, which costs less. */
struct ledger_gathering ledger_gathering(struct ledger *l, struct ledger_entry *list);
/* The coordinator closes the round with the members that have arrived. False: it may
 * not. */
bool ledger_close(struct ledger *l);
bool ledger_arrived(const struct ledger *l, int rank);      /* at work or at its end */

/* --- decisions --- */

/* The next decision, or word to send. list: room for entries of all ranks, valid only if
 * the decision is listed. False: there is no decision. */
bool ledger_next(struct ledger *l, struct ledger_decision *out,
                 struct ledger_entry *list);
uint64_t ledger_wakes(const struct ledger *l);     /* when to call ledger_time */

struct ledger_view {
    uint64_t epoch, lost;       /* lost: arrivals merged in versions that were given up */
    struct ledger_version held;
    struct ledger_version wanted;   /* to be fetched; epoch 0: none */
    int coordinator;
    bool member;                /* this peer is in the epoch's list */
    bool open;                  /* a round is under way here */
    bool hollow;                /* of the version held it has only the list of what is
                                   merged */
    bool fenced;            /* this peer has promised a ballot: no round until an epoch
                               stands */
};
struct ledger_view ledger_view(const struct ledger *l);
/* The list that this peer has accepted, which may be the next epoch's, and its
 * coordinator. False: it has accepted none. */
bool ledger_accepted(const struct ledger *l, struct ledger_entry *list, int *coordinator);
/* The series of the round that closed last: series grow with each round, and all members
 * have the same. */
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

/* Whether of_them of an epoch's members may go on. Two sets that may go on share a
 * member. */
bool ledger_may_go_on(int members, int of_them, bool with_coordinator);

#endif
