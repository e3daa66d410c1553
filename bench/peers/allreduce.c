/* SPDX-License-Identifier: MIT */
/* MPI_Allreduce, to be measured beside Descant: allreduce BYTES [RUNS]. One JSON object
 * with times of a sum of floats: ms, between two buffers, all ranks at the start
 * together, the median; and again_ms, in one buffer, run after run without a barrier, as
 * a training loop has it, the mean. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARM = 2, MAX_RUNS = 1001 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double apart_ms(const float *from, float *into, int n, int runs)
{
    static double ms[MAX_RUNS];

    for (int i = -WARM; i < runs; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Allreduce(from, into, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= 0)
            ms[i] = 1e3 * (MPI_Wtime() - start);
    }
    qsort(ms, (size_t)runs, sizeof *ms, by_value);
    return ms[runs / 2];
}

static double again_ms(float *x, int n, int runs)
{
    double start = 0;

    for (int i = -WARM; i < runs; i++) {
        if (i == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
        }
        MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    return 1e3 * (MPI_Wtime() - start) / runs;
}

int main(int argc, char **argv)
{
    long bytes = argc > 1 ? atol(argv[1]) : 64 << 20;
    int rank, size, n = (int)(bytes / (long)sizeof(float)),
                    runs = argc > 2 ? atoi(argv[2]) : 5;
    float *from = calloc((size_t)n, sizeof *from),
          *into = calloc((size_t)n, sizeof *into);

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (from == NULL || into == NULL || runs < 1 || runs > MAX_RUNS)
        MPI_Abort(MPI_COMM_WORLD, 1);
    double ms = apart_ms(from, into, n, runs), again = again_ms(into, n, runs);
    if (rank == 0)
        printf("{\"peer\":\"MPI_Allreduce\",\"ranks\":%d,\"bytes\":%ld,\"ms\":%.3f,"
               "\"again_ms\":%.3f}\n", size, bytes, ms, again);
    MPI_Finalize();
    free(from);
    free(into);
    return 0;
}
