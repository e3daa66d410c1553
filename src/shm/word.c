/* SPDX-License-Identifier: MIT */
/* The end of every step of a round: moves the word, fails, or counts bytes.
 *
 * The word changes in this file and, where a round is closed, in leader.c, always by
 * compare-and-swap from a word that the caller has read: of several trainers that take
 * the same step one wins, and the others see the word that the winner has made. All
 * members sleep on bells of their own, so each move rings them. */
#include "shm/shm.h"

void (*shm_hook)(enum step step, unsigned slot);

bool shm_turn_word(struct shm *shm, uint64_t from, uint64_t to)
{
    if (!atomic_compare_exchange_strong_explicit(
            &board_of(shm)->word, &from, to, memory_order_seq_cst, memory_order_relaxed))
        return false;
    roster_ring(roster_of(shm), ~(uint64_t)0);
    return true;
}

/* The next round gathers from here on; ok tells whether this one has a result. */
bool shm_end_round(struct shm *shm, uint64_t word, bool ok)
{
    return shm_turn_word(shm, word,
                         word_make(next_tag(word_tag(word)), ok ? WORD_OK : 0));
}

/* For good: every later poll fails, too. The caller has logged the reason. */
enum fabric_progress shm_fail(struct shm *shm, descant_status status)
{
    shm->fabric.status = status;
    return FABRIC_FAILED;
}

void shm_count_bytes(struct shm *shm, size_t bytes)
{
    atomic_fetch_add_explicit(&shm->fabric.bytes, bytes, memory_order_relaxed);
}
