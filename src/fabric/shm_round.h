/* SPDX-License-Identifier: MIT */
/* Rounds and elastic exchanges among the slots of an arena. */
#ifndef SHM_ROUND_H
#define SHM_ROUND_H

#include "fabric/kernels.h"
#include "fabric/shm_arena.h"
#include "fabric/shm_meet.h"

enum { ELASTIC_CHUNK = 16384 };     /* floats */

#define PHASE_REDUCE 2u

enum stage {
    STAGE_IDLE,
    STAGE_BEGUN,        /* not arrived */
    STAGE_ARRIVED,
    STAGE_PULLING,      /* a joiner's part is out */
    STAGE_ELASTIC,
    STAGE_DONE          /* the mean's part is out */
};

/* What this trainer knows of its exchange; guarded by who holds its round machine. */
struct round {
    struct exchange exchange;
    enum stage stage;
    bool abandoned;             /* arrived at `tag` for an exchange that was given up */
    uint32_t tag;               /* of the last arrival */
    bool seen;                  /* REDUCE(tag): peers are mapped */
    bool part_out;              /* STATE(tag): the part is out */
    size_t filled;              /* STATE(tag): floats of the centre that the source wrote */
    const float *in[SHM_SLOTS]; /* of the group, by slot */
    unsigned source;            /* pulling: from whom */
    uint32_t source_generation;
    size_t n_chunks, n_left, cursor;    /* elastic */
    uint32_t lives, epoch;      /* for which the figures were counted */
    bool counted;
};

struct shm {
    struct fabric fabric;
    struct arena arena;
    struct meet meet;
    struct fabric_start start;  /* without the manifest */
    bool started;
    double start_s;
    float *result;
    _Atomic uint64_t *locks;    /* a chunk of the centre each: {generation, slot + 1}; 0: free */
    float *scratch;             /* two elastic chunks: what goes in, what comes out */
    bool *left;                 /* elastic chunks to do */
    const struct kernels *kernels;
    double cores;
    struct round round;
    /* Written by poll, read by wait beside it; relaxed: a stale bell wakes at once. */
    _Atomic uint32_t seen_bell;
    _Atomic uint64_t ready_ns;
    _Atomic uint64_t waiting;   /* shm_waits.c's note */
};

descant_status shm_round_begin(struct shm *shm, const struct exchange *exchange);
enum fabric_progress shm_round_poll(struct shm *shm, struct fabric_part *part);
void shm_round_wait(struct shm *shm, uint64_t until_ns);

#endif
