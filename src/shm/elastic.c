/* SPDX-License-Identifier: MIT */
/* Elastic exchanges move the centre a chunk at a time, each chunk under a lock of its
 * own. No other trainer is needed. A lock word is {generation, slot + 1}; a lock whose
 * owner is dead is taken over, and a busy chunk is left for later. Trainers begin at
 * different chunks, lest they queue.
 *
 * Left out on purpose: fairness of the locks, and spreading of chunks by node. All of
 * this runs in the thread that holds the round machine. */
#include "shm/shm.h"

#include <string.h>

#define BUSY_NS 100000u         /* until held chunks are tried again */

/* A slot that was taken anew has a higher generation, and is not the holder. */
bool shm_lock_dead(const struct shm *shm, uint64_t lock)
{
    unsigned slot = (unsigned)(lock & 0xffffffffu) - 1;
    uint64_t life = slot < MACHINE_SLOTS ? slot_life(roster_of(shm), slot) : 0;
    return !life_alive(life) || life_generation(life) != life_generation(lock);
}

/* Acquire and release: the last holder's floats are seen. */
static bool lock_chunk(struct shm *shm, size_t chunk)
{
    uint64_t seen = atomic_load_explicit(&shm->locks[chunk], memory_order_relaxed);
    uint64_t mine = word_make(shm->meet.generation, shm->meet.slot + 1);

    if (seen && !shm_lock_dead(shm, seen))
        return false;
    return atomic_compare_exchange_strong_explicit(&shm->locks[chunk], &seen, mine,
               memory_order_acq_rel, memory_order_relaxed);
}

/* Locks one of the chunks that are left, from the cursor on, once round. False: others
 * hold all of them. */
static bool next_chunk(struct shm *shm, size_t *chunk)
{
    struct shm_round *round = &shm->round;

    for (size_t tries = 0; tries < round->n_chunks; tries++) {
        *chunk = round->cursor;
        round->cursor = round->cursor + 1 == round->n_chunks ? 0 : round->cursor + 1;
        if (shm->left[*chunk] && lock_chunk(shm, *chunk))
            return true;
    }
    return false;
}

/* bad: this trainer's vector had NaN or Inf. The chunks before that are moved and stay;
 * the centre has no bad float. */
static enum fabric_progress elastic_end(struct shm *shm, bool bad)
{
    if (bad) {
        atomic_fetch_add_explicit(&shm->fabric.bad, 1, memory_order_relaxed);
        notes_add(shm->fabric.notes, DESCANT_EVENT_BAD, shm->fabric.rank);
    } else {
        shm_count_bytes(shm, 2 * shm->round.exchange.n * sizeof(float));
    }
    shm->fabric.own_bad = bad;
    shm->round.stage = SHM_IDLE;
    return FABRIC_DONE;
}

/* One chunk a call: lock, move, unlock, and the part goes out from `moved`, which is this
 * trainer's own. Nothing that others do can take the chunk back, so the caller may use it
 * at its leisure. */
enum fabric_progress shm_elastic(struct shm *shm, struct fabric_part *part)
{
    struct shm_round *round = &shm->round;
    const struct exchange *exchange = &round->exchange;
    size_t chunk;

    if (clock_now_ns() < atomic_load_explicit(&shm->ready_ns, memory_order_relaxed))
        return FABRIC_WAITING;
    if (!round->n_left)
        return elastic_end(shm, false);
    round->busy = !next_chunk(shm, &chunk);
    if (round->busy) {          /* other trainers hold all chunks that are left, and do
                                   not ring */
        atomic_store_explicit(&shm->ready_ns, clock_now_ns() + BUSY_NS,
                              memory_order_relaxed);
        return FABRIC_WAITING;
    }
    shm_step(STEP_LOCKED, shm->meet.slot);
    size_t from = chunk * ELASTIC_CHUNK, n = exchange->n - from;
    if (n > ELASTIC_CHUNK)
        n = ELASTIC_CHUNK;
    bool good = vector_elastic(shm->fabric.center, exchange->in, (struct chunk){from, n},
                               (float)exchange->alpha, shm->moved);
    atomic_store_explicit(&shm->locks[chunk], 0, memory_order_release);
    if (!good)
        return elastic_end(shm, true);
    shm->left[chunk] = false;
    round->n_left--;
    *part = (struct fabric_part){
        .kind = EXCHANGE_ELASTIC, .out = shm->moved, .from = from, .n = n};
    return FABRIC_PART;
}

/* All trainers share the one emulated link of the centre: an exchange is given the next
 * time in which the link is free, and is ready after that and the way there and back. */
static void reserve_link(struct shm *shm)
{
    struct shm_board *board = board_of(shm);
    uint64_t busy = emulated_busy_ns(&board->link, shm->round.exchange.n);
    uint64_t free = atomic_load_explicit(&board->link_free_ns, memory_order_relaxed);
    uint64_t now = clock_now_ns(), from;

    if (!busy && !(board->link.rtt > 0))
        return;
    do {
        from = free > now ? free : now;
    } while (!atomic_compare_exchange_weak_explicit(&board->link_free_ns, &free,
                                                    from + busy, memory_order_relaxed,
                                                    memory_order_relaxed));
    atomic_store_explicit(&shm->ready_ns, from + busy + (uint64_t)(board->link.rtt * 1e9),
                          memory_order_relaxed);
}

void shm_begin_elastic(struct shm *shm)
{
    struct shm_round *round = &shm->round;

    round->stage = SHM_ELASTIC;
    round->n_chunks = (round->exchange.n + ELASTIC_CHUNK - 1) / ELASTIC_CHUNK;
    round->n_left = round->n_chunks;
    round->busy = false;
    round->cursor = round->n_chunks
                        ? shm->meet.slot * round->n_chunks / 8 % round->n_chunks : 0;
    memset(shm->left, 1, round->n_chunks);
    reserve_link(shm);
}
