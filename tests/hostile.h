/* SPDX-License-Identifier: MIT */
/* A small job in one thread whose ranks run the protocol of src/ranks/, and one of them
 * lies, or all do: each message that it sends is shown to a function of the test's,
 * which may change it, lose it, send it again or put another before it. Time is virtual:
 * a millisecond for each collect. */
#ifndef HOSTILE_H
#define HOSTILE_H

#include "lies.h"

enum { HOSTILE_RANKS = 3, HOSTILE_ALL = -1 };

enum hostile_job {
    HOSTILE_MEANS,
    HOSTILE_CENTER,
    HOSTILE_ROWS,
    HOSTILE_POST,
    HOSTILE_JOBS
};

struct hostile {
    enum hostile_job job;
    int size, liar;                 /* a rank, or HOSTILE_ALL */
    int per_host;                   /* 0 counts as 1; 2: means go by hosts */
    size_t n;                       /* floats */
    enum wire wire;
    bool last_sleeps;               /* the last rank is polled now and then */
    bool first_leaves;              /* rank 0, when it has its first state */
    int turns;                      /* of all ranks, at most */
    /* more: another letter that goes first, of no times unless it is filled */
    void (*alter)(void *context, struct letter *letter, struct letter *more);
    void *context;
};

struct hostile_end {
    bool done;                      /* it came to its end */
    bool waits;                     /* it waits still, without a bound */
    descant_status status;
    char says[LOG_LINE];
};

/* ends: (size). Returns the most blocks of memory that the job had at once. */
long hostile_run(const struct hostile *job, struct hostile_end *ends);

/* A job whose sort, liar and lies the bytes tell. Peers that do not lie are never
 * blamed, and nothing is left of it. */
void hostile_run_bytes(const uint8_t *bytes, size_t n);

#endif
