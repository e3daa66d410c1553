/* SPDX-License-Identifier: MIT */
/* SIGINT and SIGTERM ask a run to end in good order; another one, more than a second
 * after the first, ends it at once. A terminal, and a parent that passes signals on,
 * bring the same signal twice, so what comes within that second says nothing new.
 *
 * A process that sleeps in one place blocks its signals and takes them there (struct
 * signals). Where many threads compute and wait, a handler notes the first signal, and
 * the second one ends the process wherever its threads are (signals_heed). */
#ifndef RUN_SIGNALS_H
#define RUN_SIGNALS_H

#include "base/base.h"

enum signal_means { SIGNAL_NOTHING, SIGNAL_ENDS, SIGNAL_HURRIES };

/* The first one, and when it came. Any thread and any handler may read and note it. */
struct first_signal {
    _Atomic uint64_t word;          /* the time, but its low byte has the signal; 0: none
                                       came. Set once, by compare-and-swap */
};
enum signal_means first_signal_note(struct first_signal *first, int signal,
                                    uint64_t now_ns);
int first_signal(const struct first_signal *first);     /* 0: none */
const char *signal_name(int signal);

/* --- taken where a process sleeps: one thread --- */

struct signals {
    sigset_t held, old;
    struct first_signal first;
    int came;                       /* the last SIGINT or SIGTERM that was taken */
    bool hurried;
};

/* Blocks these two, SIGCHLD and SIGPIPE; before the process has threads. */
void signals_block(struct signals *s);
/* Signals that were not taken stay with the run. */
void signals_give_back(struct signals *s);
/* Sleeps until then, or until a signal comes. */
enum signal_means signals_rest(struct signals *s, uint64_t when_ns);

/* --- noted by a handler --- */

void signals_heed(void);
int signals_heard(void);            /* the first one; 0: none */
void signals_forget(void);          /* it, as a run begins */

/* --- what a person is told --- */

enum run_keeps { RUN_KEEPS_NOTHING, RUN_KEEPS_LAST, RUN_KEEPS_NOW };
/* "SIGINT: the run ends with a last checkpoint"; by_signal: and what another signal would
 * do. */
void signals_say_end(FILE *err, const char *why, enum run_keeps keeps, bool by_signal);
#define SIGNALS_AGAIN "another one, more than a second later, ends "

#endif
