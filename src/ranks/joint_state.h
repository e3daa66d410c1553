/* SPDX-License-Identifier: MIT */
/* The state of joint exchanges: joint.c closes them, and calls joint_moves.c, which moves
 * their floats. */
#ifndef RANKS_JOINT_STATE_H
#define RANKS_JOINT_STATE_H

#include "kernels/vector.h"
#include "machine/roster.h"
#include "ranks/joint.h"

enum { JOINT_LINE = 64 };

enum joint_stand { STAND_OUT, STAND_WAITS, STAND_IN, STAND_LEFT };

/* shown: {number 32, ended 1, pieces 31} */
#define SHOWN_ENDED UINT64_C(0x80000000)

/* In the host's memory, by local rank; zero at first. */
struct joint_mate {
    /* enum joint_stand. The mate writes OUT, WAITS and LEFT, and the host's first rank IN
     * in place of WAITS; release. Ranks that see WAITS or IN, acquire, may read alpha and
     * state. */
    _Alignas(JOINT_LINE) _Atomic uint32_t stand;
    float alpha;                    /* of the exchange; the mate writes before WAITS, */
    uint64_t state;                 /* and the state that its centre is of; others read
                                       it while it is IN */
    /* So many pieces of each slice are in the mate's place, in the joint exchange of that
     * number. The mate writes, release; others acquire, and read those pieces. */
    _Atomic uint64_t shown;
    /* The last joint exchange in which the mate has done its share. The mate writes,
     * release; others acquire, and use the views, or close the next one. */
    _Atomic uint32_t done;
    _Atomic uint32_t rank;          /* + 1, from init on; relaxed */
};

/* In the host's memory. The host's first rank writes members, then number, release;
 * others acquire the number, and read the members until they are done. */
struct joint_head {
    _Alignas(JOINT_LINE) _Atomic uint32_t number;
    uint64_t members;               /* by local rank */
};

/* An ask whose answer is not here. */
struct joint_flight {
    bool busy;
    int slice;
    uint32_t unit;                  /* its first one */
};

struct ranks_joint {
    struct joint_head *head;
    struct joint_mate *mates;             /* (local_size) */
    /* (size) by slice: {number 32, units 32} that are in the members' views. The slice's
     * owner or relay writes, release; members acquire, and read those floats. */
    _Atomic uint64_t *moved;
    /* (local_size, stride) by mate. A piece of a place, and of its map, is written by the
     * mate before `shown` tells of it, and read by relays and owners after that. A view
     * is the mate's centre: in a joint exchange the slice's relay or owner writes it
     * before `moved` tells of it, and the mate reads it after that; else it is the
     * mate's. */
    float *places, *views;
    unsigned char *maps;            /* (local_size, stride / RANKS_UNIT) 1: the mate has
                                       the unit */
    size_t stride;
    uint32_t piece;                 /* units */
    int *foreign;                   /* (size) by slice: a number among those of other
                                       hosts; -1: a mate owns it */
    /* the joint exchange that is closed */
    uint32_t number;
    int k, me;                      /* members, in the order of their pulls; me: this
                                       rank's place, or -1 */
    int members[MACHINE_SLOTS];     /* local ranks */
    uint64_t state;                 /* the newest of theirs */
    uint32_t *asked;                /* (size) by slice that this rank relays: units */
    struct joint_flight flights[ASK_SEATS];
    int left;                       /* slices that this rank relays, not through yet */
    /* this rank's exchange */
    uint32_t mine;                  /* the number of its joint exchange, or of the last */
    bool in;                        /* it is in that one, and the caller has not had its
                                       end; */
    bool wanted;                    /* nor given it up */
    bool ends, bad;                 /* it shows no more */
    uint32_t pieces;                /* shown of each slice, */
    int slice;                      /* and of the next piece up to this slice */
    uint32_t *given;                /* (size) by slice: units that were parts */
    float *own;                     /* (own slice) this rank's W_i of it */
    /* the host's first rank */
    uint64_t here, away;
    uint64_t came_ns[MACHINE_SLOTS], closed_ns[MACHINE_SLOTS];
    /* members by their places: those that have shown the piece in hand, and those of them
     * that have the run in hand, with their floats */
    int shown[MACHINE_SLOTS], n_shown;
    uint64_t set;                   /* the latter as bits */
    int who[MACHINE_SLOTS], n_in;
    const float *inputs[MACHINE_SLOTS];
    float alphas[MACHINE_SLOTS];
    double shares[MACHINE_SLOTS];
};

static inline struct joint_mate *own_mate(const struct ranks *m)
{
    return &m->joint->mates[m->place.local_rank];
}

static inline float *view_of(const struct ranks_joint *j, int local_rank)
{
    return j->views + (size_t)local_rank * j->stride;
}

static inline float *place_of(const struct ranks_joint *j, int local_rank)
{
    return j->places + (size_t)local_rank * j->stride;
}

static inline unsigned char *map_of(const struct ranks_joint *j, int local_rank)
{
    return j->maps + (size_t)local_rank * (j->stride / RANKS_UNIT);
}

/* The first float of a slice; slices begin with a unit. */
static inline size_t slice_at(const struct ranks *m, int slice)
{
    return ranks_slice_at(m->n, m->place.size, slice);
}

static inline uint32_t units_of(const struct ranks *m, int slice)
{
    size_t n = slice_at(m, slice + 1) - slice_at(m, slice);
    return (uint32_t)((n + RANKS_UNIT - 1) / RANKS_UNIT);
}

static inline uint32_t pieces_of(const struct ranks *m, int slice)
{
    return (units_of(m, slice) + m->joint->piece - 1) / m->joint->piece;
}

/* Units [from, to) of a slice. The vector's last one may be short. */
static inline struct chunk units_at(const struct ranks *m, int slice, uint32_t from,
                                    uint32_t to)
{
    size_t at = slice_at(m, slice), end = slice_at(m, slice + 1);
    size_t first = at + (size_t)from * RANKS_UNIT, last = at + (size_t)to * RANKS_UNIT;
    return (struct chunk){first, (last < end ? last : end) - first};
}

/* The end of the piece that has the unit. */
static inline uint32_t piece_end(const struct ranks *m, int slice, uint32_t unit)
{
    uint32_t end = (unit / m->joint->piece + 1) * m->joint->piece;
    return end < units_of(m, slice) ? end : units_of(m, slice);
}

static inline uint32_t moved_of(const struct ranks_joint *j, int slice)
{
    uint64_t moved = atomic_load_explicit(&j->moved[slice], memory_order_relaxed);
    return (uint32_t)(moved >> 32) == j->number ? (uint32_t)moved : 0;
}

static inline bool relays(const struct ranks_joint *j, int slice)
{
    return j->me >= 0 && j->foreign[slice] >= 0 && j->foreign[slice] % j->k == j->me;
}

/* --- joint_moves.c --- */

/* Shows some more of this rank's floats, if its exchange is in the joint exchange. */
void ranks_joint_show(struct ranks *m);
/* Moves a piece of this rank's own slice for all members. True: the slice is through. */
bool ranks_joint_move_own(struct ranks *m);

#endif
