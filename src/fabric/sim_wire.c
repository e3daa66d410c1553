/* SPDX-License-Identifier: MIT */
/* Encoded means of simulated trainers: what every member would compute on a machine of its own,
 * with the same calls in the same order (wire.h), but for the result, which all would decode to the
 * same bits and which is decoded once.
 *
 * Member j of k, by rank, owns slice j. A group of one sends nothing, and final means go as they
 * are: those who meet there may have left the rounds at different times, with different
 * references. */
#include "fabric/sim_world.h"

#include <assert.h>
#include <string.h>

enum { PIECE = 8 * WIRE_BLOCK };

static int count_group(const struct sim_world *w)
{
    int n = 0;
    for (int i = 0; i < w->n_trainers; i++)
        n += w->trainers[i]->phase == REDUCING;
    return n;
}

enum wire world_wire(const struct sim_world *w)
{
    const struct trainer *any = NULL;
    for (int i = 0; i < w->n_trainers; i++)
        any = w->trainers[i]->phase == REDUCING ? w->trainers[i] : any;
    bool plain = !any || any->x.final || w->kind != EXCHANGE_MEAN || count_group(w) < 2;
    return plain ? WIRE_F32 : any->f.wire;
}

void trainer_owes_nothing(struct trainer *t)
{
    if (t->owed)
        memset(t->owed, 0, t->world->n * sizeof(float));
}

/* Its part from a float on, its vector gathered at x. */
static struct wire_part part_at(const struct trainer *t, size_t from, size_t n, float *x)
{
    for (size_t i = 0, run; i < n; i += run) {
        const float *p;
        run = vector_reach(t->x.in, from + i, &p);
        run = run < n - i ? run : n - i;
        if (p)
            memcpy(x + i, p, run * sizeof(float));
        else
            memset(x + i, 0, run * sizeof(float));
    }
    return (struct wire_part){.wire = t->f.wire, .n = n, .x = x, .R = t->f.outer[0] + from,
                              .r = t->owed + from, .share = t->share};
}

static void reduce_piece(struct sim_world *w, const struct trainer *owner, size_t from, size_t n)
{
    float mine[PIECE], theirs[PIECE], sent[PIECE];
    struct wire_part own = part_at(owner, from, n, mine);
    if (own.share > 0)
        wire_own(&own);
    for (int i = 0; i < w->n_trainers; i++) {
        const struct trainer *t = w->trainers[i];
        if (t == owner || t->phase != REDUCING)
            continue;
        struct wire_part part = part_at(t, from, n, theirs);
        assert(memcmp(part.R, own.R, n * sizeof(float)) == 0);
        if (part.share > 0) {
            wire_send(&part, sent);
            wire_add(&own, sent, part.share);
        }
    }
    wire_settle(&own, sent);
    wire_take(own.wire, w->result + from, own.R, sent, n);
}

void world_mean_encoded(struct sim_world *w, size_t n)
{
    int slices = count_group(w), slice = 0;
    for (int i = 0; i < w->n_trainers; i++) {
        if (w->trainers[i]->phase != REDUCING)
            continue;
        size_t end = wire_slice(n, slices, slice + 1);
        for (size_t at = wire_slice(n, slices, slice), run; at < end; at += run) {
            run = end - at < PIECE ? end - at : PIECE;
            reduce_piece(w, w->trainers[i], at, run);
        }
        slice++;
    }
}

/* It sends everybody else's slice to its owner, and its own to everybody else. */
uint64_t world_bytes_encoded(const struct sim_world *w, const struct trainer *t, size_t n)
{
    int slices = count_group(w), slice = 0;
    for (int i = 0; w->trainers[i] != t; i++)
        slice += w->trainers[i]->phase == REDUCING;
    size_t own = wire_slice(n, slices, slice + 1) - wire_slice(n, slices, slice);
    return wire_bytes(t->f.wire, n) + (uint64_t)(slices - 2) * wire_bytes(t->f.wire, own);
}
