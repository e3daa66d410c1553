/* SPDX-License-Identifier: MIT */
/* A part of a round of rows is filled. A row's update is d = w - base, and rows are put
 * into the part one by one:
 *
 *   sweep   a quarter of the part goes to touched rows in the order of the tables, from
 *           where the last sweep stopped: so no row waits for more than (rows that wait)
 *           / (rows of a quarter) rounds, however cold it is
 *   tally   a census of the bytes that the rows of each heat would take; each round adds
 *           a window of the map to it
 *   pick    the hottest rows that fit
 *
 * 1. A row is in a part once, also if it is touched again while the part is filled
 *    (t->given).
 * 2. A row is taken off the map before it is read (tables.c says why no touch is lost).
 *
 * Workers write rows meanwhile (Hogwild). An update between the read of w and the move of
 * base changes w alone, and is in the next w - base.
 *
 * Where the plan encodes (fabric->wire), d goes as Q(d), and base moves by Q(d): the
 * error of encoding stays in w - base, and so goes into the row's next d. */
#include "sync/tables_rows.h"

#include <string.h>

enum { BAD_NAMED = 8 };

/* Walks to the next row of that heat or more. False: the walk or the piece has ended. */
static bool walk_find(const struct tables *t, struct walk *walk, unsigned char least,
                      struct piece *piece)
{
    while (walk->left > 0 && piece->map > 0 && piece->rows > 0) {
        size_t most = reach(t, walk, piece);
        size_t n = t->kernels->hot(heat_at(t, walk), most, least);
        if (n < most) {
            walk->row += n;
            walk->left -= n;
            piece->map -= n;
            return true;
        }
        walk_on(t, walk, n, piece);
    }
    return false;
}

static void heal(const struct tables *t, struct row r)
{
    t->kernels->copy(r.w, r.base, r.n);
}

static void name_bad(struct tables *t, const struct table *x, size_t row)
{
    atomic_fetch_add_explicit(&t->stats.bad, 1, memory_order_relaxed);
    if (t->heal) {
        heal(t, values_of(x, row));
        heal(t, state_of(x, row));
    }
    if (t->n_named++ < BAD_NAMED)
        log_say(&t->fabric->log, DESCANT_WARNING,
                "row %zu of table %s has NaN or Inf: %s", row, x->name,
                t->heal ? "the row has its last exchanged values again"
                        : "other machines do not get the row");
}

/* out = Q(w - base); false if w has NaN or Inf; *any: it is not all zero. */
static bool encode(struct tables *t, struct row r, float *out, bool *any)
{
    size_t bytes = update_bytes(r.n, t->wire);
    const struct wire_part part = {t->wire, r.n, r.w, r.base, t->row, 1};
    memset(t->row, 0, r.n * sizeof *t->row);
    memset(out, 0, bytes);
    bool finite = wire_send(&part, out);
    const unsigned char *sent = (const unsigned char *)out;
    *any = sent[0] != 0 || memcmp(sent, sent + 1, bytes - 1) != 0;
    return finite;
}

/* The update of a row, and of its state, which is never encoded. */
bool tables_differ(struct tables *t, const struct table *x, size_t row, enum wire wire,
                   float *out, bool *any)
{
    struct row r = values_of(x, row), state = state_of(x, row);
    bool plain = row_wire(x, wire) == WIRE_F32, state_any = false;
    bool good =
        plain ? t->kernels->less(out, r.w, r.base, r.n, any) : encode(t, r, out, any);
    out += update_bytes(r.n, row_wire(x, wire)) / sizeof *out;
    if (state.n > 0)
        good = t->kernels->less(out, state.w, state.base, state.n, &state_any) && good;
    *any = *any || state_any;
    return good;
}

/* Puts the walk's row into the part; false: the part, up to `room`, has no room for
 * it. */
static bool put_row(struct tables *t, const struct walk *walk, size_t room)
{
    struct table *x = &t->list[walk->table];
    uint64_t number = x->first + walk->row;
    bool any;
    if (t->part_n + row_bytes(x, t->wire) > room)
        return false;
    float *d = (float *)(void *)(t->part + t->part_n + sizeof number);
    uint64_t heat =
        atomic_exchange_explicit(&x->heat[walk->row], 0, memory_order_acq_rel);
    bool good = tables_differ(t, x, walk->row, t->wire, d, &any);
    if (!good)
        name_bad(t, x, walk->row);
    if (!good || !any)
        return true;
    t->part_n += row_bytes(x, t->wire);
    t->n_given++;
    change_given(t, number);
    number |= heat << HEAT_SHIFT;
    memcpy((char *)d - sizeof number, &number, sizeof number);
    return true;
}

/* Finds the next rows of that heat or more that are in no part, and keeps their
 * places. */
static int find_rows(struct tables *t, struct walk *walk, unsigned char least,
                     struct piece *piece, struct walk *found)
{
    int n = 0;
    while (n < ASKED_ROWS && walk_find(t, walk, least, piece)) {
        const struct table *x = &t->list[walk->table];
        /* a given row is in the next part */
        if (!is_given(t, x->first + walk->row)) {
            ask_for(values_of(x, walk->row), false);
            ask_for(state_of(x, walk->row), false);
            found[n++] = *walk;
            piece->rows--;
        }
        walk_on(t, walk, 1, piece);
    }
    return n;
}

/* Puts rows of that heat or more until the walk has ended (false) or no row fits (full).
 */
static bool put_rows(struct tables *t, struct walk *walk, unsigned char least,
                     size_t room)
{
    struct piece piece = whole_piece();
    struct walk found[ASKED_ROWS];
    int n;
    while ((n = find_rows(t, walk, least, &piece, found)) > 0)
        for (int k = 0; k < n; k++) {
            if (!put_row(t, &found[k], room)) {
                *walk = found[k];
                t->full = true;
                return false;
            }
            t->n_waiting -= t->n_waiting > 0;
        }
    return walk->left > 0;
}

static void tell_waiting(struct tables *t)
{
    atomic_store_explicit(&t->stats.waiting, t->n_waiting, memory_order_relaxed);
    atomic_store_explicit(&t->stats.since_ns, t->n_waiting > 0 ? t->before_ns : 0,
                          memory_order_relaxed);
}

/* The part is filled. An empty part that no machine needs is not given. */
static enum round_progress give(struct tables *t)
{
    struct rows_head head = {t->n_given, t->last, (uint16_t)t->wire};
    t->empty = head.n_rows == 0 && !t->called && !t->last;
    tell_waiting(t);
    if (t->empty) {
        t->state = TABLES_IDLE;
        return ROUND_DONE;
    }
    memcpy(t->part, &head, sizeof head);
    if (t->fabric->type->rows->begin(t->fabric, t->part, t->part_n) != DESCANT_OK)
        return ROUND_FAILED;
    atomic_fetch_add_explicit(&t->stats.sent, head.n_rows, memory_order_relaxed);
    t->all_last = true;
    t->state = TABLES_EXCHANGING;
    return ROUND_WORKED;
}

enum round_progress tables_sweep(struct tables *t)
{
    bool more = put_rows(t, &t->sweep, 1, t->last ? t->part_room : t->sweep_room);
    if (t->sweep.turns > 0) {
        t->before_ns = t->swept_ns;
        t->swept_ns = t->now_ns;
        t->sweep.turns = 0;
    }
    if (more)
        return ROUND_WORKED;
    if (!t->full)               /* the sweep has passed all rows */
        return give(t);
    t->last = t->full = false;
    struct census *c = &t->census;
    c->walk.left = c->rows;
    c->waiting[c->at] = 0;
    memset(c->bytes[c->at], 0, sizeof c->bytes[c->at]);
    t->state = TABLES_COUNTING;
    return ROUND_WORKED;
}

static uint64_t bytes_of_heat(const struct census *c, unsigned heat)
{
    uint64_t sum = 0;
    for (size_t k = 0; k < c->n; k++)
        sum += c->bytes[k][heat];
    return sum;
}

/* Chooses the lowest heat of which all rows fit, with those of higher heats. */
static void choose(struct tables *t)
{
    size_t left = t->part_room - t->part_n;
    unsigned least = UINT8_MAX + 1;
    uint64_t sum = 0, more;
    while (least > 1 && sum + (more = bytes_of_heat(&t->census, least - 1)) <= left) {
        sum += more;
        least--;
    }
    t->filled = least > UINT8_MAX;
    t->least = (unsigned char)(t->filled ? UINT8_MAX : least);
    t->pick.left = t->n_rows;
    t->state = TABLES_PICKING;
}

enum round_progress tables_tally(struct tables *t)
{
    uint32_t counts[256] = {0};
    struct census *c = &t->census;
    struct piece piece = whole_piece();
    size_t bytes = row_bytes(&t->list[c->walk.table], t->wire),
           n = reach(t, &c->walk, &piece);
    t->kernels->tally(heat_at(t, &c->walk), n, counts);
    for (int h = 1; h < 256; h++) {
        c->bytes[c->at][h] += counts[h] * bytes;
        c->waiting[c->at] += counts[h];
    }
    walk_on(t, &c->walk, n, &piece);
    if (c->walk.left > 0)
        return ROUND_WORKED;
    c->at = c->at + 1 < c->n ? c->at + 1 : 0;
    for (size_t k = 0; k < c->n; k++)
        t->n_waiting += c->waiting[k];
    choose(t);
    return ROUND_WORKED;
}

enum round_progress tables_pick(struct tables *t)
{
    if (put_rows(t, &t->pick, t->least, t->part_room))
        return ROUND_WORKED;
    /* room is left for some rows of the next heat */
    if (!t->full && !t->filled && t->least > 1) {
        t->filled = true;
        t->least--;
        t->pick.left = t->n_rows;
        return ROUND_WORKED;
    }
    return give(t);
}
