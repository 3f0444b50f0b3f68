/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * shmcoll from plain C, without torch: N processes compute the mean of their vectors.
 *
 *   cc mean_of_ranks.c $(pkg-config --cflags --libs shmcoll) -o mean_of_ranks
 *   ./mean_of_ranks 4
 *
 * The ranks here are forked; they could as well be started by anything that gives each of them a
 * rank, the world size, and one directory (or key-value store) that all of them reach.
 */
#include <shm/shmcoll.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 1000

static int fail(int rank, const char *what)
{
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, shc_error_text());
    return 1;
}

static int run_rank(int rank, int world_size, const char *directory)
{
    struct shc_comm_config config = {
        .rank = rank,
        .world_size = world_size,
        .name = "example",
        .timeout_ns = 30ULL * 1000 * 1000 * 1000,
    };
    struct shc_comm *comm;
    if (shc_store_dir_open(directory, &config.store) != SHC_OK)
        return fail(rank, "store");
    enum shc_status status = shc_comm_create(&config, &comm);
    shc_store_dir_close(&config.store);
    if (status != SHC_OK)
        return fail(rank, "create");

    float values[COUNT];
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)(rank + i);

    const int64_t size = COUNT;
    const struct shc_tensor tensor = {.data = values, .ndim = 1, .sizes = &size};
    const struct shc_op op = {
        .kind = SHC_ALL_REDUCE,
        .dtype = SHC_FLOAT32,
        .redop = SHC_AVG,
        .input = {&tensor, 1},
        .output = {&tensor, 1}, /* in place */
    };
    status = shc_run(comm, &op);
    if (status != SHC_OK)
        fail(rank, "all_reduce");
    else if (rank == 0)
        printf("%d ranks, mean of element 10: %g\n", world_size, (double)values[10]);
    shc_comm_free(comm);
    return status == SHC_OK && values[10] == 10.f + (float)(world_size - 1) / 2 ? 0 : 1;
}

int main(int argc, char **argv)
{
    int world_size = argc > 1 ? atoi(argv[1]) : 2, failed = 0;
    char directory[] = "/tmp/shmcoll-example-XXXXXX";
    if (!mkdtemp(directory))
        return 1;
    for (int rank = 0; rank < world_size; rank++)
        if (fork() == 0)
            exit(run_rank(rank, world_size, directory));
    for (int rank = 0; rank < world_size; rank++) {
        int status;
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
            failed = 1;
    }
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", directory);
    return system(command) == 0 ? failed : 1;
}
