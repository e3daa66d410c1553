/* SPDX-License-Identifier: MIT */
/* How messages travel between the ranks of a job: one const table of functions. What is sent, to
 * whom and when is the business of src/ranks/, which knows no link by name, and has its time from
 * here, so that the same protocol runs over MPI and in virtual time.
 *
 * All but sleep are called by one thread at a time; sleep may run beside them.
 *
 * Messages from one rank to another with one tag arrive in the order in which they were sent. What
 * a message carries stays where it is until it has ended. A message that is longer than LINK_WORD
 * moves when its receiver has opened a receive for it, and never holds up another tag's: whoever
 * sends may count on nothing else. */
#ifndef LINK_H
#define LINK_H

#include "descant.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINK_TOO_LONG SIZE_MAX

enum { LINK_VERSION = 8, LINK_ANY = -1, LINK_NAME_ROOM = 64, LINK_WORD = 1024 };

struct log;
struct link_type;

/* The head of every link's own struct. */
struct link {
    const struct link_type *type;
};

/* How a rank is to meet the others. */
struct link_entry {
    void *context;                  /* simulated: its world */
    int rank;                       /* which one, or -1: any, or the launcher's */
    double start_s;                 /* so long at most for the others to come */
    const struct log *log;
    descant_status status;          /* set by meet that returns NULL, which has logged it */
    /* between mpi.c and its module: */
    _Atomic bool entered;           /* MPI_Init has returned */
    bool timed_out;                 /* some have not come, */
    char why[256];                  /* or else what is wrong */
};

struct link_place {
    int rank, size;
    int host;                       /* the lowest rank of this machine */
    int local_rank, local_size;     /* among those of this machine */
    int hosts, host_number;         /* how many machines; this one's number, from 0 */
    int most_local;                 /* ranks of the machine that has most of them */
    const char (*names)[LINK_NAME_ROOM];    /* of each rank's machine; the link's, until close */
    char job[64];                   /* one name for this machine's ranks, which no other job has */
    char version[128];              /* of what carries the messages, */
    char about[96];                 /* and what else there is to say of it */
    const char *unbind;             /* what lets ranks run on all cores, in words; NULL: they do */
};

struct link_ended {
    void *op;                       /* as it was given to send or receive */
    int from;                       /* receive: its sender */
    size_t bytes;                   /* receive: its length */
};

struct link_type {
    int version;                    /* LINK_VERSION */
    const char *name;               /* of what carries the messages */

    /* Meets all ranks of the job, and waits for them, asleep. NULL: it has not come about; a rank
     * for which the others were too late may try again, and meets those who have come meanwhile. */
    struct link *(*meet)(struct link_entry *entry, struct link_place *place);

    /* Begin and return. receive: at most `bytes`, from a rank or from LINK_ANY. */
    bool (*send)(struct link *link, const void *p, size_t bytes, int to, int tag, void *op);
    bool (*receive)(struct link *link, void *p, size_t bytes, int from, int tag, void *op);

    /* Lets the messages move, without blocking, and tells the time. How many have ended, and which:
     * the link's, until the next call. -1: one has failed. */
    int (*collect)(struct link *link, const struct link_ended **ended, uint64_t *now_ns);

    /* For so long at most, and not beyond until_ns (0: no bound); where the link can, until
     * something has moved. */
    void (*sleep)(struct link *link, uint64_t most_ns, uint64_t until_ns);

    const char *(*why)(const struct link *link);    /* send, receive or collect has failed */

    /* Gives up the receives that are open. together: all ranks call it now, else what the ranks
     * have in common stays. False: messages are under way still, and the link may read and write
     * what they carry at any time from now on. */
    bool (*close)(struct link *link, bool together);
};

/* --- the links --- */

extern const struct link_type link_mpi;         /* mpi.c */

#endif
