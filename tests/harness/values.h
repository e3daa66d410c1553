/* SPDX-License-Identifier: MIT */
/* Numbers that differ from each other, by which results are known. */
#ifndef HARNESS_VALUES_H
#define HARNESS_VALUES_H

#include <stddef.h>
#include <stdint.h>

/* For arithmetic over many floats of one thread. ThreadSanitizer looks at each access, which takes
 * ten times as long. */
#define ONE_THREAD __attribute__((no_sanitize("thread")))

/* Of trainer k at float i, in round r. */
float value(int k, size_t i, int r);
/* From -0.5 to 0.5, of trainer i at float k, in step t. */
float noise(int i, uint64_t t, size_t k);

#endif
