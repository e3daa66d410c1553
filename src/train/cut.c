/* SPDX-License-Identifier: MIT */
#include "train/cut.h"

#include <string.h>

#define PART UINT64_C(0xffffff)         /* of a number that takes two floats */
#define EXACT 16777216.0f

/* It may write no shard of a cut whose rounds it has not been through: so it has held. */
static bool is_to_write(const struct cut_order *order, const struct cut_mark *mine)
{
    return order->write == order->cut && order->write > order->done &&
           mine->written < order->write && mine->failed < order->write &&
           cut_writes(order, mine);
}

enum cut_act cut_act(const struct cut_order *order, const struct cut_mark *mine,
                     const struct cut_self *self)
{
    bool ordered = order->cut > order->done;
    bool led = self->led && !(ordered && self->gone >= order->cut);
    bool open = ordered && led;

    if (order->tidy > self->tidied)
        return CUT_TIDIES;
    if (ordered && !led && mine->gone < order->cut)
        return CUT_DROPS;
    if (self->holds && (order->done >= self->holds || !led))
        return CUT_RELEASES;
    if (open && self->holds < order->cut)
        return CUT_HOLDS;
    if (open && order->settle == order->cut && order->round > mine->settled)
        return CUT_SETTLES;
    if (open && is_to_write(order, mine))
        return CUT_WRITES;
    return order->over || (self->ends && !self->led) ? CUT_ENDS : CUT_RESTS;
}

bool cut_writes(const struct cut_order *order, const struct cut_mark *mark)
{
    return mark->parts > 0 && mark->held == order->cut && mark->settled >= order->round;
}

static enum cut_state judge_written(const struct cut_order *order,
                                    const struct cut_ranks *r, int *who)
{
    int failed = -1;

    for (*who = 0; *who < r->n; ++*who) {
        const struct cut_mark *m = &r->marks[*who];
        if (!cut_writes(order, m))
            continue;
        bool lost = r->lost[*who];
        if (!lost && m->written < order->cut && m->failed < order->cut)
            return CUT_WRITING;
        failed = failed < 0 && (lost || m->failed == order->cut) ? *who : failed;
    }
    if (failed >= 0)
        *who = failed;
    return failed < 0 ? CUT_WRITTEN : CUT_FAILED;
}

enum cut_state cut_judge(const struct cut_order *order, const struct cut_ranks *r,
                         int *who)
{
    bool settles = order->settle == order->cut;
    int unsettled = -1;
    uint64_t parts = 0;

    for (*who = 0; *who < r->n; ++*who)
        if (r->marks[*who].gone >= order->cut)
            return CUT_FAILED;
    if (order->write == order->cut)
        return judge_written(order, r, who);
    for (*who = 0; *who < r->n; ++*who)
        if (r->owns[*who] && r->lost[*who])
            return CUT_FAILED;
    for (*who = 0; *who < r->n; ++*who) {
        const struct cut_mark *m = &r->marks[*who];
        bool there = (m->stand == CUT_THERE || m->stand == CUT_FINISHED) &&
                     !r->lost[*who] && !r->finished;
        if (!r->owns[*who] && !there)
            continue;
        if (m->held < order->cut)
            return CUT_HOLDING;
        if (m->settled < order->round && unsettled < 0)
            unsettled = *who;
    }
    if (settles && unsettled >= 0)
        *who = unsettled;
    for (int k = 0; k < r->n; k++)
        parts += cut_writes(order, &r->marks[k]) && !r->lost[k] ? r->marks[k].parts : 0;
    return !settles           ? CUT_HELD
           : unsettled >= 0   ? CUT_SETTLING
           : parts == r->parts ? CUT_SETTLED : CUT_MISSING;
}

/* A shard that was not written is the nearest reason; a rank that took the first one for
 * dead is named where none has gone. */
enum cut_fault cut_fault(const struct cut_order *order, const struct cut_ranks *r,
                         int *who)
{
    for (*who = 0; *who < r->n; ++*who)
        if (order->cut && r->marks[*who].failed == order->cut)
            return CUT_FAULT_SHARD;
    for (*who = 0; *who < r->n; ++*who) {
        enum cut_stand stand = r->marks[*who].stand;
        bool was_there = stand == CUT_THERE || stand == CUT_FINISHED;
        if (r->lost[*who] && (was_there || r->owns[*who]))
            return CUT_FAULT_GONE;
    }
    for (*who = 0; *who < r->n; ++*who)
        if (order->cut && r->marks[*who].gone >= order->cut)
            return CUT_FAULT_DEAD;
    return CUT_FAULT_ORDER;
}

bool cut_all_know(const struct cut_ranks *r, int me)
{
    for (int k = 0; k < r->n; k++)
        if (k != me && !r->lost[k] &&
            (r->marks[k].stand == CUT_THERE || r->marks[k].stand == CUT_FINISHED))
            return false;
    return true;
}

bool cut_acts(enum cut_state state)
{
    return state != CUT_HOLDING && state != CUT_SETTLING && state != CUT_WRITING;
}

/* --- the first rank --- */

bool cut_passed(const struct cut_mark *mark, int k, int size)
{
    return mark->stand == CUT_LEFT || (mark->stand == CUT_AWAY && k >= size);
}

bool cut_takes_over(const struct cut_chair *chair)
{
    return chair->first && (!chair->leads || chair->others);
}

/* A cut that this rank has ordered, and that another one has written over, is lost, and
 * so is one whose number another one has used: it would never be ordered. */
bool cut_gives_up(const struct cut_chair *chair)
{
    bool under_way = chair->mine && !cut_takes_over(chair);

    return chair->wanted &&
           (!chair->first || (chair->wanted <= chair->ordered && !under_way));
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

struct cut_order cut_goes_on(const struct cut_order *row, const struct cut_order *given,
                             const struct cut_mark *marks, int n)
{
    struct cut_order o = row->tidy >= given->tidy ? *row : *given;

    o.id = row->cut >= given->cut ? row->id : given->id;
    o.cut = larger(larger(row->cut, row->done), larger(given->cut, given->done));
    o.settle = larger(row->settle, given->settle);
    o.round = larger(row->round, given->round);
    o.write = larger(row->write, given->write);
    o.over = row->over || given->over;
    for (int k = 0; k < n; k++) {
        o.cut = larger(o.cut, larger(marks[k].held,
                                     larger(marks[k].written, marks[k].failed)));
        o.cut = larger(o.cut, marks[k].gone);
        o.round = larger(o.round, marks[k].settled);
    }
    o.done = o.cut;
    return o;
}

/* --- as floats --- */

static void put(float **at, uint64_t x)
{
    *(*at)++ = (float)(x & PART);
}

static uint64_t get(const float **at)
{
    float x = *(*at)++;

    return x >= 0 && x < EXACT ? (uint64_t)x : 0;       /* nor NaN */
}

static void put_long(float **at, uint64_t x)
{
    put(at, x >> 24);
    put(at, x);
}

static uint64_t get_long(const float **at)
{
    uint64_t high = get(at) << 24;
    return high | get(at);
}

static uint64_t sum_of(const struct cut_order *order)
{
    uint64_t sum = rng_mixed(order->tidy);

    for (int k = 0; k < CUT_KEPT; k++)
        sum = rng_mixed(sum ^ order->kept[k]);
    return sum & PART;
}

void cut_put_order(const struct cut_order *order, float *row)
{
    memset(row, 0, CUT_FLOATS * sizeof *row);
    put(&row, order->cut);
    put(&row, order->settle);
    put(&row, order->round);
    put(&row, order->write);
    put(&row, order->done);
    put(&row, order->tidy);
    put(&row, order->over);
    put_long(&row, order->id);          /* CUT_ORDER_DETAILS */
    for (int k = 0; k < CUT_KEPT; k++)
        put(&row, order->kept[k]);
    put(&row, sum_of(order));
}

struct cut_order cut_get_order(const float *row)
{
    struct cut_order o = {.cut = get(&row)};

    o.settle = get(&row);
    o.round = get(&row);
    o.write = get(&row);
    o.done = get(&row);
    o.tidy = get(&row);
    o.over = get(&row) > 0;
    o.id = get_long(&row);
    for (int k = 0; k < CUT_KEPT; k++)
        o.kept[k] = get(&row);
    if (get(&row) == sum_of(&o))
        return o;
    o.tidy = 0;
    memset(o.kept, 0, sizeof o.kept);
    return o;
}

void cut_put_mark(const struct cut_mark *mark, float *row)
{
    memset(row, 0, CUT_FLOATS * sizeof *row);
    put(&row, mark->stand);
    put(&row, mark->held);
    put(&row, mark->settled);
    put(&row, mark->written);
    put(&row, mark->failed);
    put(&row, mark->gone);
    put(&row, mark->parts);             /* CUT_MARK_DETAILS */
    put_long(&row, mark->rows);
}

struct cut_mark cut_get_mark(const float *row)
{
    uint64_t stand = get(&row);
    struct cut_mark m = {.stand = stand < CUT_STANDS ? (enum cut_stand)stand : CUT_AWAY};

    m.held = get(&row);
    m.settled = get(&row);
    m.written = get(&row);
    m.failed = get(&row);
    m.gone = get(&row);
    m.parts = get(&row);
    m.rows = get_long(&row);
    return m;
}
