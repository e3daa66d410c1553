/* SPDX-License-Identifier: MIT */
/* The world of test_comings*.c, and time in it. */
#ifndef COMINGS_H
#define COMINGS_H

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

static void run(double seconds)
{
    world_run(&w, seconds);
    ck_assert_msg(!*w.why, "%s", w.why);
}

#endif
