/* SPDX-License-Identifier: MIT */
/* The messages that carry a version of the state: versions.c wants pieces, donor.c
 * answers. */
#ifndef RANKS_VERSIONS_H
#define RANKS_VERSIONS_H

#include "ranks/ranks.h"

/* Pieces that a taker asks for at once, and a donor gives. */
enum { RANKS_FETCHED = 16 };

struct version_want {
    struct ledger_version version;
    uint64_t transfer;          /* counted by the taker, from 1 */
    uint32_t which, piece;
};

struct version_answer {
    struct ledger_version version;      /* {0, 0}: the donor has nothing of the kind */
    uint64_t transfer, content; /* content: the same in all pieces of one state */
    uint64_t n, note;           /* n: floats of a result */
    uint32_t which, piece;
    uint64_t center_state;
    float floats[];             /* of piece 0: entries */
};

descant_status ranks_donor_init(struct ranks *m);
void ranks_donor_fini(struct ranks *m);
/* Answers wants that have waited. */
void ranks_donor_step(struct ranks *m);

size_t ranks_version_bytes(const struct ranks *m);      /* of an answer, at most */
/* The pieces of a version of n floats. */
size_t ranks_version_count(const struct ranks *m, enum ranks_version which, uint64_t n);
/* The vector that a piece, from 1 on, is of; *chunk is the piece's place in the
 * vector. */
size_t ranks_version_place(const struct ranks *m, size_t piece, uint64_t n,
                           struct chunk *chunk);

#endif
