/* SPDX-License-Identifier: MIT */
/* States: all trainers take one trainer's vectors out of its memory; a joiner takes its
 * state from a living member before it arrives. Nothing is sent: the part that a caller
 * gets is the source's own memory, which stays as it is until all have set `pulled`, or
 * the joiner has arrived. All of this runs in the thread that holds the round machine. */
#include "shm/shm.h"

#define FILL_CHUNK ((size_t)65536)

/* The source's vectors, where they are. False: one of them cannot be mapped, which was
 * logged. */
static bool state_part(struct shm *shm, unsigned source, struct fabric_part *part)
{
    *part = (struct fabric_part){.kind = EXCHANGE_STATE, .n = shm->start.n,
                                 .own = source == shm->meet.slot,
                                 .note = board_of(shm)->arrivals[source].note};
    part->out = shm_vector_of(shm, source);
    if (!part->out)
        return false;
    for (int k = 0; k < shm->start.n_outer; k++) {
        part->outer[k] = shm_peer(shm, source,
                                    (enum slot_region)(SLOT_OUTER0 + k), shm->start.n);
        if (!part->outer[k])
            return false;
    }
    return true;
}

/* The source is one of them, alive or not: it sets `pulled` when the centre is whole. */
static void say_pulled(struct shm *shm, uint64_t word)
{
    struct shm_board *board = board_of(shm);
    uint32_t tag = word_tag(word);

    shm_step(STEP_PULLED, shm->meet.slot);
    if (atomic_load_explicit(&own_arrival(shm)->pulled, memory_order_relaxed) != tag)
        atomic_store_explicit(&own_arrival(shm)->pulled, tag, memory_order_seq_cst);
    uint64_t group =
        board->record.group & load_members(shm) & roster_alive(roster_of(shm));
    if (!shm_unpulled(board, group | slot_bit(board->record.source), tag))
        shm_end_round(shm, word, true);
}

/* The source makes the centre its own vector, a piece a poll. */
static bool fill_center(struct shm *shm, const float *own)
{
    size_t from = shm->round.filled, n = shm->start.n - from;

    if (n > FILL_CHUNK)
        n = FILL_CHUNK;
    if (n)
        shm->kernels->copy(shm->fabric.center + from, own + from, n);
    shm->round.filled += n;
    return shm->round.filled < shm->start.n;
}

/* Called poll after poll while the round is one of a state: the source fills the centre,
 * the part goes out once, and when the caller polls again it has taken the part. An
 * exchange that was given up takes nothing, but says so, for the group waits for each
 * member's word. */
enum fabric_progress shm_take_state(struct shm *shm, uint64_t word,
                                    struct fabric_part *part)
{
    unsigned source = board_of(shm)->record.source;

    if (shm->round.part_out || (shm->round.abandoned && source != shm->meet.slot)) {
        say_pulled(shm, word);
        return FABRIC_WAITING;
    }
    if (!state_part(shm, source, part))
        return shm_fail(shm, DESCANT_MEMORY);
    if (source == shm->meet.slot && shm->fabric.center && !shm->round.exchange.final &&
        fill_center(shm, part->out))
        return FABRIC_WORKED;
    shm->round.part_out = true;
    return shm->round.abandoned ? FABRIC_WORKED : FABRIC_PART;
}

/* --- joining --- */

/* The lowest of the slots whose trainer shows its vector; MACHINE_SLOTS: none does
 * yet. */
static unsigned find_shown(const struct shm_board *board, uint64_t slots)
{
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (slots & slot_bit(s) &&
            atomic_load_explicit(&board->arrivals[s].standby, memory_order_acquire) ==
                STANDBY_SHOWS)
            return s;
    return MACHINE_SLOTS;
}

unsigned shm_find_source(struct shm *shm, uint64_t word, bool *any)
{
    struct shm_board *board = board_of(shm);
    uint64_t settled = shm_slots_in(shm, LIFE_MEMBER) & load_members(shm) & ~own_bit(shm);

    if (!settled) {
        uint64_t at_end = shm_standby(shm);
        *any = at_end != 0;
        return find_shown(board, at_end);
    }
    *any = true;
    if (word & PHASES)
        return MACHINE_SLOTS;
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (settled & slot_bit(s) &&
            (!shm->start.collective ||
             (has_arrived(board, s, word_tag(word)) &&
              atomic_load_explicit(&board->arrivals[s].whole, memory_order_acquire) ==
                  word_tag(word))))
            return s;
    return MACHINE_SLOTS;
}

/* Where there is a centre, the centre is the state, for vectors that a member shows may
 * be old. The word had no phase when the source was found; shm_pulled sees each later
 * move. */
enum fabric_progress shm_pull(struct shm *shm, uint64_t word, unsigned source,
                              struct fabric_part *part)
{
    shm_step(STEP_PULL, shm->meet.slot);
    shm->round.source = source;
    shm->round.source_generation = life_generation(slot_life(roster_of(shm), source));
    shm->round.pulled_word = word;
    if (shm->fabric.center)
        *part = (struct fabric_part){.kind = EXCHANGE_STATE, .n = shm->start.n,
                                     .out = shm->fabric.center};
    else if (!state_part(shm, source, part))
        return shm_fail(shm, DESCANT_MEMORY);
    shm->round.stage = SHM_PULLING;
    return FABRIC_PART;
}

/* The part has been taken. It counts only if nothing has changed under the reader: the
 * source lives, is the same trainer, and the word has not moved where a state could have
 * been given to all. Else this trainer looks for a source again. */
enum fabric_progress shm_pulled(struct shm *shm)
{
    struct shm_board *board = board_of(shm);
    struct shm_round *round = &shm->round;
    uint64_t life = slot_life(roster_of(shm), round->source);

    if (!life_alive(life) || life_generation(life) != round->source_generation) {
        round->stage = SHM_BEGUN;
        return FABRIC_WORKED;
    }
    if (!shm->start.collective)
        shm_admit(shm, shm->meet.slot);
    else if (!(load_members(shm) & own_bit(shm)) && !shm_admit_first(shm)) {
        round->stage = SHM_BEGUN;     /* the first member admits this trainer */
        return FABRIC_WORKED;
    }
    if (!shm->start.collective && load_word(board) != round->pulled_word) {
        round->stage = SHM_BEGUN;     /* a state was given to all meanwhile */
        return FABRIC_WORKED;
    }
    shm_become(shm, LIFE_MEMBER);
    shm->fabric.joined = true;
    round->stage = SHM_IDLE;
    return FABRIC_DONE;
}

bool shm_show(struct shm *shm, uint64_t word)
{
    uint64_t joiners = shm_slots_in(shm, LIFE_WAITING);
    bool still_read = word & PHASES && word_tag(word) == shm->round.tag;

    if (atomic_load_explicit(&own_arrival(shm)->standby, memory_order_relaxed) !=
            STANDBY_HOLDS ||
        !joiners || still_read)
        return false;
    if (shm_put_whole(shm))
        return true;
    atomic_store_explicit(&own_arrival(shm)->standby, STANDBY_SHOWS,
                          memory_order_release);
    roster_ring(roster_of(shm), joiners);
    return true;
}
