/* SPDX-License-Identifier: MIT */
/* Whether a word may be acted upon. A word is bytes of a peer, and any peer may be broken
 * or hostile. So all of this is tested before anything of the word is used. */
#ifndef RANKS_CHECK_H
#define RANKS_CHECK_H

#include "ranks/ranks.h"

enum {
    CHECK_WHY = 200,         /* bytes of why a word is refused */
    CHECK_THREADS = 1 << 16, /* of a trainer, at most */
    CHECK_FIRST = 1 << 26,   /* bytes of the manifest that a hub takes for its own */
    CHECK_MANIFEST = 1 << 20 /* bytes that a manifest may be longer than one's own */
};

/* The hearer's own knowledge, against which words are checked. */
struct word_facts {
    int rank;                       /* this rank */
    int coordinator;                /* as far as this rank knows */
    const struct link_place *place; /* its names are not read */
    uint32_t turns;                 /* bit `what`: the sender may say such a word now */
    bool encodes;                   /* means may be encoded */
    bool quorum;                    /* a mean may close without members */
    bool carries;                   /* absent members may have a share */
    bool center;                    /* exchanges may be elastic */
    uint64_t n, room;               /* floats of a state, and of a mean, at most */
    uint64_t part;                  /* bytes of a part of rows, at most, */
    uint64_t own_part;              /* and of the part that this rank has given */
    uint64_t manifest;              /* bytes of a manifest, at most */
    uint32_t round;                 /* the last that this rank has begun */
    uint32_t seq;                   /* of its last exchange, */
    const struct exchange *arrived; /* that exchange, where it waits for its round; or
                                       NULL */
    bool place_taken;       /* HELLO: other ranks' places leave none for the sender's */
};

static inline void word_allow(struct word_facts *facts, enum ranks_what what, bool now)
{
    facts->turns |= (uint32_t)now << what;
}

/* False, with the reason in `why`: the sender may not say the word, or not now; the
 * word's length is wrong; or one of its numbers is out of bounds. Only `bytes` of the
 * word are read. */
bool word_is_good(const struct word_facts *facts, int from, const struct ranks_word *word,
                  size_t bytes, char why[CHECK_WHY]);

#endif
