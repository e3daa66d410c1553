/* SPDX-License-Identifier: MIT */
#include "base/budget.h"

#include "base/base.h"

void budget_begin(struct budget *b, double cost, uint64_t wake_ns)
{
    *b = (struct budget){clock_thread_cpu_ns(), clock_now_ns(), cost, wake_ns};
}

bool budget_burst_over(const struct budget *b)
{
    return clock_thread_cpu_ns() - b->cpu_ns >= BUDGET_BURST_NS;
}

double budget_pay(struct budget *b, double share, uint64_t most_ns)
{
    uint64_t cpu = clock_thread_cpu_ns(), now = clock_now_ns();
    uint64_t used = cpu - b->cpu_ns;
    double cost = (double)(used < most_ns ? used : most_ns);
    if (share < 1)
        cost = b->cost * cost + (double)b->wake_ns;
    if (b->until_ns + BUDGET_SAVED_NS < now)
        b->until_ns = now - BUDGET_SAVED_NS;
    b->until_ns += (uint64_t)(cost / share);
    b->cpu_ns = cpu;
    return cost / share;
}
