/* SPDX-License-Identifier: MIT */
/* Tests of real processes, started by the mpirun of each MPI library that is there. A
 * program is both sides: under Check it starts itself, with the name of a part and
 * under mpirun, and a part that finds something wrong prints it and exits with 1. */
#ifndef HARNESS_MPI_H
#define HARNESS_MPI_H

#include "fabric/fabric.h"
#include "harness/processes.h"
#include "harness/suite.h"
#include "link/mpi.h"

/* AddressSanitizer makes these minutes, and MPI libraries crash under ThreadSanitizer. */
#if defined __SANITIZE_THREAD__
enum { LIBRARIES_RUN = 0 };
#elif defined __SANITIZE_ADDRESS__
enum { LIBRARIES_RUN = 1 };
#else
enum { LIBRARIES_RUN = MPI_LIBRARIES };
#endif

/* --- the side of the ranks --- */

#define NEED(condition)                                                                 \
    do {                                                                                \
        if (!(condition)) {                                                             \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,          \
                    descant_last_error());                                              \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

void to_stderr(void *user, enum descant_level level, const char *line);

struct mpi_part {
    const char *name;
    int (*run)(void);
};

/* main, with the parts that ranks may be told to be. */
int run_mpi(int argc, char **argv, const struct mpi_part *parts, size_t n_parts,
            TCase *tests);

/* --- the side of Check --- */

void find_modules(void);        /* and this program; main calls it first */
bool is_there(enum mpi_library library);

/* Their exit status, for a minute at most; what they say is in `said`. */
int mpirun(enum mpi_library library, const char *binding, const char *what);
/* A command by which a shell starts so many ranks of this program, which it ends after 100 s. */
void mpirun_command(char *command, size_t room, enum mpi_library library, int ranks);
int launch(enum mpi_library library, int ranks, const char *part);
void need_good(enum mpi_library library, int ranks, const char *part);

#endif
