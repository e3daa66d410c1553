/* SPDX-License-Identifier: MIT */
/* A local module in another process, as control has it: a rank of a fabric, whose sums
 * come when they come. Nothing here waits; remote_turn does what can be done now. */
#ifndef REMOTE_H
#define REMOTE_H

#include "bsp/parcel.h"

struct remote_options {
    struct fabric *f;               /* with a post */
    int rank;
    size_t n;
    const struct segment_part *parts;
    uint32_t n_parts;
    uint64_t bound, run;            /* run: a number that no other run has */
    int first_rank, n_ranks;        /* with local modules */
    const float *model;             /* (n) the first, and its version; stays until the
                                       next store */
    uint64_t version;
    const struct log *log;
};

/* Of a rank that may not be there yet. */
descant_status remote_open(struct local **local, const struct remote_options *options);

/* Hears what has come, and sends what there is to be said. After the fabric's move. True:
 * something came, and more may be there. */
bool remote_turn(struct local *local);

/* Orders a read-out; orders are numbered from 1. */
void remote_ask(struct local *local, uint64_t order);

/* It is here, was in time for the last order, and has not answered this one; nor has it a
 * sum here that waits to be read out. */
bool remote_awaited(const struct local *local, uint64_t order);
void remote_pass_over(struct local *local, uint64_t order); /* not waited for any more */

struct remote_news {
    bool here, came;                /* now; ever */
    bool welcome;                   /* it is here, and has said so */
    bool left;                      /* in good order: no sum comes any more */
    bool held;                      /* a sum of it is here, to be read out */
    int modules;                    /* that it has, or those before it had: segments */
    uint64_t lost;                  /* gradients that died with it, as far as it had
                                       told */
    struct crew_figures crew;
};

struct remote_news remote_news(const struct local *local);

#endif
