/* SPDX-License-Identifier: MIT */
/* The simulated link: a world of ranks in one thread and in virtual time. A world is
 * seeded; the same seed and the same calls give the same events, at the same nanoseconds.
 * One thread uses a world and all its links. Beside the link's functions (link.h;
 * link_entry.context is the world) it has a driver's:
 *
 *     while ((rank = simulated_turn(world, until_ns)) >= 0)
 *         go on with that rank, until it has nothing to do and calls its link's sleep;
 *
 * The cost of a message, with `takes` = bytes / bytes_per_s x the host's factor:
 *
 *   - It leaves when the host's outgoing side is free, and occupies it for as long as it
 *     takes.
 *   - Its head comes latency + jitter later. The message occupies the incoming side of
 *     the receiver's host from then on, or once that is free, for as long as it takes
 *     there.
 *   - Words do not wait for bulk on either side; the bulk after them is later by the
 *     time that they take.
 *   - Bulk leaves when its receiver's room for it is known: latency after the receive was
 *     opened, or, where the receive is from LINK_ANY, two latencies after the message was
 *     sent, or more.
 *   - Messages between ranks of one host take the near latency alone.
 *
 * A cut holds messages back until it ends, as TCP does; messages that are on the wire by
 * then arrive. */
#ifndef LINK_SIMULATED_H
#define LINK_SIMULATED_H

#include "link/link.h"

struct simulated;

struct simulated_options {
    int ranks, per_host;        /* per_host 0: each rank has a host of its own */
    uint64_t seed;
    bool fixed;                 /* link_place.fixed: no rank comes late, forgets or
                                   dies */
    bool star;                  /* link_place.star */
    uint64_t latency_ns, near_latency_ns;
    uint64_t jitter_ns;         /* up to so much more, by chance */
    double bytes_per_s;         /* of each host, each way; 0: messages take no time */
};

/* NULL: no memory. */
struct simulated *simulated_create(const struct simulated_options *options);
void simulated_destroy(struct simulated *world);        /* after all links are closed */

/* --- time --- */

uint64_t simulated_now(const struct simulated *world);      /* it begins at one second */
uint64_t simulated_next(const struct simulated *world);     /* event; UINT64_MAX: none */
void simulated_run(struct simulated *world, uint64_t until_ns);     /* all until then */

/* The next rank that can go on: it has met, lives, does not sleep and is not paused.
 * Where all wait, time goes on to the next event. -1: no rank can before until_ns, and
 * time is until_ns then. */
int simulated_turn(struct simulated *world, uint64_t until_ns);
bool simulated_sleeps(const struct simulated *world, int rank);

/* --- faults --- */

enum simulated_fault_kind {
    SIMULATED_SLOW,     /* rank's host takes `factor` times as long, from now on */
    SIMULATED_PAUSE,    /* rank does nothing and sends nothing, until until_ns */
    SIMULATED_CUT,      /* rank and other do not reach each other, until until_ns */
    SIMULATED_PART,     /* rank is on side `other` until until_ns, and reaches that side
                           alone; all ranks begin on side 0 */
    SIMULATED_DIE,      /* rank dies, and its host tells the others that it is gone */
    SIMULATED_VANISH    /* rank dies untold, and is silent */
};

struct simulated_fault {
    enum simulated_fault_kind kind;
    uint64_t at_ns, until_ns;
    int rank, other;
    double factor;
};

/* False: no memory. A rank that has died, or has closed its link, may meet again. */
bool simulated_fault(struct simulated *world, const struct simulated_fault *fault);
bool simulated_lives(const struct simulated *world, int rank);  /* has met, not died */

/* --- figures --- */

struct simulated_figures {
    uint64_t events, messages, bytes;   /* messages and bytes: that arrived */
    uint64_t trace;                     /* a hash of all events */
};
struct simulated_figures simulated_figures(const struct simulated *world);

#endif
