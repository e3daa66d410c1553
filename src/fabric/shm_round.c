/* SPDX-License-Identifier: MIT */
/* Rounds: the protocol of docs/shm.md, in bounded pieces. One thread at a time runs begin and
 * poll; wait may run beside them and touches atomic fields only.
 *
 *   1. The round's word has one owner of each step: the leader closes and fails, who counts
 *      the last chunk (or sees the last pull) commits. All by compare-and-swap on the whole
 *      word, so that of a commit and a failure one wins.
 *   2. Between its arrival at T and its arrival at T+1 a trainer finds the record, the offers
 *      and the result of T unchanged: T+1 cannot close without it.
 *   3. Nobody arrives while it writes a chunk, hence nobody writes into a later round's result.
 *   4. A bit of `members` is changed under `touching` (shm_arena.c); a setter looks at the life
 *      again afterwards, so that a death between the two leaves no bit behind.
 *   5. An exchange that is given up after arriving stays in its round as a helper: it reduces
 *      and says pulled, and takes nothing.
 *
 * Not collective: elastic exchanges touch the centre alone, under a lock a chunk. Only a STATE
 * makes a round, called by `board.called`; elastic exchanges then arrive at it, too.
 *
 * Left out on purpose: fairness of the centre's locks, and spreading of chunks by node. */
#include "fabric/shm_round.h"

#include <math.h>
#include <string.h>

#define WORD_OK 1u
#define STREAM_BYTES ((size_t)4 << 20)
#define FILL_CHUNK ((size_t)65536)
#define SPIN_NS 20000u

/* --- the word --- */

static uint64_t word_make(uint32_t tag, uint32_t flags)
{
    return (uint64_t)tag << 32 | flags;
}

static uint32_t word_tag(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

static uint32_t next_tag(uint32_t tag)
{
    return tag + 1 ? tag + 1 : 1;
}

static uint64_t load_word(const struct board *board)
{
    return atomic_load_explicit(&board->word, memory_order_acquire);
}

/* One word, one winner; the winner rings. */
static bool turn_word(struct board *board, uint64_t from, uint64_t to)
{
    if (!atomic_compare_exchange_strong_explicit(&board->word, &from, to,
                                                 memory_order_seq_cst, memory_order_relaxed))
        return false;
    board_ring(board, ~(uint64_t)0);
    return true;
}

static bool end_round(struct board *board, uint64_t word, bool ok)
{
    return turn_word(board, word, word_make(next_tag(word_tag(word)), ok ? WORD_OK : 0));
}

/* --- who there is --- */

static struct board *board_of(const struct shm *shm)
{
    return shm->arena.board;
}

static struct slot *own_slot(const struct shm *shm)
{
    return &board_of(shm)->slots[shm->meet.slot];
}

static uint64_t own_bit(const struct shm *shm)
{
    return slot_bit(shm->meet.slot);
}

static enum life own_life(const struct shm *shm)
{
    return life_state(slot_life(board_of(shm), shm->meet.slot));
}

static uint64_t load_members(const struct board *board)
{
    return atomic_load_explicit(&board->members, memory_order_seq_cst);
}

static unsigned lowest(uint64_t slots)
{
    return (unsigned)__builtin_ctzll(slots);
}

static bool leads(const struct shm *shm)
{
    uint64_t members = load_members(board_of(shm));
    return members && lowest(members) == shm->meet.slot;
}

static uint64_t slots_in(const struct board *board, enum life state)
{
    uint64_t found = 0;

    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (life_state(slot_life(board, s)) == state)
            found |= slot_bit(s);
    return found;
}

static bool has_arrived(const struct board *board, unsigned slot, uint32_t tag)
{
    return atomic_load_explicit(&board->slots[slot].arrived, memory_order_acquire) == tag;
}

/* A bit that was set when its owner was already dead. */
static void bury_stale(struct shm *shm, uint64_t members)
{
    struct board *board = board_of(shm);

    for (unsigned s = 0; s < SHM_SLOTS; s++) {
        uint64_t life = slot_life(board, s);
        if (members & slot_bit(s) && life_state(life) == LIFE_DEAD)
            slot_bury(board, s, life_generation(life), shm->meet.slot, TOUCH_POLL);
    }
}

static void become(struct shm *shm, enum life state)
{
    slot_become(board_of(shm), shm->meet.slot, shm->meet.generation, state);
    board_ring(board_of(shm), ~own_bit(shm));
}

static void touch(struct shm *shm, uint32_t what)
{
    atomic_store_explicit(&own_slot(shm)->touching[TOUCH_POLL], what, memory_order_seq_cst);
}

static void changed_members(struct board *board)
{
    atomic_fetch_add_explicit(&board->epoch, 1, memory_order_relaxed);
    atomic_store_explicit(&board->formed, 1, memory_order_relaxed);
    board_ring(board, ~(uint64_t)0);
}

/* Figures, whenever somebody came or went. */
static void refresh(struct shm *shm)
{
    struct board *board = board_of(shm);
    struct round *round = &shm->round;
    uint32_t lives = atomic_load_explicit(&board->lives, memory_order_relaxed);
    uint32_t epoch = atomic_load_explicit(&board->epoch, memory_order_relaxed);
    int threads = 0;

    if (round->counted && lives == round->lives && epoch == round->epoch)
        return;
    round->counted = true;
    round->lives = lives;
    round->epoch = epoch;
    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (life_alive(slot_life(board, s)))
            threads += atomic_load_explicit(&board->slots[s].threads, memory_order_relaxed);
    atomic_store_explicit(&shm->fabric.machine_threads, threads, memory_order_relaxed);
    atomic_store_explicit(&shm->fabric.members, __builtin_popcountll(load_members(board)),
                          memory_order_relaxed);
    atomic_store_explicit(&shm->fabric.epoch, epoch, memory_order_relaxed);
}

/* --- admitting and forming --- */

static void admit(struct shm *shm, unsigned slot)
{
    struct board *board = board_of(shm);
    uint64_t life;

    touch(shm, slot + 1);
    life = slot_life(board, slot);
    if (life_state(life) == LIFE_WAITING &&
        !(atomic_fetch_or_explicit(&board->members, slot_bit(slot), memory_order_seq_cst) &
          slot_bit(slot)))
        changed_members(board);
    touch(shm, 0);
    bury_stale(shm, slot_bit(slot) & load_members(board));
}

static void admit_waiting(struct shm *shm)
{
    uint64_t waiting = slots_in(board_of(shm), LIFE_WAITING) & ~load_members(board_of(shm));

    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (waiting & slot_bit(s))
            admit(shm, s);
}

/* The group of a job that has none: those who wait, else those who are at their end. */
static void form(struct shm *shm)
{
    struct board *board = board_of(shm);
    uint64_t none = 0, group;

    if (load_members(board))
        return;
    touch(shm, TOUCH_ALL);
    group = slots_in(board, LIFE_WAITING);
    if (group) {
        if (!atomic_load_explicit(&board->formed, memory_order_relaxed) &&
            __builtin_popcountll(group) < (int)board->size)
            group = 0;
    } else {
        group = slots_in(board, LIFE_FINAL);
        if (group != board_alive(board))
            group = 0;
    }
    if (group && atomic_compare_exchange_strong_explicit(&board->members, &none, group,
                     memory_order_seq_cst, memory_order_seq_cst))
        changed_members(board);
    touch(shm, 0);
    bury_stale(shm, group);
}

/* --- arriving and closing --- */

static void arrive(struct shm *shm, uint64_t word)
{
    struct board *board = board_of(shm);
    struct slot *mine = own_slot(shm);
    const struct exchange *exchange = &shm->round.exchange;
    uint32_t tag = word_tag(word);
    uint64_t others = 0, members;

    if (shm->start.collective && !exchange->final)
        admit_waiting(shm);
    mine->kind = (uint32_t)exchange->kind;
    mine->n = exchange->n;
    mine->priority = exchange->priority;
    mine->weight = exchange->weight;
    shm->round.tag = tag;
    shm->round.stage = STAGE_ARRIVED;
    shm->round.seen = shm->round.part_out = false;
    shm->round.filled = 0;
    if (!shm->start.collective && exchange->kind == EXCHANGE_STATE)
        atomic_store_explicit(&board->called, tag, memory_order_release);
    atomic_store_explicit(&mine->arrived, tag, memory_order_seq_cst);
    members = load_members(board);
    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (members & slot_bit(s) && !has_arrived(board, s, tag))
            others |= slot_bit(s);
    board_ring(board, (others | (members & -members)) & ~own_bit(shm));
}

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

    record->n = board->slots[lowest(record->group)].n;
    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (record->group & slot_bit(s) && board->slots[s].n < record->n)
            record->n = board->slots[s].n;
    record->chunk = (record->n / (4 * members) + 15) / 16 * 16;
    if (record->chunk < 1024)
        record->chunk = 1024;
    if (record->chunk > 65536)
        record->chunk = 65536;
    record->n_chunks = (uint32_t)((record->n + record->chunk - 1) / record->chunk);
    record->ready_ns = clock_now_ns() + link_mean_ns(&board->link, record->n, (int)members);
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

    if (!leads(shm) || !all_arrived(board, members, tag))
        return false;
    if (word & WORD_OK)
        atomic_store_explicit(&board->bad, 0, memory_order_relaxed);
    record->group = members;
    record->bad = atomic_load_explicit(&board->bad, memory_order_relaxed) & members;
    record->source = lowest(members);
    choose_source(board, record);
    set_chunks(board, record);
    record->empty = record->kind == EXCHANGE_MEAN && !set_shares(board, record);
    atomic_store_explicit(&board->claim, word_make(tag, 0), memory_order_relaxed);
    atomic_store_explicit(&board->done, word_make(tag, 0), memory_order_relaxed);
    sweep(shm);
    if (load_members(board) != members || load_word(board) != word)
        return true;
    if (record->empty || (record->kind == EXCHANGE_MEAN && !record->n_chunks))
        return end_round(board, word, true);
    turn_word(board, word, word_make(tag, PHASE_REDUCE));
    return true;
}

/* A member of the group is gone, or has taken its arrival back (retire): for a mean, its part
 * may be missing; for a state, only the source's matters. */
static bool lost_group(const struct board *board, uint64_t members, uint32_t tag)
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
static bool lead(struct shm *shm, uint64_t word)
{
    struct board *board = board_of(shm);
    uint64_t members = load_members(board);

    bury_stale(shm, members);
    if (!leads(shm))
        return false;
    if (!(word & PHASE_REDUCE))
        return close_round(shm, word);
    return lost_group(board, load_members(board), word_tag(word)) &&
           end_round(board, word, false);
}

/* --- reducing --- */

static enum slot_region region_of(const struct board *board, unsigned slot)
{
    return board->slots[slot].in_place ? SLOT_REPLICA : SLOT_CONTRIBUTION;
}

static size_t region_floats(const struct shm *shm, enum slot_region region)
{
    return region == SLOT_CONTRIBUTION ? shm->start.room : shm->start.n;
}

static const float *vector_of(struct shm *shm, unsigned slot)
{
    enum slot_region region = region_of(board_of(shm), slot);
    return arena_peer(&shm->arena, slot, region, region_floats(shm, region));
}

static enum fabric_progress fail(struct shm *shm, descant_status status)
{
    shm->fabric.status = status;
    return FABRIC_FAILED;
}

static bool map_group(struct shm *shm)
{
    const struct round_record *record = &board_of(shm)->record;

    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (record->group & slot_bit(s)) {
            shm->round.in[s] = vector_of(shm, s);
            if (!shm->round.in[s])
                return false;
        }
    shm->round.seen = true;
    return true;
}

static bool claim_chunk(struct board *board, uint32_t tag, uint32_t *chunk)
{
    uint64_t claim = atomic_load_explicit(&board->claim, memory_order_relaxed);

    do {
        *chunk = (uint32_t)claim;
        if (word_tag(claim) != tag || *chunk >= board->record.n_chunks)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&board->claim, &claim, claim + 1,
                                                    memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

static void count_chunk(struct board *board, uint64_t word)
{
    uint64_t done = atomic_load_explicit(&board->done, memory_order_relaxed);

    do {
        if (word_tag(done) != word_tag(word))
            return;
    } while (!atomic_compare_exchange_weak_explicit(&board->done, &done, done + 1,
                                                    memory_order_acq_rel,
                                                    memory_order_relaxed));
    if ((uint32_t)done + 1 == board->record.n_chunks)
        end_round(board, word, true);
}

/* Whose chunk is not finite; of live memory it may be so no longer: then all that counted. */
static uint64_t find_bad(struct shm *shm, size_t from, size_t n)
{
    const struct round_record *record = &board_of(shm)->record;
    uint64_t bad = 0, all = 0;

    for (unsigned s = 0; s < SHM_SLOTS; s++) {
        if (!(record->share[s] > 0))
            continue;
        all |= slot_bit(s);
        if (!shm->kernels->finite(shm->round.in[s] + from, n))
            bad |= slot_bit(s);
    }
    return bad ? bad : all;
}

static bool mean_chunk(struct shm *shm, size_t from, size_t n)
{
    const struct round_record *record = &board_of(shm)->record;
    const float *in[SHM_SLOTS];
    double share[SHM_SLOTS];
    int k = 0;

    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (record->group & slot_bit(s) && record->share[s] > 0) {
            in[k] = shm->round.in[s] + from;
            share[k++] = record->share[s];
        }
    return shm->kernels->mean(shm->result + from, in, share, k, n,
                              record->n * sizeof(float) >= STREAM_BYTES);
}

static void say_reducing(struct shm *shm, uint32_t tag)
{
    atomic_store_explicit(&own_slot(shm)->reducing, tag, memory_order_relaxed);
}

static enum fabric_progress reduce(struct shm *shm, uint64_t word)
{
    struct board *board = board_of(shm);
    uint32_t chunk;

    if (!shm->round.seen && !map_group(shm))
        return fail(shm, DESCANT_MEMORY);
    if (!claim_chunk(board, word_tag(word), &chunk))
        return FABRIC_WAITING;
    size_t from = chunk * board->record.chunk, n = board->record.n - from;
    if (n > board->record.chunk)
        n = board->record.chunk;
    say_reducing(shm, word_tag(word));
    if (mean_chunk(shm, from, n)) {
        count_chunk(board, word);
    } else {
        atomic_fetch_or_explicit(&board->bad, find_bad(shm, from, n), memory_order_relaxed);
        end_round(board, word, false);
    }
    say_reducing(shm, 0);
    return FABRIC_WORKED;
}

/* --- states --- */

static bool state_part(struct shm *shm, unsigned source, struct fabric_part *part)
{
    *part = (struct fabric_part){.kind = EXCHANGE_STATE, .n = shm->start.n,
                                 .own = source == shm->meet.slot};
    part->out = vector_of(shm, source);
    if (!part->out)
        return false;
    for (int k = 0; k < shm->start.n_outer; k++) {
        part->outer[k] = arena_peer(&shm->arena, source,
                                    (enum slot_region)(SLOT_OUTER0 + k), shm->start.n);
        if (!part->outer[k])
            return false;
    }
    return true;
}

static bool all_pulled(const struct board *board, uint64_t slots, uint32_t tag)
{
    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (slots & slot_bit(s) && life_alive(slot_life(board, s)) &&
            atomic_load_explicit(&board->slots[s].pulled, memory_order_seq_cst) != tag)
            return false;
    return true;
}

static void say_pulled(struct shm *shm, uint64_t word)
{
    struct board *board = board_of(shm);
    uint32_t tag = word_tag(word);

    if (atomic_load_explicit(&own_slot(shm)->pulled, memory_order_relaxed) != tag)
        atomic_store_explicit(&own_slot(shm)->pulled, tag, memory_order_seq_cst);
    if (all_pulled(board, board->record.group & load_members(board), tag))
        end_round(board, word, true);
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

static enum fabric_progress take_state(struct shm *shm, uint64_t word,
                                       struct fabric_part *part)
{
    unsigned source = board_of(shm)->record.source;

    if (shm->round.part_out || (shm->round.abandoned && source != shm->meet.slot)) {
        say_pulled(shm, word);
        return FABRIC_WAITING;
    }
    if (!state_part(shm, source, part))
        return fail(shm, DESCANT_MEMORY);
    if (source == shm->meet.slot && shm->fabric.center && !shm->round.exchange.final &&
        fill_center(shm, part->out))
        return FABRIC_WORKED;
    shm->round.part_out = true;
    return shm->round.abandoned ? FABRIC_WORKED : FABRIC_PART;
}

/* --- joining --- */

/* A member to pull from; SHM_SLOTS: nobody. *any: there is one, though not ready. */
static unsigned find_source(struct shm *shm, uint64_t word, bool *any)
{
    struct board *board = board_of(shm);
    uint64_t settled = slots_in(board, LIFE_MEMBER) & load_members(board) & ~own_bit(shm);

    *any = settled != 0;
    if (shm->start.collective && word & PHASE_REDUCE)
        return SHM_SLOTS;
    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (settled & slot_bit(s) &&
            (!shm->start.collective || has_arrived(board, s, word_tag(word))))
            return s;
    return SHM_SLOTS;
}

static enum fabric_progress pull(struct shm *shm, unsigned source, struct fabric_part *part)
{
    shm->round.source = source;
    shm->round.source_generation = life_generation(slot_life(board_of(shm), source));
    if (!state_part(shm, source, part))
        return fail(shm, DESCANT_MEMORY);
    shm->round.stage = STAGE_PULLING;
    return FABRIC_PART;
}

static enum fabric_progress pulled(struct shm *shm)
{
    struct board *board = board_of(shm);
    struct round *round = &shm->round;
    uint64_t life = slot_life(board, round->source);

    if (!life_alive(life) || life_generation(life) != round->source_generation) {
        round->stage = STAGE_BEGUN;
        return FABRIC_WORKED;
    }
    if (!shm->start.collective)
        admit(shm, shm->meet.slot);
    become(shm, LIFE_MEMBER);
    shm->fabric.joined = true;
    round->stage = STAGE_IDLE;
    return FABRIC_DONE;
}

/* --- the ends of a round --- */

static void count_bytes(struct shm *shm, size_t bytes)
{
    atomic_fetch_add_explicit(&shm->fabric.bytes, bytes, memory_order_relaxed);
}

static void count_bad(struct shm *shm)
{
    const struct round_record *record = &board_of(shm)->record;

    shm->fabric.own_bad = (record->bad & own_bit(shm)) != 0;
    atomic_fetch_add_explicit(&shm->fabric.bad,
                              (uint64_t)__builtin_popcountll(record->bad),
                              memory_order_relaxed);
}

static enum fabric_progress committed(struct shm *shm, struct fabric_part *part)
{
    const struct round_record *record = &board_of(shm)->record;
    struct round *round = &shm->round;

    if (record->kind == EXCHANGE_STATE) {
        if (own_life(shm) == LIFE_WAITING)
            become(shm, LIFE_MEMBER);
        round->stage = STAGE_IDLE;
        return FABRIC_DONE;
    }
    if (clock_now_ns() < record->ready_ns && !record->empty) {
        atomic_store_explicit(&shm->ready_ns, record->ready_ns, memory_order_relaxed);
        return FABRIC_WAITING;
    }
    count_bad(shm);
    if (record->empty || !record->n) {
        round->stage = STAGE_IDLE;
        return FABRIC_DONE;
    }
    double k = __builtin_popcountll(record->group);
    count_bytes(shm, (size_t)(2 * (k - 1) / k * (double)(record->n * sizeof(float))));
    *part = (struct fabric_part){.kind = EXCHANGE_MEAN, .out = shm->result, .n = record->n};
    round->stage = STAGE_DONE;
    return FABRIC_PART;
}

static enum fabric_progress ended(struct shm *shm, uint64_t word, struct fabric_part *part)
{
    const struct board *board = board_of(shm);
    struct round *round = &shm->round;
    bool ok = word_tag(word) == next_tag(round->tag) && word & WORD_OK;

    if (ok && !round->abandoned)
        return committed(shm, part);
    if (!ok && lost_group(board, load_members(board), round->tag))
        atomic_fetch_add_explicit(&shm->fabric.restarts, 1, memory_order_relaxed);
    round->abandoned = false;
    round->stage = STAGE_BEGUN;
    return FABRIC_WORKED;
}

static enum fabric_progress arrived(struct shm *shm, uint64_t word, struct fabric_part *part)
{
    if (word_tag(word) != shm->round.tag)
        return ended(shm, word, part);
    if (lead(shm, word))
        return FABRIC_WORKED;
    if (!(word & PHASE_REDUCE))
        return FABRIC_WAITING;
    if (!(board_of(shm)->record.group & own_bit(shm)))
        return FABRIC_WAITING;
    return board_of(shm)->record.kind == EXCHANGE_STATE ? take_state(shm, word, part)
                                                        : reduce(shm, word);
}

static enum fabric_progress begun(struct shm *shm, uint64_t word, struct fabric_part *part)
{
    struct board *board = board_of(shm);
    bool waiting = own_life(shm) == LIFE_WAITING, any = false;

    form(shm);
    if (waiting && (load_members(board) & own_bit(shm) || !shm->start.collective)) {
        unsigned source = find_source(shm, word, &any);
        if (source < SHM_SLOTS)
            return pull(shm, source, part);
    }
    if (!(load_members(board) & own_bit(shm)))
        return FABRIC_WAITING;
    if (lead(shm, word))
        return FABRIC_WORKED;
    if (any || word & PHASE_REDUCE || load_word(board) != word)
        return load_word(board) != word ? FABRIC_WORKED : FABRIC_WAITING;
    arrive(shm, word);
    return FABRIC_WORKED;
}

/* --- elastic --- */

static bool lock_dead(const struct board *board, uint64_t lock)
{
    unsigned slot = (unsigned)(lock & 0xffffffffu) - 1;
    uint64_t life = slot < SHM_SLOTS ? slot_life(board, slot) : 0;
    return !life_alive(life) || life_generation(life) != life_generation(lock);
}

/* Acquire and release: the last holder's floats are seen. */
static bool lock_chunk(struct shm *shm, size_t chunk)
{
    uint64_t seen = atomic_load_explicit(&shm->locks[chunk], memory_order_relaxed);
    uint64_t mine = word_make(shm->meet.generation, shm->meet.slot + 1);

    if (seen && !lock_dead(board_of(shm), seen))
        return false;
    return atomic_compare_exchange_strong_explicit(&shm->locks[chunk], &seen, mine,
                                                   memory_order_acq_rel,
                                                   memory_order_relaxed);
}

static bool gather_chunk(const struct shm *shm, size_t from, size_t n)
{
    const struct vector *in = shm->round.exchange.in;
    bool finite = true;

    memset(shm->scratch, 0, n * sizeof(float));
    for (size_t k = 0; k < in->n_extents; k++) {
        const struct extent *e = &in->extents[k];
        size_t low = e->at > from ? e->at : from;
        size_t high = e->at + e->n < from + n ? e->at + e->n : from + n;
        if (low < high)
            finite &= shm->kernels->copy(shm->scratch + (low - from), e->p + (low - e->at),
                                         high - low);
    }
    return finite;
}

static bool next_chunk(struct shm *shm, size_t *chunk)
{
    struct round *round = &shm->round;

    for (size_t tries = 0; tries < round->n_chunks; tries++) {
        *chunk = round->cursor;
        round->cursor = round->cursor + 1 == round->n_chunks ? 0 : round->cursor + 1;
        if (shm->left[*chunk] && lock_chunk(shm, *chunk))
            return true;
    }
    return false;
}

static enum fabric_progress elastic_end(struct shm *shm, bool bad)
{
    if (bad)
        atomic_fetch_add_explicit(&shm->fabric.bad, 1, memory_order_relaxed);
    else
        count_bytes(shm, 2 * shm->round.exchange.n * sizeof(float));
    shm->fabric.own_bad = bad;
    shm->round.stage = STAGE_IDLE;
    return FABRIC_DONE;
}

static enum fabric_progress elastic(struct shm *shm, struct fabric_part *part)
{
    struct round *round = &shm->round;
    float *out = shm->scratch + ELASTIC_CHUNK;
    size_t chunk;

    if (clock_now_ns() < atomic_load_explicit(&shm->ready_ns, memory_order_relaxed))
        return FABRIC_WAITING;
    if (!round->n_left)
        return elastic_end(shm, false);
    if (!next_chunk(shm, &chunk))
        return FABRIC_WORKED;
    size_t from = chunk * ELASTIC_CHUNK, n = round->exchange.n - from;
    if (n > ELASTIC_CHUNK)
        n = ELASTIC_CHUNK;
    bool good = gather_chunk(shm, from, n);
    if (good)
        shm->kernels->elastic(shm->fabric.center + from, shm->scratch, out,
                              (float)round->exchange.alpha, n);
    atomic_store_explicit(&shm->locks[chunk], 0, memory_order_release);
    if (!good)
        return elastic_end(shm, true);
    shm->left[chunk] = false;
    round->n_left--;
    *part = (struct fabric_part){.kind = EXCHANGE_ELASTIC, .out = out, .from = from, .n = n};
    return FABRIC_PART;
}

static void reserve_link(struct shm *shm)
{
    struct board *board = board_of(shm);
    uint64_t busy = link_busy_ns(&board->link, shm->round.exchange.n);
    uint64_t free = atomic_load_explicit(&board->link_free_ns, memory_order_relaxed);
    uint64_t now = clock_now_ns(), from;

    if (!busy && !(board->link.rtt > 0))
        return;
    do {
        from = free > now ? free : now;
    } while (!atomic_compare_exchange_weak_explicit(&board->link_free_ns, &free, from + busy,
                                                    memory_order_relaxed,
                                                    memory_order_relaxed));
    atomic_store_explicit(&shm->ready_ns, from + busy + (uint64_t)(board->link.rtt * 1e9),
                          memory_order_relaxed);
}

static void begin_elastic(struct shm *shm)
{
    struct round *round = &shm->round;

    round->stage = STAGE_ELASTIC;
    round->n_chunks = (round->exchange.n + ELASTIC_CHUNK - 1) / ELASTIC_CHUNK;
    round->n_left = round->n_chunks;
    round->cursor = round->n_chunks
                        ? shm->meet.slot * round->n_chunks / 8 % round->n_chunks : 0;
    memset(shm->left, 1, round->n_chunks);
    reserve_link(shm);
}

/* A STATE that others have called gathers, and we have not arrived. */
static bool is_called(const struct shm *shm, uint64_t word)
{
    const struct board *board = board_of(shm);
    uint64_t members = load_members(board);
    uint32_t tag = word_tag(word);

    if (word & PHASE_REDUCE || !(members & own_bit(shm)) ||
        has_arrived(board, shm->meet.slot, tag))
        return false;
    if (!shm->start.collective)
        return atomic_load_explicit(&board->called, memory_order_acquire) == tag;
    for (unsigned s = 0; s < SHM_SLOTS; s++)
        if (members & slot_bit(s) && has_arrived(board, s, tag))
            return true;
    return slots_in(board, LIFE_WAITING) != 0;
}

/* --- what the table calls --- */

static descant_status check(const struct shm *shm, const struct exchange *exchange)
{
    enum life life = own_life(shm);
    bool elastic_kind = exchange->kind == EXCHANGE_ELASTIC;

    if (!shm->started)
        return log_fail(&shm->fabric.log, DESCANT_ORDER, "an exchange before start");
    if (exchange->n > shm->start.room || (elastic_kind && exchange->n > shm->start.n))
        return log_fail(&shm->fabric.log, DESCANT_INVALID, "%zu floats are more than %zu",
                        exchange->n, elastic_kind ? shm->start.n : shm->start.room);
    if (exchange->kind == EXCHANGE_MEAN &&
        !(exchange->weight >= 0 && isfinite(exchange->weight)))
        return log_fail(&shm->fabric.log, DESCANT_INVALID, "%g is no weight",
                        exchange->weight);
    if (elastic_kind && (!shm->fabric.center || exchange->final))
        return log_fail(&shm->fabric.log, DESCANT_INVALID, "there is no centre");
    if (life < LIFE_MEMBER && exchange->kind != EXCHANGE_STATE && !exchange->final)
        return log_fail(&shm->fabric.log, DESCANT_ORDER,
                        "the first exchange must be one of state");
    return DESCANT_OK;
}

/* Leaves the rounds: the last group is formed once everyone has. An arrival is taken back first,
 * lest the last group close on an offer of before; a round that counts on it is begun again. */
static void retire(struct shm *shm)
{
    struct board *board = board_of(shm);

    atomic_store_explicit(&own_slot(shm)->arrived, 0, memory_order_seq_cst);
    shm->round.abandoned = false;
    shm->round.stage = STAGE_BEGUN;
    become(shm, LIFE_FINAL);
    if (atomic_fetch_and_explicit(&board->members, ~own_bit(shm), memory_order_seq_cst) &
        own_bit(shm))
        atomic_fetch_add_explicit(&board->epoch, 1, memory_order_relaxed);
    board_ring(board, ~(uint64_t)0);
}

descant_status shm_round_begin(struct shm *shm, const struct exchange *exchange)
{
    struct round *round = &shm->round;
    descant_status status = check(shm, exchange);

    if (status)
        return status;
    if (round->stage == STAGE_ARRIVED && !exchange->final)
        round->abandoned = true;
    round->exchange = *exchange;
    if (!round->abandoned)
        round->stage = STAGE_BEGUN;
    atomic_store_explicit(&shm->ready_ns, 0, memory_order_relaxed);
    shm->fabric.own_bad = false;
    if (exchange->kind == EXCHANGE_ELASTIC && !round->abandoned)
        begin_elastic(shm);
    if (exchange->final)
        retire(shm);
    else if (own_life(shm) == LIFE_JOINED)
        become(shm, LIFE_WAITING);
    return DESCANT_OK;
}

enum fabric_progress shm_round_poll(struct shm *shm, struct fabric_part *part)
{
    struct round *round = &shm->round;

    atomic_store_explicit(&shm->seen_bell,
                          atomic_load_explicit(&own_slot(shm)->bell, memory_order_acquire),
                          memory_order_relaxed);
    refresh(shm);
    if (shm->fabric.status)
        return FABRIC_FAILED;
    uint64_t word = load_word(board_of(shm));
    switch (round->stage) {
    case STAGE_IDLE:
        return shm->started && is_called(shm, word) ? FABRIC_CALLED : FABRIC_WAITING;
    case STAGE_BEGUN:
        if (round->exchange.kind == EXCHANGE_ELASTIC && !is_called(shm, word)) {
            begin_elastic(shm);
            return FABRIC_WORKED;
        }
        return begun(shm, word, part);
    case STAGE_ARRIVED:
        return arrived(shm, word, part);
    case STAGE_PULLING:
        return pulled(shm);
    case STAGE_ELASTIC:
        if (is_called(shm, word)) {
            round->stage = STAGE_BEGUN;
            return FABRIC_WORKED;
        }
        return elastic(shm, part);
    case STAGE_DONE:
        break;
    }
    round->stage = STAGE_IDLE;
    return FABRIC_DONE;
}

static void spin(const struct shm *shm, _Atomic uint32_t *bell, uint32_t seen)
{
    uint64_t until = clock_now_ns() + SPIN_NS;

    if (shm->cores < atomic_load_explicit(&shm->fabric.machine_threads, memory_order_relaxed))
        return;
    while (atomic_load_explicit(bell, memory_order_relaxed) == seen &&
           clock_now_ns() < until)
        ;
}

void shm_round_wait(struct shm *shm, uint64_t until_ns)
{
    _Atomic uint32_t *bell = &own_slot(shm)->bell;
    uint32_t seen = atomic_load_explicit(&shm->seen_bell, memory_order_relaxed);
    uint64_t ready = atomic_load_explicit(&shm->ready_ns, memory_order_relaxed);

    if (ready > clock_now_ns() && (!until_ns || ready < until_ns))
        until_ns = ready;
    spin(shm, bell, seen);
    futex_wait(bell, seen, until_ns);
}
