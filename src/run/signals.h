/* SPDX-License-Identifier: MIT */
/* SIGINT and SIGTERM ask a run to end in good order; another one, more than a second
 * after the first, ends it at once. A terminal, and a parent that passes signals on,
 * bring the same signal twice, so a signal within that second is ignored.
 *
 * A process that sleeps in one place blocks its signals and takes them there (struct
 * signals). Where many threads compute and wait, a handler notes the first signal, and
 * the second one ends the process wherever its threads are (signals_heed). */
#ifndef RUN_SIGNALS_H
#define RUN_SIGNALS_H

#include "base/base.h"

enum signal_means { SIGNAL_NOTHING, SIGNAL_ENDS, SIGNAL_HURRIES };

/* The first signal, and its time. Any thread and any handler may read and note it. */
struct first_signal {
    _Atomic uint64_t word;          /* the time, with the signal in its low byte; 0: none
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

/* Blocks SIGINT, SIGTERM, SIGCHLD and SIGPIPE; call it before the process has threads. */
void signals_block(struct signals *s);
/* Drops signals that are pending, and restores the mask of before. */
void signals_give_back(struct signals *s);
/* Sleeps until when_ns, or until a signal comes. */
enum signal_means signals_rest(struct signals *s, uint64_t when_ns);

/* --- noted by a handler --- */

void signals_heed(void);
int signals_heard(void);            /* the first signal; 0: none */
void signals_forget(void);          /* as a run begins */

/* --- texts for people --- */

enum run_keeps { RUN_KEEPS_NOTHING, RUN_KEEPS_LAST, RUN_KEEPS_NOW };
/* Prints "SIGINT: the run ends with a last checkpoint". by_signal: adds the effect of
 * another signal. */
void signals_say_end(FILE *err, const char *why, enum run_keeps keeps, bool by_signal);
#define SIGNALS_AGAIN "another one, more than a second later, ends "

#endif
