/* SPDX-License-Identifier: MIT */
/* Means, by messages between members and owners. Member j owns slice j of k. Every member
 * gives each owner its part of the slice, in pieces. The owner takes piece p of all
 * members, reduces it in the order of ranks, and at once tells all the others, which
 * learn the piece in place (all have the same bits, since they have the owner's):
 *
 *   give, take      (k-1)/k of the vector out, and as much in
 *   tell, learn     the same again: 2 (k-1)/k in each direction, the least possible
 *
 * Among many members a slice has OWNED floats or more, so that a short vector costs no
 * messages between all pairs. A mean then has fewer owners than members, and other owners
 * in each round, by the round's number. Among few members all are owners: each has as
 * much to do as the others, and so none sleeps while another one works. (Encoded means
 * have k slices always: docs/wire.md.)
 *
 * Both directions of the link are busy from the first reduced piece on, and each step
 * waits only for the piece that it needs. Pieces go straight out of the vector where they
 * lie together there, out of the result, and into the result; only parts that are taken
 * have buffers, and pieces with a gap inside are gathered first. Between two ranks at
 * most round.depth pieces of a sort are in flight, and an owner takes at most so many
 * parts at a time as its window has room for, in the order of ranks. Where the window has
 * less room than a piece has parts, parts are added to a sum as they come.
 *
 * Only the opening of an owner's window looks at all ranks: lanes that can go on are in a
 * list, and the end is a count.
 *
 * Where late members are not waited for (`carries`), those that are absent count by the
 * last result, outer[0], which an owner adds last. An encoded mean, whose parts are
 * differences from it, needs nothing for that.
 *
 * Vectors were tested before they arrived, and those that are not finite give nothing.
 * Workers train on meanwhile: a part that is not finite by now is left out of its piece
 * alone.
 *
 * Where hosts have several ranks (hosts.c), the ranks of a host exchange nothing by
 * messages: an owner takes from and tells one rank of each other host, its slice's relay
 * there.
 *
 * Encoded means (wire.c) go the same ways in smaller messages, of other slices: sent and
 * received pieces then lie in buffers, and a step encodes, reduces and decodes one piece
 * each.
 *
 * All of this runs in the thread that holds the round machine. */
#include "kernels/kernels.h"
#include "kernels/vector.h"
#include "ranks/ranks.h"

#include <math.h>
#include <string.h>

enum { REDUCED_AT_ONCE = 2, ENCODED_AT_ONCE = 1, SHOWN_AT_ONCE = 2,
       OWNED = 16384, FEW_RANKS = 8, WINDOW_LEAST = 64 };

/* --- givers, owners and hearers --- */

static int owners_of(const struct ranks_round *r)
{
    size_t most = r->n / OWNED + (r->n % OWNED > 0 || r->n == 0);
    bool many = r->k > FEW_RANKS && r->wire == WIRE_F32;
    if (r->hub >= 0)
        return 1;
    return many && most < (size_t)r->k ? (int)most : r->k;
}

/* A slice has some pieces, also a short one, so that the pieces follow each other
 * closely. */
static size_t piece_floats(const struct ranks_round *r)
{
    size_t unit = r->wire == WIRE_F32 ? RANKS_UNIT : WIRE_BLOCK;
    size_t floats = (r->n / (size_t)r->owners / 4 + unit - 1) / unit * unit;
    if (floats < RANKS_PIECE_LEAST)
        return RANKS_PIECE_LEAST;
    size_t most = ranks_piece_most((size_t)r->k);
    return floats < most ? floats : most;
}

/* A member gives to this rank's slice, and is told the result. */
static bool relays(const struct ranks *m, int member)
{
    return m->host ? ranks_host_relays(m, member) : member != m->round.me;
}

/* This rank gives to a member's slice, and is told the result. */
static bool relayed(const struct ranks *m, int member)
{
    return m->host ? ranks_host_relayed(m, member) : member != m->round.me;
}

/* The weight of a member's part. */
static double share_of(const struct ranks *m, int member)
{
    return m->host ? ranks_host_share(m, member) : m->round.seats[member].share;
}

/* --- the lanes that can go on --- */

static bool can_learn(const struct ranks *m, const struct ranks_lane *lane)
{
    size_t slot = lane->learning % m->round.depth;
    return lane->learning < lane->pieces && !lane->learn[slot].busy && !lane->here[slot];
}

static bool can_give(const struct ranks *m, const struct ranks_lane *lane)
{
    return m->round.gives && lane->given < lane->pieces &&
           !lane->give[lane->given % m->round.depth].busy;
}

static void make_ready(struct ranks *m, struct ranks_lane *lane)
{
    struct ranks_lanes *lanes = &m->lanes;

    if (lane->ready || !(can_learn(m, lane) || can_give(m, lane) ||
                         lane->here[lane->learned % m->round.depth]))
        return;
    lane->ready = true;
    lane->next = NULL;
    *(lanes->first ? &lanes->last->next : &lanes->first) = lane;
    lanes->last = lane;
}

/* --- messages that have ended --- */

static void given(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    (void)ended;
    op->busy = false;
    m->round.left--;
    make_ready(m, op->of);
}

static void learned(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct ranks_lane *lane = op->of;

    (void)ended;
    op->busy = false;
    if (m->round.wire == WIRE_F32) {
        lane->learned++;
        m->round.left--;
    } else {
        lane->here[op->slot] = true;
    }
    make_ready(m, lane);
}

static void taken(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct ranks_window *w = &m->lanes.window;

    (void)ended;
    op->busy = false;
    w->here[op->slot] = true;
    while (w->came < w->taken && w->here[w->came % w->room])
        w->came++;
}

static void told(struct ranks *m, struct ranks_op *op, const struct link_ended *ended)
{
    struct ranks_window *w = &m->lanes.window;
    struct ranks_hearer *peer = op->of;

    (void)ended;
    op->busy = false;
    peer->told++;
    w->untold[op->slot]--;
    w->idle[w->n_idle++] = op;
    m->round.left--;
}

/* --- a round --- */

/* Pieces are of whole cache lines. */
static size_t buffer_bytes(const struct ranks_round *r)
{
    return (wire_bytes(r->wire, r->piece) + 63) / 64 * 64;
}

/* Parts go out of the vector itself where all of the vector lies together, also a
 * helper's. */
static bool gathers(const struct ranks *m)
{
    const struct ranks_round *r = &m->round;
    return m->host || m->in_place || r->wire != WIRE_F32 || r->in->n_extents > 1;
}

static void open_lanes(struct ranks *m)
{
    struct ranks_round *r = &m->round;
    struct ranks_lanes *lanes = &m->lanes;
    size_t bytes = buffer_bytes(r);
    int n = 0, after = 0;

    if (!ranks_lanes_open(m, r->owners, gathers(m) ? bytes : 0,
                          r->wire == WIRE_F32 ? 0 : bytes))
        return;
    for (int nth = 0; nth < r->owners; nth++) {
        struct ranks_lane *lane = &lanes->list[n];
        int member = ranks_round_owner(r, nth);
        if (!relayed(m, member))
            continue;
        lane->member = member;
        lane->pieces = ranks_round_pieces(r, member);
        r->left += lane->pieces * (r->gives ? 2 : 1);
        for (unsigned slot = 0; slot < r->depth; slot++) {
            lane->give[slot].rank = lane->learn[slot].rank = r->seats[member].rank;
            lane->give[slot].ended = given;
            lane->learn[slot].ended = learned;
        }
        after += member < r->me;
        n++;
    }
    lanes->n = n;
    /* members after this one first: not all give to the same */
    for (int i = 0; i < n; i++)
        make_ready(m, &lanes->list[(after + i) % n]);
}

/* Parts in flight: so many that the link is kept busy, and that the owners together take
 * from all givers, and not all from the same few. */
static size_t window_room(const struct ranks *m, int n_peers)
{
    const struct ranks_round *r = &m->round;
    size_t all = r->depth * (size_t)n_peers, room = r->depth * (size_t)r->owners;
    room = room > WINDOW_LEAST ? room : WINDOW_LEAST;
    return room < all ? room : all;
}

static void open_window(struct ranks *m)
{
    struct ranks_round *r = &m->round;
    struct ranks_window *w = &m->lanes.window;
    int n_peers = 0;

    for (int i = 0; i < r->k && r->n_own; i++)
        n_peers += relays(m, i);
    *w = (struct ranks_window){.n_peers = 0};
    if ((!n_peers && (r->wire == WIRE_F32 || !r->n_own)) ||
        !ranks_window_open(m, n_peers, window_room(m, n_peers), buffer_bytes(r)))
        return;
    n_peers = 0;
    for (int i = 0; i < r->k; i++) {
        if (!relays(m, i))
            continue;
        w->peers[n_peers++].member = i;
        w->before += share_of(m, i) > 0 && i < r->me;
        if (share_of(m, i) > 0)
            w->givers[w->n_givers++] = i;
    }
    r->left += r->n_own * (size_t)n_peers;
}

void ranks_mean_begin(struct ranks *m)
{
    struct ranks_round *r = &m->round;

    if (m->host)
        ranks_host_begin(m);
    r->gives = share_of(m, r->me) > 0;
    r->owners = owners_of(r);
    r->piece = piece_floats(r);
    r->depth = ranks_depth(m, (size_t)r->k, (size_t)r->k, r->n / (size_t)r->owners);
    r->n_own = ranks_round_pieces(r, r->me);
    r->reduced = r->left = 0;
    open_lanes(m);
    open_window(m);
    if (m->f.status)
        r->n = 0;               /* without memory the round does nothing */
}

/* A slice goes to its owner, or from this rank as its owner to others. */
uint64_t ranks_mean_bytes(const struct ranks *m)
{
    const struct ranks_round *r = &m->round;
    uint64_t bytes = (uint64_t)m->lanes.window.n_peers *
                     wire_bytes(r->wire, ranks_round_slice(r, r->me).n);

    for (int i = 0; i < m->lanes.n; i++)
        bytes += wire_bytes(r->wire, ranks_round_slice(r, m->lanes.list[i].member).n);
    return bytes;
}

/* --- the four sorts of messages --- */

static void take_parts(struct ranks *m)
{
    const struct ranks_round *r = &m->round;
    struct ranks_window *w = &m->lanes.window;
    size_t givers = (size_t)w->n_givers, all = r->n_own * givers;

    while (w->taken < all && w->taken < w->reduced + w->room && !m->f.status) {
        struct ranks_op *op = &w->takes[w->taken % w->room];
        size_t n = ranks_round_piece(r, r->me, w->taken / givers).n;
        op->rank = r->seats[w->givers[w->taken++ % givers]].rank;
        op->ended = taken;
        ranks_receive_op(m, op, op->floats, wire_bytes(r->wire, n), TAG_GIVE);
        m->moved = true;
    }
}

static bool learn(struct ranks *m, struct ranks_lane *lane)
{
    const struct ranks_round *r = &m->round;

    if (!can_learn(m, lane))
        return false;
    struct ranks_op *op = &lane->learn[lane->learning % r->depth];
    struct chunk piece = ranks_round_piece(r, lane->member, lane->learning++);
    float *to = r->wire == WIRE_F32 ? m->mean + piece.from : op->floats;
    return ranks_receive_op(m, op, to, wire_bytes(r->wire, piece.n), TAG_TELL);
}

/* False: this step has done its share, and the piece waits for the next. */
static bool may_code(const struct ranks_round *r, int *turns)
{
    return r->wire == WIRE_F32 || (*turns)-- > 0;
}

static bool decode(struct ranks *m, struct ranks_lane *lane, int *turns)
{
    struct ranks_round *r = &m->round;
    size_t slot = lane->learned % r->depth;

    if (!lane->here[slot] || !may_code(r, turns))
        return false;
    lane->here[slot] = false;
    ranks_wire_learn(m, ranks_round_piece(r, lane->member, lane->learned++),
                     lane->learn[slot].floats);
    r->left--;
    return true;
}

static bool give(struct ranks *m, struct ranks_lane *lane, int *turns)
{
    const struct ranks_round *r = &m->round;

    if (!can_give(m, lane) || (m->host && !ranks_host_shown(m, lane->given)) ||
        !may_code(r, turns))
        return false;
    struct ranks_op *op = &lane->give[lane->given % r->depth];
    struct chunk piece = ranks_round_piece(r, lane->member, lane->given++);
    const float *p = m->host               ? ranks_host_give(m, piece, op->floats)
                     : r->wire != WIRE_F32 ? ranks_wire_give(m, piece, op->floats)
                                           : ranks_reach(r->in, piece.from, piece.n,
                                                         op->floats);
    return ranks_send_op(m, op, p, wire_bytes(r->wire, piece.n), TAG_GIVE);
}

/* Each lane in turn does one piece. A lane that cannot do its piece in this step may in
 * the next. */
static void move_lanes(struct ranks *m)
{
    struct ranks_lanes *lanes = &m->lanes;
    int to_give = ENCODED_AT_ONCE, to_decode = ENCODED_AT_ONCE;

    for (bool moved = true; moved && lanes->first && !m->f.status;) {
        moved = false;
        for (struct ranks_lane *lane = lanes->first, *last = lanes->last, *next; lane;
             lane = lane == last ? NULL : next) {
            next = lane->next;
            lanes->first = next;
            lane->ready = false;
            while (learn(m, lane))
                moved = true;
            moved |= decode(m, lane, &to_decode);
            moved |= give(m, lane, &to_give);
            make_ready(m, lane);
        }
        m->moved |= moved;
    }
}

static float *settled_at(const struct ranks *m, size_t slot)
{
    const struct ranks_window *w = &m->lanes.window;
    return w->settled + slot * w->piece_bytes / sizeof(float);
}

/* Tells a piece to all, members after this one first, then the next piece. */
static void tell_peers(struct ranks *m)
{
    const struct ranks_round *r = &m->round;
    struct ranks_window *w = &m->lanes.window;
    size_t peers = (size_t)w->n_peers;

    while (w->telling < r->reduced * peers && w->n_idle && !m->f.status) {
        struct ranks_op *op = w->idle[--w->n_idle];
        size_t nth = w->telling / peers;
        struct ranks_hearer *peer = &w->peers[(w->telling++ + (size_t)r->me) % peers];
        struct chunk piece = ranks_round_piece(r, r->me, nth);
        *op = (struct ranks_op){.ended = told, .rank = r->seats[peer->member].rank,
                                .slot = (unsigned)(nth % r->depth), .of = peer};
        const float *p =
            r->wire == WIRE_F32 ? m->mean + piece.from : settled_at(m, op->slot);
        ranks_send_op(m, op, p, wire_bytes(r->wire, piece.n), TAG_TELL);
        m->moved = true;
    }
}

/* --- reducing --- */

/* The givers [*from, *to) whose parts are reduced next: all of them, or, where a
 * window does not hold so many, some. False: a part is not here. */
static bool next_givers(const struct ranks *m, int *from, int *to)
{
    const struct ranks_window *w = &m->lanes.window;
    int some = w->room / 2 > 0 ? (int)(w->room / 2) : 1;

    *from = (int)(w->reduced - m->round.reduced * (size_t)w->n_givers);
    *to = w->n_givers;
    if ((size_t)w->n_givers > w->room && *to - *from > some)
        *to = *from + some;
    return w->came >= w->reduced + (size_t)(*to - *from);
}

/* Adds parts in the order of ranks, so that a sum has the same bits whichever rank owns
 * it. On a host with several ranks the host's own parts come first. */
static int gather_inputs(struct ranks *m, struct chunk piece, int from, int to)
{
    const struct ranks_round *r = &m->round;
    const struct ranks_window *w = &m->lanes.window;
    bool own = !m->host && r->gives && r->wire == WIRE_F32;
    int n_in = m->host && from == 0 ? ranks_host_inputs(m, piece.from) : 0;

    for (int i = from; i <= to; i++) {
        if (own && i == w->before && (i < to || to == w->n_givers)) {
            m->inputs[n_in] = ranks_reach(r->in, piece.from, piece.n, m->piece);
            m->shares[n_in++] = r->seats[r->me].share;
        }
        if (i < to) {
            size_t part = w->reduced + (size_t)(i - from);
            m->inputs[n_in] = w->takes[part % w->room].floats;
            m->shares[n_in++] = share_of(m, w->givers[i]);
        }
    }
    if (to == w->n_givers && r->absent > 0 && r->wire == WIRE_F32) {
        m->inputs[n_in] = m->f.outer[0] + piece.from;
        m->shares[n_in++] = r->absent;
    }
    return n_in;
}

/* Inputs that are not finite by now are left out. */
static void add_inputs(struct ranks *m, int n_in, size_t n)
{
    struct ranks_window *w = &m->lanes.window;
    bool first = w->total <= 0;
    int good = 0;

    for (int i = 0; i < n_in; i++)
        if (kernels_best()->finite(m->inputs[i], n)) {
            m->inputs[good] = m->inputs[i];
            w->total += m->shares[good++] = m->shares[i];
        }
    w->spoilt |= good < n_in;
    if (good)
        kernels_best()->sum(w->sum, m->inputs, m->shares, good, n, first);
}

static void settle_sum(struct ranks *m, struct chunk piece)
{
    struct ranks_window *w = &m->lanes.window;
    double by = w->spoilt ? 1 / w->total : 1;
    float *out = m->mean + piece.from;

    for (size_t i = 0; i < piece.n; i++)
        out[i] = w->total > 0 ? (float)(w->sum[i] * by) : NAN;
    w->total = 0;
    w->spoilt = false;
}

static void reduce(struct ranks *m, int from, int to)
{
    struct ranks_round *r = &m->round;
    struct ranks_window *w = &m->lanes.window;
    struct chunk piece = ranks_round_piece(r, r->me, r->reduced);
    unsigned slot = (unsigned)(r->reduced % r->depth);
    int n_in = gather_inputs(m, piece, from, to);

    if (r->wire != WIRE_F32)
        ranks_wire_reduce(m, piece, n_in, settled_at(m, slot));
    else if (from == 0 && to == w->n_givers)
        ranks_mean_inputs(m, m->mean + piece.from, n_in, piece.n);
    else
        add_inputs(m, n_in, piece.n);
    for (int i = from; i < to; i++)
        w->here[w->reduced++ % w->room] = false;
    m->moved = true;
    if (to < w->n_givers)
        return;
    if (from > 0)
        settle_sum(m, piece);
    w->untold[slot] += (size_t)w->n_peers;
    r->reduced++;
}

/* Encoded: the buffer of the next piece is free, for all have been told the piece before
 * in it. */
static bool has_room(const struct ranks *m)
{
    const struct ranks_round *r = &m->round;
    return r->wire == WIRE_F32 || m->lanes.window.untold[r->reduced % r->depth] == 0;
}

static void reduce_parts(struct ranks *m)
{
    struct ranks_round *r = &m->round;
    int turns = ENCODED_AT_ONCE, from, to;

    for (int i = 0; i < REDUCED_AT_ONCE && r->reduced < r->n_own; i++) {
        bool shown = !m->host || ranks_host_shown(m, r->reduced);
        if (!shown || !next_givers(m, &from, &to) || !has_room(m) || !may_code(r, &turns))
            return;
        reduce(m, from, to);
    }
}

bool ranks_mean_step(struct ranks *m)
{
    const struct ranks_round *r = &m->round;

    for (int i = 0; i < SHOWN_AT_ONCE && m->host && ranks_host_show(m); i++)
        m->moved = true;
    take_parts(m);
    move_lanes(m);
    reduce_parts(m);
    tell_peers(m);
    if (r->left || r->reduced < r->n_own || (m->host && !ranks_host_done(m)))
        return false;
    ranks_window_close(m);
    return true;
}

/* --- awaited members --- */

/* Adds the members that have not given their part of the next piece here, for which the
 * others wait as well. */
static void giving_late(const struct ranks *m, struct awaited *awaited)
{
    const struct ranks_window *w = &m->lanes.window;
    size_t givers = (size_t)w->n_givers, end = (m->round.reduced + 1) * givers;

    for (size_t q = w->reduced; q < w->taken && q < end; q++)
        if (!w->here[q % w->room])
            awaited_add(awaited, m->round.seats[w->givers[q % givers]].rank);
}

/* Adds the members that have not told a piece that they own, or not received one that is
 * owned here. */
static void telling_late(const struct ranks *m, struct awaited *awaited)
{
    const struct ranks_round *r = &m->round;
    const struct ranks_window *w = &m->lanes.window;
    const struct ranks_lane *lane = m->lanes.list, *end = lane + m->lanes.n;

    for (int member = 0, peer = 0; member < r->k; member++) {
        bool late = lane < end && lane->member == member && lane->learned < lane->pieces;
        if (lane < end && lane->member == member)
            lane++;
        if (peer < w->n_peers && w->peers[peer].member == member)
            late |= w->peers[peer++].told < r->n_own;
        if (late)
            awaited_add(awaited, r->seats[member].rank);
    }
}

void ranks_mean_late(const struct ranks *m, struct awaited *awaited)
{
    if (!m->round.n)
        return;
    giving_late(m, awaited);
    if (awaited->n == 0)
        telling_late(m, awaited);
    if (m->host && awaited->n == 0)
        ranks_host_late(m, awaited);    /* mates that have not finished the sums */
}
