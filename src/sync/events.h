/* SPDX-License-Identifier: MIT */
/* Events of a job's trainers, on their way to the log and to programs. */
#ifndef EVENTS_H
#define EVENTS_H

#include "fabric/fabric.h"

/* The log's lines about one kind and rank. */
struct event_line {
    enum descant_event_kind kind;
    int rank;
    uint64_t next_ns, every_ns;         /* next_ns: no line before; every_ns: the pause
                                           after the last line */
    uint64_t count;                         /* events since the last line */
};

enum { EVENTS_TOLD = NOTES, EVENTS_RANKS = 4096 };

struct events {
    struct notes notes;
    descant_on_event *fn;               /* NULL: the log alone */
    void *user;
    pthread_t thread;
    bool runs;
    _Atomic bool stop;
    /* the thread's own, and from its end on the closing thread's */
    int n_told;
    struct event_line told[EVENTS_TOLD];
    bool broken;                        /* told */
    uint64_t pace_ns;                   /* when rounds were logged last, or 0 */
    uint64_t no_round_ns;               /* how long the last such line waited, or 0 */
    _Atomic bool company;               /* there have been other members */
    /* by rank: the last enum descant_event_kind that says whether it takes part. The
       thread writes, any thread reads; relaxed, a figure */
    _Atomic unsigned char last[EVENTS_RANKS];
};

void events_init(struct events *events, const struct descant_options *options);
void events_fini(struct events *events);

/* INVALID, after logging why, in a callback that the thread makes, of on_event or the
 * log: the thread cannot wait for its own end. */
descant_status events_refuse(const struct descant *job, const char *call);

/* Starts the thread. */
descant_status events_start(struct descant *job);

/* Reports an end without finish or without a round, and all events that are left, and
 * ends the thread. */
void events_stop(struct descant *job);

#endif
