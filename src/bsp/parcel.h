/* SPDX-License-Identifier: MIT */
/* The words between control and a process of local modules, a branch, in the heads of
 * parcels (fabric_post). Rank 0 is control.
 *
 *   branch    HELLO    the branch is here; `version` of its segments, 0: none
 *   control   WELCOME  the run, and the size of the model
 *   branch    READY    the branch has room for the model
 *   control   SHAPE    the parts, as floats' bytes, which segments that are there must
 *                      have, too
 *   control   MODEL    the newest model; the first one makes the segments
 *   branch    ABOVE    its segments have `version`, above which the next model must be
 *   control   READ     read out; `asked` is the order's number
 *   branch    SUM      sums, maybe none, since the last one; `asked`: the order that it
 *                      answers
 *   control   END      the run is over
 *   branch    LAST     its modules have left: no sum comes after this one
 *
 * Several may come in one head. Each head of a branch has figures. */
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
    int32_t commands;               /* commands are started; 0: modules come by
                                       themselves */
    int32_t alive, lost, restarts;
};

struct up {
    uint32_t what, modules;         /* segments that the branch has, or will have */
    uint64_t run, version;          /* of the segments; 0: none yet */
    uint64_t asked, pending;
    struct local_sums sums;         /* SUM */
    struct local_figures figures;
    struct crew_figures crew;
};

struct down {
    uint32_t what, n_parts;
    uint64_t run;
    uint64_t n, room, bound;        /* WELCOME; room: floats of a parcel */
    int32_t first_rank, n_ranks;    /* WELCOME: the ranks with local modules */
    uint64_t version, since;        /* MODEL */
    uint64_t asked;
};

_Static_assert(sizeof(struct up) <= POST_HEAD && sizeof(struct down) <= POST_HEAD,
               "heads have room for them");

#endif
