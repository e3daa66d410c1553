/* SPDX-License-Identifier: MIT */
/* States: the source's vectors, and the centre that it gives, go down a chain of all
 * members. Each member passes a piece on as soon as the piece has come, from where it
 * lies, so each link carries the state once in and once out, whatever the number of
 * members.
 *
 * The source's part is out before anything is sent, so that the others get the centre as
 * its caller then makes it. After a final state every rank fetches the centre from its
 * owners (elastic.c), which all have come to their end.
 *
 * All of this runs in the thread that holds the round machine. */
#include "kernels/vector.h"
#include "ranks/ranks.h"

#include <string.h>

/* The vector, its outer vectors, the centre: each in pieces of its own. */
static size_t vector_pieces(const struct ranks *m)
{
    return (m->round.n + m->round.piece - 1) / m->round.piece;
}

static size_t place_at(const struct ranks *m, size_t piece, size_t *n)
{
    size_t at = piece % vector_pieces(m) * m->round.piece, left = m->round.n - at;
    *n = left < m->round.piece ? left : m->round.piece;
    return at;
}

static bool gives_center(const struct ranks *m)
{
    return m->f.center && !m->round.final;
}

/* Where a piece lies: at the source, in its vectors; elsewhere, where it is to come. */
static const float *source_piece(const struct ranks *m, size_t piece, float *gathered,
                                 size_t *n)
{
    const struct ranks_round *r = &m->round;
    size_t at = place_at(m, piece, n), which = piece / vector_pieces(m);

    if (which == 0)
        return ranks_reach(r->in, at, *n, gathered);
    return (which <= (size_t)m->n_outer ? m->f.outer[which - 1] : m->f.center) + at;
}

static float *came_to(const struct ranks *m, size_t piece, size_t *n)
{
    size_t at = place_at(m, piece, n), which = piece / vector_pieces(m);

    float *vector = which == 0                    ? m->result
                    : which <= (size_t)m->n_outer ? m->state_outer[which - 1]
                                                  : m->state_center;
    return vector + at;
}

/* A centre that came counts once the round has ended, for the round may yet be given
 * up. */
void ranks_state_end(struct ranks *m)
{
    if (gives_center(m) && m->round.me != m->round.source &&
        m->state_center != m->f.center)
        memcpy(m->f.center, m->state_center, m->n * sizeof(float));
}

static void came(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->round.here[op->slot] = true;
}

static void passed(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->round.passed++;
}

/* The next or the previous member in the chain, which begins at the source; -1: none. */
static int neighbour(const struct ranks_round *r, int step)
{
    int place = (r->me - r->source + r->k) % r->k + step;
    if (place < 0 || place == r->k)
        return -1;
    return r->seats[(r->source + place) % r->k].rank;
}

void ranks_state_begin(struct ranks *m)
{
    struct ranks_round *r = &m->round;
    size_t parts = 1 + (size_t)m->n_outer + gives_center(m), neighbours = 2;

    r->piece = ranks_piece_most((size_t)r->k);
    r->depth = ranks_depth(m, (size_t)r->k, neighbours, r->n);
    r->n_state = parts * vector_pieces(m);
    r->came = r->coming = r->passing = r->passed = r->filled = 0;
    r->shown = r->me != r->source;
    if (r->me == r->source)
        r->came = r->n_state;
    memset(r->here, 0, sizeof r->here);
    size_t room = r->piece < r->n ? r->piece : r->n;
    size_t buffer = (room * sizeof(float) + 63) / 64 * 64;
    if (!ranks_lanes_open(m, 1, r->me == r->source ? buffer : 0, 0)) {
        r->n_state = r->came = 0;       /* without memory the round does nothing */
        return;
    }
    struct ranks_lane *lane = m->lanes.list;
    for (unsigned slot = 0; slot < m->round.depth; slot++) {
        lane->learn[slot].rank = neighbour(r, -1);
        lane->learn[slot].ended = came;
        lane->give[slot].rank = neighbour(r, 1);
        lane->give[slot].ended = passed;
    }
}

bool ranks_state_fill(struct ranks *m)
{
    struct ranks_round *r = &m->round;
    size_t n = r->n - r->filled < RANKS_PIECE ? r->n - r->filled : RANKS_PIECE;

    if (!gives_center(m))
        return true;
    vector_gather(r->in, (struct chunk){r->filled, n}, m->f.center + r->filled, false);
    r->filled += n;
    return r->filled == r->n;
}

static void receive(struct ranks *m)
{
    struct ranks_round *r = &m->round;
    size_t n;

    while (r->coming < r->n_state && r->coming < r->came + m->round.depth) {
        struct ranks_op *op = &m->lanes.list->learn[r->coming % m->round.depth];
        float *to = came_to(m, r->coming++, &n);
        if (!ranks_receive_op(m, op, to, n * sizeof(float), TAG_STATE))
            return;
        m->moved = true;
    }
}

static void pass(struct ranks *m)
{
    struct ranks_round *r = &m->round;
    size_t n;

    while (r->passing < r->came) {
        struct ranks_op *op = &m->lanes.list->give[r->passing % m->round.depth];
        if (op->busy)
            return;
        size_t piece = r->passing++;
        const float *p = r->me == r->source ? source_piece(m, piece, op->floats, &n)
                                            : came_to(m, piece, &n);
        if (!ranks_send_op(m, op, p, n * sizeof(float), TAG_STATE))
            return;
        m->moved = true;
    }
}

bool ranks_state_step(struct ranks *m)
{
    struct ranks_round *r = &m->round;
    bool before = neighbour(r, -1) >= 0, after = neighbour(r, 1) >= 0;

    while (r->came < r->coming && r->here[r->came % m->round.depth]) {
        r->here[r->came++ % m->round.depth] = false;
        m->moved = true;
    }
    if (before)
        receive(m);
    if (after)
        pass(m);
    return r->came == r->n_state && (!after || r->passed == r->n_state);
}
