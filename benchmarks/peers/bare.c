/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What an operation of two ranks takes at least: its flags and its copies, with no library around
 * them. Each is the best of some ways that we know of, so that a faster one may exist. All go through
 * shared memory: a copy by the kernel is faster only while nobody stores to what it reads (-w).
 */
#include "bounds.h"

#include <float.h>
#include <mpi.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define SHORT_BYTES     ((size_t)16 << 10)
#define LONG_BYTES      ((size_t)32 << 10)
#define CELL_BYTES      ((size_t)64 << 10)
#define RING_PASS_BYTES ((size_t)4 << 20)

/* With a pause between two looks, or without: a look takes the line away from who stores to it. */
static void await_count(const shc_a64 *count, uint64_t least, bool pauses)
{
    /* acquire bare <- release in send_short(), run_ring(): bytes, or that they have been read. */
    while (shc_a64_load_acquire(count) < least)
        if (pauses)
            shc_cpu_relax();
}

static double lesser(double a, double b)
{
    return a < b ? a : b;
}

/* ---- short: a flag and some bytes ---- */

/* After a flag in lines that always the same rank stores to, four such places in turn; in lines that
 * the receiver stores to next, with the flag or without it. */
enum place { OWN_LINES, SAME_LINES, HANDED_OVER, PLACES };

/* One way to send short letters. */
struct post {
    enum place place;
    bool pauses;
};

struct letter {
    shc_a64 *flag;
    char *data;
};

/* Of the sender's turns this one; `handed` are the lines that change hands. */
static struct letter letter_at(enum place place, int sender, uint64_t turn, uint64_t handed)
{
    const size_t room = SHORT_BYTES + 128;
    char *const own = shared()->ring + (2 + (size_t)sender * 4 + turn % 4) * room;
    char *const other = shared()->ring + handed * room;
    char *const flag = place == SAME_LINES ? other : own;
    return (struct letter){
        .flag = (shc_a64 *)(void *)flag,
        .data = place == HANDED_OVER ? other : flag + sizeof(shc_a64),
    };
}

static void send_short(const struct world *world, struct letter to, size_t bytes, uint64_t number)
{
    memcpy(to.data, world->given, bytes);
    /* release bare -> acquire in await_count(): the bytes. */
    shc_a64_store_release(to.flag, number);
}

static void receive_short(const struct world *world, struct letter from, size_t bytes,
                          uint64_t number, bool pauses)
{
    await_count(from.flag, number, pauses);
    memcpy(world->got, from.data, bytes);
}

/* One way, there in even turns and back in odd ones. */
static void pass_short(const struct world *world, struct post post, size_t bytes, uint64_t i)
{
    const struct letter letter = letter_at(post.place, (int)(i % 2), i / 2, 0);
    if ((uint64_t)world->rank == i % 2)
        send_short(world, letter, bytes, i + 1);
    else
        receive_short(world, letter, bytes, i + 1, post.pauses);
}

/* Both ways at once. */
static void swap_short(const struct world *world, struct post post, size_t bytes, uint64_t i)
{
    const uint64_t mine = (uint64_t)world->rank, theirs = 1 - mine;
    send_short(world, letter_at(post.place, (int)mine, i, (mine + i) % 2), bytes, i + 1);
    receive_short(world, letter_at(post.place, (int)theirs, i, (theirs + i) % 2), bytes, i + 1,
                  post.pauses);
}

typedef void (*short_fn)(const struct world *world, struct post post, size_t bytes, uint64_t i);

static double time_short(const struct world *world, short_fn run, struct post post, size_t bytes)
{
    enum { TURNS = 5, RUNS = 400 };
    double seconds[TURNS];
    uint64_t i = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    if (world->rank == 0)
        memset(shared()->ring, 0, RING_BYTES);
    for (int turn = 0; turn < TURNS; turn++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        for (const uint64_t end = i + RUNS; i < end; i++)
            run(world, post, bytes, i);
        seconds[turn] = (MPI_Wtime() - begun) / RUNS;
    }
    return median_of_slowest(seconds, TURNS);
}

static double least_short(const struct world *world, short_fn run, size_t bytes)
{
    double least = DBL_MAX;
    for (enum place place = OWN_LINES; place < PLACES; place++)
        for (int pauses = 0; pauses < 2; pauses++)
            least = lesser(least, time_short(world, run, (struct post){place, pauses == 1}, bytes));
    return least;
}

/* ---- long, both ways: lines that change hands ---- */

/* Not inlined, so that each pass is made. */
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

static float *block_of(int rank)
{
    return (float *)(void *)shared()->block[rank];
}

/* One all_reduce in place: what of it this rank does, without the time in which it meets the other. */
static double sum_in_cells(const struct world *world, size_t cell, size_t cells)
{
    float *mine = block_of(world->rank), *theirs = block_of(1 - world->rank);
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

/* Copies each rank's `given` to the other's `got`, in cells. */
static double trade_in_cells(const struct world *world, size_t cell, size_t cells)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double met = MPI_Wtime(), spent;
    memcpy(block_of(world->rank), world->given, cell * sizeof(float));
    spent = since_met(&met);
    for (size_t k = 0; k < cells; k++) {
        float *theirs = block_of((1 - world->rank + (int)k) % 2);
        if (k + 1 < cells)
            trade_cell(world->got + k * cell, theirs, world->given + (k + 1) * cell, cell);
        else
            memcpy(world->got + k * cell, theirs, cell * sizeof(float));
        spent += since_met(&met);
    }
    return spent;
}

static double trade_and_keep_in_cells(const struct world *world, size_t cell, size_t cells)
{
    const double spent = trade_in_cells(world, cell, cells), begun = MPI_Wtime();
    memcpy(world->got + cell * cells, world->given + cell * cells, cell * cells * sizeof(float));
    return spent + (MPI_Wtime() - begun);
}

typedef double (*cells_fn)(const struct world *world, size_t cell, size_t cells);

/* `bytes` from each rank to the other. */
static double time_cells(const struct world *world, cells_fn run, size_t bytes)
{
    enum { TURNS = 9 };
    const size_t cell = bytes < CELL_BYTES ? bytes : CELL_BYTES;
    double seconds[TURNS];
    for (int turn = -1; turn < TURNS; turn++) {
        double spent = run(world, cell / sizeof(float), bytes / cell);
        if (turn >= 0)
            seconds[turn] = spent;
    }
    return median_of_slowest(seconds, TURNS);
}

/* ---- long, one way: a ring ---- */

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

/* Who copies as many bytes of its own each time. */
enum keeper { NOBODY, WRITER, READER };

/* A way through the ring: how the writer copies, and the reader, and in what pieces. A writer that is
 * always the same runs ahead of its reader, as in a stream; the root of an operation is another one
 * each time, as in calls.c. */
struct ring {
    copy_fn write, read;
    size_t piece;
    bool in_turns;
    enum keeper keeper;
};

static const copy_fn ring_copies[][2] = {
    {copy_plain, copy_plain},
    {copy_vectors, copy_vectors},
    {copy_past, copy_vectors},
};

static void keep(const struct world *world, size_t bytes)
{
    memcpy((char *)world->got + bytes, (char *)world->given + bytes, bytes);
}

/* `bytes` from one rank's memory into the other's; `done` pieces were there before. */
static uint64_t run_ring(const struct world *world, const struct ring *ring, size_t bytes,
                         uint64_t done)
{
    shc_a64 *stored = &shared()->flag[0][0], *read = &shared()->flag[1][0];
    const uint64_t slots = RING_BYTES / ring->piece, pass = done / (bytes / ring->piece);
    const bool writes = (uint64_t)world->rank == (ring->in_turns ? pass % 2 : 0);
    char *mine = (char *)(writes ? world->given : world->got);
    for (size_t at = 0; at < bytes; at += ring->piece, done++) {
        char *slot = shared()->ring + done % slots * ring->piece;
        if (writes) {
            await_count(read, done < slots ? 0 : done + 1 - slots, false);
            ring->write(slot, mine + at, ring->piece);
        } else {
            await_count(stored, done + 1, false);
            ring->read(mine + at, slot, ring->piece);
        }
        /* release bare -> acquire in await_count(): as there. */
        shc_a64_store_release(writes ? stored : read, done + 1);
    }
    if (ring->keeper == (writes ? WRITER : READER))
        keep(world, bytes);
    return done;
}

static double time_ring(const struct world *world, const struct ring *ring, size_t bytes)
{
    enum { TURNS = 3 };
    const int passes = bytes < RING_PASS_BYTES ? (int)(RING_PASS_BYTES / bytes) : 1;
    double seconds[TURNS];
    uint64_t done = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    shc_a64_store_release(&shared()->flag[world->rank][0],
                          0); /* nobody reads it before the barrier */
    for (int turn = -1; turn < TURNS; turn++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        for (int pass = 0; pass < passes; pass++)
            done = run_ring(world, ring, bytes, done);
        if (turn >= 0)
            seconds[turn] = (MPI_Wtime() - begun) / passes;
    }
    return median_of_slowest(seconds, TURNS);
}

static double least_ring(const struct world *world, size_t bytes, bool in_turns, enum keeper keeper)
{
    double least = 0;
    for (size_t way = 0; way < sizeof ring_copies / sizeof *ring_copies; way++) {
        struct ring ring = {ring_copies[way][0], ring_copies[way][1], 0, in_turns, keeper};
        for (ring.piece = (size_t)16 << 10; ring.piece <= LONG_BYTES; ring.piece *= 2) {
            const double seconds = time_ring(world, &ring, bytes);
            least = least == 0 ? seconds : lesser(least, seconds);
        }
    }
    return least;
}

/* ---- the operations ---- */

double bare_pass(const struct world *world, size_t bytes)
{
    return bytes <= SHORT_BYTES ? least_short(world, pass_short, bytes) : 0;
}

double bare_stream(const struct world *world, size_t bytes)
{
    return bytes >= LONG_BYTES ? least_ring(world, bytes, false, NOBODY) : 0;
}

static double one_way(const struct world *world, size_t bytes, enum keeper keeper)
{
    return bytes <= SHORT_BYTES ? bare_pass(world, bytes) : least_ring(world, bytes, true, keeper);
}

double bare_one_way(const struct world *world, size_t bytes)
{
    return one_way(world, bytes, NOBODY);
}

double bare_gather(const struct world *world, size_t bytes)
{
    return one_way(world, bytes, READER);
}

double bare_scatter(const struct world *world, size_t bytes)
{
    return one_way(world, bytes, WRITER);
}

double bare_all_reduce(const struct world *world, size_t bytes)
{
    if (bytes <= SHORT_BYTES)
        return least_short(world, swap_short, bytes);
    return bytes > LONG_BYTES ? time_cells(world, sum_in_cells, bytes / 2) : 0;
}

double bare_trade(const struct world *world, size_t bytes)
{
    return bytes <= SHORT_BYTES ? least_short(world, swap_short, bytes)
                                : time_cells(world, trade_in_cells, bytes);
}

double bare_both_ways(const struct world *world, size_t bytes)
{
    return bytes <= SHORT_BYTES ? least_short(world, swap_short, bytes)
                                : time_cells(world, trade_and_keep_in_cells, bytes);
}
