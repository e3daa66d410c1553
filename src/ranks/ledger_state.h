/* SPDX-License-Identifier: MIT */
/* The ledger's state, and the calls between its files, which go downwards: ledger.c calls
 * all others, and these call ledger_state.c. */
#ifndef LEDGER_STATE_H
#define LEDGER_STATE_H

#include "fabric/ruling.h"
#include "ranks/ledger.h"

/* Names a condition on which safety rests. */
#ifndef RULE
#define RULE(name, test) (test)
#endif

enum list { MEMBER, ACCEPTED, OFFER, LISTS };

struct ledger_seat {
    uint64_t in_list[LISTS];  /* generations: of the epoch, of what may be the next one */
    uint64_t in;                    /* its seq in the round that closed last; 0: not in
                                       it */
    struct ledger_entry merged;     /* in the version that is held */
    struct ledger_decision told;    /* its last HERE; generation 0: none */
    bool silent, lost;
    bool is_slow;                   /* a newcomer that rounds do not wait for */
    bool outdated;                  /* a newcomer that has to say HERE again */
    bool missed;                    /* it was not in the round of this epoch that this
                                       coordinator closed last */
    /* Where no word is lost: it was told of a round without it, or of a version to take,
     * and has not said HERE since */
    bool has_go, has_take;
    unsigned owes;                  /* words, by kind */
    /* ledger_aside.c; a coordinator's */
    bool aside, due;
    bool was_slow;                  /* in the last round with it */
    bool was_behind;                /* at the last round, which it missed */
    bool chases;                    /* due for that alone */
    uint64_t lag_ns;                /* what each of the others waited when it was put
                                       aside */
    uint64_t aside_ns;              /* aside until then */
    uint64_t pardoned;              /* this generation is never aside */
    int blamed;                     /* only while it is judged: by so many members, */
    uint64_t slow_ns;               /* the least of what they have waited */
};

struct ledger {
    struct ledger_options o;
    uint64_t now_ns, say_ns;    /* say_ns: all that is owed is said again; UINT64_MAX:
                                   never */
    uint64_t unsaid_ns;     /* this peer's version is to be told by then; UINT64_MAX: it
                               is told */
    uint64_t want_ns;       /* a donor had not the version that this peer wanted: it is
                               wanted again then; UINT64_MAX: no more */
    uint64_t epoch, stood_ns, promised, promised_ns;
    /* the round that closed last, and what it is upon */
    struct ledger_version held, newest, before;
    struct ledger_version wanted;                   /* epoch 0: none */
    struct ledger_version gave_way;     /* a round upon it was given up */
    int coordinator;            /* -1: this peer founded an epoch without members */
    int donor;                  /* of the wanted version */
    bool member, open, ready, leaves, final, retired;
    bool pending;               /* seq is not known to be merged */
    bool replaces;              /* the arrival brings a state for all */
    bool hollow;                /* the version that is held is without its state */
    bool list_only;             /* the donor of the wanted version cannot give its
                                   state */
    uint64_t seq, done, lost;             /* the newest seq; the newest that was merged */
    uint64_t lost_from, lost_to;          /* the last that were lost: above, up to */
    uint64_t accepted, mine, since_ns;  /* ballots; the quorum's time plus one, or 0 */
    uint64_t began_ns;          /* another version is held since then */
    uint64_t version_ns;        /* the version before was held for so long */
    bool judged;                /* with the HEREs upon the version that is held */
    int waited_for;             /* in the round that left waited_in; -1: for none */
    uint64_t waited_ns;
    struct ledger_version waited_in;
    int accepted_coordinator, asked;
    int greeted;                /* newcomers asked since `asked` changed */
    bool accepted_fresh, accepted_vouched;
    struct ledger_offer {                                  /* mine != 0 */
        uint64_t ballot;                     /* with which the list was accepted; 0: a new
                                                list */
        struct ledger_version base;
        int coordinator;
        bool made, vouched, fresh;      /* fresh: not another candidate's list */
        uint8_t unused;             /* no padding: equal states have equal bytes */
    } offer;
    unsigned tells;                                 /* decisions, by kind */
    int first_owed, n_owed;     /* no seat below is owed a word; number of seats that
                                   are */
    struct ledger_counts {      /* the coordinator's; all 0: to be counted again */
        int known;
        int missing;            /* at work, neither here nor in the round before */
        int members[STANDING_WORK + 1], arrived[STANDING_WORK + 1];
        int hollow, hollow_arrived;     /* at work; `arrived` is without them */
        int aside, aside_arrived, aside_missing;        /* at work */
        int due;                /* at work, and not here */
        int bringing;           /* a state for all, of which all are to be */
        int spared;             /* the others make a quorum: without those aside */
    } counts;
    bool uneven;                /* in this epoch a peer was silent, promised, left or
                                   came */
    struct ledger_seat seats[];
};

/* --- ledger_state.c --- */

static inline bool is_hub(const struct ledger *l, const struct ledger_seat *s)
{
    return l->o.star && s == &l->seats[l->o.ranks - 1];
}

static inline bool coordinator_is_silent(const struct ledger *l)
{
    return l->coordinator < 0 || l->seats[l->coordinator].silent;
}

static inline bool is_here(const struct ledger *l, const struct ledger_seat *s)
{
    return s->in_list[MEMBER] && s->told.generation == s->in_list[MEMBER] &&
           s->told.epoch == l->epoch;
}

/* Of the version that it holds it has the list of what is merged, and no state. */
static inline bool is_hollow(const struct ledger *l, const struct ledger_seat *s)
{
    return is_here(l, s) && s->told.hollow && ledger_same(s->told.version, l->newest);
}

/* The newest seq of that process which the version that is held has. */
static inline uint64_t merged_of(const struct ledger_seat *s, uint64_t generation)
{
    return s->merged.generation == generation ? s->merged.seq : 0;
}

/* Each member is told of each round: also one whose arrival the round does not need. */
static inline bool tells_all(const struct ledger *l)
{
    return !l->o.fixed || l->o.quorum.arrivals > 0;
}

/* It is in no round of members at work any more. */
static inline bool at_end(const struct ledger *l, const struct ledger_seat *s)
{
    return is_here(l, s) && s->told.final;
}

static inline bool is_newcomer(const struct ledger *l, const struct ledger_seat *s)
{
    return s->told.generation && s->told.generation != s->in_list[MEMBER] &&
           !s->told.leaves && s->told.epoch == l->epoch;
}

static inline void tell(struct ledger *l, enum ledger_what what)
{
    l->tells |= 1u << what;
}

/* To be called where anything that is counted has changed, other than one seat's HERE. */
static inline void forget_counts(struct ledger *l)
{
    l->counts = (struct ledger_counts){.known = false};
}

void ledger_put_list(struct ledger *l, enum list which, const struct ledger_entry *list);
void ledger_copy_list(struct ledger *l, enum list to, enum list from);
typedef bool ledger_test(const struct ledger *l, const struct ledger_seat *s);
/* Whether the peers of a list that pass the test may go on from it. Where all have left
 * none is needed. */
bool ledger_enough(const struct ledger *l, enum list which, int coordinator,
                   ledger_test *passes);
ledger_test ledger_holds_newest;

void ledger_owe(struct ledger *l, int rank, enum ledger_what what);
void ledger_owe_members(struct ledger *l, enum ledger_what what);
void ledger_say_here(struct ledger *l);

void ledger_give_up_round(struct ledger *l);
void ledger_promise(struct ledger *l, uint64_t ballot);
/* Wants the version of the best donor that this peer knows; does nothing if it knows
 * none. */
void ledger_want(struct ledger *l, struct ledger_version version, int donor,
                 bool list_only);
void ledger_want_known(struct ledger *l, struct ledger_version version);
/* How good a donor is. */
enum gives { GIVES_NONE, GIVES_HOLLOW, GIVES_BRINGER, GIVES_ENDED, GIVES_WORKER };
/* The best donor of the version among members other than `not_this`; -1: none is
 * known. */
int ledger_donor(const struct ledger *l, struct ledger_version version, int not_this);
enum gives ledger_gives(const struct ledger *l, int donor);     /* -1: NONE */
/* The epoch of the list in MEMBER stands. */
void ledger_stand(struct ledger *l, uint64_t epoch, int coordinator);

/* --- ledger_word.c --- */

/* Writes the word from the state. False: the state no longer has what was owed. */
bool ledger_write_word(const struct ledger *l, struct ledger_decision *d,
                       enum ledger_what what, int to, struct ledger_entry *list);
/* Whether a word's ranks, numbers and list may be used. */
bool ledger_word_is_sane(const struct ledger *l, const struct ledger_decision *w,
                         const struct ledger_entry *list);

/* --- ledger_round.c --- */

/* Takes a HERE for the seat's last, and counts it. */
void ledger_tell_of(struct ledger *l, struct ledger_seat *s,
                    const struct ledger_decision *here);
/* Notes since when a quorum has arrived. */
void ledger_watch_quorum(struct ledger *l);
/* When a round that has its quorum closes without the others. */
uint64_t ledger_grace_ends(const struct ledger *l);
/* The coordinator owes the version that it holds to members that the round has left
 * out. */
void ledger_tell_missed(struct ledger *l);

/* --- ledger_aside.c --- */

/* Says which members are aside in the round that gathers, and which are due, by the HEREs
 * that tell of the round before. Once for each version, when a round upon it might
 * close. */
void ledger_judge_slow(struct ledger *l);
/* How long the round waits, once a quorum has arrived, for those due, or lest one that is
 * aside be needed. */
uint64_t ledger_slow_ns(const struct ledger *l);
/* The round has closed, so long after a quorum had arrived. */
void ledger_closed(struct ledger *l, struct ledger_seat *s, uint64_t waited_ns);
void ledger_forget_slow(struct ledger_seat *s);

/* --- ledger_epoch.c --- */

/* Does the candidate's next step; false: this peer is no candidate now, or has nothing to
 * do. */
bool ledger_found(struct ledger *l);
void ledger_found_again(struct ledger *l);      /* says a candidate's words again */
/* A candidate hears from a member or a newcomer what it has promised and accepted. */
void ledger_hear_promise(struct ledger *l, const struct ledger_seat *s,
                         const struct ledger_decision *w,
                         const struct ledger_entry *list);
void ledger_hear_fence(struct ledger *l, struct ledger_seat *s,
                       const struct ledger_decision *w);
void ledger_hear_proposal(struct ledger *l, const struct ledger_decision *w,
                          const struct ledger_entry *list);

#endif
