/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reduce-scatter: block r of every rank's input, m bytes, combined in rank order, at rank r; the bits
 * of all_reduce. Each rank reads and reduces only its block.
 *
 *   inline  world * m <= 40 B    in the call lines
 *   small   world * m <= 8 KiB   in the small slots of this epoch's parity
 *   staged                       chunks of each block through the exchange cells of the pair
 *   no arena                     everybody's whole input through small slots; the same bits
 *
 * Cost: (world - 1) m stored and loaded per rank. Edges: call/publish (inline, small),
 * progress/step (staged).
 */
#include "shm/coll/coll.h"

#include "shm/coll/select.h"

static size_t block_of(const struct shc_task *task, int rank)
{
    return (size_t)rank * task->out.bytes;
}

static struct shc_span chunk_of(const struct shc_task *task, uint64_t k)
{
    return shc_plan_chunk(task->out.bytes, task->arena->geometry.cell_bytes, k);
}

static void give_block(struct shc_task *task, int peer, uint64_t k, char *cell)
{
    struct shc_span chunk = chunk_of(task, k);
    shc_buf_read(&task->in, block_of(task, peer) + chunk.offset, cell, chunk.bytes);
}

static void take_block(struct shc_task *task, uint64_t k, char *const *cells)
{
    struct shc_span chunk = chunk_of(task, k);
    const int me = task->seat->rank;
    const void *src[SHC_MAX_WORLD];
    void *dst[1];
    for (int rank = 0; rank < task->seat->world_size; rank++)
        src[rank] = cells[rank];
    src[me] = shc_buf_peek(&task->in, block_of(task, me) + chunk.offset, chunk.bytes,
                           task->scratch + SHC_SCRATCH_BYTES / 2);
    shc_task_reduce_to(task, src, chunk, dst, 0);
}

static void take_own(struct shc_task *task, struct shc_span chunk, char *const *slots)
{
    size_t begin = block_of(task, task->seat->rank);
    struct shc_span mine = shc_plan_overlap(chunk, (struct shc_span){begin, task->out.bytes});
    const void *src[SHC_MAX_WORLD];
    void *dst[1];
    if (mine.bytes == 0)
        return;
    for (int rank = 0; rank < task->seat->world_size; rank++)
        src[rank] = slots[rank] + (mine.offset - chunk.offset);
    shc_task_reduce_to(task, src, (struct shc_span){mine.offset - begin, mine.bytes}, dst, 0);
}

static enum shc_status run_staged(struct shc_task *task)
{
    bool arena;
    double factors[SHC_MAX_WORLD];
    shc_task_enter_reducing(task, 0);
    SHC_TRY(shc_task_meet(task));
    shc_task_read_factors(task, factors);
    SHC_TRY(shc_task_arena(task, &arena));
    if (arena) {
        struct shc_swap swap = {
            .task = task,
            .chunk_count = shc_plan_chunk_count(task->out.bytes, task->arena->geometry.cell_bytes),
            .give = give_block,
            .take = take_block,
        };
        return shc_swap_run(&swap);
    }
    struct shc_shout shout = {
        .task = task,
        .total_bytes = task->in.bytes,
        .giver = -1,
        .taker = -1,
        .give = shc_give_input,
        .take = take_own,
    };
    return shc_shout_run(&shout);
}

enum shc_status shc_reduce_scatter_run(struct shc_task *task)
{
    const size_t skip = block_of(task, task->seat->rank);
    const struct shc_span where = {0, task->out.bytes};
    if (task->seat->world_size == 1)
        return shc_task_reduce_alone(task);
    switch (shc_select(SHC_REDUCE_SCATTER, task->in.bytes, task->seat->world_size)) {
    case SHC_ALGO_NOTHING:
        return shc_barrier_run(task);
    case SHC_ALGO_INLINE:
        return shc_task_reduce_round(task, true, skip, where);
    case SHC_ALGO_SMALL:
        return shc_task_reduce_round(task, false, skip, where);
    default:
        return run_staged(task);
    }
}
