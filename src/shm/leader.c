/* SPDX-License-Identifier: MIT */
/* The lowest member closes a round at which all members have arrived; any member may fail
 * a round that has lost a member it needs.
 *
 *   1. The closer first puts CLOSING and its slot into the word, so there is one closer
 *      at a time; the record is the closer's own until it moves the word on. A closer
 *      that has died is undone: the word goes back to its old value.
 *   2. The closer looks at the members once more after CLOSING. A later member sees
 *      CLOSING, and does not arrive; a member that dies later keeps its slot and its
 *      pages, as a dead slot is not taken then, and is missed in REDUCE.
 *   3. The record stays as it is from REDUCE to the next close, which needs all members'
 *      arrival.
 *   4. The own state of a newcomer founds a job, but never replaces a job's state. A
 *      round that would do so fails, and the newcomers look again for a source.
 *
 * All of this runs in the thread that holds the round machine. */
#include "shm/shm.h"

#include <string.h>

/* Releases a piece of a dead trainer's pages, which no round reads now. */
static void sweep(struct shm *shm, uint64_t members)
{
    struct roster *roster = roster_of(shm);

    for (unsigned s = 0; s < MACHINE_SLOTS; s++) {
        uint64_t life = slot_life(roster, s);
        if (life_state(life) != LIFE_DEAD || members & slot_bit(s) ||
            !slot_untouched(roster, s))
            continue;
        if (arena_punch_piece(&shm->meet.arena, slot_region_at(s, SLOT_REPLICA),
                              SLOT_BYTES))
            atomic_compare_exchange_strong(&roster->slots[s].life, &life,
                                           life_make(life_generation(life), LIFE_FREE));
        return;
    }
}

struct offer shm_offer_of(const struct shm *shm, unsigned slot)
{
    const struct arrival *s = &board_of(shm)->arrivals[slot];
    return (struct offer){.rank = roster_of(shm)->slots[slot].rank,
                          .kind = (enum exchange_kind)s->kind,
                          .final =
                              life_state(slot_life(roster_of(shm), slot)) == LIFE_FINAL,
                          .bad = (board_of(shm)->record.bad & slot_bit(slot)) != 0,
                          .n = s->n,
                          .agree = s->agree,
                          .priority = s->priority,
                          .weight = s->weight};
}

/* Fills in the record of the group, which has arrived. */
static struct ruling rule(const struct shm *shm, struct round_record *record)
{
    struct offer offers[MACHINE_SLOTS];
    double shares[MACHINE_SLOTS];
    unsigned slots[MACHINE_SLOTS];
    int k = 0;

    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (record->group & slot_bit(s)) {
            slots[k] = s;
            offers[k++] = shm_offer_of(shm, s);
        }
    const struct ruling_of all = {.arrived = k, .members = k};
    struct ruling ruling = round_rule(offers, all, shares);
    memset(record->share, 0, sizeof record->share);
    for (int i = 0; i < k && ruling.what == RULING_MEAN; i++)
        record->share[slots[i]] = shares[i];
    record->source = slots[ruling.what == RULING_STATE ? ruling.place : 0];
    return ruling;
}

static void set_chunks(struct shm_board *board, struct round_record *record)
{
    size_t members = (size_t)__builtin_popcountll(record->group);

    record->live = 0;
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (record->group & slot_bit(s) && board->arrivals[s].live)
            record->live |= slot_bit(s);
    size_t most = record->live ? SLICE_CHUNK : 65536;
    record->chunk = (record->n / (4 * members) + 15) / 16 * 16;
    if (record->chunk < 1024)
        record->chunk = 1024;
    if (record->chunk > most)
        record->chunk = most;
    record->n_chunks = (uint32_t)((record->n + record->chunk - 1) / record->chunk);
    record->ready_ns =
        clock_now_ns() +
        emulated_mean_ns(&board->link, record->n * sizeof(float), (int)members);
}

/* Whether this trainer leads the members, and all of them have arrived and live. */
static bool may_close(const struct shm *shm, uint64_t members, uint32_t tag)
{
    return (members & -members) == own_bit(shm) &&
           !(members & ~roster_alive(roster_of(shm))) &&
           !shm_late(board_of(shm), members, tag);
}

static struct ruling write_record(struct shm *shm, uint64_t word, uint64_t members)
{
    struct shm_board *board = board_of(shm);
    struct round_record *record = &board->record;
    uint32_t tag = word_tag(word);

    if (word & WORD_OK)
        atomic_store_explicit(&board->bad, 0, memory_order_relaxed);
    record->group = members;
    record->bad = atomic_load_explicit(&board->bad, memory_order_relaxed) & members;
    struct ruling ruling = rule(shm, record);
    record->kind = ruling.what == RULING_STATE ? EXCHANGE_STATE : EXCHANGE_MEAN;
    record->n = ruling.n;
    record->differ = ruling.what == RULING_DIFFER;
    record->empty = ruling.what == RULING_EMPTY;
    set_chunks(board, record);
    for (unsigned i = 0; i < (unsigned)__builtin_popcountll(members); i++)
        atomic_store_explicit(&board->claim[i],
                              word_make(tag, shm_first_chunk(record, i)),
                              memory_order_relaxed);
    atomic_store_explicit(&board->done, word_make(tag, 0), memory_order_relaxed);
    return ruling;
}

/* Whether newcomers have arrived with states of their own although a trainer has the
 * job's. Their search for a source missed that trainer: it had not yet become MEMBER, or
 * was on its way out of the members. */
static bool replaces_state(const struct shm *shm, uint64_t group)
{
    uint64_t newcomers = group & shm_slots_in(shm, LIFE_WAITING);
    return newcomers && (newcomers != group || shm_standby(shm));
}

static bool close_round(struct shm *shm, uint64_t word)
{
    struct shm_board *board = board_of(shm);
    uint64_t closing = word | PHASE_CLOSING | (uint64_t)shm->meet.slot << 8, was = word;
    uint64_t members = load_members(shm);
    uint32_t tag = word_tag(word);

    shm_step(STEP_CLOSE, shm->meet.slot);
    if (!may_close(shm, members, tag))
        return false;
    if (!atomic_compare_exchange_strong_explicit(
            &board->word, &was, closing, memory_order_seq_cst, memory_order_relaxed))
        return true;
    members = load_members(shm);
    if (!may_close(shm, members, tag))
        return shm_turn_word(shm, closing, word);
    shm_step(STEP_CLOSING, shm->meet.slot);
    sweep(shm, members);
    struct ruling ruling = write_record(shm, word, members);
    if (ruling.what == RULING_VOID || replaces_state(shm, members))
        return shm_end_round(shm, closing, false);
    if (ruling.what == RULING_STATE ||
        (ruling.what == RULING_MEAN && board->record.n_chunks))
        return shm_turn_word(shm, closing, word_make(tag, PHASE_REDUCE));
    return shm_end_round(shm, closing, true);
}

/* The members without which the round has no result: of a mean all members of its group,
 * of a state its source. */
static uint64_t needed_of(const struct round_record *record)
{
    return record->kind == EXCHANGE_MEAN ? record->group : slot_bit(record->source);
}

bool shm_left_group(const struct shm_board *board, uint64_t members)
{
    return (needed_of(&board->record) & ~members) != 0;
}

bool shm_lost_group(const struct shm_board *board, uint64_t members, uint32_t tag)
{
    uint64_t needed = needed_of(&board->record);
    return needed & ~members || shm_late(board, needed, tag);
}

/* True: the word has moved. */
bool shm_lead(struct shm *shm, uint64_t word)
{
    struct shm_board *board = board_of(shm);

    shm_bury_stale(shm, load_members(shm));
    if (word & PHASE_REDUCE)
        return shm_lost_group(board, load_members(shm), word_tag(word)) &&
               shm_end_round(shm, word, false);
    if (word & PHASE_CLOSING)
        return !life_alive(slot_life(roster_of(shm), word_closer(word))) &&
               shm_turn_word(shm, word, word & ~(uint64_t)(PHASE_CLOSING | 0xff00u));
    return close_round(shm, word);
}
