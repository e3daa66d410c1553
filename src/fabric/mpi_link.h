/* SPDX-License-Identifier: MIT */
/* What Descant needs of MPI, in plain C types: one communicator, and messages between its ranks.
 * Each MPI library has an ABI of its own, so the same source (abi/mpi_abi.c) is compiled once for
 * each into a module, which alone links MPI and is loaded when a job asks for it. Tests have a
 * table of their own, whose ranks live in one process.
 *
 * One thread at a time calls any of it. Messages from one rank to another with one tag arrive in
 * the order in which they were sent; what they carry stays where it is until they have ended. */
#ifndef MPI_LINK_H
#define MPI_LINK_H

#include <stdbool.h>
#include <stddef.h>

enum { MPI_LINKS_VERSION = 6, MPI_FROM_ANY = -1, MPI_HOST_ROOM = 64 };

struct mpi_link;            /* the module's */

/* How a rank is to go up. */
struct mpi_entry {
    void *context;                  /* of tests: their world */
    int rank;                       /* of tests: which one; or -1 */
    double start_s;                 /* so long at most for the others to come */
    _Atomic bool entered;           /* set by up: MPI_Init has returned; */
    bool timed_out;                 /* some have not come, */
    char why[256];                  /* or else what is wrong */
};

struct mpi_place {
    int rank, size;
    int host;                       /* the lowest rank of this machine */
    int local_rank, local_size;     /* among those of this machine */
    int hosts, host_number;         /* how many machines; this one's number, from 0 */
    int most_local;                 /* ranks of the machine that has most of them */
    bool initialised;               /* by the link; else the program had done it */
    const char *threads;            /* the thread level in force, by its MPI name */
    char job[64];                   /* one name for this machine's ranks, which no other job has */
    char version[128];              /* of the library */
};

struct mpi_ended {
    void *op;                       /* as it was given to send or receive */
    int from;                       /* receive: its sender */
    size_t bytes;                   /* receive: its length */
};

struct mpi_links {
    int version;                    /* MPI_LINKS_VERSION */
    const char *name;               /* of the library */

    /* Initialises MPI where the program has not, and makes a communicator of all its ranks: all
     * call it, and wait for each other, asleep. NULL: it has not come about; a rank for which the
     * others were too late may try again, and meets those who have come meanwhile. */
    struct mpi_link *(*up)(struct mpi_entry *entry, struct mpi_place *place);

    const char *(*host)(const struct mpi_link *link, int rank);     /* its name */

    /* Begin and return. receive: at most `bytes`, from a rank or from any. */
    bool (*send)(struct mpi_link *link, const void *p, size_t bytes, int to, int tag, void *op);
    bool (*receive)(struct mpi_link *link, void *p, size_t bytes, int from, int tag, void *op);

    /* Lets the messages move, without blocking. How many have ended, and which: the link's, until
     * the next call. -1: one has failed. */
    int (*collect)(struct mpi_link *link, const struct mpi_ended **ended);

    const char *(*why)(const struct mpi_link *link);    /* send, receive or collect has failed */

    /* Gives up the receives that are open. together: all ranks call it now, else the communicator
     * stays. MPI ends with the process, if it was initialised here and all links went together.
     * False: messages are under way still, and MPI may read and write what they carry at any time
     * from now on. */
    bool (*down)(struct mpi_link *link, bool together);
};

#define MPI_LINKS_SYMBOL "descant_mpi_links"

/* --- mpi_module.c --- */

enum mpi_library { MPI_LIBRARY_OPENMPI, MPI_LIBRARY_MPICH, MPI_LIBRARIES };

struct log;

/* The module's file, where there is one. */
bool mpi_module_find(enum mpi_library library, char *path, size_t room);
/* Of the wanted library, where there is none: its name, where it was looked for, what helps. */
const char *mpi_module_missing(char *text, size_t room);
const char *mpi_module_name(enum mpi_library library);

/* Who has started this process as a rank of an MPI job. */
enum mpi_launcher { MPI_LAUNCHER_NONE, MPI_LAUNCHER_OPENMPI, MPI_LAUNCHER_MPICH,
                    MPI_LAUNCHER_SLURM };
enum mpi_launcher mpi_module_launcher(void);

/* Which library this process is to use: the one that its program has loaded, else its launcher's,
 * else the one that has a module. */
enum mpi_library mpi_module_wanted(void);

/* Loads the wanted library's module, for good. NULL: logged. */
const struct mpi_links *mpi_module_load(const struct log *log);

/* This process ends with the status, before it has come to MPI_Init, or in it: the launcher ends the
 * job. Open MPI's does so by itself; MPICH's would let the other ranks wait for ever. They do not
 * where the address `job` is another fabric's; NULL: the launcher's. */
void mpi_module_abort(int status, const char *job);

#endif
