/* SPDX-License-Identifier: MIT */
/* The words of a job's rounds, in the memory that its trainers share, and where the rest
 * of that memory is. */
#ifndef SHM_BOARD_H
#define SHM_BOARD_H

#include "fabric/fabric.h"
#include "machine/meet.h"

enum { SHM_REFUSAL = 512 };

/* board.word: {tag 32, the closer's slot 8 << 8, phase, ok}; without phase it gathers. */
#define WORD_OK 1u
#define PHASE_REDUCE 2u
#define PHASE_CLOSING 4u
#define PHASES (PHASE_REDUCE | PHASE_CLOSING)

/* Whether a trainer at its end has the job's state for newcomers. */
enum standby {
    STANDBY_NONE,
    STANDBY_HOLDS,  /* it has the state: no group is formed without it */
    STANDBY_SHOWS   /* and its whole vector can be read */
};

/* A slot's part in the rounds. Written by its trainer. */
struct arrival {
    /* Release after the offer; the leader, and joiners that pull, acquire. */
    CACHE_LINE_ALIGNED _Atomic uint32_t arrived;
    /* Release: the whole vector of this tag's arrival can be read; joiners acquire. */
    _Atomic uint32_t whole;
    /* Release after the state has been taken; the group acquires. */
    _Atomic uint32_t pulled;
    /* The round of which the trainer has claimed a chunk and not counted it, or whose
     * slice it has not reduced (where it is hungry, it is idle); relaxed, a figure. */
    _Atomic uint32_t reducing;
    /* enum standby. Set before FINAL; release when it shows; joiners acquire. */
    _Atomic uint32_t standby;
    /* Set by start, before WAITING; read by others after they saw WAITING or more. */
    uint32_t in_place;
    /* workers + 1; relaxed, a figure. */
    _Atomic int32_t threads;
    /* The offer: ordered by `arrived`; the leader reads. live: of a mean whose vector
     * peers cannot read where it is. */
    uint32_t kind, live;
    uint64_t n, priority, agree, note;
    double weight;
    /* Of a mean in slices {tag 32, count 32}: positions put out for others, chunks of its
     * own slice reduced. The group reads. hungry: the trainer sleeps until a count moves,
     * and the trainer that moves one clears it. Sequentially consistent, as a Dekker
     * pair. */
    CACHE_LINE_ALIGNED _Atomic uint64_t put;
    _Atomic uint64_t reduced;
    _Atomic uint32_t hungry;
};

/* The record of a closed round. The leader writes it before REDUCE(T), ordered by `word`;
 * each member of the group reads it until it arrives again. */
struct round_record {
    uint64_t group, bad;
    uint64_t live;    /* members that put their vectors out; any: a mean in slices */
    uint32_t kind, source, n_chunks;
    bool empty;                 /* all vectors were bad: there is no result */
    bool differ;                /* the offers differ: there is no result, and all fail */
    uint64_t n, chunk, ready_ns;
    double share[MACHINE_SLOTS];
};

struct shm_board {
    /* Written by the founder before any other trainer can see the board; then
     * constant. */
    struct emulated link;
    /* Written and read inside the door. */
    uint32_t size;
    _Atomic uint64_t manifest_bytes;    /* 0: no trainer has started */
    uint64_t n, room;
    uint32_t collective, center, n_outer;
    /* The last trainer that the manifest kept out, for those that wait for it. Written
     * inside the door, and then counted: release, acquire. It is text for people, which
     * may be half old and half new. */
    _Atomic uint32_t n_refused;
    int32_t refused;
    char refusal[SHM_REFUSAL];
    /* The word of the round, as above. The leader closes, any member fails, the last
     * counter commits, always by compare-and-swap. Release: record and result come
     * before; all acquire. Sequentially consistent from CLOSING on: a Dekker pair with
     * `members` and `life` of the roster. */
    CACHE_LINE_ALIGNED _Atomic uint64_t word;
    /* The job has failed. Any member sets it, for good; relaxed. */
    CACHE_LINE_ALIGNED _Atomic uint32_t formed;
    /* Non-collective: the tag of the STATE that was called. Its caller releases, all
     * acquire. */
    _Atomic uint32_t called;
    /* Of round T: owners of NaN. Reducers set bits before they fail the word, which
     * orders them; the leader clears them. */
    _Atomic uint64_t bad;
    /* Until when the centre's link is taken. Elastic exchanges reserve by
     * compare-and-swap; relaxed, a figure. */
    _Atomic uint64_t link_free_ns;
    /* {tag 32, next 32} of each member's part of the chunks, by its place in the group,
     * and {tag 32, count 32} of all. The leader sets them, the group compares and swaps.
     * done is acquire and release: the last has seen all chunks. */
    CACHE_LINE_ALIGNED _Atomic uint64_t claim[MACHINE_SLOTS];
    CACHE_LINE_ALIGNED _Atomic uint64_t done;
    CACHE_LINE_ALIGNED struct round_record record;
    struct arrival arrivals[MACHINE_SLOTS];
    /* The last figures of each slot's trainer, which writes them; all read. */
    struct bulletin_slot bulletins[MACHINE_SLOTS];
};

enum region { REGION_BOARD = MACHINE_REGIONS, REGION_MANIFEST, REGION_RESULT,
              REGION_CENTER, REGION_LOCKS, REGION_AGREE, REGION_SLOTS };
enum slot_region { SLOT_REPLICA, SLOT_CONTRIBUTION, SLOT_OUTER0, SLOT_OUTER1,
                   SLOT_REGIONS };
enum { SHM_REGIONS = REGION_SLOTS + MACHINE_SLOTS * SLOT_REGIONS };
#define SLOT_BYTES (SLOT_REGIONS * REGION_BYTES)

static inline uint64_t slot_region_at(unsigned slot, enum slot_region region)
{
    return region_at(REGION_SLOTS + slot * SLOT_REGIONS + (unsigned)region);
}

/* --- steps at which a test may come between --- */

enum step { STEP_CLOSE, STEP_CLOSING, STEP_SEAT, STEP_LOOK, STEP_PULL, STEP_PULLED,
            STEP_CLAIMED, STEP_LOCKED, STEP_RETIRE, STEP_AGREED };
extern void (*shm_hook)(enum step step, unsigned slot);     /* set by tests alone */

static inline void shm_step(enum step step, unsigned slot)
{
    if (shm_hook)
        shm_hook(step, slot);
}

#endif
