/* SPDX-License-Identifier: MIT */
#include "base/runs.h"

#include <string.h>

enum { ROOM_LEAST = 8 };

void runs_fini(struct runs *s)
{
    memory_give(s->at);
    *s = (struct runs){0};
}

/* The first run that ends at or behind the number. */
static size_t find(const struct runs *s, uint64_t number)
{
    size_t least = 0, most = s->n;

    while (least < most) {
        size_t k = least + (most - least) / 2;
        if (s->at[k].to < number)
            least = k + 1;
        else
            most = k;
    }
    return least;
}

/* Puts `n` runs in the place of those from k to end. */
static bool replace(struct runs *s, size_t k, size_t end, const struct run *with,
                    size_t n)
{
    size_t all = s->n - (end - k) + n;

    if (all > s->room) {
        size_t room = 2 * s->room > ROOM_LEAST ? 2 * s->room : (size_t)ROOM_LEAST;
        struct run *at = memory_take_array(room, sizeof *at);
        if (!at)
            return false;
        if (s->n)
            memcpy(at, s->at, s->n * sizeof *at);
        memory_give(s->at);
        s->at = at;
        s->room = room;
    }
    memmove(s->at + k + n, s->at + end, (s->n - end) * sizeof *s->at);
    memcpy(s->at + k, with, n * sizeof *with);
    s->n = all;
    return true;
}

bool runs_add(struct runs *s, uint64_t from, uint64_t to)
{
    struct run run = {from, to};

    if (from >= to)
        return true;
    size_t k = find(s, from), end = k;
    for (; end < s->n && s->at[end].from <= to; end++) {
        run.from = s->at[end].from < run.from ? s->at[end].from : run.from;
        run.to = s->at[end].to > run.to ? s->at[end].to : run.to;
    }
    return replace(s, k, end, &run, 1);
}

bool runs_remove(struct runs *s, uint64_t from, uint64_t to)
{
    struct run left[2];
    size_t n = 0;

    if (from >= to)
        return true;
    size_t k = find(s, from);
    if (k < s->n && s->at[k].to == from)        /* it ends just before */
        k++;
    size_t end = k;
    for (; end < s->n && s->at[end].from < to; end++) {
        if (s->at[end].from < from)
            left[n++] = (struct run){s->at[end].from, from};
        if (s->at[end].to > to)
            left[n++] = (struct run){to, s->at[end].to};
    }
    return end == k || replace(s, k, end, left, n);
}

bool runs_join(struct runs *s, const struct run *more, size_t n)
{
    bool good = true;

    for (size_t k = 0; k < n; k++)
        good &= runs_add(s, more[k].from, more[k].to);
    return good;
}

bool runs_has(const struct runs *s, uint64_t number)
{
    size_t k = find(s, number);

    k += k < s->n && s->at[k].to == number;
    return k < s->n && s->at[k].from <= number;
}

uint64_t runs_count(const struct runs *s)
{
    uint64_t n = 0;

    for (size_t k = 0; k < s->n; k++)
        n += s->at[k].to - s->at[k].from;
    return n;
}

struct run runs_gap(const struct runs *s, uint64_t from)
{
    size_t k = find(s, from);

    k += k < s->n && s->at[k].to == from;
    if (k < s->n && s->at[k].from <= from) {
        from = s->at[k].to;
        k++;
    }
    return (struct run){from, k < s->n ? s->at[k].from : UINT64_MAX};
}
