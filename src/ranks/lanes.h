/* SPDX-License-Identifier: MIT */
/* The floats of a round on their way: lanes to owners and from them, the window of an
 * owner, and the round itself. */
#ifndef RANKS_LANES_H
#define RANKS_LANES_H

#include "fabric/fabric.h"
#include "ranks/messages.h"
#include "ranks/words.h"

enum {
    RANKS_PIECE = 32768,        /* floats: 128 KiB */
    RANKS_PIECE_LEAST = 4096,
    RANKS_DEPTH = 64            /* pieces in flight to or from one rank, of each sort, at
                                   most */
};

/* The exchange with one owner of a slice: this rank's parts of the slice go out, and the
 * reduced slice comes back. Of a state: pieces go to the next member of the chain, and
 * come from the one before. */
struct ranks_lane {
    int member;                         /* the owner, by its place in the round */
    size_t pieces;                      /* of its slice */
    size_t given, learning;             /* begun */
    size_t learned;                     /* ended; encoded: decoded */
    struct ranks_op *give, *learn;      /* (depth) */
    bool *here;                         /* (depth) encoded pieces that have come, not
                                           decoded yet */
    bool ready;                         /* in the list of lanes that can go on */
    struct ranks_lane *next;
};

/* A member that an owner tells its reduced pieces. */
struct ranks_hearer {
    int member;
    size_t told;                        /* pieces, ended */
};

/* The parts that an owner takes, and the pieces that it tells. Parts are counted over all
 * pieces, and the parts of one piece are in the order of ranks; part q lies in buffer q %
 * room. */
struct ranks_window {
    int n_peers, n_givers, before;      /* before: givers of lower ranks than this one */
    struct ranks_hearer *peers;
    int *givers;                        /* members: the peers that have a share */
    size_t room, taken, came, reduced;  /* parts: begun; here without a gap; done with */
    struct ranks_op *takes;             /* (room) */
    bool *here;                         /* (room) */
    size_t telling;                     /* begun: pieces x peers */
    size_t untold[RANKS_DEPTH];         /* peers to be told the piece in that place */
    struct ranks_op *tells, **idle;     /* (room) */
    size_t n_idle;
    float *settled;                     /* (depth, piece_bytes) encoded results, as they
                                           are told */
    size_t piece_bytes;
    double *sum, total;                 /* so far, of a piece that is reduced by and by,
                                           and of the shares in it */
    bool spoilt;                        /* parts that are not finite were left out */
};

/* The records and buffers of a round, which exist while it needs them (lanes.c). */
struct ranks_lanes {
    struct ranks_lane *list;            /* by member */
    int n;
    struct ranks_lane *first, *last;    /* the lanes that can go on */
    struct ranks_window window;
    void *memory[2];                    /* of the list, and of the window */
    size_t bytes[2];
};

struct ranks_round {
    bool active, ours;          /* ours: of the exchange that is open; else this rank only
                                   helps */
    bool lends;                 /* this rank is hollow, its vectors are the state, and its
                                   exchange goes on upon it */
    bool shown;                 /* a state's part is out, or need not be */
    enum exchange_kind kind;
    bool final;
    enum wire wire;
    uint32_t number, n_bad;
    size_t n, piece;            /* floats: of the vector, of a piece */
    unsigned depth;             /* pieces in flight to or from one rank, of each sort */
    uint64_t series;            /* of its pieces (link.h, 10) */
    uint64_t base;              /* the series of the version that the round is upon */
    uint64_t began_ns;
    struct awaited late;        /* at looked_ns this rank waited for these (waits.c) */
    uint64_t looked_ns;
    uint64_t note;              /* of a state */
    int k, me, source;          /* members in it; places among them */
    int members;                /* the round was for so many */
    double absent;              /* the share of those that are not in it, who count by
                                   outer[0] */
    int owners;                 /* of a mean: so many members have a slice */
    int hub;                    /* its place; it owns all then. -1: it is not in the
                                   round */
    struct ranks_seat *seats;
    const struct vector *in;
    bool gives;
    size_t n_own, reduced;      /* pieces of this rank's slice */
    size_t left;                /* pieces to be given, learned and told: not ended yet */
    size_t shown_pieces;        /* by hosts: pieces of this rank's vector in the host's
                                   memory */
    size_t n_state, came, coming, passing, passed;      /* pieces of a state */
    bool here[RANKS_DEPTH];
    size_t filled;              /* of the centre, from this rank's own vector */
    bool fetching;              /* a final state: the centre from its owners */
};

#endif
