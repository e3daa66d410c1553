/* SPDX-License-Identifier: MIT */
/* How many different numbers there are among many, in 16 KiB: HyperLogLog (Flajolet,
 * Fusy, Gandouet, Meunier 2007), with the estimator of Ertl (2017), which needs no table
 * of corrections and is as good for few numbers as for many. */
#ifndef DISTINCT_H
#define DISTINCT_H

#include "base/base.h"

enum { DISTINCT_BITS = 14 };
#define DISTINCT_ERROR 0.0081           /* standard error, of the number */

struct distinct {               /* zeroed at first */
    uint8_t most[1 << DISTINCT_BITS];
};

void distinct_add(struct distinct *d, uint64_t x);
double distinct_count(const struct distinct *d);

/* --- ids that a hash lays evenly over rows --- */

/* The share of n ids that have their row with another one. */
double collisions_share(double n, double rows);
/* As many ids, in the mean, use so many rows; of all rows, the fewest that do. */
double collisions_ids(double used, double rows);

#endif
