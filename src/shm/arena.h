/* SPDX-License-Identifier: MIT */
/* The memory that the trainers of a machine share: one sparse memfd with the board at its
 * beginning and regions at fixed places after it. */
#ifndef SHM_ARENA_H
#define SHM_ARENA_H

#include "fabric/fabric.h"
#include "machine/message.h"

enum { SHM_SLOTS = 64, SHM_BLOCKS = 128, SHM_BLOCK_NAME = 128, SHM_REFUSAL = 512 };

#define SHM_CACHE_LINE _Alignas(64)

/* A slot's life is {generation 32, state 32}. Alive are those from JOINED on. */
enum life {
    LIFE_FREE,
    LIFE_DEAD,      /* died or left; its pages may still be there */
    LIFE_JOINED,    /* opened, not yet begun */
    LIFE_WAITING,   /* has begun its first STATE */
    LIFE_MEMBER,    /* has had it: others may pull from it */
    LIFE_FINAL      /* has begun a final exchange */
};

enum touch { TOUCH_DOORMAN, TOUCH_POLL, N_TOUCH };
enum { TOUCH_ALL = SHM_SLOTS + 1 };     /* as what is touched: any slot */

/* board.word: {tag 32, slot of who closes 8 << 8, phase, ok}. No phase: the round gathers. */
#define WORD_OK 1u
#define PHASE_REDUCE 2u
#define PHASE_CLOSING 4u
#define PHASES (PHASE_REDUCE | PHASE_CLOSING)

/* What a trainer at its end has for those who come now. */
enum standby {
    STANDBY_NONE,
    STANDBY_HOLDS,  /* the state of the job: no group is formed beside it */
    STANDBY_SHOWS   /* and its whole vector can be read */
};

/* Written by its trainer, unless said otherwise. */
struct slot {
    /* Its trainer, the doormen (to DEAD), who closes a round (DEAD to FREE) and who takes the
     * slot, always by compare-and-swap; everyone reads. Release: the plain fields below are
     * set before JOINED. */
    SHM_CACHE_LINE _Atomic uint64_t life;
    /* Everyone rings (release), the owner sleeps on it (acquire). */
    _Atomic uint32_t bell;
    /* The slot + 1 whose bit in board.members a thread of this trainer is about to change,
     * TOUCH_ALL: any; 0: none. Who takes a dead slot reads them. All sequentially consistent:
     * it is a Dekker pair with `life`. */
    _Atomic uint32_t touching[N_TOUCH];
    /* Release after the offer; the leader, and joiners who pull, acquire. */
    _Atomic uint32_t arrived;
    /* Release: of the arrival with this tag the whole vector can be read; joiners acquire. */
    _Atomic uint32_t whole;
    /* Release after the state has been taken; the group acquires. */
    _Atomic uint32_t pulled;
    /* The round of which it has claimed a chunk and not counted it, or whose slice it has not
     * reduced (and it is idle where it is hungry); relaxed, a figure. */
    _Atomic uint32_t reducing;
    /* Of FINAL: enum standby. Set before FINAL; release when it shows; joiners acquire. */
    _Atomic uint32_t standby;
    /* The last generation that has called close; what dies does not. Its trainer stores it before
     * DEAD; relaxed. */
    _Atomic uint32_t closed;
    /* Set before JOINED, then constant. */
    int32_t rank;
    /* Set by start, before WAITING; read by others after they saw that or more. */
    uint32_t in_place;
    /* workers + 1; relaxed, a figure. */
    _Atomic int32_t threads;
    /* The offer: ordered by `arrived`; the leader reads. live: of a mean whose vector peers
     * cannot read where it is. */
    uint32_t kind, live;
    uint64_t n, priority, agree, note;
    double weight;
    /* Of a mean in slices {tag 32, count 32}: positions put out for others, chunks of its own
     * slice reduced. The group reads. hungry: it sleeps until one of those moves; who moves
     * one takes it back. Sequentially consistent, as a Dekker pair. */
    SHM_CACHE_LINE _Atomic uint64_t put;
    _Atomic uint64_t reduced;
    _Atomic uint32_t hungry;
};

/* A round as it was closed. The leader writes it before REDUCE(T), ordered by `word`; the
 * group reads it until each of them arrives again. */
struct round_record {
    uint64_t group, bad;
    uint64_t live;              /* those who put their vectors out; any: a mean in slices */
    uint32_t kind, source, n_chunks;
    bool empty;                 /* all were bad: nothing comes out */
    bool differ;                /* the offers: nothing comes out, and all fail */
    uint64_t n, chunk, ready_ns;
    double share[SHM_SLOTS];
};

struct shared_block {           /* written and read inside the door */
    char name[SHM_BLOCK_NAME];
    uint64_t at, bytes;
};

struct board {
    /* The founder's, before anybody else can see the board; then constant. */
    uint32_t magic, version;
    struct emulated link;
    /* Written and read inside the door. */
    uint32_t size;
    /* Raised last, lest one who dies leave half of an entry. Release, acquire. */
    _Atomic uint32_t n_blocks;
    _Atomic uint64_t manifest_bytes;    /* 0: nobody has started */
    uint64_t n, room;
    uint32_t collective, center, n_outer;
    struct shared_block blocks[SHM_BLOCKS];
    /* Whom the manifest kept out last, for those who wait for it. Written inside the door, and then
     * counted: release, acquire. It is text for people: of two at once one may be read half. */
    _Atomic uint32_t n_refused;
    int32_t refused;
    char refusal[SHM_REFUSAL];
    /* Above. The leader closes, any member fails, who counts the last commits, always by
     * compare-and-swap. Release: record and result come before; all acquire. Sequentially
     * consistent from CLOSING on: a Dekker pair with `members` and `life`. */
    SHM_CACHE_LINE _Atomic uint64_t word;
    /* Bits of those in the rounds. Set by who admits and forms, cleared by who buries or
     * leaves, under `touching`; everyone reads. Sequentially consistent, as `touching` is. */
    SHM_CACHE_LINE _Atomic uint64_t members;
    _Atomic uint32_t epoch;     /* who changed members adds: release; figures acquire */
    _Atomic uint32_t lives;     /* who changed a life adds: release; says: count again */
    _Atomic uint32_t formed;    /* any member sets it; relaxed, never goes back */
    /* Non-collective: the tag at which a STATE was called. A caller releases, all acquire. */
    _Atomic uint32_t called;
    /* Of round T: owners of NaN. Reducers set, before they fail the word, which orders it;
     * the leader clears. */
    _Atomic uint64_t bad;
    /* The centre's link is taken until then; elastic exchanges reserve by compare-and-swap;
     * relaxed, a figure. */
    _Atomic uint64_t link_free_ns;
    /* {tag 32, next 32} of each member's part of the chunks, by its place in the group, and {tag
     * 32, count 32} of all. The leader sets them, the group compares and swaps. done is acquire
     * and release: the last has seen all chunks. */
    SHM_CACHE_LINE _Atomic uint64_t claim[SHM_SLOTS];
    SHM_CACHE_LINE _Atomic uint64_t done;
    SHM_CACHE_LINE struct round_record record;
    struct slot slots[SHM_SLOTS];
};

/* Regions are 2^40 bytes apart; the board is the first. */
enum region { REGION_BOARD, REGION_MANIFEST, REGION_RESULT, REGION_CENTER, REGION_LOCKS,
              REGION_BLOCKS, REGION_SLOTS };
enum slot_region { SLOT_REPLICA, SLOT_CONTRIBUTION, SLOT_OUTER0, SLOT_OUTER1, SLOT_REGIONS };

uint64_t region_at(enum region region);
uint64_t slot_region_at(unsigned slot, enum slot_region region);

struct arena {
    int fd;
    struct board *board;
    const struct log *log;
    struct arena_map *maps;                             /* our own, to be unmapped */
    const float *peers[SHM_SLOTS][SLOT_REGIONS];        /* mapped when first needed */
    size_t peer_bytes[SHM_SLOTS][SLOT_REGIONS];
};

/* A new arena, or the one behind fd, which becomes the arena's even on failure. fini takes
 * half-built ones; init makes them so that it can. */
void arena_init(struct arena *arena, const struct log *log);
descant_status arena_found(struct arena *arena, const struct emulated *link);
descant_status arena_enter(struct arena *arena, int fd);
void arena_fini(struct arena *arena);

/* Maps for reading and writing; until fini. take: takes the pages now, after a look at what
 * is free. */
descant_status arena_map(struct arena *arena, uint64_t at, size_t bytes, bool take,
                         void **out);
/* Takes the pages of a mapping that were not. */
descant_status arena_take(struct arena *arena, uint64_t at, size_t bytes);
/* A peer's region for reading, mapped once. NULL, and logged, if it cannot be. */
const float *arena_peer(struct arena *arena, unsigned slot, enum slot_region region,
                        size_t n_floats);
/* Gives a slot's pages back to the machine; a piece of them, and false: there are more. */
void arena_punch(struct arena *arena, unsigned slot);
bool arena_punch_piece(struct arena *arena, unsigned slot);

/* --- lives --- */

static inline uint64_t life_make(uint32_t generation, enum life state)
{
    return (uint64_t)generation << 32 | (uint64_t)state;
}

static inline enum life life_state(uint64_t life)
{
    return (enum life)(life & 0xffffffffu);
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

uint64_t slot_life(const struct board *board, unsigned slot);

/* From alive in that generation to another state; false if it is not alive in it. */
bool slot_become(struct board *board, unsigned slot, uint32_t generation, enum life state);

/* Declares a generation of a slot dead and takes it out of the members; self and who: on
 * whose behalf. May be called often and by all at once. */
void slot_bury(struct board *board, unsigned slot, uint32_t generation, unsigned self,
               enum touch who);

/* True if no living trainer is about to change this slot's bit. */
bool slot_untouched(const struct board *board, unsigned slot);

/* --- steps at which a test may come between --- */

enum step { STEP_CLOSE, STEP_CLOSING, STEP_SEAT, STEP_PULL, STEP_PULLED, STEP_LOCKED };
extern void (*shm_hook)(enum step step, unsigned slot);     /* set by tests alone */

static inline void shm_step(enum step step, unsigned slot)
{
    if (shm_hook)
        shm_hook(step, slot);
}

void board_ring(struct board *board, uint64_t slots);   /* of those, the living */
uint64_t board_alive(const struct board *board);

#endif
