/* SPDX-License-Identifier: MIT */
/* Simulated jobs of the ranks of src/ranks/, over the simulated link. */
#ifndef HARNESS_SIMULATION_H
#define HARNESS_SIMULATION_H

#include "sync/simulation.h"

extern const struct simulation_fabric simulated_ranks;

/* Of a dense part that stands still. */
void no_gradient(void *context, int i, uint64_t t, const float *w, float *g, size_t n);

/* Table k of trainer i. */
const struct table *table_of(const struct simulation *sim, int i, size_t k);

#endif
