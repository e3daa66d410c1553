/* SPDX-License-Identifier: MIT */
/* Simulated trainers: any number in one thread, with a clock of their own. Handles are opened
 * with fabric_options.context = the world; poll them in turn, and when all wait, advance to
 * sim_world_next. The same seed and the same calls give the same bits. */
#ifndef SIM_H
#define SIM_H

#include "fabric/fabric.h"

struct sim_world;

struct sim_options {
    struct emulated link;
    double latency_s;       /* added to every exchange */
    double jitter_s;        /* and up to so much more, by chance */
    uint64_t seed;
    int per_host;           /* trainers on a machine, by rank; 0: all are on one */
};

struct sim_world *sim_world_create(const struct sim_options *options);   /* NULL: no memory */
void sim_world_destroy(struct sim_world *world);        /* after all handles are closed */
uint64_t sim_world_now(const struct sim_world *world);
void sim_world_advance(struct sim_world *world, uint64_t to_ns);    /* never backwards */

/* The earliest time after now at which something becomes ready; UINT64_MAX: nothing does. */
uint64_t sim_world_next(const struct sim_world *world);

/* Dead at once; its round restarts without it. The handle only waits for its close. */
void sim_world_kill(struct sim_world *world, struct fabric *f);

#endif
