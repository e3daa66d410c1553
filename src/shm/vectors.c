/* SPDX-License-Identifier: MIT */
/* Where the vectors of trainers lie for those who read them. */
#include "shm/shm.h"

size_t shm_table_at(size_t room)
{
    return (room + 15) / 16 * 16 + SLICE_CHUNK;
}

/* A position for each chunk of others, and for each member one that may be empty; rounds of
 * fewer than 4 chunks a member and SLICE_CHUNK do not occur (set_chunks). */
size_t shm_contribution_floats(size_t room)
{
    return shm_table_at(room) + room / SLICE_CHUNK + 8 * SHM_SLOTS;
}

static enum slot_region region_of(const struct board *board, unsigned slot)
{
    return board->slots[slot].in_place ? SLOT_REPLICA : SLOT_CONTRIBUTION;
}

static size_t region_floats(const struct shm *shm, enum slot_region region)
{
    return region == SLOT_CONTRIBUTION ? shm_contribution_floats(shm->start.room)
                                       : shm->start.n;
}

const float *shm_vector_of(struct shm *shm, unsigned slot)
{
    enum slot_region region = region_of(board_of(shm), slot);
    return arena_peer(&shm->arena, slot, region, region_floats(shm, region));
}
