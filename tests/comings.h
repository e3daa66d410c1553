/* SPDX-License-Identifier: MIT */
/* The world of test_comings*.c, and time in it. */
#ifndef COMINGS_H
#define COMINGS_H

#include "harness/suite.h"
#include "ranks_world.h"

#include <check.h>
#include <stdlib.h>

static struct ranks_world w;

/* Before its founders come. VERBOSE: it tells what happens. */
static void open_world(int ranks, int founders)
{
    const struct simulated_options options = {.ranks = ranks,
                                              .seed = 7,
                                              .latency_ns = 100000,
                                              .jitter_ns = 50000,
                                              .bytes_per_s = 1e8};
    world_open(&w, &options, founders);
    w.verbose = getenv("VERBOSE") != NULL;
}

static void found(void)
{
    for (int k = 0; k < w.founders; k++)
        world_come(&w, k);
}

/* tests/faults.c, with these seeds and options. */
static inline void run_faults(const char *worlds)
{
    char command[400];
    const char *build = getenv("BUILD");

    snprintf(command, sizeof command, "%s/tests/faults %s", build ? build : "build", worlds);
    ck_assert_int_eq(system(command), 0);
}

/* Of its first seeds fewer than make faults has. */
static inline void run_first_faults(const char *options)
{
    char worlds[40];

    snprintf(worlds, sizeof worlds, "1-%d %s", pick(60, 20, 6), options);
    run_faults(worlds);
}

static void run(double seconds)
{
    world_run(&w, seconds);
    ck_assert_msg(!*w.why, "%s", w.why);
}

#endif
