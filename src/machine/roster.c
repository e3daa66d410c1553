/* SPDX-License-Identifier: MIT */
/* The bits of `members` are changed by several processes for one another, and slots are
 * used again. So that no change meant for one generation can hit the next:
 *   1. a process that is about to change the bit of a slot says so in `touching`, then
 *      reads the slot's life, then changes the bit, then takes the word back;
 *   2. a process that takes over a dead slot changes its life first, and uses the slot
 *      only once no living process touches it, nor a round reads it or gives back its
 *      pages.
 * Both sides are sequentially consistent: either the first sees the new life, or the
 * second sees the touch. One that dies while touching is not alive, and not waited
 * for. */
#include "machine/roster.h"

uint64_t slot_life(const struct roster *roster, unsigned slot)
{
    return atomic_load_explicit(&roster->slots[slot].life, memory_order_seq_cst);
}

bool slot_become(struct roster *roster, unsigned slot, uint32_t generation,
                 enum slot_life state)
{
    uint64_t life = slot_life(roster, slot);

    do {
        if (life_generation(life) != generation || !life_alive(life))
            return false;
    } while (!atomic_compare_exchange_weak(&roster->slots[slot].life, &life,
                                           life_make(generation, state)));
    atomic_fetch_add_explicit(&roster->lives, 1, memory_order_release);
    return true;
}

void slot_bury(struct roster *roster, unsigned slot, uint32_t generation, unsigned self,
               enum touch who)
{
    _Atomic uint32_t *touching = &roster->slots[self].touching[who];
    bool changed = slot_become(roster, slot, generation, LIFE_DEAD);

    atomic_store_explicit(touching, slot + 1, memory_order_seq_cst);
    if (slot_life(roster, slot) == life_make(generation, LIFE_DEAD)) {
        uint64_t was = atomic_fetch_and(&roster->members, ~slot_bit(slot));
        if (was & slot_bit(slot)) {
            atomic_fetch_add_explicit(&roster->epoch, 1, memory_order_release);
            changed = true;
        }
    }
    atomic_store_explicit(touching, 0, memory_order_seq_cst);
    if (changed)
        roster_ring(roster, ~(uint64_t)0);
}

bool slot_untouched(const struct roster *roster, unsigned slot)
{
    for (unsigned s = 0; s < MACHINE_SLOTS; s++) {
        const struct slot *other = &roster->slots[s];
        if (!life_alive(slot_life(roster, s)))
            continue;
        for (int k = 0; k < N_TOUCH; k++) {
            uint32_t touch =
                atomic_load_explicit(&other->touching[k], memory_order_seq_cst);
            if (touch == slot + 1 || touch == TOUCH_ALL)
                return false;
        }
    }
    return true;
}

void roster_ring(struct roster *roster, uint64_t slots)
{
    for (unsigned s = 0; s < MACHINE_SLOTS; s++) {
        if (!(slots & slot_bit(s)) || !life_alive(slot_life(roster, s)))
            continue;
        atomic_fetch_add_explicit(&roster->slots[s].bell, 1, memory_order_release);
        futex_wake_all(&roster->slots[s].bell);
    }
}

uint64_t roster_alive(const struct roster *roster)
{
    uint64_t alive = 0;

    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (life_alive(slot_life(roster, s)))
            alive |= slot_bit(s);
    return alive;
}
