/* SPDX-License-Identifier: MIT */
/* Encoded means: the rule of docs/wire.md for the pieces that mean.c moves.
 *
 *   give      a part of another's slice is encoded as it goes out
 *   reduce    the owner adds its own part, then the others' by rank; settles; and keeps
 *             the piece encoded, in one of the window's buffers, until all others have
 *             been told
 *   learn     c = R + the owner's piece, into the result
 *
 * 1. R is outer[0] of each member from its begin to its part, and the same bits for all
 *    of them, which the coordinator ensures (can_encode in lead_round.c).
 * 2. A rank that has given up its exchange helps with its vector and its outer[0] as they
 *    are now. All others still have one result, for they add the owner's piece to their
 *    own R; an error in the helper's part ends with the state, or the f32 mean, that must
 *    follow.
 * 3. Every piece changes m->owed once. Where ranks come and go a round may be given up:
 *    then m->owed is as before for the pieces that the round has changed, and
 *    m->owed_else has the new values. If the round's result is fetched after all, the two
 *    change places again.
 *
 * All of this runs in the thread that holds the round machine. */
#include "kernels/vector.h"
#include "ranks/ranks.h"

#include <string.h>

descant_status ranks_wire_init(struct ranks *m)
{
    size_t n = m->n ? m->n : 1;
    bool had = (m->owed = memory_take_array(n, sizeof *m->owed)) != NULL;

    if (had && !m->place.fixed)
        had = (m->owed_else = memory_take_array(n, sizeof *m->owed_else)) != NULL;
    return had ? DESCANT_OK : DESCANT_MEMORY;
}

void ranks_wire_fini(struct ranks *m)
{
    memory_give(m->owed);
    memory_give(m->owed_else);
}

void ranks_wire_forgive(struct ranks *m)
{
    memset(m->owed, 0, m->n * sizeof *m->owed);
}

static void exchange_owed(struct ranks *m, int member, size_t pieces)
{
    for (size_t i = 0; i < pieces; i++) {
        struct chunk piece = ranks_round_piece(&m->round, member, i);
        for (size_t at = piece.from; at < piece.from + piece.n; at++) {
            float owed = m->owed[at];
            m->owed[at] = m->owed_else[at];
            m->owed_else[at] = owed;
        }
    }
}

/* Reverts the pieces that the round of m->lanes has changed, before another round
 * begins. */
void ranks_wire_revert(struct ranks *m)
{
    const struct ranks_round *r = &m->round;

    if (r->wire == WIRE_F32 || r->kind != EXCHANGE_MEAN || !r->n || !m->owed_else)
        return;
    for (int k = 0; k < m->lanes.n; k++)
        exchange_owed(m, m->lanes.list[k].member, m->lanes.list[k].given);
    exchange_owed(m, r->me, r->reduced);
}

static struct wire_part own_part(const struct ranks *m, struct chunk piece)
{
    const struct ranks_round *r = &m->round;

    if (m->owed_else)
        memcpy(m->owed_else + piece.from, m->owed + piece.from,
               piece.n * sizeof *m->owed);
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

/* Adds the inputs of others, by rank. */
void ranks_wire_reduce(struct ranks *m, struct chunk piece, int n_in, float *settled)
{
    struct wire_part part = own_part(m, piece);

    if (m->round.gives)
        wire_own(&part);
    for (int i = 0; i < n_in; i++)
        wire_add(&part, m->inputs[i], m->shares[i]);
    wire_settle(&part, settled);
    ranks_wire_learn(m, piece, settled);
}

void ranks_wire_learn(struct ranks *m, struct chunk piece, const float *in)
{
    wire_take(m->round.wire, m->result + piece.from, m->f.outer[0] + piece.from, in,
              piece.n);
}
