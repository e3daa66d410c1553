/* SPDX-License-Identifier: MIT */
/* How processes of a machine find one another, hand on the arena, and notice a death. */
#ifndef MACHINE_MEET_H
#define MACHINE_MEET_H

#include "machine/arena.h"
#include "machine/roster.h"

#include <pthread.h>

enum { MEET_CALLERS = 16, MEET_NAME = 64 };

struct meet_caller {
    int fd, pidfd;              /* -1: none */
    uint64_t until_ns;
};

/* Callbacks of a user that has more in the arena than blocks, as trainers come. All are
 * called inside the door. */
struct meet_user {
    /* The arena is there, the slot is not yet: maps what is the user's, and compares. */
    descant_status (*agree)(void *user);
    bool (*reads_dead)(const void *user);   /* the memory of dead slots may be read */
    /* Somebody may be giving back the slot's pages after a look at its last life. */
    bool (*frees_dead)(const void *user, unsigned slot);
    /* a new life of the slot is about to begin */
    void (*clear)(void *user, unsigned slot);
    /* it has begun, and nobody touches the last one */
    void (*seat)(void *user, unsigned slot);
};

struct meet {
    struct arena arena;
    unsigned n_regions;                 /* of the arena, machine/'s own among them */
    struct roster *roster;              /* NULL: there is none yet */
    const struct log *log;
    const struct meet_user *type;       /* NULL: there are blocks alone */
    void *user;
    char name[MEET_NAME + 1];
    double start_s;                     /* that others may keep the door */
    int door, listener, stop, pidfd;    /* -1: none */
    bool seated;
    unsigned slot;
    uint32_t generation;
    /* Those who answered: constant once the doorman runs, then its own. */
    int lines[MACHINE_SLOTS];           /* a connection to each, by either's call */
    int peers[MACHINE_SLOTS];           /* pidfds */
    uint32_t peer_generations[MACHINE_SLOTS];
    uint64_t unreachable;               /* names that nobody living holds */
    uint64_t silent;    /* names whose holder lives and has not answered */
    uint64_t deaf;                      /* and those that have hung up */
    struct meet_caller callers[MEET_CALLERS];
    pthread_t doorman;
    bool watching;
    _Atomic uint64_t *cpu_ns;    /* the doorman's, for figures; NULL: nobody asks */
};

/* In the order of meeting_join (meeting.c). fini leaves the job, and takes half-built
 * meetings, too. */
void meet_init(struct meet *meet, const char *name, double start_s,
               const struct log *log);
descant_status meet_door_take(struct meet *meet);
void meet_door_give(struct meet *meet);

/* Calls every slot. Enters the arena that they give, or founds one for a new job. */
descant_status meet_call(struct meet *meet);

/* Settles the rank: free, or the lowest that is, for -1. */
descant_status meet_rank(const struct meet *meet, int *rank);

/* Takes a slot for that rank. */
descant_status meet_seat(struct meet *meet, int rank);

/* The thread that answers newcomers and notices deaths (doorman.c). From start to stop,
 * peers and callers are the doorman's. stop takes one that has not started. */
descant_status doorman_start(struct meet *meet);
void doorman_stop(struct meet *meet);
void meet_fini(struct meet *meet);

#endif
