/* SPDX-License-Identifier: MIT */
/* How processes of a machine find one another, hand on the arena, and notice a death. */
#ifndef SHM_MEET_H
#define SHM_MEET_H

#include "shm/arena.h"

#include <pthread.h>

enum { MEET_CALLERS = 16, MEET_NAME = 64 };

struct meet_caller {
    int fd, pidfd;              /* -1: none */
    uint64_t until_ns;
};

struct meet {
    struct arena *arena;
    const struct log *log;
    char name[MEET_NAME + 1];
    int door, listener, stop, pidfd;    /* -1: none */
    bool seated;
    unsigned slot;
    uint32_t generation;
    /* Those who answered: constant once the doorman runs, then its own. */
    int lines[SHM_SLOTS];               /* a connection to each, whoever called */
    int peers[SHM_SLOTS];               /* pidfds */
    uint32_t peer_generations[SHM_SLOTS];
    uint64_t unreachable;               /* names that nobody living holds */
    uint64_t silent;                    /* names whose holder lives and has not answered */
    uint64_t deaf;                      /* and those that have hung up */
    struct meet_caller callers[MEET_CALLERS];
    pthread_t doorman;
    bool watching;
    _Atomic uint64_t *cpu_ns;           /* the doorman's, for the fabric's figures */
};

/* In this order: init, door_take, call, (the arena is founded if nobody had one), rank, seat,
 * watch, door_give. fini takes half-built ones and leaves the job. */
void meet_init(struct meet *meet, struct arena *arena, const char *name);
descant_status meet_door_take(struct meet *meet, uint64_t until_ns);
void meet_door_give(struct meet *meet);

/* Calls every slot. Enters the arena that they give; leaves it without descriptor if there is
 * no job yet. */
descant_status meet_call(struct meet *meet);

/* Settles the rank: free, or the lowest that is, for -1. */
descant_status meet_rank(const struct meet *meet, int *rank);

/* Takes a slot for that rank. */
descant_status meet_seat(struct meet *meet, int rank);
descant_status meet_watch(struct meet *meet);
void meet_fini(struct meet *meet);

#endif
