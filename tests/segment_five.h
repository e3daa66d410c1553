/* SPDX-License-Identifier: MIT */
/* A segment of five floats, and what comes of gradients on it. */
#ifndef SEGMENT_FIVE_H
#define SEGMENT_FIVE_H

#include "segment_help.h"

#define N(array) ((int)(sizeof(array) / sizeof *(array)))

enum { FLOATS = 5 };
static const float ones[FLOATS] = {1, 1, 1, 1, 1};
static const float ramp[FLOATS] = {0, 1, 2, 3, 4};

static inline void expect_taken(struct segment *segment, int slot, float factor,
                                uint64_t gradients, uint64_t examples)
{
    struct segment_taken taken;
    ck_assert(segment_take(segment, slot, &taken));
    for (int i = 0; i < FLOATS; i++)
        ck_assert_float_eq(taken.values[i], factor * ramp[i]);
    ck_assert_uint_eq(taken.gradients, gradients);
    ck_assert_uint_eq(taken.examples, examples);
    ck_assert(!segment_take(segment, slot, &taken));
}

#endif
