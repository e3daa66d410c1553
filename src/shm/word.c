/* SPDX-License-Identifier: MIT */
/* The end of every step of a round: moves the word, fails, or counts bytes. */
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

bool shm_end_round(struct shm *shm, uint64_t word, bool ok)
{
    return shm_turn_word(shm, word,
                         word_make(next_tag(word_tag(word)), ok ? WORD_OK : 0));
}

enum fabric_progress shm_fail(struct shm *shm, descant_status status)
{
    shm->fabric.status = status;
    return FABRIC_FAILED;
}

void shm_count_bytes(struct shm *shm, size_t bytes)
{
    atomic_fetch_add_explicit(&shm->fabric.bytes, bytes, memory_order_relaxed);
}
