/* SPDX-License-Identifier: MIT */
/* What befalls a job's trainers, on its way to people and programs. */
#ifndef EVENTS_H
#define EVENTS_H

#include "fabric/fabric.h"

/* Of the log's lines about one kind and rank. */
struct event_line {
    enum descant_event_kind kind;
    int rank;
    uint64_t next_ns, every_ns;         /* no line before next; so long after the last
                                           one */
    uint64_t count;                         /* since the last line */
};

enum { EVENTS_TOLD = NOTES };

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
    uint64_t pace_ns;                   /* when the log was told of rounds, or 0 */
    uint64_t no_round_ns;               /* what was waited for the last line of it, or
                                           0 */
    _Atomic bool company;               /* there have been other members */
};

void events_init(struct events *events, const struct descant_options *options);
void events_fini(struct events *events);

/* Somebody listens: there will be a thread. */
bool events_wanted(const struct descant *job);

/* INVALID, after saying so, in a callback of on_event or of the log that the thread
 * makes: it cannot wait for its own end. */
descant_status events_refuse(const struct descant *job, const char *call);

/* The thread, where it is wanted. */
descant_status events_start(struct descant *job);

/* Says what an end without finish or without a round means, and all that is left; then
 * the thread is gone. */
void events_stop(struct descant *job);

#endif
