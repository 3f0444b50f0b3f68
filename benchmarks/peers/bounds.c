/* SPDX-License-Identifier: BSD-3-Clause */
#include "bounds.h"

#include <mpi.h>
#include <stdint.h>
#include <string.h>

#define BLOCK_ROUNDS MEDIAN_ROOM
#define HOPS         4000
#define HOPS_SECONDS 0.2

struct shared *shared(void)
{
    static struct shared *memory;
    if (!memory) {
        int rank, unit;
        MPI_Aint bytes;
        MPI_Win window;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Win_allocate_shared(rank == 0 ? (MPI_Aint)(sizeof *memory + 4096) : 0, 1, MPI_INFO_NULL,
                                MPI_COMM_WORLD, &memory, &window);
        MPI_Win_shared_query(window, 0, &bytes, &unit, &memory);
        memory = (struct shared *)(((uintptr_t)memory + 4095) & ~(uintptr_t)4095);
    }
    return memory;
}

double median_of_slowest(double *seconds, int count)
{
    MPI_Allreduce(MPI_IN_PLACE, seconds, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return median(seconds, count);
}

/* Not inlined, so that each pass is made. */
static __attribute__((noinline)) void halve(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] *= 0.5f;
}

double bound_scale(const struct world *world, size_t bytes)
{
    enum { TURNS = 9 };
    const size_t count = bytes / sizeof(float);
    const int passes = bytes < (1u << 20) ? (int)((4u << 20) / bytes) : 1;
    double seconds[TURNS];
    for (int turn = -1; turn < TURNS; turn++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        for (int pass = 0; pass < passes; pass++)
            halve(world->got, count);
        if (turn >= 0)
            seconds[turn] = (MPI_Wtime() - begun) / passes;
    }
    return median_of_slowest(seconds, TURNS);
}

/* All of it is read: nobody could tell otherwise that it is what the other has stored. */
static void read_block(const uint64_t *block, int turn)
{
    uint64_t differences = 0;
    const uint64_t want = 0x0101010101010101u * (uint8_t)turn;
    for (size_t i = 0; i < BLOCK_BYTES / 8; i++)
        differences |= block[i] ^ want;
    if (differences)
        MPI_Abort(MPI_COMM_WORLD, 3);
}

/* Rank 0 and rank 1 store a block each and read the other's: seconds of the storing or the reading.
 * Handed over, a rank stores into the block it has just read, whose lines are its own. */
static double time_blocks(const struct world *world, bool handed_over, bool reading)
{
    struct shared *both = shared();
    static double seconds[BLOCK_ROUNDS];
    memset(seconds, 0, sizeof seconds);
    for (int turn = 0; turn < BLOCK_ROUNDS; turn++) {
        const int mine = (world->rank + (handed_over ? turn : 0)) & 1;
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        if (world->rank < 2)
            memset(both->block[mine], turn, BLOCK_BYTES);
        double stored = MPI_Wtime();
        MPI_Barrier(MPI_COMM_WORLD);
        double met = MPI_Wtime();
        if (world->rank < 2)
            read_block(both->block[1 - mine], turn);
        seconds[turn] = reading ? MPI_Wtime() - met : stored - begun;
    }
    return median_of_slowest(seconds, BLOCK_ROUNDS);
}

double bound_exchange(const struct world *world)
{
    return (double)BLOCK_BYTES / time_blocks(world, true, true);
}

double bound_rewrite(const struct world *world)
{
    return (double)BLOCK_BYTES / time_blocks(world, false, false);
}

/* ---- a hop ---- */

/* The last hop: rank 0 has had enough of them, or has waited long enough. */
#define LAST ((uint64_t)1 << 63)

/* Where ranks share CPUs a hop may take milliseconds. */
static uint64_t count_from(uint64_t hop, double begun)
{
    bool enough = hop == HOPS || (hop % 64 == 0 && MPI_Wtime() - begun > HOPS_SECONDS);
    return enough ? hop | LAST : hop;
}

double bound_hop(const struct world *world)
{
    struct shared *both = shared();
    shc_a64 *mine = &both->flag[world->rank & 1][0];
    shc_a64 *theirs = &both->flag[1 - (world->rank & 1)][0];
    if (world->rank < 2)
        shc_a64_store_release(mine, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    uint64_t hop = 0, got = world->rank < 2 ? 0 : LAST;
    while (!(got & LAST)) {
        hop++;
        if (world->rank == 0)
            /* release hop -> acquire below: nothing but the number. */
            shc_a64_store_release(mine, count_from(hop, begun));
        /* acquire hop <- release of the other rank. */
        while (((got = shc_a64_load_acquire(theirs)) & ~LAST) < hop)
            ;
        if (world->rank == 1)
            shc_a64_store_release(mine, got);
    }
    double seconds[1] = {hop ? (MPI_Wtime() - begun) / (double)hop / 2 : 0};
    return median_of_slowest(seconds, 1);
}
