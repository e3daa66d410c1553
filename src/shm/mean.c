/* SPDX-License-Identifier: MIT */
/* Means: the chunks of a round, claimed one by one, each trainer's own part first and
 * then the chunks that are left; and the treatment of NaN. The trainer that counts the
 * last chunk commits the round. A chunk that is not finite fails the round, and its
 * owner's bit in `bad` leaves the owner out of the next one. All of this runs in the
 * thread that holds the round machine. */
#include "shm/shm.h"

#define STREAM_BYTES ((size_t)4 << 20)

/* The vectors of all members, by slot; maps those that this trainer has not read before.
 * False: one cannot be mapped. */
bool shm_map_group(struct shm *shm)
{
    const struct round_record *record = &board_of(shm)->record;

    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (record->group & slot_bit(s)) {
            shm->round.in[s] = shm_vector_of(shm, s);
            if (!shm->round.in[s])
                return false;
        }
    shm->round.seen = true;
    return true;
}

/* The parts are as equal as whole chunks allow; that of the place behind the last begins
 * at n_chunks. */
uint32_t shm_first_chunk(const struct round_record *record, unsigned place)
{
    unsigned members = (unsigned)__builtin_popcountll(record->group);
    return (uint32_t)((uint64_t)record->n_chunks * place / members);
}

/* Claims the next chunk of a member's part. */
static bool claim_part(struct shm_board *board, uint32_t tag, unsigned place,
                       uint32_t *chunk)
{
    uint64_t claim = atomic_load_explicit(&board->claim[place], memory_order_relaxed);

    do {
        *chunk = (uint32_t)claim;
        if (word_tag(claim) != tag ||
            *chunk >= shm_first_chunk(&board->record, place + 1))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&board->claim[place], &claim,
                                                    claim + 1, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

/* Each trainer claims its own part first, which is the same in every round, so that it
 * lies in the trainer's caches; then chunks that others have not come to. */
static bool claim_chunk(const struct shm *shm, uint32_t tag, uint32_t *chunk)
{
    struct shm_board *board = board_of(shm);
    uint64_t group = board->record.group;
    unsigned members = (unsigned)__builtin_popcountll(group);
    unsigned mine = (unsigned)__builtin_popcountll(group & (own_bit(shm) - 1));

    for (unsigned i = 0; i < members; i++)
        if (claim_part(board, tag, (mine + i) % members, chunk))
            return true;
    return false;
}

/* A count of an older round finds another tag, and is dropped: the round was failed
 * meanwhile. */
void shm_count_chunks(struct shm *shm, uint64_t word, uint32_t n)
{
    struct shm_board *board = board_of(shm);
    uint64_t done = atomic_load_explicit(&board->done, memory_order_relaxed);

    do {
        if (word_tag(done) != word_tag(word))
            return;
    } while (!atomic_compare_exchange_weak_explicit(&board->done, &done, done + n,
                 memory_order_acq_rel, memory_order_relaxed));
    if ((uint32_t)done + n == board->record.n_chunks)
        shm_end_round(shm, word, true);
}

/* The members whose chunk is not finite. Live memory may be finite again by now: then all
 * members that counted. */
static uint64_t find_bad(const struct shm *shm, const float *const *in, size_t n)
{
    const struct round_record *record = &board_of(shm)->record;
    uint64_t bad = 0, all = 0;

    for (unsigned s = 0; s < MACHINE_SLOTS; s++) {
        if (!(record->share[s] > 0))
            continue;
        all |= slot_bit(s);
        if (!shm->kernels->finite(in[s], n))
            bad |= slot_bit(s);
    }
    return bad ? bad : all;
}

bool shm_mean_chunk(struct shm *shm, uint64_t word, const float *const *in, size_t from,
                    size_t n)
{
    const struct round_record *record = &board_of(shm)->record;
    const float *good[MACHINE_SLOTS];
    double share[MACHINE_SLOTS];
    int k = 0;

    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (record->group & slot_bit(s) && record->share[s] > 0) {
            good[k] = in[s];
            share[k++] = record->share[s];
        }
    if (shm->kernels->mean(shm->result + from, good, share, k, n,
                           record->n * sizeof(float) >= STREAM_BYTES))
        return true;
    atomic_fetch_or_explicit(&board_of(shm)->bad, find_bad(shm, in, n),
                             memory_order_relaxed);
    shm_end_round(shm, word, false);
    return false;
}

void shm_say_reducing(struct shm *shm, uint32_t tag)
{
    atomic_store_explicit(&own_arrival(shm)->reducing, tag, memory_order_relaxed);
}

/* One chunk a call, so that a poll is short. WAITING: all are claimed, and some trainer
 * still works on one. */
enum fabric_progress shm_reduce(struct shm *shm, uint64_t word)
{
    struct shm_board *board = board_of(shm);
    const float *in[MACHINE_SLOTS];
    uint32_t chunk;

    if (!shm->round.seen && !shm_map_group(shm))
        return shm_fail(shm, DESCANT_MEMORY);
    /* before the claim, so that whoever is stopped with a chunk is named */
    shm_say_reducing(shm, word_tag(word));
    if (!claim_chunk(shm, word_tag(word), &chunk)) {
        shm_say_reducing(shm, 0);
        return FABRIC_WAITING;
    }
    shm_step(STEP_CLAIMED, shm->meet.slot);
    size_t from = chunk * board->record.chunk, n = board->record.n - from;
    if (n > board->record.chunk)
        n = board->record.chunk;
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (board->record.group & slot_bit(s))
            in[s] = shm->round.in[s] + from;
    if (shm_mean_chunk(shm, word, in, from, n))
        shm_count_chunks(shm, word, 1);
    shm_say_reducing(shm, 0);
    return FABRIC_WORKED;
}
