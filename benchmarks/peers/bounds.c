/* SPDX-License-Identifier: BSD-3-Clause */
#include "peers.h"

#include <shm/base/atomic.h>

#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define BLOCK_BYTES     ((size_t)256 << 10)
#define BARE_CELL_BYTES ((size_t)64 << 10)
#define BLOCK_ROUNDS    MEDIAN_ROOM
#define RING_BYTES      ((size_t)1536 << 10)
#define RING_PASS_BYTES ((size_t)4 << 20)
#define HOPS            4000
#define HOPS_SECONDS    0.2

/* Two blocks, a ring and two flags that all ranks see; made once, freed by MPI_Finalize's process end. */
struct shared {
    _Alignas(128) shc_a64 flag[2][16];
    _Alignas(4096) uint64_t block[2][BLOCK_BYTES / 8];
    _Alignas(4096) char ring[RING_BYTES];
};

static struct shared *shared(void)
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

/* Of the slowest rank in each turn. */
static double median_of_slowest(double *seconds, int count)
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

/* Not inlined, as above. */
static __attribute__((noinline)) void reduce_cell(float *restrict x, float *restrict cell,
                                                  size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] = cell[i] = x[i] + cell[i];
}

static __attribute__((noinline)) void trade_cell(float *restrict x, float *restrict cell,
                                                 const float *restrict next, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const float theirs = cell[i];
        cell[i] = next[i];
        x[i] = theirs;
    }
}

static double since_met(double *met)
{
    const double spent = MPI_Wtime() - *met;
    MPI_Barrier(MPI_COMM_WORLD);
    *met = MPI_Wtime();
    return spent;
}

/* One all_reduce in place: what of it this rank does, without the time in which it meets the other. */
static double bare_turn(const struct world *world, size_t cell, size_t cells)
{
    struct shared *both = shared();
    float *mine = (float *)(void *)both->block[world->rank];
    float *theirs = (float *)(void *)both->block[1 - world->rank];
    float *own = world->got + (size_t)world->rank * cell * cells;
    float *others = world->got + (size_t)(1 - world->rank) * cell * cells;
    MPI_Barrier(MPI_COMM_WORLD);
    double met = MPI_Wtime(), spent;
    memcpy(mine, others, cell * sizeof(float));
    spent = since_met(&met);
    for (size_t k = 0; k < cells; k++) {
        reduce_cell(own + k * cell, theirs, cell);
        spent += since_met(&met);
        if (k + 1 < cells)
            trade_cell(others + k * cell, mine, others + (k + 1) * cell, cell);
        else
            memcpy(others + k * cell, mine, cell * sizeof(float));
        spent += since_met(&met);
    }
    return spent;
}

double bound_bare(const struct world *world, size_t bytes)
{
    enum { TURNS = 9 };
    const size_t half = bytes / 2 < BARE_CELL_BYTES ? bytes / 2 : BARE_CELL_BYTES;
    double seconds[TURNS];
    for (int turn = -1; turn < TURNS; turn++) {
        double spent = bare_turn(world, half / sizeof(float), bytes / 2 / half);
        if (turn >= 0)
            seconds[turn] = spent;
    }
    return median_of_slowest(seconds, TURNS);
}

/* ---- a ring ---- */

/* Not inlined and not turned into memcpy, so that it is the compiler's widest vectors. */
static __attribute__((noinline, optimize("no-tree-loop-distribute-patterns"))) void
copy_vectors(void *restrict to, const void *restrict from, size_t bytes)
{
    uint64_t *out = to;
    const uint64_t *in = from;
    for (size_t i = 0; i < bytes / sizeof *out; i++)
        out[i] = in[i];
}

static void copy_plain(void *restrict to, const void *restrict from, size_t bytes)
{
    memcpy(to, from, bytes);
}

/* Past the caches, where the processor can. */
static void copy_past(void *restrict to, const void *restrict from, size_t bytes)
{
#ifdef __SSE2__
    __m128i *out = to;
    const __m128i *in = from;
    for (size_t i = 0; i < bytes / sizeof *out; i++)
        _mm_stream_si128(out + i, _mm_loadu_si128(in + i));
    _mm_sfence();
#else
    copy_vectors(to, from, bytes);
#endif
}

typedef void (*copy_fn)(void *restrict to, const void *restrict from, size_t bytes);

/* How the writer copies, and the reader. */
static const copy_fn ring_copies[][2] = {
    {copy_plain, copy_plain},
    {copy_vectors, copy_vectors},
    {copy_past, copy_vectors},
};

static void await_count(const shc_a64 *count, uint64_t least)
{
    /* acquire ring <- release in run_ring(): the pieces, or that they have been read. */
    while (shc_a64_load_acquire(count) < least)
        ;
}

/* `bytes` from rank 0's memory into rank 1's, so often, in such pieces; `done` were there before. */
static uint64_t run_ring(const struct world *world, const copy_fn *copies, size_t bytes,
                         size_t piece, int passes, uint64_t done)
{
    struct shared *both = shared();
    shc_a64 *stored = &both->flag[0][0], *read = &both->flag[1][0];
    const uint64_t slots = RING_BYTES / piece;
    char *mine = (char *)(world->rank == 0 ? world->given : world->got);
    for (int pass = 0; pass < passes; pass++) {
        for (size_t at = 0; at < bytes; at += piece, done++) {
            char *slot = both->ring + done % slots * piece;
            if (world->rank == 0) {
                await_count(read, done < slots ? 0 : done + 1 - slots);
                copies[0](slot, mine + at, piece);
            } else {
                await_count(stored, done + 1);
                copies[1](mine + at, slot, piece);
            }
            /* release ring -> acquire in await_count(): as there. */
            shc_a64_store_release(world->rank == 0 ? stored : read, done + 1);
        }
    }
    return done;
}

static double time_ring(const struct world *world, const copy_fn *copies, size_t bytes,
                        size_t piece)
{
    enum { TURNS = 3 };
    struct shared *both = shared();
    const int passes = bytes < RING_PASS_BYTES ? (int)(RING_PASS_BYTES / bytes) : 1;
    double seconds[TURNS];
    uint64_t done = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    if (world->rank < 2)
        shc_a64_store_release(&both->flag[world->rank][0], 0); /* as above */
    for (int turn = -1; turn < TURNS; turn++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        if (world->rank < 2)
            done = run_ring(world, copies, bytes, piece, passes, done);
        if (turn >= 0)
            seconds[turn] = (MPI_Wtime() - begun) / passes;
    }
    return median_of_slowest(seconds, TURNS);
}

double bound_ring(const struct world *world, size_t bytes)
{
    double least = 0;
    for (size_t way = 0; way < sizeof ring_copies / sizeof *ring_copies; way++) {
        for (size_t piece = (size_t)16 << 10; piece <= (size_t)32 << 10; piece *= 2) {
            const double seconds = time_ring(world, ring_copies[way], bytes, piece);
            if (least == 0 || seconds < least)
                least = seconds;
        }
    }
    return least;
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
        /* acquire hop <- release beside it, of the other rank. */
        while (((got = shc_a64_load_acquire(theirs)) & ~LAST) < hop)
            ;
        if (world->rank == 1)
            shc_a64_store_release(mine, got);
    }
    double seconds[1] = {hop ? (MPI_Wtime() - begun) / (double)hop / 2 : 0};
    return median_of_slowest(seconds, 1);
}
