/* SPDX-License-Identifier: MIT */
/* A round is a small machine: idle -> snapshot -> exchanging -> merging -> idle. Each
 * advance does one bounded piece and never blocks; it reads no clock, no chance and no
 * socket, so that the same code runs under the shadow, on a worker, and in virtual time.
 * The thread that holds the machine advances it, one thread at a time. */
#ifndef ROUND_H
#define ROUND_H

#include "kernels/kernels.h"
#include "sync/outer_step.h"
#include "sync/replica.h"

enum round_state {
    ROUND_IDLE,
    ROUND_SNAPSHOT,
    ROUND_EXCHANGING,
    ROUND_STEPPING,
    ROUND_MERGING
};

enum round_progress {
    ROUND_RESTING,      /* idle, and not called */
    ROUND_CALLED,       /* idle, and others wait for this trainer to begin */
    ROUND_WORKED,       /* a piece done: advance again */
    ROUND_WAITING,      /* for others: fabric wait, then advance again */
    ROUND_HELD,         /* the result is here and its merge is not yet released */
    ROUND_DONE,         /* merged; idle again. Returned once a round */
    ROUND_FAILED        /* fabric->status says why */
};

struct round {
    const struct plan *plan;
    struct fabric *fabric;
    struct replica *replica;
    const struct kernels *kernels;
    enum round_state state;
    struct exchange exchange;
    struct vector copy;             /* the contribution as a vector of one extent */
    struct extent copy_extent;
    size_t at;                      /* the next float of the piece loop */
    struct fabric_part part;        /* being merged */
    enum round_state back;          /* after a part that is a base */
    bool asked;                     /* whether a base has come before the snapshot */
    bool stepped;                   /* the outer state is the part's already */
    bool settled;                   /* the replica is as it is to be: a base moves the
                                       outer state alone */
    uint64_t missed;                /* rounds missed before this one began */
    bool released;                  /* the merge may happen when the result is here */
    bool arrived;                   /* the result is here */
    bool bad;                       /* the contribution held NaN or Inf */
    float *held;                    /* delayed elastic: the result, kept until its step */
    bool call;                      /* a state that is only a call, of which nothing is
                                       taken */
    bool outer_loaded;              /* the next state keeps the outer state that was
                                       loaded: */
    float *loaded;                  /* elastic: this centre; else G and s as they are */
    uint64_t outer_rounds;          /* block: rounds that have made G and s */
    struct outer_step step;         /* block: of the part that is being merged, or of the
                                       last */
    struct turn turn;               /* that part's angle to the momentum before it */
    struct outer_watch watch;
    struct distance sum;
    double distance;                /* of the last merge */
    bool reloaded;                  /* the last round was a state */
    uint64_t states;                /* rounds that were a state: the first, and each
                                       reload since */
};

/* After fabric start; makes the buffers that the plan needs. */
descant_status round_init(struct round *r, const struct plan *plan, struct fabric *fabric,
                          struct replica *replica);
void round_fini(struct round *r);

/* Opens a round of the plan's kind. The contribution is copied by the advances that
 * follow. released: merge as soon as the result is here. */
void round_begin(struct round *r, double weight, bool released);

/* Opens a round that gives one trainer's state, or at the end the mean, to all. */
void round_begin_state(struct round *r, uint64_t priority, bool final);
void round_begin_final_mean(struct round *r);

enum round_progress round_advance(struct round *r);

/* Lets the merge of the result happen. */
void round_release(struct round *r);

/* Tells that so many rounds have made G and s. */
void round_set_outer(struct round *r, uint64_t rounds);

/* Before a segment is detached: puts its last values into the copies that others read. */
void round_keep(struct round *r, const struct replica_segment *segment);

/* Whether a step at which the plan has this due must end the open round first. Delayed
 * plans: a merge whose round has closed without this trainer is put off to the next
 * snapshot, by when the next round will have ended. */
bool round_ends(const struct round *r, int due);

/* Advances up to where the exchange is open, and none of the trainer's own vectors is to
 * be read or moved: WORKED, or FAILED. */
enum round_progress round_open(struct round *r);

/* Drops the round; the others finish it without this trainer. */
void round_abandon(struct round *r);

/* The arguments of fabric start for this plan, fabric and replica. */
size_t round_room(const struct plan *plan, const struct replica *replica);
struct fabric_start round_needs(const struct plan *plan, const struct fabric *fabric,
                                const struct replica *replica);

#endif
