/* SPDX-License-Identifier: MIT */
/* Encoded means: the rule of docs/wire.md, for the pieces that mean.c moves.
 *
 *   give      a part of another's slice is encoded as it goes out
 *   reduce    the owner adds its own part, then those that came, by rank; settles; and keeps the
 *             piece encoded, in one of m->depth buffers, until all others have been told
 *   learn     c = R + what the owner told, into the result
 *
 * 1. R is outer[0] of each member from its begin to its part, and the same bits for all of them:
 *    rank 0 sees to that (can_encode in lead.c).
 * 2. Who has given up its exchange helps with what it has in its vector and its outer[0] now. All
 *    others still have one result, for they add what they are told to their own R; what is wrong
 *    with its part ends with the state, or the f32 mean, that must follow.
 * 3. m->owed is changed by every piece once, since no round is begun again.
 *
 * Run by whoever holds the round machine. */
#include "fabric/vector.h"
#include "ranks/ranks.h"

#include <string.h>

static float *encoded_floats(enum wire wire, size_t n)
{
    return memory_take_array(wire_bytes(wire, n) / sizeof(float) + 1, sizeof(float));
}

descant_status ranks_wire_init(struct ranks *m)
{
    size_t floats = ranks_lane_floats(m);
    bool had = (m->owed = memory_take_array(m->n ? m->n : 1, sizeof *m->owed)) != NULL;

    for (unsigned slot = 0; slot < m->depth && had; slot++) {
        had = (m->settled[slot] = encoded_floats(m->f.wire, floats)) != NULL;
        for (int k = 0; k < m->place.size && had; k++)
            if (k != m->f.rank)
                had = (m->lanes[k].learn[slot].floats = encoded_floats(m->f.wire, floats)) != NULL;
    }
    return had ? DESCANT_OK : DESCANT_MEMORY;
}

void ranks_wire_fini(struct ranks *m)
{
    for (unsigned slot = 0; slot < RANKS_DEPTH; slot++) {
        memory_give(m->settled[slot]);
        for (int k = 0; m->lanes && k < m->place.size; k++)
            memory_give(m->lanes[k].learn[slot].floats);
    }
    memory_give(m->owed);
}

void ranks_wire_forgive(struct ranks *m)
{
    memset(m->owed, 0, m->n * sizeof *m->owed);
}

static struct wire_part own_part(const struct ranks *m, struct chunk piece)
{
    const struct ranks_round *r = &m->round;

    return (struct wire_part){.wire = r->wire, .n = piece.n,
                              .x = ranks_reach(r->in, piece.from, piece.n, m->piece),
                              .R = m->f.outer[0] + piece.from, .r = m->owed + piece.from,
                              .share = r->seats[r->me].share};
}

const float *ranks_wire_give(struct ranks *m, struct chunk piece, float *out)
{
    struct wire_part part = own_part(m, piece);

    wire_send(&part, out);
    return out;
}

void ranks_wire_reduce(struct ranks *m, struct chunk piece, unsigned slot)
{
    const struct ranks_round *r = &m->round;
    struct wire_part part = own_part(m, piece);

    if (r->gives)
        wire_own(&part);
    for (int i = 0; i < r->k; i++) {
        const struct ranks_lane *lane = &m->lanes[r->seats[i].rank];
        if (i != r->me && lane->gives)
            wire_add(&part, lane->take[slot].floats, r->seats[i].share);
    }
    wire_settle(&part, m->settled[slot]);
    ranks_wire_learn(m, piece, m->settled[slot]);
}

void ranks_wire_learn(struct ranks *m, struct chunk piece, const float *in)
{
    wire_take(m->round.wire, m->result + piece.from, m->f.outer[0] + piece.from, in, piece.n);
}
