/* SPDX-License-Identifier: MIT */
/* What control and a process of local modules, a branch, say to each other in the heads
 * of parcels (fabric_post). Rank 0 is control.
 *
 *   branch    HELLO    it is here; `version` of its segments, 0: it has none
 *   control   WELCOME  of which run and how large the model is
 *   branch    READY    it has room for it
 *   control   SHAPE    the parts, as floats' bytes, which segments that are there must
 *                      have, too
 *   control   MODEL    the newest model; the first one makes the segments
 *   branch    ABOVE    its segments have `version`, which the next model must be above
 *   control   READ     read out; `asked` numbers it
 *   branch    SUM      sums, or nothing, since the last one; `asked` is what it answers
 *   control   END      the run is over
 *   branch    LAST     its modules have left: no sum comes after this one
 *
 * Any may come together in one head. Figures are in each of a branch's. */
#ifndef PARCEL_H
#define PARCEL_H

#include "bsp/local.h"
#include "fabric/fabric.h"

enum {
    UP_HELLO = 1,
    UP_READY = 2,
    UP_ABOVE = 4,
    UP_SUM = 8,
    UP_LAST = 16,
    UP_FIGURES = 32
};
enum { DOWN_WELCOME = 1, DOWN_SHAPE = 2, DOWN_MODEL = 4, DOWN_READ = 8, DOWN_END = 16 };

/* The commands of a branch. */
struct crew_figures {
    int32_t commands;               /* there are such; else modules come by themselves */
    int32_t alive, lost, restarts;
};

struct up {
    uint32_t what, modules;         /* segments that it has, or will have */
    uint64_t run, version;          /* of its segments; 0: they have none yet */
    uint64_t asked, pending;
    struct local_sums sums;         /* SUM */
    struct local_figures figures;
    struct crew_figures crew;
};

struct down {
    uint32_t what, n_parts;
    uint64_t run;
    uint64_t n, room, bound;        /* WELCOME; room: floats of a parcel */
    int32_t first_rank, n_ranks;    /* WELCOME: with local modules */
    uint64_t version, since;        /* MODEL */
    uint64_t asked;
};

_Static_assert(sizeof(struct up) <= POST_HEAD && sizeof(struct down) <= POST_HEAD,
               "heads have room for them");

#endif
