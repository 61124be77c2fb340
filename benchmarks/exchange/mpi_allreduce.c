// The median seconds of MPI_Allreduce of so many bytes of fp32: mpirun -n 2 mpi_allreduce BYTES ROUNDS
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_size(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int main(int count, char **words) {
    MPI_Init(&count, &words);
    int rank, values = atoi(words[1]) / 4, rounds = atoi(words[2]), warm_up = 3;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float *own = malloc(4 * (size_t)values), *sums = malloc(4 * (size_t)values);
    double *seconds = malloc(sizeof(double) * rounds);
    for (int i = 0; i < values; i++) own[i] = (float)(rank + i % 7);
    for (int round = -warm_up; round < rounds; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        MPI_Allreduce(own, sums, values, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (round >= 0) seconds[round] = MPI_Wtime() - begun;
    }
    qsort(seconds, rounds, sizeof(double), by_size);
    if (rank == 0) printf("%.9f\n", seconds[rounds / 2]);
    MPI_Finalize();
    return 0;
}
