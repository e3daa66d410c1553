/* SPDX-License-Identifier: MIT */
/* For tests of the link over TCP: addresses with a port that is free, and connections
 * that break. */
#ifndef HARNESS_TCP_H
#define HARNESS_TCP_H

#include "link/tcp.h"

/* For so many ranks, at a port that no other test has. */
void tcp_test_address(struct tcp_options *options, const char *host, int ranks);

/* One of this end's connections breaks, by chance which. */
void tcp_test_break(struct link *link, uint64_t chance);

/* In a star process 0 is the hub here, which the link's user knows as the last rank; LINK_ANY and
 * all of other jobs stay. */
int tcp_test_rank(const struct tcp_options *options, int process);
int tcp_test_process(const struct tcp_options *options, int rank);
/* Of that process. */
struct link_entry tcp_test_entry(struct tcp_options *options, int process);

#endif
