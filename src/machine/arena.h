/* SPDX-License-Identifier: MIT */
/* The memory that processes of a machine share: one sparse memfd of regions that are as
 * far apart as none of them is long. The first two are machine/'s own. */
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
    struct arena_map *maps;     /* our own, to be unmapped */
};

/* A new arena of so many regions, or the one behind fd, which becomes the arena's even on
 * failure. fini takes half-built ones; init makes them so that it can. */
void arena_init(struct arena *arena, const struct log *log);
descant_status arena_found(struct arena *arena, unsigned n_regions);
descant_status arena_enter(struct arena *arena, int fd, unsigned n_regions);
void arena_fini(struct arena *arena);

enum arena_use {
    ARENA_READ,
    ARENA_WRITE,
    /* to write, and its pages are taken now, after a look at what is free */
    ARENA_TAKE
};

/* Maps until fini. */
descant_status arena_map(struct arena *arena, uint64_t at, size_t bytes,
                         enum arena_use use, void **out);
/* Takes the pages of a mapping that were not. */
descant_status arena_take(struct arena *arena, uint64_t at, size_t bytes);
/* Gives pages back to the machine; a piece of them, and false: there are more. */
void arena_punch(struct arena *arena, uint64_t at, uint64_t bytes);
bool arena_punch_piece(struct arena *arena, uint64_t at, uint64_t bytes);

#endif
