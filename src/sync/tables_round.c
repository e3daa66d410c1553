/* SPDX-License-Identifier: MIT */
/* Rounds of rows, driven by the holder of the leader's round machine.
 *
 *   fill      a row's update is d = w - base; it is put into the part as it is, row by row:
 *               sweep   a quarter of the part goes to touched rows in the order of the tables, from
 *                       where the last sweep stopped: so none waits for more than (rows
 *                       that wait) / (rows of a quarter) rounds, however cold it is
 *               count   how much the others of each heat would take, by a census to which each
 *                       round adds a part of the map
 *               pick    the hottest that fit
 *   exchange  every machine's part goes to all
 *   take      part by part, in the same order everywhere:
 *                 base <- base + s d, the own d as well;   w <- w + s d, the own w <- w - (1 - s) d
 *
 * s is 1 for a row that is touched now and then, so that updates add up, and goes to 1 /
 * machines for one that is touched all the time: there each machine alone has gone most
 * of the way that the rows' gradients lead, and the sum of all would be as many times too
 * far (plan->hot).
 *
 * Invariants. 1 Base is the same bits on all machines between rounds: the first rows and
 * the sum of all parts, added in one order. A value that is lost or rounded in w stays in
 * w - base, and goes into the row's next d: errors do not add up. 2 A row is in a part
 * once, also one that is touched again while the part is filled (t->given), and base
 * moves only when parts are taken, so a d never counts twice. 3 A row is taken off the
 * map before it is read (tables.c says why no touch is lost). 4 Nothing is allocated
 * after start.
 *
 * Workers write rows meanwhile (Hogwild):
 *   - between the read of w and the move of base a worker's update changes w alone: it is
 *     in the next w - base. Base moves by what was sent, never to w.
 *   - w <- w + d is a read and a store for each float, as a worker's step is. If a worker
 *     stores between the two, its update of that float is lost, as it would be to another
 *     worker. If the addition falls between the worker's read and store, the float's d is
 *     lost from w but not from base: the row's next d here is lower by it, and so it is
 *     taken back everywhere. Either way all machines stay together, and lose what workers
 *     of one machine lose to each other.
 *
 * Where the plan encodes (fabric->wire), d goes as Q(d), and base moves by that: the
 * error of encoding is in w - base, as all that is not sent, and so in the row's next d.
 * When nobody of this machine touches rows any more, those in which w is not base are put
 * on the map, and go as f32.
 *
 * The end: tables_stop by every trainer of the machine; then its part is `last` if a
 * whole sweep fits. When all parts of a round are, every touched row is in base, and w
 * becomes base: the same bits everywhere. A machine that is done goes on with empty parts
 * until all are.
 *
 * Where machines come and go, one that comes late, or was cut off, gets a base from
 * another one, and w becomes it. Changes of this machine that were not exchanged are lost
 * with that, as those of a replica that takes a state are; its parts that no machine's
 * rows have are counted (stats.lost).
 *
 * A leader that goes before its part is complete leaves rows that it has taken off the
 * map. Its heir marks all rows in which w is not base. */
#include "sync/tables.h"

#include <string.h>

enum {
    PIECE_ROWS = 256,           /* of one advance: rows read or added to, */
    PIECE_MAP = 1 << 17,        /* and bytes of the map looked at: 20 us or so */
    ASKED_ROWS = 16,            /* before the first of them is added to */
    LINE_FLOATS = 16,
    BAD_NAMED = 8,
    HEAT_SHIFT = 56             /* a row's number, and above it its heat */
};

/* What is left of one advance. */
struct piece {
    size_t map, rows;
};

static struct piece whole_piece(void)
{
    return (struct piece){PIECE_MAP, PIECE_ROWS};
}

/* ------------------------------------------------------------------ walks */

static void walk_on(const struct tables *t, struct walk *walk, size_t n,
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

/* How far the walk can go at once: within a table and the piece. */
static size_t reach(const struct tables *t, const struct walk *walk,
                    const struct piece *piece)
{
    size_t n = t->list[walk->table].rows - walk->row;
    n = n < walk->left ? n : walk->left;
    return n < piece->map ? n : piece->map;
}

static const unsigned char *heat_at(const struct tables *t, const struct walk *walk)
{
    const void *heat = t->list[walk->table].heat + walk->row;
    return heat;
}

/* To the next row of that heat or more. False: the walk or the piece has ended. */
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

/* A row's values, or its state. */
struct row {
    float *w, *base;
    size_t n;
};

static struct row values_of(const struct table *x, size_t row)
{
    size_t at = row * x->width;
    return (struct row){x->w + at, x->base + at, x->width};
}

static struct row state_of(const struct table *x, size_t row)
{
    size_t at = row * x->state_width;
    return x->state_width == 0
               ? (struct row){NULL, NULL, 0}
               : (struct row){x->state + at, x->state_base + at, x->state_width};
}

/* Rows lie far apart: memory is asked for all of them, then each has its turn. own: base
 * alone. */
static void ask_for(struct row r, bool own)
{
    for (size_t k = 0; k < r.n; k += LINE_FLOATS) {
        __builtin_prefetch(r.base + k, 1);
        if (!own)
            __builtin_prefetch(r.w + k, 1);
    }
}

/* ------------------------------------------------------------------ filling the part */

static void change_given(struct tables *t, uint64_t number)
{
    t->given[number / 8] ^= (unsigned char)(1 << number % 8);
}

static size_t update_bytes(size_t width, enum wire wire)
{
    return (wire_bytes(wire, width) + sizeof(float) - 1) / sizeof(float) * sizeof(float);
}

/* Of narrow rows encoding may make no less. */
static enum wire row_wire(const struct table *x, enum wire wire)
{
    return update_bytes(x->width, wire) < x->width * sizeof(float) ? wire : WIRE_F32;
}

static size_t row_bytes(const struct table *x, enum wire wire)
{
    return sizeof(uint64_t) + update_bytes(x->width, row_wire(x, wire)) +
           x->state_width * sizeof(float);
}

static void name_bad(struct tables *t, const struct table *x, size_t row)
{
    struct row r = values_of(x, row), state = state_of(x, row);
    atomic_fetch_add_explicit(&t->stats.bad, 1, memory_order_relaxed);
    if (t->heal) {
        t->kernels->copy(r.w, r.base, r.n);
        t->kernels->copy(state.w, state.base, state.n);
    }
    if (t->n_named++ < BAD_NAMED)
        log_say(&t->fabric->log, DESCANT_WARNING,
                "row %zu of table %s has NaN or Inf: %s", row, x->name,
                t->heal ? "it is as it was when it was last exchanged"
                        : "other machines do not get it");
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
static bool differ(struct tables *t, const struct table *x, size_t row, enum wire wire,
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

/* The row at which the walk is; false: the part, up to `room`, has none for it. */
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
    bool good = differ(t, x, walk->row, t->wire, d, &any);
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

/* The next rows of that heat or more that are in no part; where each is is kept. */
static int find_rows(struct tables *t, struct walk *walk, unsigned char least,
                     struct piece *piece, struct walk *found)
{
    int n = 0;
    while (n < ASKED_ROWS && walk_find(t, walk, least, piece)) {
        const struct table *x = &t->list[walk->table];
        uint64_t number = x->first + walk->row;
        if (!(t->given[number / 8] >> number % 8 & 1)) {    /* else the next part has it
                                                               again */
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

/* The part is filled; one that nobody needs is not given. */
static enum round_progress give(struct tables *t)
{
    struct rows_head head = {t->n_given, t->last, (uint16_t)t->wire};
    t->empty = head.n_rows == 0 && !t->called && !t->last;
    atomic_store_explicit(&t->stats.waiting, t->n_waiting, memory_order_relaxed);
    atomic_store_explicit(&t->stats.since_ns, t->n_waiting > 0 ? t->before_ns : 0,
                          memory_order_relaxed);
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

static enum round_progress sweep(struct tables *t)
{
    bool more = put_rows(t, &t->sweep, 1, t->last ? t->part_room : t->sweep_room);
    if (t->sweep.turns > 0) {
        t->before_ns = t->swept_ns;
        t->swept_ns = t->now_ns;
        t->sweep.turns = 0;
    }
    if (more)
        return ROUND_WORKED;
    if (!t->full)               /* it has been everywhere */
        return give(t);
    t->last = t->full = false;
    struct census *c = &t->census;
    c->walk.left = c->rows;
    c->waiting[c->at] = 0;
    memset(c->bytes[c->at], 0, sizeof c->bytes[c->at]);
    t->state = TABLES_COUNTING;
    return ROUND_WORKED;
}

/* The lowest heat of which all rows fit, and of those above. */
static void choose(struct tables *t)
{
    const struct census *c = &t->census;
    unsigned least = UINT8_MAX + 1;
    for (uint64_t left = t->part_room - t->part_n, sum = 0; least > 1; least--) {
        for (size_t k = 0; k < c->n; k++)
            sum += c->bytes[k][least - 1];
        if (sum > left)
            break;
    }
    t->filled = least > UINT8_MAX;
    t->least = (unsigned char)(t->filled ? UINT8_MAX : least);
    t->pick.left = t->n_rows;
    t->state = TABLES_PICKING;
}

static enum round_progress tally(struct tables *t)
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

static enum round_progress pick(struct tables *t)
{
    if (put_rows(t, &t->pick, t->least, t->part_room))
        return ROUND_WORKED;
    if (!t->full && !t->filled && t->least > 1) {       /* room is left for some of the
                                                           next */
        t->filled = true;
        t->least--;
        t->pick.left = t->n_rows;
        return ROUND_WORKED;
    }
    return give(t);
}

/* ------------------------------------------------------------------ taking parts */

static bool damaged(struct tables *t)
{
    t->fabric->status = log_fail(&t->fabric->log, DESCANT_MISMATCH,
                                 "trainer %d gives rows of tables that are not here",
                                 t->from.rank);
    return false;
}

/* Where it lies, or decoded. */
static const float *update(struct tables *t, const struct table *x, const void *bytes)
{
    enum wire wire = row_wire(x, t->from_wire);
    if (wire == WIRE_F32)
        return bytes;
    memset(t->row, 0, x->width * sizeof *t->row);
    wire_take(wire, t->row, t->row, bytes, x->width);
    return t->row;
}

/* How much of its update a row of that heat moves by. A row with one touch has hardly
 * been touched elsewhere. Of whole numbers and one division, so that it is the same bits
 * on all machines. */
static float weight(const struct tables *t, int heat)
{
    int64_t half = 2 * t->hot, more = heat > 1 ? heat - 1 : 0;
    return t->hot == 0 ? 1 : (float)(half + more) / (float)(half + t->from.parts * more);
}

static void move(const struct tables *t, struct row r, const float *d, float s)
{
    t->kernels->add(r.base, d, s, r.n);
    if (!t->from.own || s < 1)
        t->kernels->add(r.w, d, t->from.own ? s - 1 : s, r.n);
}

/* Where a row of a part goes. */
struct target {
    const struct table *x;
    size_t row;
    uint64_t number;
    float s;
    size_t at;                  /* its update, in the part */
};

static bool find_target(struct tables *t, struct target *target)
{
    uint64_t number;
    if (t->from.n - t->at < sizeof number)
        return damaged(t);
    memcpy(&number, (const char *)t->from.bytes + t->at, sizeof number);
    target->s = weight(t, (int)(number >> HEAT_SHIFT));
    target->number = number &= (UINT64_C(1) << HEAT_SHIFT) - 1;
    const struct table *x = t->list, *end = t->list + t->n;
    while (x < end && number - x->first >= x->rows)     /* below first it wraps, and is
                                                           more */
        x++;
    if (x == end || t->from.n - t->at < row_bytes(x, t->from_wire))
        return damaged(t);
    target->x = x;
    target->row = (size_t)number - x->first;
    target->at = t->at + sizeof number;
    t->at += row_bytes(x, t->from_wire);
    return true;
}

static void take_row(struct tables *t, const struct target *target)
{
    const struct table *x = target->x;
    const char *d = (const char *)t->from.bytes + target->at;
    move(t, values_of(x, target->row), update(t, x, d), target->s);
    d += update_bytes(x->width, row_wire(x, t->from_wire));
    move(t, state_of(x, target->row), (const void *)d, target->s);
    if (t->from.own)
        change_given(t, target->number);
}

static enum round_progress take(struct tables *t)
{
    struct target targets[ASKED_ROWS];
    for (int k = 0; k < PIECE_ROWS && t->at < t->from.n;) {
        int n = 0;
        for (; n < ASKED_ROWS && t->at < t->from.n; n++, k++) {
            if (!find_target(t, &targets[n]))
                return ROUND_FAILED;
            ask_for(values_of(targets[n].x, targets[n].row), t->from.own);
            ask_for(state_of(targets[n].x, targets[n].row), t->from.own);
        }
        for (int i = 0; i < n; i++)
            take_row(t, &targets[i]);
    }
    if (t->at >= t->from.n)
        t->state = TABLES_EXCHANGING;
    return ROUND_WORKED;
}

static enum round_progress part_came(struct tables *t)
{
    struct rows_head head;
    if (t->from.state) {        /* the changes that this machine has made since it agreed
                                   with the others are lost, and its open part, too */
        atomic_fetch_add_explicit(&t->stats.lost, t->from.lost, memory_order_relaxed);
        memset(t->given, 0, t->n_rows / 8 + 1);
        t->walk = (struct walk){.left = t->n_rows};
        t->state = TABLES_REPLACING;
        return ROUND_WORKED;
    }
    if (t->from.n >= sizeof head)
        memcpy(&head, t->from.bytes, sizeof head);
    if (t->from.n < sizeof head || head.wire > WIRE_Q8) {
        damaged(t);
        return ROUND_FAILED;
    }
    t->from_wire = (enum wire)head.wire;
    t->all_last = t->all_last && head.last;
    t->at = sizeof head;
    t->state = TABLES_TAKING;
    return ROUND_WORKED;
}

static enum round_progress round_over(struct tables *t)
{
    atomic_fetch_add_explicit(&t->stats.rounds, 1, memory_order_relaxed);
    t->state = t->all_last ? TABLES_ENDING : TABLES_IDLE;
    t->walk = (struct walk){.left = t->n_rows};
    if (t->all_last && !t->fabric->fixed)   /* base stays as it is, and newcomers do not
                                               wait */
        t->fabric->type->rows->leave(t->fabric);
    return ROUND_DONE;
}

static enum round_progress exchange(struct tables *t)
{
    switch (t->fabric->type->rows->poll(t->fabric, &t->from)) {
    case FABRIC_WAITING:
    case FABRIC_CALLED:
        return ROUND_WAITING;
    case FABRIC_WORKED:
        return ROUND_WORKED;
    case FABRIC_PART:
        return part_came(t);
    case FABRIC_DONE:
        return round_over(t);
    case FABRIC_FAILED:
        break;
    }
    return ROUND_FAILED;
}

/* ------------------------------------------------------------------ begin and end of a
 * leader */

/* Marks the rows in which w is not base; then goes on to a state. */
static enum round_progress mark(struct tables *t, enum tables_state next)
{
    struct piece piece = whole_piece();
    for (; t->walk.left > 0 && piece.rows > 0; piece.rows--) {
        struct table *x = &t->list[t->walk.table];
        size_t row = t->walk.row;
        _Atomic uint8_t *heat = &x->heat[row];
        float *d = (float *)(void *)(t->part + sizeof(struct rows_head));
        bool any, good = differ(t, x, row, WIRE_F32, d, &any);
        uint8_t none = 0;
        if (!good || any)
            atomic_compare_exchange_strong_explicit(heat, &none, 1, memory_order_relaxed,
                                                    memory_order_relaxed);
        walk_on(t, &t->walk, 1, &piece);
    }
    if (t->walk.left == 0)
        t->state = next;
    return ROUND_WORKED;
}

/* w becomes base. */
static bool become_base(struct tables *t)
{
    const struct table *x = &t->list[t->walk.table];
    struct piece piece = {.map = 1 +
                                 PIECE_MAP / sizeof(float) / (x->width + x->state_width)};
    size_t n = reach(t, &t->walk, &piece);
    struct row r = values_of(x, t->walk.row), state = state_of(x, t->walk.row);
    for (size_t row = t->walk.row; t->state == TABLES_REPLACING && row < t->walk.row + n;
         row++)
        atomic_exchange_explicit(&x->heat[row], 0, memory_order_acq_rel);
    t->kernels->copy(r.w, r.base, n * r.n);
    t->kernels->copy(state.w, state.base, n * state.n);
    walk_on(t, &t->walk, n, &piece);
    return t->walk.left == 0;
}

static enum round_progress end(struct tables *t)
{
    if (!become_base(t))
        return ROUND_WORKED;
    atomic_store_explicit(&t->board->ended, 1, memory_order_release);
    t->state = TABLES_ENDED;
    return ROUND_WORKED;
}

/* ------------------------------------------------------------------ the machine */

bool tables_stopping(const struct tables *t)
{
    return t->board != NULL &&
           atomic_load_explicit(&t->board->at_work, memory_order_acquire) == 0;
}

bool tables_can_begin(const struct tables *t)
{
    return t->board != NULL && t->leads && t->state == TABLES_IDLE;
}

void tables_begin(struct tables *t, uint64_t now_ns)
{
    if (t->swept_ns == 0)
        t->swept_ns = t->before_ns = now_ns;
    t->now_ns = now_ns;
    t->last = tables_stopping(t);       /* acquire: the sweep sees all touches */
    t->wire = t->last ? WIRE_F32 : t->fabric->wire;
    t->full = false;
    t->n_waiting = t->n_given = 0;
    t->part_n = sizeof(struct rows_head);
    t->sweep.left = t->n_rows;
    t->state = TABLES_SWEEPING;
    if (t->last && t->fabric->wire != WIRE_F32 && !t->settled) {
        t->settled = true;
        t->walk = (struct walk){.left = t->n_rows};
        t->state = TABLES_SETTLING;
    }
}

static enum round_progress rest(struct tables *t)
{
    if (!atomic_load_explicit(&t->fabric->host_leader, memory_order_relaxed))
        return ROUND_RESTING;
    if (!t->leads) {
        t->leads = true;
        t->walk = (struct walk){.left = t->n_rows};
        t->state = TABLES_INHERITING;
        return ROUND_WORKED;
    }
    switch (t->fabric->type->rows->poll(t->fabric, &t->from)) {
    case FABRIC_PART:
        return part_came(t);
    case FABRIC_CALLED:
        t->called = true;
        return ROUND_CALLED;
    case FABRIC_WORKED:
        return ROUND_WORKED;
    case FABRIC_FAILED:
        return ROUND_FAILED;
    default:
        t->called = false;
        return ROUND_RESTING;
    }
}

enum round_progress tables_advance(struct tables *t)
{
    if (t->board == NULL)
        return ROUND_RESTING;
    switch (t->state) {
    case TABLES_IDLE:
        return rest(t);
    case TABLES_INHERITING:
        return mark(t, TABLES_IDLE);
    case TABLES_SETTLING:
        return mark(t, TABLES_SWEEPING);
    case TABLES_SWEEPING:
        return sweep(t);
    case TABLES_COUNTING:
        return tally(t);
    case TABLES_PICKING:
        return pick(t);
    case TABLES_EXCHANGING:
        return exchange(t);
    case TABLES_TAKING:
        return take(t);
    case TABLES_REPLACING:      /* marks are taken before rows are written, so what is
                                   touched meanwhile stays marked */
        if (!become_base(t))
            return ROUND_WORKED;
        t->called = false;
        t->state = TABLES_IDLE;
        return ROUND_DONE;
    case TABLES_ENDING:
        return end(t);
    case TABLES_ENDED:
        return ROUND_RESTING;
    }
    return ROUND_FAILED;
}
