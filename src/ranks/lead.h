/* SPDX-License-Identifier: MIT */
/* The coordinator's state, and the calls between its files, which go downwards:
 * lead_round.c closes rounds, admission.c admits ranks, and both call lead.c, which keeps
 * the offers of ranks. */
#ifndef RANKS_LEAD_H
#define RANKS_LEAD_H

#include "fabric/ruling.h"
#include "ranks/check.h"

struct lead_peer {
    bool hello, compared, left;
    bool waits;                     /* its manifest is here, and the hub has not started */
    uint64_t generation;            /* in the epoch that stood at the last look */
    uint64_t taken;                 /* a newcomer: pieces of its state that it has, by its
                                       last HERE */
    struct ranks_word *here;        /* a newcomer's HERE, kept until it is compared; NULL:
                                       none */
    bool aside;                     /* the log says that rounds go on without it */
    bool ends, finished;            /* has begun its finish; which is not done yet */
    uint32_t void_seq;              /* of an arrival that goes on alone */
    bool owes_void, owes_call;      /* VOID is to be said to it, and CALL after that */
    uint32_t threads;
    int host, local_rank;
    struct offer offer;             /* of its last arrival, */
    uint32_t seq;                   /* the exchange, by the sender's count */
    uint64_t note;
    struct ranks_op manifest_op;
    char *manifest;
    size_t manifest_bytes;
};

struct ranks_lead {
    struct lead_peer *peers;        /* by rank */
    struct offer *offers;           /* of the ranks that have arrived */
    uint32_t *threads;              /* by host, of its ranks, as a round is closed */
    int n_left;                     /* peers that have left */
    bool formed, failed, called, all_left;
    bool owes;                      /* VOID or CALL to some ranks */
    uint32_t epoch;
    uint64_t since_ns, told_ns;     /* the first arrival of the round; the last LATE */
    struct awaited late;            /* as the last LATE said */
    uint64_t held_ns;               /* since then only newcomers hold a round up; 0: none
                                       does */
};

/* A hub is neither at work nor at its end. */
static inline bool at_work(const struct ranks *m, int rank)
{
    const struct lead_peer *peer = &m->lead->peers[rank];
    return rank != m->hub && m->lead->formed && m->members[rank] && !peer->left && !peer->finished;
}

static inline bool has_arrived(const struct ranks *m, int k)
{
    const struct lead_peer *peer = &m->lead->peers[k];
    return m->list[k].seq && peer->seq != peer->void_seq;
}

/* The number of the round that gathers. */
static inline uint32_t next_round(const struct ranks *m)
{
    return (uint32_t)ledger_series(m->ledger) + 1;
}

/* --- lead.c --- */

void ranks_lead_tell_all(struct ranks *m, struct ranks_word word, const void *tail,
                         size_t bytes);

/* --- admission.c --- */

/* Where ranks come and go: founds epoch 1 once enough ranks have come. */
void ranks_admission_found(struct ranks *m);
/* True once the group is there. */
bool ranks_admission_form(struct ranks *m);
/* Lets the ledger hear a newcomer that may be a member by now. */
void ranks_admission_admit(struct ranks *m, int rank);

#endif
