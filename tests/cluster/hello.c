/* SPDX-License-Identifier: MIT */
/* Who is where, and how fast it is: hello [BYTES]. Each rank says its host and with how many it
 * shares memory; the first then sends BYTES to the last, who answers, and says how long it took. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static double pass(int rank, int size, int bytes)
{
    char *memory = calloc((size_t)bytes + 1, 1), answer = 0;
    double start = MPI_Wtime();

    if (rank == 0 && size > 1) {
        MPI_Send(memory, bytes, MPI_CHAR, size - 1, 1, MPI_COMM_WORLD);
        MPI_Recv(&answer, 1, MPI_CHAR, size - 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (size > 1 && rank == size - 1) {
        MPI_Recv(memory, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(&answer, 1, MPI_CHAR, 0, 2, MPI_COMM_WORLD);
    }
    free(memory);
    return MPI_Wtime() - start;
}

/* MPICH over UCX and TCP may hang in MPI_Finalize where ranks come to it at different times
 * (github.com/openucx/ucx/issues/8738), so there it is left out. */
static void end(void)
{
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
#ifdef MPICH_VERSION
    _exit(0);
#else
    MPI_Finalize();
#endif
}

int main(int argc, char **argv)
{
    int rank, size, near, length, bytes = argc > 1 ? atoi(argv[1]) : 0;
    char host[MPI_MAX_PROCESSOR_NAME];
    MPI_Comm machine;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_size(machine, &near);
    printf("rank %d of %d on %s, memory shared by %d\n", rank, size, host, near);
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = pass(rank, size, bytes);
    if (rank == 0)
        printf("%d bytes in %.3f s\n", bytes, seconds);
    MPI_Comm_free(&machine);
    end();
    return 0;
}
