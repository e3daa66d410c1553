/* SPDX-License-Identifier: MIT */
/* What the lowest member does for all: it closes a round that everyone has arrived at, and
 * fails one that has lost a member it needs. Both are steps of the round's word, so a leader
 * that has died takes no more of them, and the next one takes them instead.
 *
 * The record is written before the word says REDUCE and stays as it is until the next close,
 * which needs everyone's arrival. Run by whoever holds the round machine. */
#include "fabric/shm_round.h"

/* Pages of the dead that nobody touches; no round reads them now. */
static void sweep(struct shm *shm)
{
    struct board *board = board_of(shm);

    for (unsigned s = 0; s < SHM_SLOTS; s++) {
        uint64_t life = slot_life(board, s);
        uint64_t sweeping = life_make(life_generation(life), LIFE_SWEEPING);
        if (life_state(life) != LIFE_DEAD && life_state(life) != LIFE_SWEEPING)
            continue;
        if (life != sweeping && !atomic_compare_exchange_strong_explicit(
                &board->slots[s].life, &life, sweeping, memory_order_seq_cst,
                memory_order_seq_cst))
            continue;
        bool free = slot_untouched(board, s) && !(load_members(board) & slot_bit(s));
        if (free)
            arena_punch(&shm->arena, s);
        atomic_store_explicit(&board->slots[s].life,
                              life_make(life_generation(life), free ? LIFE_FREE : LIFE_DEAD),
                              memory_order_seq_cst);
    }
}

/* Weights to shares. False: nobody's counts. */
static bool set_shares(const struct board *board, struct round_record *record)
{
    uint64_t good = record->group & ~record->bad;
    double total = 0;

    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (good & slot_bit(s))
            total += board->slots[s].weight;
    for (unsigned s = 0; s < SHM_SLOTS; s++) {
        record->share[s] = 0;
        if (good & slot_bit(s))
            record->share[s] = total > 0 ? board->slots[s].weight / total
                                         : 1.0 / __builtin_popcountll(good);
    }
    return good != 0;
}

static void choose_source(const struct board *board, struct round_record *record)
{
    bool any = false;

    for (unsigned s = 0; s < SHM_SLOTS; s++) {
        const struct slot *slot = &board->slots[s], *best = &board->slots[record->source];
        if (!(record->group & slot_bit(s)) || slot->kind != EXCHANGE_STATE)
            continue;
        if (!any || slot->priority > best->priority ||
            (slot->priority == best->priority && slot->rank < best->rank))
            record->source = s;
        any = true;
    }
    record->kind = any ? EXCHANGE_STATE : EXCHANGE_MEAN;
}

static void set_chunks(struct board *board, struct round_record *record)
{
    size_t members = (size_t)__builtin_popcountll(record->group);

    record->live = 0;
    record->n = board->slots[lowest(record->group)].n;
    for (unsigned s = 0; s < SHM_SLOTS; s++) {
        if (!(record->group & slot_bit(s)))
            continue;
        if (board->slots[s].n < record->n)
            record->n = board->slots[s].n;
        if (board->slots[s].live)
            record->live |= slot_bit(s);
    }
    size_t most = record->live ? SLICE_CHUNK : 65536;
    record->chunk = (record->n / (4 * members) + 15) / 16 * 16;
    if (record->chunk < 1024)
        record->chunk = 1024;
    if (record->chunk > most)
        record->chunk = most;
    record->n_chunks = (uint32_t)((record->n + record->chunk - 1) / record->chunk);
    record->ready_ns = clock_now_ns() + link_mean_ns(&board->link, record->n, (int)members);
}

bool shm_offers_differ(const struct slot *a, const struct slot *b)
{
    return a->n != b->n || a->agree != b->agree;
}

/* What they ask for; of a state among means, nothing is asked. */
static bool offers_differ(const struct board *board, const struct round_record *record)
{
    unsigned first = lowest(record->group);

    if (record->kind == EXCHANGE_STATE && life_state(slot_life(board, first)) != LIFE_FINAL)
        return false;
    for (unsigned s = first; s < SHM_SLOTS; s++)
        if (record->group & slot_bit(s) &&
            shm_offers_differ(&board->slots[s], &board->slots[first]))
            return true;
    return false;
}

static bool all_arrived(const struct board *board, uint64_t members, uint32_t tag)
{
    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (members & slot_bit(s) &&
            (!life_alive(slot_life(board, s)) || !has_arrived(board, s, tag)))
            return false;
    return true;
}

static bool close_round(struct shm *shm, uint64_t word)
{
    struct board *board = board_of(shm);
    struct round_record *record = &board->record;
    uint64_t members = load_members(board);
    uint32_t tag = word_tag(word);

    if (!shm_leads(shm) || !all_arrived(board, members, tag))
        return false;
    if (word & WORD_OK)
        atomic_store_explicit(&board->bad, 0, memory_order_relaxed);
    record->group = members;
    record->bad = atomic_load_explicit(&board->bad, memory_order_relaxed) & members;
    record->source = lowest(members);
    choose_source(board, record);
    set_chunks(board, record);
    record->differ = offers_differ(board, record);
    record->empty = record->kind == EXCHANGE_MEAN && !set_shares(board, record);
    atomic_store_explicit(&board->claim, word_make(tag, 0), memory_order_relaxed);
    atomic_store_explicit(&board->done, word_make(tag, 0), memory_order_relaxed);
    sweep(shm);
    if (load_members(board) != members || load_word(board) != word)
        return true;
    if (record->differ || record->empty || (record->kind == EXCHANGE_MEAN && !record->n_chunks))
        return shm_end_round(board, word, true);
    shm_turn_word(board, word, word_make(tag, PHASE_REDUCE));
    return true;
}

/* For a mean, the part of any member may be missing; for a state, only the source's matters. */
bool shm_lost_group(const struct board *board, uint64_t members, uint32_t tag)
{
    const struct round_record *record = &board->record;
    uint64_t needed = record->kind == EXCHANGE_MEAN ? record->group
                                                    : slot_bit(record->source);
    if (needed & ~members)
        return true;
    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (needed & slot_bit(s) && !has_arrived(board, s, tag))
            return true;
    return false;
}

/* What the leader does, whatever exchange it has. True: something moved. */
bool shm_lead(struct shm *shm, uint64_t word)
{
    struct board *board = board_of(shm);
    uint64_t members = load_members(board);

    shm_bury_stale(shm, members);
    if (!shm_leads(shm))
        return false;
    if (!(word & PHASE_REDUCE))
        return close_round(shm, word);
    return shm_lost_group(board, load_members(board), word_tag(word)) &&
           shm_end_round(board, word, false);
}
