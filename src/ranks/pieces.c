/* SPDX-License-Identifier: MIT */
/* The pieces of a mean: their owners, places and lengths; and the mean of some parts. */
#include "kernels/kernels.h"
#include "kernels/vector.h"
#include "ranks/ranks.h"

enum { FEW_RANKS = 8, MANY_RANKS = 64,
       LANES_FLOATS = 8 << 20 /* of all buffers, unless pieces would be too short */ };

size_t ranks_piece_room(const struct ranks *m)
{
    size_t most = m->room > m->n ? m->room : m->n;
    return most < RANKS_PIECE ? most + 1 : RANKS_PIECE;
}

/* Pieces in flight of a sort, at least. */
static size_t least_depth(size_t k)
{
    return k <= FEW_RANKS ? 8 : k <= MANY_RANKS ? 4 : 2;
}

size_t ranks_piece_most(size_t k)
{
    size_t floats = LANES_FLOATS / (2 * least_depth(k) * k) / WIRE_BLOCK * WIRE_BLOCK;
    floats = floats < RANKS_PIECE ? floats : RANKS_PIECE;
    return floats > RANKS_PIECE_LEAST ? floats : RANKS_PIECE_LEAST;
}

unsigned ranks_depth(const struct ranks *m, size_t k, size_t with, size_t n)
{
    size_t depth = LANES_FLOATS / (2 * ranks_piece_most(k) * with);
    size_t pieces = n / m->round.piece + 2;
    depth = depth < RANKS_DEPTH ? depth : RANKS_DEPTH;
    if (!m->place.wakes || depth < least_depth(k))
        depth = least_depth(k);
    return (unsigned)(depth < pieces ? depth : pieces);
}

/* The floats where they lie together, else gathered. */
const float *ranks_reach(const struct vector *v, size_t at, size_t n, float *gathered)
{
    const float *p;

    if (vector_reach(v, at, &p) >= n && p)
        return p;
    vector_gather(v, (struct chunk){at, n}, gathered, false);
    return gathered;
}

size_t ranks_slice_at(size_t n, int k, int member)
{
    size_t units = (n + RANKS_UNIT - 1) / RANKS_UNIT;
    size_t at = units * (size_t)member / (size_t)k * RANKS_UNIT;
    return at < n ? at : n;
}

static size_t nth_slice_at(const struct ranks_round *r, int nth)
{
    return r->wire == WIRE_F32 ? ranks_slice_at(r->n, r->owners, nth)
                               : wire_slice(r->n, r->owners, nth);
}

/* Owners are the members from the round's number on, around; where all are owners, member
 * j owns slice j. A hub owns all there is. */
int ranks_round_owner(const struct ranks_round *r, int nth)
{
    if (r->hub >= 0)
        return r->hub;
    int first = r->owners < r->k ? (int)(r->number % (uint32_t)r->k) : 0;
    int around = first + r->owners - r->k;
    return nth < around ? nth : first + nth - (around > 0 ? around : 0);
}

struct chunk ranks_round_slice(const struct ranks_round *r, int member)
{
    int first = (int)(r->number % (uint32_t)r->k);
    int nth = r->owners < r->k ? (member + r->k - first) % r->k : member;

    if (r->hub >= 0)
        nth = member == r->hub ? 0 : r->owners;
    if (nth >= r->owners)
        return (struct chunk){0, 0};
    size_t at = nth_slice_at(r, nth);
    return (struct chunk){at, nth_slice_at(r, nth + 1) - at};
}

size_t ranks_round_pieces(const struct ranks_round *r, int member)
{
    return (ranks_round_slice(r, member).n + r->piece - 1) / r->piece;
}

struct chunk ranks_round_piece(const struct ranks_round *r, int member, size_t piece)
{
    struct chunk slice = ranks_round_slice(r, member);
    size_t at = piece * r->piece, left = slice.n - at;
    return (struct chunk){slice.from + at, left < r->piece ? left : r->piece};
}

/* Some became NaN after they were tested. */
static bool reduce_finite(struct ranks *m, float *out, int n_in, size_t n)
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
    return good && kernels_best()->mean(out, m->inputs, m->shares, good, n, false);
}

bool ranks_mean_inputs(struct ranks *m, float *out, int n_in, size_t n)
{
    return kernels_best()->mean(out, m->inputs, m->shares, n_in, n, false) ||
           reduce_finite(m, out, n_in, n);
}

