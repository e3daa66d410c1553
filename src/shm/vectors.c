/* SPDX-License-Identifier: MIT */
/* The places of a trainer's vectors in the arena: its own, and those of its peers, which
 * are mapped when they are first read. */
#include "shm/shm.h"

descant_status shm_map_own(struct shm *shm, enum slot_region region, size_t at, size_t n,
                           float **out)
{
    void *p;
    uint64_t from = slot_region_at(shm->meet.slot, region) + at * sizeof(float);
    descant_status status =
        arena_map(&shm->meet.arena, from, n * sizeof(float), ARENA_TAKE, &p);

    if (!status)
        *out = p;
    return status;
}

size_t shm_table_at(size_t room)
{
    return (room + 15) / 16 * 16 + SLICE_CHUNK;
}

/* A position for each chunk of others, and for each member one that may be empty; rounds
 * of fewer than 4 chunks a member and SLICE_CHUNK do not occur (set_chunks). */
size_t shm_contribution_floats(size_t room)
{
    return shm_table_at(room) + room / SLICE_CHUNK + 8 * MACHINE_SLOTS;
}

const float *shm_peer(struct shm *shm, unsigned slot, enum slot_region region,
                      size_t n_floats)
{
    void *p = NULL;

    if (!shm->peers[slot][region] &&
        arena_map(&shm->meet.arena, slot_region_at(slot, region),
                  n_floats * sizeof(float), ARENA_READ, &p) == DESCANT_OK)
        shm->peers[slot][region] = p;
    return shm->peers[slot][region];
}

const float *shm_vector_of(struct shm *shm, unsigned slot)
{
    if (board_of(shm)->arrivals[slot].in_place)
        return shm_peer(shm, slot, SLOT_REPLICA, shm->start.n);
    return shm_peer(shm, slot, SLOT_CONTRIBUTION,
                    shm_contribution_floats(shm->start.room));
}
