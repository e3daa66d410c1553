/* SPDX-License-Identifier: MIT */
/* The memory that processes of a machine share: one sparse memfd of regions, each with
 * room for the longest. The first two are machine/'s own. */
#ifndef MACHINE_ARENA_H
#define MACHINE_ARENA_H

#include "base/base.h"

#define REGION_BYTES ((uint64_t)1 << 40)

enum { REGION_ROSTER, REGION_BLOCKS, MACHINE_REGIONS };

static inline uint64_t region_at(unsigned region)
{
    return REGION_BYTES * region;
}

struct arena {
    int fd;                     /* -1: none yet */
    const struct log *log;
    _Atomic(struct arena_map *) maps;   /* of this process; any thread puts one at the
                                           head, fini takes all when no other thread is
                                           left */
};

/* arena_found makes a new arena of so many regions; arena_enter takes the arena behind
 * fd, which it owns even on failure. arena_fini takes half-built arenas, after
 * arena_init. */
void arena_init(struct arena *arena, const struct log *log);
descant_status arena_found(struct arena *arena, unsigned n_regions);
descant_status arena_enter(struct arena *arena, int fd, unsigned n_regions);
void arena_fini(struct arena *arena);

enum arena_use {
    ARENA_READ,
    ARENA_WRITE,
    /* maps to write, and takes the pages now, after a look at the free memory */
    ARENA_TAKE
};

/* Maps until fini. Any thread, also while others map: the shadow maps its peers' memory
 * when it first reads it, and callers share blocks at any time. */
descant_status arena_map(struct arena *arena, uint64_t at, size_t bytes,
                         enum arena_use use, void **out);
/* Takes the pages of a mapping that were not taken. */
descant_status arena_take(struct arena *arena, uint64_t at, size_t bytes);
/* Gives a piece of the pages back to the machine; false: there are more. */
void arena_punch(struct arena *arena, uint64_t at, uint64_t bytes);
bool arena_punch_piece(struct arena *arena, uint64_t at, uint64_t bytes);

#endif
