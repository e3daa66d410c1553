/* SPDX-License-Identifier: MIT */
/* Sets of numbers, as runs of numbers that follow each other: small where the numbers in
 * the set lie together, however many they are. */
#ifndef RUNS_H
#define RUNS_H

#include "base/base.h"

struct run {
    uint64_t from, to;          /* from … to - 1; never empty */
};

/* Runs ascend, and no two of them touch. All zero: the empty set. */
struct runs {
    struct run *at;
    size_t n, room;
};

void runs_fini(struct runs *s);         /* leaves the empty set */

/* False: there was no memory, and the set is as it was. An empty range changes
 * nothing. */
bool runs_add(struct runs *s, uint64_t from, uint64_t to);
bool runs_remove(struct runs *s, uint64_t from, uint64_t to);
bool runs_join(struct runs *s, const struct run *more, size_t n);

bool runs_has(const struct runs *s, uint64_t number);
uint64_t runs_count(const struct runs *s);

/* The first range of numbers from `from` on that are not in the set: to is where the
 * next run begins, UINT64_MAX: none does. */
struct run runs_gap(const struct runs *s, uint64_t from);

#endif
