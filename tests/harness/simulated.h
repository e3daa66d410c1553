/* SPDX-License-Identifier: MIT */
/* For tests of the simulated link: a world whose ends all collect at each event, and
 * messages that note when and how they ended. */
#ifndef HARNESS_SIMULATED_H
#define HARNESS_SIMULATED_H

#include "base/base.h"
#include "link/simulated.h"

enum { MOST = 8, BULK = 10000, LATENCY = 1000 };

extern struct simulated *world;
extern struct link *ends[MOST];
extern struct link_place places[MOST];
extern struct link_peer peers[MOST][MOST];  /* as told last; generation 0: nothing */
extern unsigned char buffers[MOST][4 * BULK];

/* A message, as one side of it sees it. */
struct side {
    int n_ended, from;
    bool failed;
    size_t bytes;
    uint64_t at_ns;
};

void sim_meet(int rank);
void sim_open(const struct simulated_options *options);
void sim_close_one(int rank);
void sim_close(void);
void sim_collect(int rank);

/* All collect at each event, up to a time. */
void sim_run(uint64_t until_ns);

void sim_run_for(uint64_t ns);
void sim_send(int from, int to, int tag, size_t bytes, struct side *side);
void sim_receive(int to, int from, int tag, struct side *side);
bool sim_has_come(int rank, int peer);
bool sim_is_gone(int rank, int peer);
void need_time(const struct side *side, uint64_t began_ns, uint64_t takes_ns);
void sim_fault(enum simulated_fault_kind kind, int rank, int other, uint64_t for_ns);

#endif
