/* SPDX-License-Identifier: MIT */
/* Rounds and elastic exchanges among the slots of an arena. */
#ifndef SHM_H
#define SHM_H

#include "fabric/ruling.h"
#include "kernels/kernels.h"
#include "kernels/vector.h"
#include "shm/board.h"

enum { SLICE_CHUNK = 16384 };   /* floats */

enum shm_stage {
    SHM_IDLE,
    SHM_BEGUN,        /* begun, not arrived */
    SHM_ARRIVED,
    SHM_PULLING,      /* a joiner's part is out */
    SHM_ELASTIC,
    SHM_DONE          /* the mean's part is out */
};

/* A mean in slices: this trainer's place among the k members, and its progress. */
struct slices {
    uint32_t k, mine;
    unsigned slot[MACHINE_SLOTS];       /* by member */
    uint32_t n_put, n_own;      /* positions to put out; chunks of the own slice */
    uint32_t put, reduced;      /* of n_put; of n_own */
    uint32_t freed, reused;     /* of put: reduced by their members; then used again */
    uint32_t fresh;             /* places ever used */
};

/* This trainer's exchange; only the holder of its round machine touches it. */
struct shm_round {
    struct exchange exchange;
    enum shm_stage stage;
    bool live;                  /* exchange.in lies where peers cannot read it */
    size_t whole;               /* floats of exchange.in that are in the contribution */
    struct slices slices;       /* REDUCE(tag) of a mean in slices */
    bool abandoned;             /* arrived at `tag` for an exchange that was given up */
    uint32_t tag;               /* of the last arrival */
    bool seen;                  /* REDUCE(tag): peers are mapped */
    bool part_out;              /* STATE(tag): the part is out */
    size_t filled;    /* STATE(tag): floats of the centre that the source wrote */
    const float *in[MACHINE_SLOTS]; /* vectors of the group, by slot */
    unsigned source;            /* pulling: the slot that it pulls from */
    uint32_t source_generation;
    uint64_t pulled_word;       /* pulling: the word as it was before */
    size_t n_chunks, n_left, cursor;    /* elastic */
    bool busy;                  /* elastic: others hold all chunks that are left */
    uint32_t n_refused;         /* refusals on the board that were reported */
    uint32_t lives, epoch;      /* as of the last count of figures */
    bool counted;
};

struct shm {
    struct fabric fabric;
    struct meet meet;
    struct shm_board *board;
    struct emulated link;
    const float *peers[MACHINE_SLOTS][SLOT_REGIONS];    /* NULL: not mapped */
    struct fabric_start start;  /* without the manifest */
    bool started;
    float *result;
    /* a chunk of the centre each: {generation, slot + 1}; 0: free */
    _Atomic uint64_t *locks;
    float *piece;               /* a slice's chunk whose floats do not lie together */
    float *moved;               /* the result of an elastic chunk */
    bool *left;                 /* elastic chunks to do */
    struct shm_post *post;      /* NULL: the lane is not used */
    /* Of the one thread that makes agreements. */
    struct shm_agree *agree;    /* shared; set by start */
    uint64_t agreed;            /* the number of this trainer's last result; 0: none */
    uint32_t agree_bell;        /* its bell, before it looked */
    const struct kernels *kernels;
    double cores;
    uint64_t bulletin_ns;       /* the next one is due; of the holder of the round
                                   machine */
    struct shm_round round;
    /* Written by poll, read by wait beside it; relaxed: a stale bell wakes at once. */
    _Atomic uint32_t seen_bell;
    _Atomic uint64_t ready_ns;  /* a poll has work then; 0: none, or it has come */
    _Atomic uint64_t waiting;   /* waits.c's note */
    /* The other trainers at the last shm_note_changes; guarded by `seeing`. */
    pthread_mutex_t seeing;
    bool has_seen;
    struct seen {
        uint32_t generation;    /* of a member, or of a former one */
        int32_t rank;
        bool member, final, told;
    } seen[MACHINE_SLOTS];
};

static inline struct shm *shm_of(struct fabric *f)
{
    return (struct shm *)f;
}

/* --- small words on the board --- */

static inline uint64_t word_make(uint32_t tag, uint32_t flags)
{
    return (uint64_t)tag << 32 | flags;
}

static inline uint32_t word_tag(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

static inline unsigned word_closer(uint64_t word)
{
    return (unsigned)(word >> 8) % MACHINE_SLOTS;
}

static inline uint32_t next_tag(uint32_t tag)
{
    return tag + 1 ? tag + 1 : 1;
}

static inline uint64_t load_word(const struct shm_board *board)
{
    return atomic_load_explicit(&board->word, memory_order_acquire);
}

static inline struct shm_board *board_of(const struct shm *shm)
{
    return shm->board;
}

static inline struct roster *roster_of(const struct shm *shm)
{
    return shm->meet.roster;
}

static inline struct slot *own_slot(const struct shm *shm)
{
    return &roster_of(shm)->slots[shm->meet.slot];
}

static inline struct arrival *own_arrival(const struct shm *shm)
{
    return &board_of(shm)->arrivals[shm->meet.slot];
}

static inline uint64_t own_bit(const struct shm *shm)
{
    return slot_bit(shm->meet.slot);
}

static inline enum slot_life own_life(const struct shm *shm)
{
    return life_state(slot_life(roster_of(shm), shm->meet.slot));
}

static inline uint64_t load_members(const struct shm *shm)
{
    return atomic_load_explicit(&roster_of(shm)->members, memory_order_seq_cst);
}

static inline bool has_arrived(const struct shm_board *board, unsigned slot, uint32_t tag)
{
    return atomic_load_explicit(&board->arrivals[slot].arrived, memory_order_acquire) ==
           tag;
}

/* --- steps of the word (word.c) --- */

/* Moves the word; one caller wins, and rings. */
bool shm_turn_word(struct shm *shm, uint64_t from, uint64_t to);
bool shm_end_round(struct shm *shm, uint64_t word, bool ok);
enum fabric_progress shm_fail(struct shm *shm, descant_status status);
void shm_count_bytes(struct shm *shm, size_t bytes);

/* --- where vectors lie (vectors.c) --- */

descant_status shm_map_own(struct shm *shm, enum slot_region region, size_t at, size_t n,
                           float **out);
/* A peer's region for reading, mapped once. NULL, and logged, if it cannot be. */
const float *shm_peer(struct shm *shm, unsigned slot, enum slot_region region,
                      size_t n_floats);
size_t shm_table_at(size_t room);    /* of a contribution: the places of its slices */
size_t shm_contribution_floats(size_t room);
/* A slot's memory that others read; NULL, and logged, if it cannot be mapped. */
const float *shm_vector_of(struct shm *shm, unsigned slot);

/* --- the members (group.c) --- */

/* Of the slots, those that have not arrived at the round, or not taken its state. */
uint64_t shm_late(const struct shm_board *board, uint64_t slots, uint32_t tag);
uint64_t shm_unpulled(const struct shm_board *board, uint64_t slots, uint32_t tag);
uint64_t shm_slots_in(const struct shm *shm, enum slot_life state);
void shm_become(struct shm *shm, enum slot_life state);
/* bits whose owners are dead */
void shm_bury_stale(struct shm *shm, uint64_t members);
/* brings the fabric's figures up to date */
void shm_refresh(struct shm *shm);
void shm_count_members(struct shm *shm);    /* only the figures of members */
/* notes comings and goings since the last call; any thread */
void shm_note_changes(struct shm *shm);
void shm_admit(struct shm *shm, unsigned slot);
void shm_admit_waiting(struct shm *shm);
bool shm_admit_first(struct shm *shm);      /* admits this trainer as the first; false:
                                               there are members */
uint64_t shm_standby(const struct shm *shm);    /* the trainers at their end with the
                                                   job's state */
void shm_form(struct shm *shm);
/* Whether others gather, and this trainer has not arrived. */
bool shm_is_called(const struct shm *shm, uint64_t word);

/* --- closing and failing (leader.c) --- */

/* A member's work for all, whichever exchange it has; true: something moved. */
bool shm_lead(struct shm *shm, uint64_t word);
struct offer shm_offer_of(const struct shm *shm, unsigned slot);
/* Fails the round: a member that it needs is gone, or has taken its arrival back. */
bool shm_lost_group(const struct shm_board *board, uint64_t members, uint32_t tag);
bool shm_left_group(const struct shm_board *board, uint64_t members);

/* --- exchanges (mean.c, slices.c, state.c, elastic.c) --- */

bool shm_map_group(struct shm *shm);
/* in: vectors by slot. False, after failing the round: a chunk is not finite. */
bool shm_mean_chunk(struct shm *shm, uint64_t word, const float *const *in, size_t from,
                    size_t n);
/* Of a part. */
uint32_t shm_first_chunk(const struct round_record *record, unsigned place);
void shm_count_chunks(struct shm *shm, uint64_t word, uint32_t n); /* the last commits */
void shm_say_reducing(struct shm *shm, uint32_t tag);       /* 0: no more */
enum fabric_progress shm_reduce(struct shm *shm, uint64_t word);
enum fabric_progress shm_reduce_slices(struct shm *shm, uint64_t word);
/* Copies one more piece of the vector into the contribution; false: that was the last. */
bool shm_put_whole(struct shm *shm);
enum fabric_progress shm_take_state(struct shm *shm, uint64_t word,
                                    struct fabric_part *part);
/* A member to pull from; MACHINE_SLOTS: none is ready. *any: there is one, maybe not
 * ready. */
unsigned shm_find_source(struct shm *shm, uint64_t word, bool *any);
/* word: the round's word when the source was found. */
enum fabric_progress shm_pull(struct shm *shm, uint64_t word, unsigned source,
                              struct fabric_part *part);
enum fabric_progress shm_pulled(struct shm *shm);
/* A trainer at its end lets joiners take its state; false: nothing to do. */
bool shm_show(struct shm *shm, uint64_t word);
/* Whether the holder of a lock {generation 32, slot + 1} has died. */
bool shm_lock_dead(const struct shm *shm, uint64_t lock);
void shm_begin_elastic(struct shm *shm);
enum fabric_progress shm_elastic(struct shm *shm, struct fabric_part *part);

/* --- the functions of the table (round.c) --- */

descant_status shm_round_begin(struct shm *shm, const struct exchange *exchange);
enum fabric_progress shm_round_poll(struct shm *shm, struct fabric_part *part);
void shm_tell_figures(struct shm *shm);     /* puts this trainer's on the board */
void shm_round_wait(struct shm *shm, uint64_t until_ns);
/* The time that the last poll waited for has come since. */
bool shm_is_ready(const struct shm *shm);

/* --- awaited trainers (waits.c) --- */

/* After a poll, by the thread that polled. */
void shm_waits_note(struct shm *shm, enum fabric_progress progress);
/* Sleeps as shm_round_wait does, and names the awaited trainers. */
void shm_waits_sleep(struct shm *shm, uint64_t until_ns);

/* --- parcels between rank 0 and the others of a machine (post.c) --- */

extern const struct fabric_post shm_post;

/* --- agreements (agree.c) --- */

extern const struct fabric_agree shm_agree;
descant_status shm_agree_start(struct shm *shm);

#endif
