/* SPDX-License-Identifier: MIT */
/* The processes of a job on this machine: a slot for each, in memory that all share. */
#ifndef MACHINE_ROSTER_H
#define MACHINE_ROSTER_H

#include "base/base.h"

enum { MACHINE_SLOTS = 64, MACHINE_BLOCKS = 128, BLOCK_NAME = 128 };

#define CACHE_LINE_ALIGNED _Alignas(64)

/* A slot's life is {generation 32, state 32}. Alive are those from JOINED on. */
enum slot_life {
    LIFE_FREE,
    LIFE_DEAD,      /* died or left; its pages may still be there */
    LIFE_JOINED,    /* opened, not yet begun */
    LIFE_WAITING,   /* has begun its first STATE */
    LIFE_MEMBER,    /* has had the state: others may pull from it */
    LIFE_FINAL      /* has begun a final exchange */
};

enum touch { TOUCH_DOORMAN, TOUCH_POLL, N_TOUCH };
enum { TOUCH_ALL = MACHINE_SLOTS + 1 };     /* touched: any slot */

/* Written by its process, unless said otherwise. */
struct slot {
    /* Written by its process, the doormen (to DEAD), the closer of a round (DEAD to FREE)
     * and the taker of the slot, always by compare-and-swap; all read. Release: the plain
     * fields below are set before JOINED. */
    CACHE_LINE_ALIGNED _Atomic uint64_t life;
    /* All ring (release), the owner sleeps on it (acquire). */
    _Atomic uint32_t bell;
    /* The slot + 1 whose bit in `members` a thread of this process is about to change,
     * TOUCH_ALL: any; 0: none. The taker of a dead slot reads them. All sequentially
     * consistent: it is a Dekker pair with `life`. */
    _Atomic uint32_t touching[N_TOUCH];
    /* The last generation that has called close, which one that dies does not. Its
     * process stores it before DEAD; relaxed. */
    _Atomic uint32_t closed;
    /* The last generation that was told to end (descant_tell). Its process stores it;
     * relaxed. */
    _Atomic uint32_t told;
    /* Set before JOINED, then constant. */
    int32_t rank;
};

struct shared_block {           /* written and read inside the door */
    char name[BLOCK_NAME];
    uint64_t at, bytes;
};

struct roster {
    /* Written and read inside the door; the number is raised last, lest one that dies
     * leave half of an entry. Release, acquire. */
    _Atomic uint32_t n_blocks;
    struct shared_block blocks[MACHINE_BLOCKS];
    /* Bits of the slots in the rounds. Set by trainers that admit and form, cleared by
     * those that bury or leave, under `touching`; all read. Sequentially consistent, as
     * `touching` is. */
    CACHE_LINE_ALIGNED _Atomic uint64_t members;
    /* + 1 after a change of members: release; figures acquire */
    _Atomic uint32_t epoch;
    /* + 1 after a change of a life: release; tells to count again */
    _Atomic uint32_t lives;
    struct slot slots[MACHINE_SLOTS];
};

static inline uint64_t life_make(uint32_t generation, enum slot_life state)
{
    return (uint64_t)generation << 32 | (uint64_t)state;
}

static inline enum slot_life life_state(uint64_t life)
{
    return (enum slot_life)(life & 0xffffffffu);
}

static inline uint32_t life_generation(uint64_t life)
{
    return (uint32_t)(life >> 32);
}

static inline bool life_alive(uint64_t life)
{
    return life_state(life) >= LIFE_JOINED;
}

static inline uint64_t slot_bit(unsigned slot)
{
    return (uint64_t)1 << slot;
}

uint64_t slot_life(const struct roster *roster, unsigned slot);

/* Changes a slot's life from alive in that generation to another state; false if it is
 * not alive in it. */
bool slot_become(struct roster *roster, unsigned slot, uint32_t generation,
                 enum slot_life state);

/* Declares a generation of a slot dead and takes it out of the members; self and who: the
 * caller's slot and its word of `touching`. May be called often and by all at once. */
void slot_bury(struct roster *roster, unsigned slot, uint32_t generation, unsigned self,
               enum touch who);

/* True if no living process is about to change this slot's bit. */
bool slot_untouched(const struct roster *roster, unsigned slot);

/* rings the living among the slots */
void roster_ring(struct roster *roster, uint64_t slots);
uint64_t roster_alive(const struct roster *roster);

#endif
