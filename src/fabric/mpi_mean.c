/* SPDX-License-Identifier: MIT */
/* Means, by messages between each two members. Member j owns slice j of k. Everyone gives each
 * owner its part of the slice, in pieces; the owner takes piece p of all of them, reduces it in the
 * order of ranks (all get the same bits, since they get the owner's), and at once tells all the
 * others, who learn it in place:
 *
 *   give, take      (k-1)/k of the vector out, and as much in
 *   tell, learn     the same again: 2 (k-1)/k in each direction, the least that is possible
 *
 * Both directions of the link are busy from the first reduced piece on, and no step waits for
 * another than the piece it needs. Pieces go straight out of the vector where they lie together
 * there, out of the result, and into the result; only what is taken has buffers, and what has a
 * gap inside is gathered first. Between two ranks at most m->depth pieces of a sort are in flight.
 *
 * Vectors were looked at before they arrived, and those that are not finite give nothing. Workers
 * train on meanwhile: should a piece not be finite now, it is left out of that piece alone.
 *
 * Encoded means (mpi_wire.c) go the same ways in smaller messages, of other slices: what is sent
 * and what has come then lies in buffers, and a step encodes, reduces and decodes one piece each.
 *
 * Run by whoever holds the round machine. */
#include "fabric/kernels.h"
#include "fabric/mpi_world.h"
#include "fabric/vector.h"

#include <string.h>

enum { REDUCED_AT_ONCE = 2, ENCODED_AT_ONCE = 1, UNIT = 16 /* floats: a cache line */,
       FEW_RANKS = 8 };

/* --- memory --- */

static void given(struct mpi *m, struct mpi_op *op, const struct mpi_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->lanes[op->rank].gave++;
}

static void taken(struct mpi *m, struct mpi_op *op, const struct mpi_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->lanes[op->rank].took[op->slot] = true;
}

static void told(struct mpi *m, struct mpi_op *op, const struct mpi_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->lanes[op->rank].told++;
}

static void learned(struct mpi *m, struct mpi_op *op, const struct mpi_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->lanes[op->rank].learned++;
}

static void came_encoded(struct mpi *m, struct mpi_op *op, const struct mpi_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->lanes[op->rank].here[op->slot] = true;
}

size_t mpi_piece_room(const struct mpi *m)
{
    size_t most = m->room > m->n ? m->room : m->n;
    return most < MPI_PIECE ? most + 1 : MPI_PIECE;
}

descant_status mpi_lanes_init(struct mpi *m)
{
    size_t size = (size_t)m->place.size, floats = mpi_piece_room(m);

    m->depth = size <= FEW_RANKS ? MPI_DEPTH : MPI_DEPTH / 2;
    m->lanes = memory_take_array(size, sizeof *m->lanes);
    m->inputs = memory_take_array(size, sizeof *m->inputs);
    m->shares = memory_take_array(size, sizeof *m->shares);
    m->piece = memory_take_array(floats, sizeof *m->piece);
    if (!m->lanes || !m->inputs || !m->shares || !m->piece)
        return DESCANT_MEMORY;
    for (int k = 0; k < m->place.size; k++)
        for (unsigned slot = 0; slot < m->depth && k != m->f.rank; slot++) {
            struct mpi_lane *lane = &m->lanes[k];
            lane->give[slot] = (struct mpi_op){.rank = k, .slot = slot};
            lane->take[slot] = (struct mpi_op){.ended = taken, .rank = k, .slot = slot};
            lane->tell[slot] = (struct mpi_op){.ended = told, .rank = k, .slot = slot};
            lane->learn[slot] = (struct mpi_op){.rank = k, .slot = slot};
            lane->give[slot].floats = memory_take_array(floats, sizeof(float));
            lane->take[slot].floats = memory_take_array(floats, sizeof(float));
            if (!lane->give[slot].floats || !lane->take[slot].floats)
                return DESCANT_MEMORY;
        }
    return DESCANT_OK;
}

void mpi_lanes_fini(struct mpi *m)
{
    for (int k = 0; m->lanes && k < m->place.size; k++)
        for (unsigned slot = 0; slot < m->depth; slot++) {
            memory_give(m->lanes[k].give[slot].floats);
            memory_give(m->lanes[k].take[slot].floats);
        }
    memory_give(m->lanes);
    memory_give(m->inputs);
    memory_give(m->shares);
    memory_give(m->piece);
}

/* Where they lie together, else gathered. */
const float *mpi_reach(const struct vector *v, size_t at, size_t n, float *gathered)
{
    const float *p;

    if (vector_reach(v, at, &p) >= n && p)
        return p;
    vector_gather(v, (struct chunk){at, n}, gathered, false);
    return gathered;
}

/* --- slices and their pieces --- */

size_t mpi_slice_at(size_t n, int k, int member)
{
    size_t units = (n + UNIT - 1) / UNIT;
    size_t at = units * (size_t)member / (size_t)k * UNIT;
    return at < n ? at : n;
}

size_t mpi_round_slice(const struct mpi_round *r, int member)
{
    return r->wire == WIRE_F32 ? mpi_slice_at(r->n, r->k, member)
                               : wire_slice(r->n, r->k, member);
}

static size_t slice_floats(const struct mpi_round *r, int member)
{
    return mpi_round_slice(r, member + 1) - mpi_round_slice(r, member);
}

static size_t slice_pieces(const struct mpi_round *r, int member)
{
    return (slice_floats(r, member) + r->piece - 1) / r->piece;
}

static struct chunk piece_at(const struct mpi_round *r, int member, size_t piece)
{
    size_t at = mpi_round_slice(r, member) + piece * r->piece;
    size_t left = mpi_round_slice(r, member + 1) - at;
    return (struct chunk){at, left < r->piece ? left : r->piece};
}

/* Some pieces a slice, so that they follow one another closely, also where it is short. */
static size_t piece_floats(const struct mpi_round *r)
{
    size_t unit = r->wire == WIRE_F32 ? UNIT : WIRE_BLOCK;
    size_t floats = (r->n / (size_t)r->k / 4 + unit - 1) / unit * unit;
    if (floats < MPI_PIECE_LEAST)
        return MPI_PIECE_LEAST;
    return floats < MPI_PIECE ? floats : MPI_PIECE;
}

void mpi_mean_begin(struct mpi *m)
{
    struct mpi_round *r = &m->round;

    r->piece = piece_floats(r);
    r->n_own = slice_pieces(r, r->me);
    r->reduced = 0;
    r->gives = r->seats[r->me].share > 0;
    for (int i = 0; i < r->k; i++) {
        struct mpi_lane *lane = &m->lanes[r->seats[i].rank];
        lane->member = i;
        lane->gives = r->seats[i].share > 0;
        lane->given = lane->gave = lane->taken = lane->told = lane->telling = 0;
        lane->learned = lane->learning = 0;
        memset(lane->took, 0, sizeof lane->took);
        memset(lane->here, 0, sizeof lane->here);
    }
}

/* As an encoded piece, too, it goes to its owner, or from us as its owner to all others. */
uint64_t mpi_mean_bytes(const struct mpi_round *r)
{
    if (r->wire == WIRE_F32)
        return (uint64_t)(2.0 * (r->k - 1) / r->k * (double)(r->n * sizeof(float)));
    return wire_bytes(r->wire, r->n) +
           (uint64_t)(r->k - 2) * wire_bytes(r->wire, slice_floats(r, r->me));
}

/* --- the four sorts of messages --- */

static bool take(struct mpi *m, struct mpi_lane *lane)
{
    const struct mpi_round *r = &m->round;
    struct mpi_op *op = &lane->take[lane->taken % m->depth];

    if (!lane->gives || lane->taken == r->n_own || lane->taken == r->reduced + m->depth)
        return false;
    size_t n = piece_at(r, r->me, lane->taken++).n;
    return mpi_receive_op(m, op, op->floats, wire_bytes(r->wire, n), TAG_GIVE);
}

static bool learn(struct mpi *m, struct mpi_lane *lane)
{
    const struct mpi_round *r = &m->round;
    struct mpi_op *op = &lane->learn[lane->learning % m->depth];

    if (op->busy || lane->here[op->slot] || lane->learning == slice_pieces(r, lane->member))
        return false;
    bool plain = r->wire == WIRE_F32;
    op->ended = plain ? learned : came_encoded;         /* a state may have had it */
    struct chunk piece = piece_at(r, lane->member, lane->learning++);
    return mpi_receive_op(m, op, plain ? m->result + piece.from : op->floats,
                          wire_bytes(r->wire, piece.n), TAG_TELL);
}

/* False, and it waits for the next step, where this one has done its share. */
static bool may_code(struct mpi_round *r)
{
    return r->wire == WIRE_F32 || r->turns-- > 0;
}

static bool decode(struct mpi *m, struct mpi_lane *lane)
{
    struct mpi_round *r = &m->round;
    unsigned slot = (unsigned)(lane->learned % m->depth);

    if (!lane->here[slot] || !may_code(r))
        return false;
    lane->here[slot] = false;
    mpi_wire_learn(m, piece_at(r, lane->member, lane->learned++), lane->learn[slot].floats);
    return true;
}

static bool give(struct mpi *m, struct mpi_lane *lane)
{
    struct mpi_round *r = &m->round;
    struct mpi_op *op = &lane->give[lane->given % m->depth];

    if (!r->gives || op->busy || lane->given == slice_pieces(r, lane->member) || !may_code(r))
        return false;
    op->ended = given;
    struct chunk piece = piece_at(r, lane->member, lane->given++);
    const float *p = r->wire == WIRE_F32 ? mpi_reach(r->in, piece.from, piece.n, op->floats)
                                         : mpi_wire_give(m, piece, op->floats);
    return mpi_send_op(m, op, p, wire_bytes(r->wire, piece.n), TAG_GIVE);
}

static bool tell(struct mpi *m, struct mpi_lane *lane)
{
    const struct mpi_round *r = &m->round;
    struct mpi_op *op = &lane->tell[lane->telling % m->depth];

    if (op->busy || lane->telling == r->reduced)
        return false;
    struct chunk piece = piece_at(r, r->me, lane->telling++);
    const float *p = r->wire == WIRE_F32 ? m->result + piece.from : m->settled[op->slot];
    return mpi_send_op(m, op, p, wire_bytes(r->wire, piece.n), TAG_TELL);
}

/* Members after this one first, so that not all give to the same. */
static void move_messages(struct mpi *m, bool (*move)(struct mpi *, struct mpi_lane *))
{
    const struct mpi_round *r = &m->round;

    for (bool moved = true; moved && !m->f.status;) {
        moved = false;
        for (int i = 1; i < r->k; i++)
            moved |= move(m, &m->lanes[r->seats[(r->me + i) % r->k].rank]);
        m->moved |= moved;
    }
}

/* --- reducing --- */

static bool all_here(const struct mpi *m)
{
    const struct mpi_round *r = &m->round;

    for (int i = 0; i < r->k; i++) {
        const struct mpi_lane *lane = &m->lanes[r->seats[i].rank];
        if (i != r->me && lane->gives && !lane->took[r->reduced % m->depth])
            return false;
    }
    return true;
}

/* Encoded: whether all have been told what was in the buffer of the next piece. */
static bool has_room(const struct mpi *m)
{
    const struct mpi_round *r = &m->round;

    for (int i = 0; i < r->k && r->wire != WIRE_F32; i++) {
        const struct mpi_lane *lane = &m->lanes[r->seats[i].rank];
        if (i != r->me && (lane->telling + m->depth <= r->reduced ||
                           lane->tell[r->reduced % m->depth].busy))
            return false;
    }
    return true;
}

/* Some became NaN after they were looked at. */
static void reduce_finite(struct mpi *m, float *out, int n_in, size_t n)
{
    double total = 0;
    int good = 0;

    for (int i = 0; i < n_in; i++)
        if (kernels_best()->finite(m->inputs[i], n)) {
            m->inputs[good] = m->inputs[i];
            m->shares[good++] = m->shares[i];
            total += m->shares[i];
        }
    for (int i = 0; i < good; i++)
        m->shares[i] /= total;
    if (good)
        kernels_best()->mean(out, m->inputs, m->shares, good, n, false);
}

static void reduce_plain(struct mpi *m, struct chunk piece, unsigned slot)
{
    const struct mpi_round *r = &m->round;
    float *out = m->result + piece.from;
    int n_in = 0;

    for (int i = 0; i < r->k; i++) {
        const struct mpi_lane *lane = &m->lanes[r->seats[i].rank];
        if (!lane->gives)
            continue;
        m->inputs[n_in] = i == r->me ? mpi_reach(r->in, piece.from, piece.n, m->piece)
                                     : lane->take[slot].floats;
        m->shares[n_in++] = r->seats[i].share;
    }
    if (!kernels_best()->mean(out, m->inputs, m->shares, n_in, piece.n, false))
        reduce_finite(m, out, n_in, piece.n);
}

static void reduce(struct mpi *m)
{
    struct mpi_round *r = &m->round;
    struct chunk piece = piece_at(r, r->me, r->reduced);
    unsigned slot = (unsigned)(r->reduced % m->depth);

    if (r->wire == WIRE_F32)
        reduce_plain(m, piece, slot);
    else
        mpi_wire_reduce(m, piece, slot);
    for (int i = 0; i < r->k; i++)
        m->lanes[r->seats[i].rank].took[slot] = false;
    r->reduced++;
    m->moved = true;
}

static bool can_reduce(const struct mpi *m)
{
    return m->round.reduced < m->round.n_own && all_here(m) && has_room(m);
}

static bool all_done(const struct mpi *m)
{
    const struct mpi_round *r = &m->round;

    for (int i = 0; i < r->k; i++) {
        const struct mpi_lane *lane = &m->lanes[r->seats[i].rank];
        size_t theirs = slice_pieces(r, i);
        if (i != r->me && (lane->learned < theirs || lane->told < r->n_own ||
                           (r->gives && lane->gave < theirs)))
            return false;
    }
    return r->reduced == r->n_own;
}

bool mpi_mean_step(struct mpi *m)
{
    struct mpi_round *r = &m->round;

    move_messages(m, take);
    move_messages(m, learn);
    r->turns = ENCODED_AT_ONCE;
    move_messages(m, give);
    r->turns = ENCODED_AT_ONCE;
    for (int i = 0; i < REDUCED_AT_ONCE && can_reduce(m) && may_code(r); i++)
        reduce(m);
    move_messages(m, tell);
    r->turns = ENCODED_AT_ONCE;
    move_messages(m, decode);
    return all_done(m);
}
