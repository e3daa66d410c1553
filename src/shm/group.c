/* SPDX-License-Identifier: MIT */
/* The members of a job's rounds: the leader, the admission of trainers, and how a first
 * or last group forms (docs/shm.md has the protocol).
 *
 *   1. A bit of `members` is changed under `touching` (machine/roster.c); the setter
 *      looks at the trainer's life again afterwards, so that a death between the two
 *      leaves no bit behind.
 *   2. The group of a job that has none is made by one compare-and-swap.
 *   3. No group is made of newcomers while a trainer at its end still has the job's
 *      state: newcomers take that state, and go on from there.
 *
 * All of this runs in the thread that holds the round machine. */
#include "shm/shm.h"

uint64_t shm_slots_in(const struct shm *shm, enum slot_life state)
{
    uint64_t found = 0;

    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (life_state(slot_life(roster_of(shm), s)) == state)
            found |= slot_bit(s);
    return found;
}

uint64_t shm_late(const struct shm_board *board, uint64_t slots, uint32_t tag)
{
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (slots & slot_bit(s) && has_arrived(board, s, tag))
            slots &= ~slot_bit(s);
    return slots;
}

uint64_t shm_unpulled(const struct shm_board *board, uint64_t slots, uint32_t tag)
{
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (slots & slot_bit(s) &&
            atomic_load_explicit(&board->arrivals[s].pulled, memory_order_seq_cst) == tag)
            slots &= ~slot_bit(s);
    return slots;
}

/* Takes back a bit that was set when its owner was already dead. */
void shm_bury_stale(struct shm *shm, uint64_t members)
{
    struct roster *roster = roster_of(shm);

    for (unsigned s = 0; s < MACHINE_SLOTS; s++) {
        uint64_t life = slot_life(roster, s);
        if (members & slot_bit(s) && life_state(life) == LIFE_DEAD)
            slot_bury(roster, s, life_generation(life), shm->meet.slot, TOUCH_POLL);
    }
}

void shm_become(struct shm *shm, enum slot_life state)
{
    slot_become(roster_of(shm), shm->meet.slot, shm->meet.generation, state);
    roster_ring(roster_of(shm), ~own_bit(shm));
}

static void touch(struct shm *shm, uint32_t what)
{
    atomic_store_explicit(&own_slot(shm)->touching[TOUCH_POLL], what,
                          memory_order_seq_cst);
}

static void changed_members(struct shm *shm)
{
    atomic_fetch_add_explicit(&roster_of(shm)->epoch, 1, memory_order_release);
    atomic_store_explicit(&board_of(shm)->formed, 1, memory_order_relaxed);
    roster_ring(roster_of(shm), ~(uint64_t)0);
}

/* Called by any thread, beside polls. */
void shm_count_members(struct shm *shm)
{
    atomic_store_explicit(&shm->fabric.members, __builtin_popcountll(load_members(shm)),
                          memory_order_relaxed);
    atomic_store_explicit(
        &shm->fabric.epoch,
        atomic_load_explicit(&roster_of(shm)->epoch, memory_order_relaxed),
        memory_order_relaxed);
}

/* A member that had begun its final exchange may have had the result, and then is no
 * loss; but it is one where this trainer has not begun its own, without which there is no
 * end. */
static void note_change(struct shm *shm, unsigned s, bool at_work)
{
    const struct slot *slot = &roster_of(shm)->slots[s];
    struct seen *seen = &shm->seen[s];
    uint64_t life = slot_life(roster_of(shm), s);
    bool same = life_generation(life) == seen->generation;
    bool seated = load_members(shm) & slot_bit(s);
    uint32_t closed = atomic_load_explicit(&slot->closed, memory_order_relaxed);

    if (seen->member && !seen->told &&
        atomic_load_explicit(&slot->told, memory_order_relaxed) == seen->generation) {
        seen->told = true;
        notes_add(shm->fabric.notes, DESCANT_EVENT_TOLD, seen->rank);
    }
    if (seen->member && !(same && (seated || life_alive(life)))) {
        seen->member = false;
        if (closed < seen->generation && (!seen->final || at_work))
            notes_add(shm->fabric.notes, DESCANT_EVENT_LOST, seen->rank);
        else if (!seen->final && at_work)
            notes_add(shm->fabric.notes,
                      seen->told ? DESCANT_EVENT_LEFT : DESCANT_EVENT_UNFINISHED,
                      seen->rank);
    }
    if (seen->member && !seen->final && life_state(life) == LIFE_FINAL && !seated) {
        seen->final = true;
        if (at_work)
            notes_add(shm->fabric.notes, DESCANT_EVENT_FINISHED, seen->rank);
    }
    if (!seen->member && seated && life_alive(life) && life_state(life) != LIFE_FINAL) {
        *seen = (struct seen){life_generation(life), slot->rank, true, false, false};
        if (shm->has_seen)
            notes_add(shm->fabric.notes, DESCANT_EVENT_JOINED, seen->rank);
    }
}

/* Members that were there when this trainer became one are no comings. */
void shm_note_changes(struct shm *shm)
{
    enum slot_life life = own_life(shm);

    bool in = life >= LIFE_MEMBER || (load_members(shm) & own_bit(shm));

    if (!shm->fabric.notes || !in || pthread_mutex_trylock(&shm->seeing))
        return;
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (s != shm->meet.slot)
            note_change(shm, s, life <= LIFE_MEMBER);
    shm->has_seen |= life >= LIFE_MEMBER;
    pthread_mutex_unlock(&shm->seeing);
}

/* A job that was never formed cannot begin without a trainer that was refused, so all
 * trainers that wait for it fail. A trainer that waits to join a formed job only logs the
 * reason why another one does not come. */
static void hear_refusal(struct shm *shm)
{
    const struct shm_board *board = board_of(shm);
    uint32_t n = atomic_load_explicit(&board->n_refused, memory_order_acquire);

    if (n == shm->round.n_refused)
        return;
    shm->round.n_refused = n;
    if (own_life(shm) != LIFE_WAITING)
        return;
    if (atomic_load_explicit(&board->formed, memory_order_relaxed) ||
        board->refused >= (int)board->size)
        log_say(&shm->fabric.log, DESCANT_WARNING,
                "trainer %d was refused, and told: %.*s", board->refused, SHM_REFUSAL - 1,
                board->refusal);
    else
        shm->fabric.status = log_fail(
            &shm->fabric.log, DESCANT_MISMATCH,
            "the job cannot start: trainer %d was refused, and told: %.*s",
            board->refused, SHM_REFUSAL - 1, board->refusal);
}

/* Brings the figures up to date whenever a trainer came or went. */
void shm_refresh(struct shm *shm)
{
    struct shm_board *board = board_of(shm);
    struct shm_round *round = &shm->round;
    uint32_t lives = atomic_load_explicit(&roster_of(shm)->lives, memory_order_acquire);
    uint32_t epoch = atomic_load_explicit(&roster_of(shm)->epoch, memory_order_acquire);
    int threads = 0;

    hear_refusal(shm);
    if (round->counted && lives == round->lives && epoch == round->epoch)
        return;
    round->counted = true;
    round->lives = lives;
    round->epoch = epoch;
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (life_alive(slot_life(roster_of(shm), s)))
            threads +=
                atomic_load_explicit(&board->arrivals[s].threads, memory_order_relaxed);
    atomic_store_explicit(&shm->fabric.machine_threads, threads, memory_order_relaxed);
    shm_count_members(shm);        /* which the notes report */
    shm_note_changes(shm);
}

/* --- admitting and forming --- */

void shm_admit(struct shm *shm, unsigned slot)
{
    struct roster *roster = roster_of(shm);
    uint64_t life;

    touch(shm, slot + 1);
    life = slot_life(roster, slot);
    if (life_state(life) == LIFE_WAITING &&
        !(atomic_fetch_or_explicit(&roster->members, slot_bit(slot),
                                   memory_order_seq_cst) &
          slot_bit(slot)))
        changed_members(shm);
    touch(shm, 0);
    shm_bury_stale(shm, slot_bit(slot) & load_members(shm));
}

void shm_admit_waiting(struct shm *shm)
{
    uint64_t waiting = shm_slots_in(shm, LIFE_WAITING) & ~load_members(shm);

    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (waiting & slot_bit(s))
            shm_admit(shm, s);
}

bool shm_admit_first(struct shm *shm)
{
    uint64_t none = 0;

    touch(shm, shm->meet.slot + 1);
    bool first = atomic_compare_exchange_strong_explicit(&roster_of(shm)->members, &none,
                     own_bit(shm), memory_order_seq_cst, memory_order_seq_cst);
    if (first)
        changed_members(shm);
    touch(shm, 0);
    return first;
}

uint64_t shm_standby(const struct shm *shm)
{
    uint64_t found = shm_slots_in(shm, LIFE_FINAL);

    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (found & slot_bit(s) &&
            atomic_load_explicit(&board_of(shm)->arrivals[s].standby,
                                 memory_order_acquire) == STANDBY_NONE)
            found &= ~slot_bit(s);
    return found & ~load_members(shm);
}

/* Forms the group of a job that has none: of the trainers that wait, else of those at
 * their end. */
void shm_form(struct shm *shm)
{
    struct shm_board *board = board_of(shm);
    struct gathering g = {0};
    uint64_t none = 0, group;

    shm_bury_stale(shm, load_members(shm));
    if (load_members(shm))
        return;
    touch(shm, TOUCH_ALL);
    uint64_t waiting = shm_slots_in(shm, LIFE_WAITING);
    uint64_t ended = shm_slots_in(shm, LIFE_FINAL);
    uint64_t at_work = roster_alive(roster_of(shm)) & ~ended;
    gathering_add(&g, STANDING_WORK, __builtin_popcountll(at_work),
                  __builtin_popcountll(waiting));
    gathering_add(&g, STANDING_END, __builtin_popcountll(ended), 0);
    group = g.of == STANDING_END ? ended : waiting;
    if (g.of == STANDING_WORK &&
        (shm_standby(shm) ||
         (g.arrived < (int)board->size &&
          !atomic_load_explicit(&board->formed, memory_order_relaxed))))
        group = 0;
    if (group && atomic_compare_exchange_strong_explicit(&roster_of(shm)->members, &none,
                                                         group, memory_order_seq_cst,
                                                         memory_order_seq_cst))
        changed_members(shm);
    touch(shm, 0);
    shm_bury_stale(shm, group);
}

/* Whether a STATE that others have called gathers, and this trainer has not arrived. */
bool shm_is_called(const struct shm *shm, uint64_t word)
{
    const struct shm_board *board = board_of(shm);
    uint64_t members = load_members(shm);
    uint32_t tag = word_tag(word);

    if (word & PHASES || !(members & own_bit(shm)) ||
        has_arrived(board, shm->meet.slot, tag))
        return false;
    if (!shm->start.collective)
        return atomic_load_explicit(&board->called, memory_order_acquire) == tag;
    return members & ~shm_late(board, members, tag) || shm_slots_in(shm, LIFE_WAITING);
}
