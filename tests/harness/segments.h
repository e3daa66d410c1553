/* SPDX-License-Identifier: MIT */
/* Segments of a test. Each has a name of its own, and run_cases removes those that a
 * failed test leaves. */
#ifndef HARNESS_SEGMENTS_H
#define HARNESS_SEGMENTS_H

#include "bsp/ml.h"
#include "bsp/segment.h"

extern char segment_name[64];

void new_name(void);

/* A segment of that name in two parts: "b" of one float, and "w" of the others. All
 * values are the version. */
descant_status try_segment(struct segment **segment, uint64_t n, int slots,
                           uint64_t bound, uint64_t version);
struct segment *make_segment(uint64_t n, int slots, uint64_t bound);  /* of a new name */
float value_of(uint64_t version);       /* or as much of it as a float can hold */
void store_model(struct segment *segment, uint64_t version);
struct descant_ml *attach(void);
uint64_t pin_version(struct descant_ml *ml);        /* and the model's values are of it */
/* Whole numbers, other ones for each gradient that is added. */
float added(int number, int i);
/* on the newest model */
void add_numbers(struct descant_ml *ml, int number, uint64_t examples);
void expect_said(const char *part);     /* it is in the last error's text */

/* Of a segment of five floats. */
enum { FIVE = 5 };
extern const float ones[FIVE], ramp[FIVE];

/* The slot's sum is factor times the ramp, of so many gradients, and is taken once. */
void expect_taken(struct segment *segment, int slot, float factor, uint64_t gradients,
                  uint64_t examples);

#endif
