/* SPDX-License-Identifier: MIT */
/* Means, by messages between members and owners. Member j owns slice j of k. Everyone gives each
 * owner its part of the slice, in pieces; the owner takes piece p of all of them, reduces it in the
 * order of ranks (all get the same bits, since they get the owner's), and at once tells all the
 * others, who learn it in place:
 *
 *   give, take      (k-1)/k of the vector out, and as much in
 *   tell, learn     the same again: 2 (k-1)/k in each direction, the least that is possible
 *
 * Of many members a slice has OWNED floats or more, so that a short vector costs no messages
 * between all pairs. It then has fewer owners than members, and they are others in each round, by
 * its number. A few members all own: each has as much to do as the others, and so none sleeps
 * while another one works. (Encoded means have k slices always: docs/wire.md.)
 *
 * Both directions of the link are busy from the first reduced piece on, and no step waits for
 * another than the piece it needs. Pieces go straight out of the vector where they lie together
 * there, out of the result, and into the result; only what is taken has buffers, and what has a
 * gap inside is gathered first. Between two ranks at most m->depth pieces of a sort are in flight.
 *
 * Vectors were looked at before they arrived, and those that are not finite give nothing. Workers
 * train on meanwhile: should a piece not be finite now, it is left out of that piece alone.
 *
 * Where hosts have several ranks (hosts.c), the ranks of a host have nothing to tell each other
 * by messages: an owner takes from and tells one rank of each other host, its slice's relay there.
 *
 * Encoded means (wire.c) go the same ways in smaller messages, of other slices: what is sent
 * and what has come then lies in buffers, and a step encodes, reduces and decodes one piece each.
 *
 * Run by whoever holds the round machine. */
#include "fabric/kernels.h"
#include "fabric/vector.h"
#include "ranks/ranks.h"

#include <string.h>

enum { REDUCED_AT_ONCE = 2, ENCODED_AT_ONCE = 1, SHOWN_AT_ONCE = 2,
       OWNED = 16384, FEW_RANKS = 8, MANY_RANKS = 64,
       LANES_FLOATS = 8 << 20 /* of all buffers, as long as pieces are not too short */ };

/* --- memory --- */

static void given(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->lanes[op->rank].gave++;
}

static void taken(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->lanes[op->rank].took[op->slot] = true;
}

static void told(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->lanes[op->rank].told++;
}

static void learned(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->lanes[op->rank].learned++;
}

static void came_encoded(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->lanes[op->rank].here[op->slot] = true;
}

/* Many ranks have fewer and shorter pieces in flight to each: all together are still enough to fill
 * a link, and the buffers have a bound. The same for all ranks. */
static void set_pieces(struct ranks *m)
{
    size_t size = (size_t)m->place.size, floats;

    m->depth = size <= FEW_RANKS ? RANKS_DEPTH : size <= MANY_RANKS ? RANKS_DEPTH / 2 : RANKS_DEPTH / 4;
    floats = LANES_FLOATS / (2 * m->depth * size) / WIRE_BLOCK * WIRE_BLOCK;
    floats = floats < RANKS_PIECE ? floats : RANKS_PIECE;
    m->piece_most = floats > RANKS_PIECE_LEAST ? floats : RANKS_PIECE_LEAST;
}

descant_status ranks_lanes_init(struct ranks *m)
{
    size_t size = (size_t)m->place.size, floats;

    set_pieces(m);
    floats = ranks_lane_floats(m);
    m->lanes = memory_take_array(size, sizeof *m->lanes);
    m->inputs = memory_take_array(size, sizeof *m->inputs);
    m->shares = memory_take_array(size, sizeof *m->shares);
    m->piece = memory_take_array(floats, sizeof *m->piece);
    if (!m->lanes || !m->inputs || !m->shares || !m->piece)
        return DESCANT_MEMORY;
    for (int k = 0; k < m->place.size; k++)
        for (unsigned slot = 0; slot < m->depth && k != m->f.rank; slot++) {
            struct ranks_lane *lane = &m->lanes[k];
            lane->give[slot] = (struct ranks_op){.rank = k, .slot = slot};
            lane->take[slot] = (struct ranks_op){.ended = taken, .rank = k, .slot = slot};
            lane->tell[slot] = (struct ranks_op){.ended = told, .rank = k, .slot = slot};
            lane->learn[slot] = (struct ranks_op){.rank = k, .slot = slot};
            lane->give[slot].floats = memory_take_array(floats, sizeof(float));
            lane->take[slot].floats = memory_take_array(floats, sizeof(float));
            if (!lane->give[slot].floats || !lane->take[slot].floats)
                return DESCANT_MEMORY;
        }
    return DESCANT_OK;
}

void ranks_lanes_fini(struct ranks *m)
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

/* --- a round --- */

static int owners_of(const struct ranks_round *r)
{
    size_t most = r->n / OWNED + (r->n % OWNED > 0 || r->n == 0);
    bool many = r->k > FEW_RANKS && r->wire == WIRE_F32;
    return many && most < (size_t)r->k ? (int)most : r->k;
}

/* Some pieces a slice, so that they follow one another closely, also where it is short. */
static size_t piece_floats(const struct ranks *m)
{
    const struct ranks_round *r = &m->round;
    size_t unit = r->wire == WIRE_F32 ? RANKS_UNIT : WIRE_BLOCK;
    size_t floats = (r->n / (size_t)r->owners / 4 + unit - 1) / unit * unit;
    if (floats < RANKS_PIECE_LEAST)
        return RANKS_PIECE_LEAST;
    return floats < m->piece_most ? floats : m->piece_most;
}

/* Each rank by itself. */
static void begin_alone(struct ranks *m)
{
    struct ranks_round *r = &m->round;

    r->gives = r->seats[r->me].share > 0;
    for (int i = 0; i < r->k; i++) {
        struct ranks_lane *lane = &m->lanes[r->seats[i].rank];
        lane->share = r->seats[i].share;
        lane->gives = lane->share > 0;
        lane->relays = lane->relayed = i != r->me;
    }
}

void ranks_mean_begin(struct ranks *m)
{
    struct ranks_round *r = &m->round;

    if (m->host)
        ranks_host_begin(m);
    else
        begin_alone(m);
    r->owners = owners_of(r);
    r->piece = piece_floats(m);
    r->n_own = ranks_round_pieces(r, r->me);
    r->reduced = 0;
    for (int i = 0; i < r->k; i++) {
        struct ranks_lane *lane = &m->lanes[r->seats[i].rank];
        lane->member = i;
        lane->given = lane->gave = lane->taken = lane->told = lane->telling = 0;
        lane->learned = lane->learning = 0;
        memset(lane->took, 0, sizeof lane->took);
        memset(lane->here, 0, sizeof lane->here);
    }
}

/* A slice goes to its owner, or from us as its owner to others. */
uint64_t ranks_mean_bytes(const struct ranks *m)
{
    const struct ranks_round *r = &m->round;
    uint64_t bytes = 0;

    for (int i = 0; i < r->k; i++) {
        const struct ranks_lane *lane = &m->lanes[r->seats[i].rank];
        bytes += lane->relayed ? wire_bytes(r->wire, ranks_round_slice(r, i).n) : 0;
        bytes += lane->relays ? wire_bytes(r->wire, ranks_round_slice(r, r->me).n) : 0;
    }
    return bytes;
}

/* --- the four sorts of messages --- */

static bool take(struct ranks *m, struct ranks_lane *lane)
{
    const struct ranks_round *r = &m->round;
    struct ranks_op *op = &lane->take[lane->taken % m->depth];

    if (!lane->relays || !lane->gives || lane->taken == r->n_own ||
        lane->taken == r->reduced + m->depth)
        return false;
    size_t n = ranks_round_piece(r, r->me, lane->taken++).n;
    return ranks_receive_op(m, op, op->floats, wire_bytes(r->wire, n), TAG_GIVE);
}

static bool learn(struct ranks *m, struct ranks_lane *lane)
{
    const struct ranks_round *r = &m->round;
    struct ranks_op *op = &lane->learn[lane->learning % m->depth];

    if (!lane->relayed || op->busy || lane->here[op->slot] ||
        lane->learning == ranks_round_pieces(r, lane->member))
        return false;
    bool plain = r->wire == WIRE_F32;
    op->ended = plain ? learned : came_encoded;         /* a state may have had it */
    struct chunk piece = ranks_round_piece(r, lane->member, lane->learning++);
    return ranks_receive_op(m, op, plain ? m->mean + piece.from : op->floats,
                          wire_bytes(r->wire, piece.n), TAG_TELL);
}

/* False, and it waits for the next step, where this one has done its share. */
static bool may_code(struct ranks_round *r)
{
    return r->wire == WIRE_F32 || r->turns-- > 0;
}

static bool decode(struct ranks *m, struct ranks_lane *lane)
{
    struct ranks_round *r = &m->round;
    unsigned slot = (unsigned)(lane->learned % m->depth);

    if (!lane->here[slot] || !may_code(r))
        return false;
    lane->here[slot] = false;
    ranks_wire_learn(m, ranks_round_piece(r, lane->member, lane->learned++), lane->learn[slot].floats);
    return true;
}

static bool give(struct ranks *m, struct ranks_lane *lane)
{
    struct ranks_round *r = &m->round;
    struct ranks_op *op = &lane->give[lane->given % m->depth];

    if (!lane->relayed || !r->gives || op->busy ||
        lane->given == ranks_round_pieces(r, lane->member) ||
        (m->host && !ranks_host_shown(m, lane->given)) || !may_code(r))
        return false;
    op->ended = given;
    struct chunk piece = ranks_round_piece(r, lane->member, lane->given++);
    const float *p = m->host ? ranks_host_give(m, piece, op->floats)
                     : r->wire == WIRE_F32 ? ranks_reach(r->in, piece.from, piece.n, op->floats)
                                           : ranks_wire_give(m, piece, op->floats);
    return ranks_send_op(m, op, p, wire_bytes(r->wire, piece.n), TAG_GIVE);
}

static bool tell(struct ranks *m, struct ranks_lane *lane)
{
    const struct ranks_round *r = &m->round;
    struct ranks_op *op = &lane->tell[lane->telling % m->depth];

    if (!lane->relays || op->busy || lane->telling == r->reduced)
        return false;
    struct chunk piece = ranks_round_piece(r, r->me, lane->telling++);
    const float *p = r->wire == WIRE_F32 ? m->mean + piece.from : m->settled[op->slot];
    return ranks_send_op(m, op, p, wire_bytes(r->wire, piece.n), TAG_TELL);
}

/* Members after this one first, so that not all give to the same. */
static void move_messages(struct ranks *m, bool (*move)(struct ranks *, struct ranks_lane *))
{
    const struct ranks_round *r = &m->round;

    for (bool moved = true; moved && !m->f.status;) {
        moved = false;
        for (int i = 1; i < r->k; i++)
            moved |= move(m, &m->lanes[r->seats[(r->me + i) % r->k].rank]);
        m->moved |= moved;
    }
}

/* --- reducing --- */

static bool all_here(const struct ranks *m)
{
    const struct ranks_round *r = &m->round;

    for (int i = 0; i < r->k; i++) {
        const struct ranks_lane *lane = &m->lanes[r->seats[i].rank];
        if (lane->relays && lane->gives && !lane->took[r->reduced % m->depth])
            return false;
    }
    return !m->host || ranks_host_shown(m, r->reduced);
}

/* Encoded: whether all have been told what was in the buffer of the next piece. */
static bool has_room(const struct ranks *m)
{
    const struct ranks_round *r = &m->round;

    for (int i = 0; i < r->k && r->wire != WIRE_F32; i++) {
        const struct ranks_lane *lane = &m->lanes[r->seats[i].rank];
        if (i != r->me && (lane->telling + m->depth <= r->reduced ||
                           lane->tell[r->reduced % m->depth].busy))
            return false;
    }
    return true;
}

/* By rank, so that one sum has the same bits whoever owns it. Of a host with several ranks its own
 * parts come first. */
static void reduce_plain(struct ranks *m, struct chunk piece, unsigned slot)
{
    const struct ranks_round *r = &m->round;
    int n_in = m->host ? ranks_host_inputs(m, piece.from) : 0;

    for (int i = 0; i < r->k; i++) {
        const struct ranks_lane *lane = &m->lanes[r->seats[i].rank];
        bool own = i == r->me && !m->host && r->gives;
        if (!own && (!lane->relays || !lane->gives))
            continue;
        m->inputs[n_in] = own ? ranks_reach(r->in, piece.from, piece.n, m->piece)
                              : lane->take[slot].floats;
        m->shares[n_in++] = lane->share;
    }
    ranks_mean_inputs(m, m->mean + piece.from, n_in, piece.n);
}

static void reduce(struct ranks *m)
{
    struct ranks_round *r = &m->round;
    struct chunk piece = ranks_round_piece(r, r->me, r->reduced);
    unsigned slot = (unsigned)(r->reduced % m->depth);

    if (r->wire == WIRE_F32)
        reduce_plain(m, piece, slot);
    else
        ranks_wire_reduce(m, piece, slot);
    for (int i = 0; i < r->k; i++)
        m->lanes[r->seats[i].rank].took[slot] = false;
    r->reduced++;
    m->moved = true;
}

static bool can_reduce(const struct ranks *m)
{
    return m->round.reduced < m->round.n_own && all_here(m) && has_room(m);
}

static bool all_done(struct ranks *m)
{
    const struct ranks_round *r = &m->round;

    for (int i = 0; i < r->k; i++) {
        const struct ranks_lane *lane = &m->lanes[r->seats[i].rank];
        size_t theirs = ranks_round_pieces(r, i);
        if ((lane->relays && lane->told < r->n_own) ||
            (lane->relayed && (lane->learned < theirs || (r->gives && lane->gave < theirs))))
            return false;
    }
    return r->reduced == r->n_own && (!m->host || ranks_host_done(m));
}

bool ranks_mean_step(struct ranks *m)
{
    struct ranks_round *r = &m->round;

    for (int i = 0; i < SHOWN_AT_ONCE && m->host && ranks_host_show(m); i++)
        m->moved = true;
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
