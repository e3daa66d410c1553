/* SPDX-License-Identifier: MIT */
/* For tests of the link over TCP: addresses with a port that is free, and connections
 * that break. */
#ifndef HARNESS_TCP_H
#define HARNESS_TCP_H

#include "link/tcp.h"

/* For so many ranks. The port was free a moment ago. */
void tcp_test_address(struct tcp_options *options, const char *host, int ranks);

/* One of this end's connections breaks, by chance which. */
void tcp_test_break(struct link *link, uint64_t chance);

#endif
