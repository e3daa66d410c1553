/* SPDX-License-Identifier: MIT */
/* The members for which a trainer waits. A poll that ends in waiting notes the reason in
 * one word. The thread that then sleeps looks at the board after 10 ms, and every 100 ms
 * from then on, and names the members whose arrival, pull or chunk is missing. Arrivals
 * do not ring every sleeper, so only looking again keeps the names true; rounds that go
 * well never sleep so long, and pay one store.
 *
 * wait may run beside polls of another thread. It therefore reads only atomic fields of
 * the board, never the round's record nor this trainer's own round, whose facts are in
 * the note. The ranks of living slots are constant. */
#include "shm/shm.h"

#define FIRST_NS 10000000u
#define AGAIN_NS 100000000u

/* {tag 32, unused 8, of_state 8, kind 8, wait 8} */
static uint64_t note_make(uint32_t tag, bool of_state, enum exchange_kind kind,
                          enum fabric_wait wait)
{
    return (uint64_t)tag << 32 | (uint64_t)of_state << 16 | (uint64_t)kind << 8 |
           (uint64_t)wait;
}

static struct awaited note_read(uint64_t note)
{
    return (struct awaited){.wait = (enum fabric_wait)(note & 0xff),
                            .kind = (enum exchange_kind)(note >> 8 & 0xff),
                            .round = (uint32_t)(note >> 32)};
}

/* --- looking --- */

static uint64_t reducing(const struct shm_board *board, uint64_t slots, uint32_t tag)
{
    uint64_t found = 0;

    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (slots & slot_bit(s) &&
            atomic_load_explicit(&board->arrivals[s].reducing, memory_order_relaxed) ==
                tag &&
            !atomic_load_explicit(&board->arrivals[s].hungry, memory_order_relaxed))
            found |= slot_bit(s);
    return found;
}

/* Whether a member holds the round up: it has not arrived; or it leads and has not closed
 * the round; or it has not pulled a state, or works on a chunk. */
static uint64_t round_awaits(const struct shm *shm, uint64_t note)
{
    const struct shm_board *board = board_of(shm);
    uint64_t word = atomic_load_explicit(&board->word, memory_order_acquire);
    uint64_t members =
        atomic_load_explicit(&roster_of(shm)->members, memory_order_relaxed);
    uint64_t others = members & ~slot_bit(shm->meet.slot);
    uint32_t tag = (uint32_t)(note >> 32);

    if ((uint32_t)(word >> 32) != tag)
        return 0;
    if (!(word & PHASE_REDUCE)) {
        uint64_t late = shm_late(board, others, tag);
        return late ? late : others & (members & -members);
    }
    return note >> 16 & 1 ? shm_unpulled(board, others, tag)
                               : reducing(board, others, tag);
}

static bool among(const int *ranks, int n, int rank)
{
    for (int i = 0; i < n; i++)
        if (ranks[i] == rank)
            return true;
    return false;
}

/* Adds the ranks 0 .. size-1 that are not present; only their number where a present rank
 * is none of these. */
static void add_missing(struct awaited *awaited, int size, const int *present, int n)
{
    bool known = true;

    for (int i = 0; i < n; i++)
        known = known && present[i] < size;
    for (int rank = 0, left = size - n; left > 0 && rank < size; rank++)
        if (!known || !among(present, n, rank)) {
            awaited_add(awaited, known ? rank : -1);
            left--;
        }
}

/* Where there is no member yet: adds trainers that have not begun, or have not come. */
static void forming_awaits(const struct shm *shm, struct awaited *awaited)
{
    const struct shm_board *board = board_of(shm);
    int present[MACHINE_SLOTS], n = 0;

    for (unsigned s = 0; s < MACHINE_SLOTS; s++) {
        uint64_t life = slot_life(roster_of(shm), s);
        if (!life_alive(life))
            continue;
        present[n++] = roster_of(shm)->slots[s].rank;
        if (life_state(life) == LIFE_JOINED)
            awaited_add(awaited, roster_of(shm)->slots[s].rank);
    }
    add_missing(awaited, (int)board->size, present, n);
}

static void add_slots(const struct shm *shm, uint64_t slots, struct awaited *awaited)
{
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (slots & slot_bit(s) && life_alive(slot_life(roster_of(shm), s)))
            awaited_add(awaited, roster_of(shm)->slots[s].rank);
}

static void look(struct shm *shm)
{
    uint64_t note = atomic_load_explicit(&shm->waiting, memory_order_relaxed);
    uint64_t members =
        atomic_load_explicit(&roster_of(shm)->members, memory_order_relaxed);
    bool member = (members & slot_bit(shm->meet.slot)) != 0;
    struct awaited awaited = note_read(note);

    if (awaited.wait == FABRIC_WAIT_START && !members)
        forming_awaits(shm, &awaited);
    else if (awaited.wait == FABRIC_WAIT_FINISH && !member)
        add_slots(shm, roster_alive(roster_of(shm)) & ~shm_slots_in(shm, LIFE_FINAL),
                  &awaited);
    else if (awaited.wait != FABRIC_WAIT_LINK)
        add_slots(shm, round_awaits(shm, note), &awaited);
    fabric_say(&shm->fabric, &awaited);
}

/* --- noting --- */

/* A member may read the record until it arrives at the next round. */
static uint64_t round_note(const struct shm *shm, enum fabric_wait wait)
{
    const struct shm_board *board = board_of(shm);
    uint64_t word = atomic_load_explicit(&board->word, memory_order_acquire);
    uint64_t members =
        atomic_load_explicit(&roster_of(shm)->members, memory_order_seq_cst);
    bool of_state = word & PHASE_REDUCE && members & slot_bit(shm->meet.slot) &&
                    board->record.kind == EXCHANGE_STATE;

    return note_make((uint32_t)(word >> 32), of_state, shm->round.exchange.kind, wait);
}

static uint64_t waiting_note(const struct shm *shm)
{
    const struct shm_round *round = &shm->round;
    enum slot_life life = life_state(slot_life(roster_of(shm), shm->meet.slot));
    uint64_t ready = atomic_load_explicit(&shm->ready_ns, memory_order_relaxed);

    if (round->stage != SHM_BEGUN && round->stage != SHM_ARRIVED &&
        round->stage != SHM_ELASTIC)
        return 0;
    if (ready && ready > clock_now_ns())
        return note_make(round->stage == SHM_ARRIVED ? round->tag : 0, false,
                         round->exchange.kind, FABRIC_WAIT_LINK);
    if (round->stage == SHM_ELASTIC)
        return 0;
    return round_note(shm, life < LIFE_MEMBER      ? FABRIC_WAIT_START
                           : round->exchange.final ? FABRIC_WAIT_FINISH
                                                   : FABRIC_WAIT_ROUND);
}

/* Where other trainers hold its chunks an elastic exchange sleeps for moments, and tries
 * again. */
static void say_center(struct shm *shm)
{
    const struct shm_round *round = &shm->round;
    struct awaited awaited = {.wait = FABRIC_WAIT_CENTER, .kind = EXCHANGE_ELASTIC};
    uint64_t holders = 0;

    for (size_t k = 0; k < round->n_chunks; k++) {
        uint64_t lock = shm->left[k] ? atomic_load_explicit(&shm->locks[k],
                                                            memory_order_relaxed) : 0;
        unsigned slot = (unsigned)(lock & 0xffffffffu) - 1;
        if (slot < MACHINE_SLOTS)
            holders |= slot_bit(slot);
    }
    add_slots(shm, holders, &awaited);
    if (awaited.n)
        fabric_say(&shm->fabric, &awaited);
}

void shm_waits_note(struct shm *shm, enum fabric_progress progress)
{
    uint64_t note = progress == FABRIC_WAITING ? waiting_note(shm) : 0;

    if (progress == FABRIC_WAITING && shm->round.stage == SHM_ELASTIC &&
        shm->round.busy) {
        atomic_store_explicit(&shm->waiting, 0, memory_order_relaxed);
        say_center(shm);
        return;
    }
    if (note && note == atomic_load_explicit(&shm->waiting, memory_order_relaxed))
        return;
    atomic_store_explicit(&shm->waiting, note, memory_order_relaxed);
    fabric_unsay(&shm->fabric);
}

/* --- sleeping --- */

static bool moved(const struct shm *shm)
{
    const struct slot *mine = own_slot(shm);

    return atomic_load_explicit(&mine->bell, memory_order_relaxed) !=
               atomic_load_explicit(&shm->seen_bell, memory_order_relaxed) ||
           shm_is_ready(shm);
}

void shm_waits_sleep(struct shm *shm, uint64_t until_ns)
{
    uint64_t look_ns = clock_now_ns() + FIRST_NS;

    if (!atomic_load_explicit(&shm->waiting, memory_order_relaxed)) {
        shm_round_wait(shm, until_ns);
        return;
    }
    if (until_ns && until_ns <= clock_now_ns())
        look(shm);
    for (; !until_ns || look_ns < until_ns; look_ns = clock_now_ns() + AGAIN_NS) {
        shm_round_wait(shm, look_ns);
        if (moved(shm))
            return;
        look(shm);
    }
    shm_round_wait(shm, until_ns);
}
