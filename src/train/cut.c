/* SPDX-License-Identifier: MIT */
#include "train/cut.h"

#include <string.h>

#define PART UINT64_C(0xffffff)         /* of a number that takes two floats */
#define EXACT 16777216.0f

enum cut_act cut_act(const struct cut_order *order, const struct cut_mark *mine,
                     uint64_t tidied, bool owns)
{
    uint64_t tried = mine->written > mine->failed ? mine->written : mine->failed;

    if (owns && order->tidy > tidied)
        return CUT_TIDIES;
    if (order->cut > mine->settled)
        return CUT_SETTLES;
    if (owns && order->write == order->cut && order->write > tried)
        return CUT_WRITES;
    return order->over ? CUT_ENDS : CUT_RESTS;
}

enum cut_state cut_judge(uint64_t cut, const struct cut_mark *marks, const bool *lost,
                         int n, int owners, int *who)
{
    for (*who = 0; *who < n; ++*who) {
        const struct cut_mark *m = &marks[*who];
        bool counts = *who < owners || (m->there && !lost[*who]);
        if (counts && m->settled < cut)
            return CUT_SETTLING;
    }
    for (*who = 0; *who < owners; ++*who)
        if (marks[*who].failed == cut)
            return CUT_FAILED;
    for (*who = 0; *who < owners; ++*who)
        if (marks[*who].written < cut)
            return CUT_SETTLED;
    return CUT_WRITTEN;
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

void cut_put_order(const struct cut_order *order, float *row)
{
    memset(row, 0, CUT_FLOATS * sizeof *row);
    put(&row, order->cut);
    put(&row, order->write);
    put(&row, order->tidy);
    put_long(&row, order->id);
    for (int k = 0; k < CUT_KEPT; k++)
        put(&row, order->kept[k]);
    put(&row, order->over);
}

struct cut_order cut_get_order(const float *row)
{
    struct cut_order o = {.cut = get(&row)};

    o.write = get(&row);
    o.tidy = get(&row);
    o.id = get_long(&row);
    for (int k = 0; k < CUT_KEPT; k++)
        o.kept[k] = get(&row);
    o.over = get(&row) > 0;
    return o;
}

void cut_put_mark(const struct cut_mark *mark, float *row)
{
    memset(row, 0, CUT_FLOATS * sizeof *row);
    put(&row, mark->there);
    put(&row, mark->settled);
    put(&row, mark->written);
    put(&row, mark->failed);
    put_long(&row, mark->rows);
}

struct cut_mark cut_get_mark(const float *row)
{
    struct cut_mark m = {.there = get(&row) > 0};

    m.settled = get(&row);
    m.written = get(&row);
    m.failed = get(&row);
    m.rows = get_long(&row);
    return m;
}
