/* SPDX-License-Identifier: MIT */
/* A thread's share of a core: it works in bursts, and rests until they are paid for. */
#ifndef BUDGET_H
#define BUDGET_H

#include <stdbool.h>
#include <stdint.h>

/* What a burst costs the workers that it interrupts: its CPU time, more for the caches that it uses
 * up, and each time, be it short, what it takes to leave their code and to be back in it. The
 * figures are of docs/decisions.md. */
#define BUDGET_CPU_COST 1.1
enum { BUDGET_WAKE_NS = 400000, BUDGET_BURST_NS = 1000000, BUDGET_SAVED_NS = 20000000 };

/* The thread's own. */
struct budget {
    uint64_t cpu_ns;            /* its CPU time when it last paid */
    uint64_t until_ns;          /* when all it has used is paid for */
    bool all;                   /* it pays for what its bursts cost, not for its CPU time alone */
};

void budget_begin(struct budget *b, bool all);
bool budget_burst_over(const struct budget *b);

/* Pays for the burst that has ended, out of that share; 1 or more: a whole core. Rest is not saved
 * up for longer than BUDGET_SAVED_NS. */
void budget_pay(struct budget *b, double share);

#endif
