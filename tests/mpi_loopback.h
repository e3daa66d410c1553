/* SPDX-License-Identifier: MIT */
/* MPI in one thread: the ranks of one world, and messages between them that take their time. Each
 * collect of anybody is a tick; a message waits some ticks by chance, those of one rank, tag and
 * receiver stay in order, others overtake. What is over EAGER bytes is read when it is received,
 * as MPI may, so a sender that changes it too early is found out. */
#ifndef MPI_LOOPBACK_H
#define MPI_LOOPBACK_H

#include "fabric/fabric.h"
#include "link/link.h"

struct loopback;

struct loopback *loopback_create(int size, uint64_t seed);                 /* on one host */
struct loopback *loopback_create_hosts(int size, int per_host, uint64_t seed);
void loopback_destroy(struct loopback *world);      /* after all handles are closed */
uint64_t loopback_sent(const struct loopback *world, int rank);     /* bytes of floats and rows */

/* fabric_mpi over such a world: fabric_options.context. A trainer that closes must serve the others
 * until they have, too; here it returns, and is served whenever somebody else is polled. */
extern const struct fabric_type fabric_loopback;
extern const struct link_type link_loopback;

#endif
