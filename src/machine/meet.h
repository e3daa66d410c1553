/* SPDX-License-Identifier: MIT */
/* Processes of a machine find each other, hand on the arena, and notice deaths. */
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

/* Callbacks for a user that has more in the arena than blocks, called inside the door as
 * trainers come. */
struct meet_user {
    /* The arena is there, the slot not yet: maps the user's regions, and compares. */
    descant_status (*agree)(void *user);
    bool (*reads_dead)(const void *user);   /* the memory of dead slots may be read */
    /* Whether a process may be giving back the slot's pages after a look at its last
     * life. */
    bool (*frees_dead)(const void *user, unsigned slot);
    /* a new life of the slot is about to begin */
    void (*clear)(void *user, unsigned slot);
    /* the new life has begun, and the last one is no longer touched */
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
    double start_s;                     /* for others to keep the door */
    int door, listener, stop, pidfd;    /* -1: none */
    bool seated;
    unsigned slot;
    uint32_t generation;
    /* Trainers that answered: constant once the doorman runs, which owns them then. */
    int lines[MACHINE_SLOTS];           /* a connection to each, called from either
                                           side */
    int peers[MACHINE_SLOTS];           /* pidfds */
    uint32_t peer_generations[MACHINE_SLOTS];
    uint64_t unreachable;               /* names that no living process holds */
    uint64_t silent;    /* names whose holder lives and has not answered */
    uint64_t deaf;                      /* names whose holder has hung up */
    struct meet_caller callers[MEET_CALLERS];
    pthread_t doorman;
    bool watching;
    _Atomic uint64_t *cpu_ns;    /* the doorman's, for figures; NULL: not wanted */
};

/* In the order of meeting_join (meeting.c). fini leaves the job, and takes half-built
 * meetings, too. */
void meet_init(struct meet *meet, const char *name, double start_s,
               const struct log *log);
descant_status meet_door_take(struct meet *meet);
void meet_door_give(struct meet *meet);

/* Calls every slot. Enters the arena that a trainer gives, or founds one for a new
 * job. */
descant_status meet_call(struct meet *meet);

/* Settles the rank, which must be free; -1: the lowest free one. */
descant_status meet_rank(const struct meet *meet, int *rank);

/* Takes a slot for that rank. */
descant_status meet_seat(struct meet *meet, int rank);

/* The thread that answers newcomers and notices deaths (doorman.c). From start to stop,
 * peers and callers are the doorman's. meet_stop also takes a meeting that has not
 * started. */
descant_status doorman_start(struct meet *meet);
void doorman_stop(struct meet *meet);
void meet_fini(struct meet *meet);

#endif
