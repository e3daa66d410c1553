/* SPDX-License-Identifier: MIT */
/* A thread's share of a core: it works in bursts, and rests until they are paid for. */
#ifndef BUDGET_H
#define BUDGET_H

#include <stdbool.h>
#include <stdint.h>

/* The cost of a burst to the workers that it interrupts, as a multiple of its CPU time:
 * the burst, two switches, and caches to be filled again. The figure is a choice:
 * docs/decisions.md has what was measured with it and without. */
#define BUDGET_BURST_COST 1.5
enum { BUDGET_BURST_NS = 1000000, BUDGET_SAVED_NS = 20000000 };

/* The thread's own. */
struct budget {
    uint64_t cpu_ns;            /* its CPU time when it last paid */
    uint64_t until_ns;          /* when all CPU time used is paid for */
    double cost;                /* of a second of CPU time */
    uint64_t wake_ns;           /* of each burst */
};

void budget_begin(struct budget *b, double cost, uint64_t wake_ns);
bool budget_burst_over(const struct budget *b);

/* Pays for so much of the burst that has ended, out of that share of a core; 1 or more: a
 * whole core. Rest is saved up for at most BUDGET_SAVED_NS. The rest, in ns, that it
 * costs. */
double budget_pay(struct budget *b, double share, uint64_t most_ns);

#endif
