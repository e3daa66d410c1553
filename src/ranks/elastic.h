/* SPDX-License-Identifier: MIT */
/* The messages of an elastic exchange: elastic.c asks, center.c answers. */
#ifndef RANKS_ELASTIC_H
#define RANKS_ELASTIC_H

#include "ranks/ranks.h"

enum { ASK_SEATS = 16, ASK_RUNS = 24 };

/* A request for a piece of a slice, and the answer, which has the same head. */
struct ask {
    uint64_t state;             /* the number of the last state that gave the asker's
                                   centre */
    uint32_t seat, fetch, n_runs;
    float alpha;
    uint32_t before;            /* the answer is the centre as it was before the pull,
                                   which is one of several ranks (joint.c) */
    uint32_t refused;           /* an answer: ask the owner once more; no floats follow */
    uint64_t number;            /* of the asker's asks */
    uint64_t from;
    struct {
        uint32_t at, n;         /* at: counted from `from` */
    } runs[ASK_RUNS];
    float floats[];             /* of the runs, one after another */
};

static inline size_t ask_bytes(size_t floats)
{
    return sizeof(struct ask) + floats * sizeof(float);
}

static inline size_t ask_floats(const struct ask *ask)
{
    size_t n = 0;
    for (uint32_t k = 0; k < ask->n_runs && k < ASK_RUNS; k++)
        n += ask->runs[k].n;
    return n;
}

static inline size_t ask_bytes_most(const struct ranks *m)
{
    return ask_bytes(ranks_piece_room(m));
}

int ranks_center_owner(const struct ranks *m, int slice);       /* the owner's rank */
int ranks_center_slice(const struct ranks *m, uint64_t at);     /* the float's slice */
/* Turns an ask, which is good, into its answer. */
void ranks_center_answer(struct ranks *m, struct ask *ask);

#endif
