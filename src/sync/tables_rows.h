/* SPDX-License-Identifier: MIT */
/* The rows of all tables as rounds see them: walks over them, a row's values and state,
 * and the bytes of a row in a part. For tables_part.c, tables_take.c and
 * tables_round.c. */
#ifndef TABLES_ROWS_H
#define TABLES_ROWS_H

#include "sync/tables.h"

enum {
    PIECE_ROWS = 256,           /* of one advance: rows read or added to, */
    PIECE_MAP = 1 << 17,        /* and bytes of the map looked at: 20 us or so */
    ASKED_ROWS = 16,            /* rows asked for before the first of them is added to */
    LINE_FLOATS = 16,
    HEAT_SHIFT = 56             /* the heat stands above a row's number */
};

/* The rest of one advance. */
struct piece {
    size_t map, rows;
};

static inline struct piece whole_piece(void)
{
    return (struct piece){PIECE_MAP, PIECE_ROWS};
}

static inline void walk_on(const struct tables *t, struct walk *walk, size_t n,
                           struct piece *piece)
{
    walk->row += n;
    walk->left -= n;
    piece->map -= n;
    if (walk->row == t->list[walk->table].rows) {
        walk->row = 0;
        walk->table = walk->table + 1 == t->n ? 0 : walk->table + 1;
        walk->turns += walk->table == 0;
    }
}

/* The rows that the walk can pass at once, within a table and the piece. */
static inline size_t reach(const struct tables *t, const struct walk *walk,
                           const struct piece *piece)
{
    size_t n = t->list[walk->table].rows - walk->row;
    n = n < walk->left ? n : walk->left;
    return n < piece->map ? n : piece->map;
}

static inline const unsigned char *heat_at(const struct tables *t,
                                           const struct walk *walk)
{
    const void *heat = t->list[walk->table].heat + walk->row;
    return heat;
}

/* A row's values, or its state. */
struct row {
    float *w, *base;
    size_t n;
};

static inline struct row values_of(const struct table *x, size_t row)
{
    size_t at = row * x->width;
    return (struct row){x->w + at, x->base + at, x->width};
}

static inline struct row state_of(const struct table *x, size_t row)
{
    size_t at = row * x->state_width;
    return x->state_width == 0
               ? (struct row){NULL, NULL, 0}
               : (struct row){x->state + at, x->state_base + at, x->state_width};
}

/* Prefetches a row. Rows lie far apart, so memory is asked for several before the first
 * is used. own: base alone. */
static inline void ask_for(struct row r, bool own)
{
    for (size_t k = 0; k < r.n; k += LINE_FLOATS) {
        __builtin_prefetch(r.base + k, 1);
        if (!own)
            __builtin_prefetch(r.w + k, 1);
    }
}

static inline bool is_given(const struct tables *t, uint64_t number)
{
    return t->given[number / 8] >> number % 8 & 1;
}

static inline void change_given(struct tables *t, uint64_t number)
{
    t->given[number / 8] ^= (unsigned char)(1 << number % 8);
}

static inline size_t update_bytes(size_t width, enum wire wire)
{
    return (wire_bytes(wire, width) + sizeof(float) - 1) / sizeof(float) * sizeof(float);
}

/* Encoding may not make narrow rows shorter. */
static inline enum wire row_wire(const struct table *x, enum wire wire)
{
    return update_bytes(x->width, wire) < x->width * sizeof(float) ? wire : WIRE_F32;
}

static inline size_t row_bytes(const struct table *x, enum wire wire)
{
    return sizeof(uint64_t) + update_bytes(x->width, row_wire(x, wire)) +
           x->state_width * sizeof(float);
}

/* --- tables_part.c: the part is filled --- */

/* Each does a piece of the work, and goes on to the next state when it is done. */
enum round_progress tables_sweep(struct tables *t);
enum round_progress tables_tally(struct tables *t);
enum round_progress tables_pick(struct tables *t);
/* The update of a row, and of its state, which is never encoded. False: it has NaN or
 * Inf; *any: it is not all zero. */
bool tables_differ(struct tables *t, const struct table *x, size_t row, enum wire wire,
                   float *out, bool *any);

/* --- tables_take.c: parts are taken --- */

/* Logs that a part has rows that are not here; false. */
bool tables_damaged(struct tables *t);
enum round_progress tables_take(struct tables *t);

#endif
