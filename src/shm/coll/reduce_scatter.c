/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reduce-scatter: block r of every rank's input, m bytes, combined in rank order, at rank r, with the bits of
 * all_reduce. Each rank reads and reduces its own block alone. The sizes are the defaults (select.c).
 *
 *   path         world * m   where the bytes go
 *   call line    <= 40 B     In the call lines.
 *   small slot   <= 8 KiB    In the small slots of this epoch's parity. Two ranks: <= 2 KiB.
 *   pipelined    above       In chunks of each block, through the exchange cells of the pair, the first one
 *                            before the call line.
 *   no arena     above       Every rank's whole input goes through small slots. The bits are the same.
 *
 * Call line and small slot:
 *   1. Each rank stores its whole input.
 *   2. All ranks publish their call lines, and meet.
 *   3. Each rank reduces its block, from its own input and what the others have stored.
 * Pipelined: a rank stores only what the peer's block needs, chunk by chunk (flow.c).
 *
 * An uneven reduce-scatter has blocks of m_r bytes. They go through the small slots if they fit there after a
 * table of their sizes (STAGE-43; uneven.c). Otherwise they are pipelined, with as many turns as the largest
 * block needs.
 *
 * Cost: (world - 1) m bytes stored and loaded by each rank. Edges: call/publish (call line, small slot;
 * pipelined: chunk 0), progress/step (pipelined).
 */
#include "shm/coll/flow.h"
#include "shm/coll/reduction.h"
#include "shm/coll/runs.h"
#include "shm/coll/uneven.h"

#include "shm/kernel/alias.h"

#include <stdlib.h>

/* The block of that rank, in every rank's input. task->more has the blocks if they are uneven. */
static struct shc_span block_of(const struct shc_task *task, int rank)
{
    if (task->more)
        return shc_blocks_at(task->more, rank);
    return (struct shc_span){(size_t)rank * task->out.bytes, task->out.bytes};
}

/* Chunk k of a block, from the block's beginning. A block may be shorter than the longest one. */
static struct shc_span chunk_of(const struct shc_task *task, struct shc_span block, uint64_t k)
{
    return shc_plan_chunk(block.bytes, shc_task_cell_bytes(task), k);
}

static struct shc_span given(const struct shc_task *task, int peer, uint64_t k)
{
    struct shc_span block = block_of(task, peer);
    struct shc_span chunk = chunk_of(task, block, k);
    return (struct shc_span){block.offset + chunk.offset, chunk.bytes};
}

static void take_block(struct shc_task *task, uint64_t k, char *const *cells)
{
    const int me = task->seat->rank;
    shc_task_reduce_cells(task, cells, given(task, me, k), chunk_of(task, block_of(task, me), k));
}

static void take_own(struct shc_task *task, struct shc_span chunk, char *const *slots)
{
    struct shc_span block = block_of(task, task->seat->rank);
    struct shc_span mine = shc_plan_overlap(chunk, block);
    const void *src[SHC_MAX_WORLD];
    void *dst[1];
    if (mine.bytes == 0)
        return;
    for (int rank = 0; rank < task->seat->world_size; rank++)
        src[rank] = slots[rank] + (mine.offset - chunk.offset);
    shc_task_reduce_to(task, src, (struct shc_span){mine.offset - block.offset, mine.bytes}, dst,
                       0);
}

/* After the meeting. The largest block has `largest` bytes. */
static enum shc_status move(struct shc_swap *swap, size_t largest)
{
    struct shc_task *task = swap->task;
    bool arena;
    double factors[SHC_MAX_WORLD];
    shc_task_read_factors(task, factors);
    if (task->more)
        shc_task_want(task, largest * (size_t)task->seat->world_size);
    SHC_TRY(shc_task_arena(task, &arena));
    if (arena) {
        swap->chunk_count = shc_plan_chunk_count(largest, shc_task_cell_bytes(task));
        return shc_swap_run(swap);
    }
    if (task->more) /* the tables are in the slots that are filled next */
        SHC_TRY(shc_small_slots_reuse(task));
    struct shc_flow flow = {
        .task = task,
        .total_bytes = task->in.bytes,
        .giver = -1,
        .taker = -1,
        .first_step = task->more ? 1 : 0,
        .give = shc_give_input,
        .take = take_own,
    };
    if (shc_bufs_are_apart(&task->in, &task->out))
        return shc_flow_run(&flow);
    /* The output may be another rank's block of the input, and that block has not left yet. */
    const struct shc_buf in = task->in;
    void *copy;
    SHC_TRY(shc_task_copy_input(task, &copy));
    enum shc_status st = shc_flow_run(&flow);
    task->in = in;
    free(copy);
    return st;
}

static enum shc_status run_pipelined(struct shc_task *task)
{
    struct shc_swap swap = {.task = task, .given = given, .take = take_block};
    shc_swap_begin(&swap);
    shc_task_enter_reducing(task, 0);
    SHC_TRY(shc_task_meet(task));
    return move(&swap, task->out.bytes);
}

enum shc_status shc_reduce_scatter_run(struct shc_task *task)
{
    const size_t skip = block_of(task, task->seat->rank).offset;
    const struct shc_span where = {0, task->out.bytes};
    if (task->seat->world_size == 1)
        return shc_task_reduce_alone(task);
    switch (shc_task_select(task, task->in.bytes)) {
    case SHC_ALGO_NOTHING:
        return shc_barrier_run(task);
    case SHC_ALGO_INLINE:
        return shc_task_reduce_round(task, true, skip, where);
    case SHC_ALGO_SMALL:
        return shc_task_reduce_round(task, false, skip, where);
    default:
        return run_pipelined(task);
    }
}

/* ---- uneven ---- */

static enum shc_status reduce_packed(struct shc_task *task, size_t skip)
{
    const struct shc_span block = block_of(task, task->seat->rank);
    const void *src[SHC_MAX_WORLD];
    double factors[SHC_MAX_WORLD];
    void *dst[1];
    shc_task_read_factors(task, factors);
    for (int rank = 0; rank < task->seat->world_size; rank++)
        src[rank] = shc_seat_small_slot(task->seat, rank, task->wait.epoch) + skip + block.offset;
    if (block.bytes > 0)
        shc_task_reduce_to(task, src, (struct shc_span){0, block.bytes}, dst, 0);
    return SHC_OK;
}

enum shc_status shc_reduce_scatter_uneven_run(struct shc_task *task)
{
    const int world = task->seat->world_size;
    const size_t skip = (size_t)world * sizeof(uint64_t);
    struct shc_blocks blocks;
    size_t largest = 0;
    if (world == 1)
        return shc_task_reduce_alone(task);
    shc_uneven_fill_table(task, &task->in, &blocks);
    shc_blocks_pack(task, skip);
    shc_task_enter_reducing(task, 0);
    SHC_TRY(shc_task_meet(task));
    SHC_TRY(shc_uneven_compare_tables(
        task, "sizes differ: the output of %s has %llu elements, but %s gives it %llu", &blocks));
    task->more = &blocks;
    if (shc_blocks_packed(task->in.bytes, skip)) /* the same on all ranks, as their tables are */
        return reduce_packed(task, skip);
    for (int rank = 0; rank < world; rank++)
        if (shc_blocks_at(&blocks, rank).bytes > largest)
            largest = shc_blocks_at(&blocks, rank).bytes;
    struct shc_swap swap = {.task = task, .given = given, .take = take_block};
    return move(&swap, largest);
}
