/* SPDX-License-Identifier: MIT */
/* Rounds of rows, driven by the holder of the leader's round machine:
 *
 *   fill      tables_part.c puts updates of touched rows into this machine's part
 *   exchange  the part of each machine goes to all
 *   take      tables_take.c adds all parts to base and to w, in the same order everywhere
 *
 * 1. Base is the same bits on all machines between rounds. A value that is lost or
 *    rounded in w stays in w - base, and goes into the row's next d: errors do not add
 *    up.
 * 2. Base moves only when parts are taken, and a row is in a part once, so a d never
 *    counts twice.
 * 3. Nothing is allocated after start.
 *
 * The end. Every trainer of the machine calls tables_stop; then the machine's part is
 * `last` if a whole sweep fits. When all parts of a round are, every touched row is in
 * base, and w becomes base: the same bits everywhere. A machine that is done goes on with
 * empty parts until all are. Where the plan encodes, rows in which w is not base are put
 * on the map before that, and go as f32.
 *
 * Where machines come and go, a machine that comes late, or was cut off, gets a base from
 * another one, and its w becomes that base. Changes of this machine that were not
 * exchanged are lost then, as those of a replica that takes a state are; stats.lost
 * counts its parts that no machine's rows have.
 *
 * A leader that goes before its part is complete leaves rows that it has taken off the
 * map. Its heir marks all rows in which w is not base. */
#include "sync/tables_rows.h"

#include <string.h>

/* Begins to replace w by base. This machine loses the changes that it has made since it
 * agreed with the others, and its open part. */
static enum round_progress begin_replacing(struct tables *t)
{
    atomic_fetch_add_explicit(&t->stats.lost, t->from.lost, memory_order_relaxed);
    memset(t->given, 0, t->n_rows / 8 + 1);
    t->walk = (struct walk){.left = t->n_rows};
    t->state = TABLES_REPLACING;
    return ROUND_WORKED;
}

static enum round_progress part_came(struct tables *t)
{
    struct rows_head head;
    if (t->from.state)
        return begin_replacing(t);
    if (t->from.n >= sizeof head)
        memcpy(&head, t->from.bytes, sizeof head);
    if (t->from.n < sizeof head || head.wire > WIRE_Q8) {
        tables_damaged(t);
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
    if (t->all_last && !t->fabric->fixed)   /* base stays, and newcomers do not wait */
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
        bool any, good = tables_differ(t, x, row, WIRE_F32, d, &any);
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

/* Marks are taken before rows are written, so rows that are touched meanwhile stay
 * marked. */
static enum round_progress replace(struct tables *t)
{
    if (!become_base(t))
        return ROUND_WORKED;
    t->called = false;
    t->state = TABLES_IDLE;
    return ROUND_DONE;
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
        return tables_sweep(t);
    case TABLES_COUNTING:
        return tables_tally(t);
    case TABLES_PICKING:
        return tables_pick(t);
    case TABLES_EXCHANGING:
        return exchange(t);
    case TABLES_TAKING:
        return tables_take(t);
    case TABLES_REPLACING:
        return replace(t);
    case TABLES_ENDING:
        return end(t);
    case TABLES_ENDED:
        return ROUND_RESTING;
    }
    return ROUND_FAILED;
}
