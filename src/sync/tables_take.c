/* SPDX-License-Identifier: MIT */
/* The parts of a round of rows are taken, part by part, in the same order everywhere:
 *
 *     base <- base + s d, the own d as well
 *     w <- w + s d, the own w <- w - (1 - s) d
 *
 * s is 1 for a row that is touched now and then, so that updates add up, and goes to 1 /
 * machines for a row that is touched all the time: there each machine alone has gone most
 * of the way that the row's gradients lead, and the sum of all would be as many times too
 * far (plan->hot).
 *
 * Base moves by the d that was sent, never to w. So base is the same bits on all machines
 * between rounds: the first rows and the sum of all parts, added in one order.
 *
 * Workers write rows meanwhile (Hogwild). w <- w + d is a read and a store for each
 * float, as a worker's step is. If a worker stores between the two, its update of that
 * float is lost, as it would be to another worker. If the addition falls between the
 * worker's read and store, the float's d is lost from w but not from base: the row's next
 * d here is lower by it, and so d is taken back everywhere. Either way all machines stay
 * together, and lose as much as workers of one machine lose to each other. */
#include "sync/tables_rows.h"

#include <string.h>

bool tables_damaged(struct tables *t)
{
    t->fabric->status = log_fail(&t->fabric->log, DESCANT_MISMATCH,
                                 "trainer %d gives rows of tables that are not here",
                                 t->from.rank);
    return false;
}

static const struct table *table_of(const struct tables *t, uint64_t number)
{
    const struct table *x = t->list, *end = t->list + t->n;
    /* below `first` the difference wraps, and is more */
    while (x < end && number - x->first >= x->rows)
        x++;
    return x < end ? x : NULL;
}

/* The update in place, or decoded. */
static const float *update(struct tables *t, const struct table *x, const void *bytes)
{
    enum wire wire = row_wire(x, t->from_wire);
    if (wire == WIRE_F32)
        return bytes;
    memset(t->row, 0, x->width * sizeof *t->row);
    wire_take(wire, t->row, t->row, bytes, x->width);
    return t->row;
}

/* The share of its update by which a row of that heat moves. A row with one touch has
 * hardly been touched elsewhere. Whole numbers and one division make it the same bits on
 * all machines. */
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

/* The target of a row of a part. */
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
        return tables_damaged(t);
    memcpy(&number, (const char *)t->from.bytes + t->at, sizeof number);
    target->s = weight(t, (int)(number >> HEAT_SHIFT));
    target->number = number &= (UINT64_C(1) << HEAT_SHIFT) - 1;
    const struct table *x = table_of(t, number);
    if (x == NULL || t->from.n - t->at < row_bytes(x, t->from_wire))
        return tables_damaged(t);
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

enum round_progress tables_take(struct tables *t)
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
