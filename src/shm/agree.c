/* SPDX-License-Identifier: MIT */
/* Agreements in shared memory: each trainer puts its offer where all can read it, and the
 * one that finds all offers there folds them (fabric/agree.c). No thread but those that
 * call is needed, and a trainer that has offered sleeps until it is rung.
 *
 *   1. Offers are folded, and results numbered, under one lock; a lock whose holder has
 *      died is taken over.
 *   2. A result counts once `number` says so, which is stored last. A holder that dies
 *      before leaves nothing that counts, and the next one folds anew.
 *   3. The last two results stay: nobody can make a third before the slowest trainer has
 *      taken the first, since its offer would be missing.
 *   4. A trainer that dies, leaves or begins its finish rings all (machine/roster.c), and
 *      those that wait look again.
 *
 * offer, look and wait belong to the thread that makes the agreement, and run beside
 * polls. */
#include "shm/shm.h"

#include <string.h>

#define HELD_NS UINT64_C(200000)        /* until a lock that is held is tried again */

struct shm_offer {
    /* {generation 32, count 32} of the offer; 0: none. Its trainer stores it after the
     * rest, release; who holds the lock acquires. */
    CACHE_LINE_ALIGNED _Atomic uint64_t made;
    /* The result that the offer is in, which counts once `number` has reached it. The
     * trainer clears it after the offer, release; the lock's holder acquires, and writes
     * it. */
    _Atomic uint64_t answer;
    uint64_t number;
    struct agree_value value;
};

struct shm_agree {                      /* shared */
    /* {generation 32, slot + 1} of the holder; 0: free. Acquire and release. */
    CACHE_LINE_ALIGNED _Atomic uint64_t lock;
    /* Of the last result: release after the result, acquire. */
    _Atomic uint64_t number;
    struct agree_value results[2];      /* by number */
    struct shm_offer offers[MACHINE_SLOTS];
};

static struct shm_offer *own(const struct shm *shm)
{
    return &shm->agree->offers[shm->meet.slot];
}

/* --- the lock --- */

static bool try_lock(const struct shm *shm)
{
    _Atomic uint64_t *lock = &shm->agree->lock;
    uint64_t seen = atomic_load_explicit(lock, memory_order_relaxed);
    uint64_t mine = word_make(shm->meet.generation, shm->meet.slot + 1);

    if (seen && !shm_lock_dead(shm, seen))
        return false;
    return atomic_compare_exchange_strong_explicit(
        lock, &seen, mine, memory_order_acq_rel, memory_order_relaxed);
}

static void take_lock(const struct shm *shm)
{
    while (!try_lock(shm))
        clock_sleep_until(clock_now_ns() + HELD_NS);
}

/* --- folding --- */

/* The offer of the trainer that has the slot now. */
static struct agree_offer offer_of(const struct shm *shm, unsigned slot, uint64_t number)
{
    const struct shm_offer *offer = &shm->agree->offers[slot];
    uint64_t made = atomic_load_explicit(&offer->made, memory_order_acquire);
    uint64_t answer = atomic_load_explicit(&offer->answer, memory_order_acquire);
    uint32_t generation = life_generation(slot_life(roster_of(shm), slot));

    bool waits = made && life_generation(made) == generation &&
                 !(answer && answer <= number);
    return (struct agree_offer){.rank = roster_of(shm)->slots[slot].rank,
                                .number = waits ? offer->number : 0,
                                .value = waits ? &offer->value : NULL};
}

/* Trainers at work, ascending by rank: members, which no trainer at its end is while
 * others are at work. slots: of each. */
static int at_work(const struct shm *shm, uint64_t number, struct agree_offer *offers,
                   unsigned *slots)
{
    const struct roster *roster = roster_of(shm);
    uint64_t members = load_members(shm);
    int n = 0;

    for (unsigned s = 0; s < MACHINE_SLOTS; s++) {
        uint64_t life = slot_life(roster, s);
        if (!(members & slot_bit(s)) || !life_alive(life))
            continue;
        const struct agree_offer made = offer_of(shm, s, number);
        int k = n++;
        for (; k > 0 && offers[k - 1].rank > made.rank; k--) {
            offers[k] = offers[k - 1];
            slots[k] = slots[k - 1];
        }
        offers[k] = made;
        slots[k] = s;
    }
    return n;
}

/* With the lock. An answer of this number that was written before, by a holder that has
 * died, is written anew. */
static void fold(const struct shm *shm)
{
    struct shm_agree *all = shm->agree;
    uint64_t number = atomic_load_explicit(&all->number, memory_order_relaxed), next;
    struct agree_offer offers[MACHINE_SLOTS];
    unsigned slots[MACHINE_SLOTS];
    int n = at_work(shm, number, offers, slots);

    next = number + 1;
    if (!agree_fold(next, offers, n, &all->results[next % 2]))
        return;
    for (int i = 0; i < n; i++)
        atomic_store_explicit(&all->offers[slots[i]].answer, offers[i].in ? next : 0,
                              memory_order_relaxed);
    shm_step(STEP_AGREED, shm->meet.slot);
    atomic_store_explicit(&all->number, next, memory_order_release);
    roster_ring(roster_of(shm), ~(uint64_t)0);
}

static bool is_answered(struct shm *shm, struct agree_value *result)
{
    const struct shm_agree *all = shm->agree;
    uint64_t number = atomic_load_explicit(&all->number, memory_order_acquire);
    uint64_t answer = atomic_load_explicit(&own(shm)->answer, memory_order_relaxed);

    if (!answer || answer > number)
        return false;
    memcpy(result, &all->results[answer % 2], agree_size(&all->results[answer % 2]));
    shm->agreed = answer;
    return true;
}

/* --- the table --- */

/* The pages are taken by the first offer, or look at results: most jobs make no
 * agreements. */
descant_status shm_agree_start(struct shm *shm)
{
    void *block = NULL;
    descant_status status = arena_map(&shm->meet.arena, region_at(REGION_AGREE),
                                      sizeof *shm->agree, ARENA_WRITE, &block);
    shm->agree = block;
    return status;
}

static descant_status take_pages(struct shm *shm)
{
    return shm->agreed ? DESCANT_OK
                       : arena_take(&shm->meet.arena, region_at(REGION_AGREE),
                                    sizeof *shm->agree);
}

static descant_status offer(struct fabric *f, const struct agree_value *value)
{
    struct shm *shm = shm_of(f);
    struct shm_offer *mine = own(shm);
    descant_status status = take_pages(shm);

    if (status)
        return status;
    atomic_store_explicit(&mine->made, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    mine->number = shm->agreed ? shm->agreed + 1 : 0;
    memcpy(&mine->value, value, agree_size(value));
    atomic_store_explicit(&mine->answer, 0, memory_order_release);
    atomic_store_explicit(&mine->made, word_make(shm->meet.generation, 1),
                          memory_order_release);
    return DESCANT_OK;
}

static bool look(struct fabric *f, struct agree_value *result)
{
    struct shm *shm = shm_of(f);

    shm->agree_bell = atomic_load_explicit(&own_slot(shm)->bell, memory_order_acquire);
    if (is_answered(shm, result))
        return true;
    take_lock(shm);
    fold(shm);
    atomic_store_explicit(&shm->agree->lock, 0, memory_order_release);
    return is_answered(shm, result);
}

static void wait(struct fabric *f, uint64_t until_ns)
{
    const struct shm *shm = shm_of(f);
    futex_wait(&own_slot(shm)->bell, shm->agree_bell, until_ns);
}

static void missing(struct fabric *f, struct awaited *awaited)
{
    const struct shm *shm = shm_of(f);
    struct agree_offer offers[MACHINE_SLOTS];
    unsigned slots[MACHINE_SLOTS];

    take_lock(shm);
    uint64_t number = atomic_load_explicit(&shm->agree->number, memory_order_relaxed);
    int n = at_work(shm, number, offers, slots);
    atomic_store_explicit(&shm->agree->lock, 0, memory_order_release);
    for (int i = 0; i < n; i++)
        if (!offers[i].value)
            awaited_add(awaited, offers[i].rank);
}

/* A later result is written over this one only by a holder of the lock. */
static descant_status made(struct fabric *f, bool *ready, uint64_t *number,
                           struct agree_value *last)
{
    struct shm *shm = shm_of(f);
    descant_status status = take_pages(shm);

    if (status)
        return status;
    take_lock(shm);
    *ready = true;
    *number = atomic_load_explicit(&shm->agree->number, memory_order_relaxed);
    const struct agree_value *result = &shm->agree->results[*number % 2];
    if (*number)
        memcpy(last, result, agree_size(result));
    atomic_store_explicit(&shm->agree->lock, 0, memory_order_release);
    return DESCANT_OK;
}

const struct fabric_agree shm_agree = {
    .offer = offer, .look = look, .wait = wait, .missing = missing, .made = made};
