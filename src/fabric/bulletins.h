/* SPDX-License-Identifier: MIT */
/* Bulletins: a trainer's figures as they stand, which it tells the others about once a
 * second. Nobody answers one and nobody waits for one; the next replaces it. */
#ifndef BULLETINS_H
#define BULLETINS_H

#include "base/base.h"

#define BULLETIN_NS UINT64_C(1000000000)    /* between two of a trainer, at least */

/* Numbers of 8 bytes alone: it travels and is kept as it is. */
struct bulletin {
    uint64_t steps, rounds, bytes, stall_ns, wall_ns, workers;
    uint64_t process;                   /* a number of its process; 0: not known */
    /* The values go on from those of so many processes of this rank, this one among
     * them; 0: from none, and they never will (descant_shown) */
    uint64_t depth;
    double gap, age_s, exchange_s, distance;
    uint64_t n_values;
    double values[DESCANT_VALUES];      /* the program's own: any bits */
};

/* A rank goes on from no deeper ones, so that its own stay good. */
enum { BULLETIN_DEPTH = 1 << 20 };
enum { BULLETIN_WORDS = sizeof(struct bulletin) / sizeof(uint64_t) };

/* A trainer's last bulletin, for any thread to read. One thread at a time writes it: over
 * a link the holder of the round machine, in shared memory that of the trainer that the
 * slot belongs to. heard_ns is stored last, release, and read first, acquire. A reader
 * may still find a bulletin half old and half new: these are figures for people, and each
 * number is whole. */
struct bulletin_slot {
    _Atomic uint64_t heard_ns;          /* 0: none has come */
    _Atomic int32_t rank;
    _Atomic uint64_t words[BULLETIN_WORDS];
};

/* Whether a bulletin that came from another process can be used: its numbers can be added
 * up and divided. The program's values are not looked at. */
bool bulletin_is_good(const struct bulletin *bulletin);

/* Whether figures that a rank tells of itself replace those that are kept of it. Figures
 * of another process wait until they go on from those that are kept, lest these be lost:
 * then the rank is told what is kept. */
bool bulletin_goes_on(const struct bulletin *kept, const struct bulletin *told);

void bulletin_put(struct bulletin_slot *slot, int rank, const struct bulletin *bulletin,
                  uint64_t now_ns);
/* False: none has come. */
bool bulletin_get(const struct bulletin_slot *slot, struct bulletin *bulletin, int *rank,
                  uint64_t *heard_ns);

#endif
