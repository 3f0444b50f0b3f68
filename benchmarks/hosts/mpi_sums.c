/* SPDX-License-Identifier: BSD-3-Clause */
/* Times MPI_Allreduce for against_mpi.py: a line for each round, as JSON, and one with the CPU seconds of all ranks.
 * mpi_sums ROUNDS ROUND_S BYTES... */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int rank, ranks;

/* Seconds of a call, of the slowest rank. */
static double time_round(const float *in, float *out, int count, int calls)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double begun = MPI_Wtime();
    for (int i = 0; i < calls; i++) /* (In place, coll/han of 4.1 crashes above one segment.) */
        MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double took = (MPI_Wtime() - begun) / calls, slowest;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static void time_size(long bytes, int rounds, double round_s)
{
    const int count = (int)(bytes / (long)sizeof(float));
    const float wanted = (float)ranks * (float)(ranks + 1) / 2;
    float *in = malloc((size_t)bytes), *out = calloc(1, (size_t)bytes);
    int wrong = 0;
    if (!in || !out)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < count; i++)
        in[i] = (float)(rank + 1);
    (void)time_round(in, out, count, 1);
    for (int i = 0; i < count; i++)
        wrong |= out[i] < wanted || out[i] > wanted;
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_LOR, MPI_COMM_WORLD);
    const double one_s = time_round(in, out, count, 2);
    const int calls = one_s * 2 < round_s ? (int)(round_s / one_s) : 1;
    for (int i = 0; i < rounds; i++) {
        const double took_s = time_round(in, out, count, calls);
        if (rank == 0)
            printf("{\"bytes\": %ld, \"s\": %.9f, \"wrong\": %d}\n", bytes, took_s, wrong);
    }
    free(in);
    free(out);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 3; i < argc; i++)
        time_size(atol(argv[i]), atoi(argv[1]), atof(argv[2]));
    double cpu_s = (double)clock() / CLOCKS_PER_SEC, all_s;
    MPI_Reduce(&cpu_s, &all_s, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"cpu_s\": %.3f}\n", all_s);
    MPI_Finalize();
    return 0;
}
