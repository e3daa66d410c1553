/* SPDX-License-Identifier: MIT */
/* Which MPI library a process is to use. Each has an ABI of its own, so the same source
 * (abi/mpi_abi.c) is compiled once for each into a module, which alone links MPI and is
 * loaded when a job asks for it. */
#ifndef LINK_MPI_H
#define LINK_MPI_H

#include <stdbool.h>
#include <stddef.h>

#define LINK_SYMBOL "descant_link"      /* of a module: its struct link_type */

enum mpi_library { MPI_LIBRARY_OPENMPI, MPI_LIBRARY_MPICH, MPI_LIBRARIES };

/* Finds the module's file. */
bool mpi_module_find(enum mpi_library library, char *path, size_t room);
/* Where there is no module: writes its name, the folders searched, and advice. */
const char *mpi_module_missing(char *text, size_t room);
const char *mpi_module_name(enum mpi_library library);

/* The launcher that has started this process as a rank of an MPI job. */
enum mpi_launcher { MPI_LAUNCHER_NONE, MPI_LAUNCHER_OPENMPI, MPI_LAUNCHER_MPICH,
                    MPI_LAUNCHER_SLURM };
enum mpi_launcher mpi_module_launcher(void);

/* Which library this process is to use: the one that its program has loaded, else its
 * launcher's, else the one that has a module. */
enum mpi_library mpi_module_wanted(void);

/* Tells the launcher to end the job, for this process ends with the status before or in
 * MPI_Init. Open MPI's launcher ends the job by itself; MPICH's would let the other ranks
 * wait for ever. */
void mpi_module_abort(int status);

#endif
