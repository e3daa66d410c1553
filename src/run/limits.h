/* SPDX-License-Identifier: MIT */
/* When something is due in a run, and when a run ends by patience: the loss on the
 * held-out set falls no more. */
#ifndef RUN_LIMITS_H
#define RUN_LIMITS_H

#include "base/base.h"

/* Whether `now` has passed a multiple of `every` that `last` had not, as evaluations are
 * due by examples; every 0: never. */
static inline bool due_by_count(uint64_t every, uint64_t last, uint64_t now)
{
    return every && now / every > last / every;
}

/* Whether `every_s` seconds have passed, as checkpoints are due; 0: never. */
static inline bool due_by_time(double every_s, uint64_t last_ns, uint64_t now_ns)
{
    return every_s > 0 && (double)(now_ns - last_ns) * 1e-9 >= every_s;
}

struct patience {
    bool any;                   /* there was an evaluation */
    double best;                /* the least loss, */
    uint64_t best_at;           /* after so many examples */
    uint32_t worse;             /* evaluations without a gain since then */
};

/* True: the loss is the least so far. A NaN is no gain. */
static inline bool patience_judge(struct patience *p, double loss, uint64_t at)
{
    bool better = !p->any || loss < p->best;
    *p = better ? (struct patience){true, loss, at, 0}
                : (struct patience){true, p->best, p->best_at, p->worse + 1};
    return better;
}

/* most: evaluations without gain; 0: any number. */
static inline bool patience_over(const struct patience *p, int64_t most)
{
    return most > 0 && p->worse >= most;
}

#endif
