/* SPDX-License-Identifier: MIT */
/* fabric_mpi over a simulated world (link/simulated.h), for tests that poll its ranks in
 * turn in one thread. Each poll of anybody is a tick of virtual time, and so is each
 * other call that moves messages; a message waits some ticks by chance. Those of one
 * rank, tag and receiver stay in order, others overtake. wait takes time forward until
 * its rank would wake. */
#ifndef MPI_LOOPBACK_H
#define MPI_LOOPBACK_H

#include "fabric/fabric.h"
#include "link/link.h"

struct loopback;

struct loopback *loopback_create(int size, uint64_t seed);      /* on one host */
struct loopback *loopback_create_hosts(int size, int per_host, uint64_t seed);
/* Ranks of so many come, leave and die as they like; each has a host of its own. */
struct loopback *loopback_create_free(int most, uint64_t seed);
void loopback_destroy(struct loopback *world);      /* after all handles are closed */
uint64_t loopback_now(const struct loopback *world);
void loopback_kill(struct loopback *world, struct fabric *f);   /* dead at once, and freed */
/* Bytes of floats and rows. */
uint64_t loopback_sent(const struct loopback *world, int rank);
uint64_t loopback_sent_out(const struct loopback *world, int host);     /* to other hosts */

/* fabric_options.context: the world. A trainer that closes must serve the others until
 * they have, too; here it returns, and is served whenever somebody else is polled. */
extern const struct fabric_type fabric_loopback;
extern const struct link_type link_loopback;    /* link_simulated, which counts, too */

#endif
