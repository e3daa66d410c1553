/* SPDX-License-Identifier: MIT */
/* Simulated jobs of the ranks of src/ranks/, over the simulated link. */
#ifndef SIMULATION_RANKS_H
#define SIMULATION_RANKS_H

#include "ranks/ranks.h"
#include "sync/simulation.h"

static const struct simulation_fabric simulated_ranks = {
    .type = &fabric_mpi,
    .link = &link_simulated,
    .leave = ranks_leave,
    .stay = ranks_stay,
    .free = ranks_free,
    .free_kept = ranks_free_kept,
};

#endif
