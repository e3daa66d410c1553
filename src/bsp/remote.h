/* SPDX-License-Identifier: MIT */
/* A local module in another process, as control sees it: a rank of a fabric, whose sums
 * come at any time. No call waits. */
#ifndef REMOTE_H
#define REMOTE_H

#include "bsp/parcel.h"

struct remote_options {
    struct fabric *f;               /* with a post */
    int rank;
    size_t n;
    const struct segment_part *parts;
    uint32_t n_parts;
    uint64_t bound, run;            /* run: a number of this run alone */
    int first_rank, n_ranks;        /* with local modules */
    const float *model;             /* (n) the first model, and its version; stays until
                                       the next store */
    uint64_t version;
    const struct log *log;
};

/* Opens the local module of a rank that may not be there yet. */
descant_status remote_open(struct local **local, const struct remote_options *options);

/* Hears parcels that have come, and sends those that are due. After the fabric's move.
 * True: something came, and more may be there. */
bool remote_turn(struct local *local);

/* Orders a read-out; orders are numbered from 1. */
void remote_ask(struct local *local, uint64_t order);

/* True: the local module is here, was in time for the last order, has not answered this
 * one, and has no sum here that waits to be read out. */
bool remote_awaited(const struct local *local, uint64_t order);
/* the order is not waited for any more */
void remote_pass_over(struct local *local, uint64_t order);

struct remote_news {
    bool here, came;                /* now; ever */
    bool welcome;                   /* it is here, and has said HELLO */
    bool left;                      /* it left in good order: no more sums */
    bool held;                      /* a sum is here, to be read out */
    int modules;                    /* segments of this process, or of the one before */
    uint64_t lost;                  /* gradients that died with it, by its last figures */
    struct crew_figures crew;
};

struct remote_news remote_news(const struct local *local);

#endif
