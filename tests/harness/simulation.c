/* SPDX-License-Identifier: MIT */
/* The fabric that simulated jobs run on, and views into such jobs. */
#include "harness/simulation.h"
#include "ranks/ranks.h"

#include <string.h>

const struct simulation_fabric simulated_ranks = {
    .type = &fabric_mpi,
    .link = &link_simulated,
    .leave = ranks_leave,
    .stay = ranks_stay,
    .free = ranks_free,
    .free_kept = ranks_free_kept,
};

void no_gradient(void *context, int i, uint64_t t, const float *w, float *g, size_t n)
{
    (void)context, (void)i, (void)t, (void)w;
    memset(g, 0, n * sizeof *g);
}

const struct table *table_of(const struct simulation *sim, int i, size_t k)
{
    return &simulation_look(sim, i).tables->list[k];
}
