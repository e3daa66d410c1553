/* SPDX-License-Identifier: MIT */
/* Bulletins are kept where they have come in, and checked before. A number is good up to
 * 2^60, so that no sum over the trainers of a job overflows as a double, and none of
 * them is NaN. */
#include "fabric/bulletins.h"

#include <math.h>
#include <string.h>

#define MOST (UINT64_C(1) << 60)

static bool real_is_good(double x)
{
    return x >= 0 && x <= (double)MOST;         /* nor NaN */
}

bool bulletin_is_good(const struct bulletin *b)
{
    return b->steps <= MOST && b->rounds <= MOST && b->bytes <= MOST &&
           b->stall_ns <= MOST && b->wall_ns <= MOST && b->workers <= MOST &&
           b->process <= MOST && b->depth <= MOST &&
           real_is_good(b->gap) && real_is_good(b->age_s) &&
           real_is_good(b->exchange_s) && real_is_good(b->distance) &&
           b->n_values <= DESCANT_VALUES;
}

bool bulletin_goes_on(const struct bulletin *kept, const struct bulletin *told)
{
    return told->process == kept->process || !told->depth || told->depth > kept->depth;
}

void bulletin_put(struct bulletin_slot *slot, int rank, const struct bulletin *bulletin,
                  uint64_t now_ns)
{
    uint64_t words[BULLETIN_WORDS];

    _Static_assert(sizeof words == sizeof *bulletin, "words alone");
    memcpy(words, bulletin, sizeof words);
    atomic_store_explicit(&slot->rank, rank, memory_order_relaxed);
    for (int i = 0; i < BULLETIN_WORDS; i++)
        atomic_store_explicit(&slot->words[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&slot->heard_ns, now_ns, memory_order_release);
}

bool bulletin_get(const struct bulletin_slot *slot, struct bulletin *bulletin, int *rank,
                  uint64_t *heard_ns)
{
    uint64_t words[BULLETIN_WORDS];

    *heard_ns = atomic_load_explicit(&slot->heard_ns, memory_order_acquire);
    if (!*heard_ns)
        return false;
    *rank = atomic_load_explicit(&slot->rank, memory_order_relaxed);
    for (int i = 0; i < BULLETIN_WORDS; i++)
        words[i] = atomic_load_explicit(&slot->words[i], memory_order_relaxed);
    memcpy(bulletin, words, sizeof words);
    return true;
}
