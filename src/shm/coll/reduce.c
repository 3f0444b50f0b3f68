/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reduce: every element combined over the ranks in rank order, at the root only; the bits of
 * all_reduce. Nobody else's output is touched.
 *
 *   inline  <= 40 B    in the call lines; the root reduces
 *   small   <= 8 KiB   in the small slots of this epoch's parity; the root reduces
 *   staged             chunks through everybody's shout slots; the root reduces
 *
 * Cost: S stored by each other rank, (world - 1) S loaded by the root. Edges: call/publish (inline,
 * small), progress/step (staged).
 */
#include "shm/coll/coll.h"

#include "shm/coll/select.h"

static void give(struct shc_task *task, struct shc_span chunk, char *slot)
{
    shc_buf_read(&task->in, chunk.offset, slot, chunk.bytes);
}

static void take(struct shc_task *task, struct shc_span chunk, char *const *slots)
{
    const void *src[SHC_MAX_WORLD];
    void *dst[1];
    for (int rank = 0; rank < task->seat->world_size; rank++)
        src[rank] = slots[rank];
    shc_task_reduce_to(task, src, chunk, dst, 0);
}

/* All of it lies in the call lines or in the small slots. */
static enum shc_status run_one_round(struct shc_task *task, bool in_line)
{
    const void *src[SHC_MAX_WORLD];
    double factors[SHC_MAX_WORLD];
    void *dst[1];
    uint64_t epoch = task->wait.epoch;
    char *own = shc_seat_small_slot(task->seat, task->seat->rank, epoch);
    if (!in_line)
        shc_buf_read(&task->in, 0, own, task->in.bytes);
    shc_task_enter_reducing(task, in_line ? task->in.bytes : 0);
    SHC_TRY(shc_task_meet(task));
    if (task->seat->rank != task->call.root)
        return SHC_OK;
    shc_task_read_factors(task, factors);
    for (int rank = 0; rank < task->seat->world_size; rank++)
        src[rank] =
            in_line ? shc_task_payload(task, rank) : shc_seat_small_slot(task->seat, rank, epoch);
    shc_task_reduce_to(task, src, (struct shc_span){0, task->in.bytes}, dst, 0);
    return SHC_OK;
}

static enum shc_status run_staged(struct shc_task *task)
{
    double factors[SHC_MAX_WORLD];
    shc_task_enter_reducing(task, 0);
    SHC_TRY(shc_task_meet(task));
    shc_task_read_factors(task, factors);
    struct shc_shout shout = {
        .task = task,
        .total_bytes = task->in.bytes,
        .giver = -1,
        .taker = task->call.root,
        .give = give,
        .take = take,
    };
    return shc_shout_run(&shout);
}

enum shc_status shc_reduce_run(struct shc_task *task)
{
    if (task->seat->world_size == 1)
        return shc_task_reduce_alone(task);
    switch (shc_select(SHC_REDUCE, task->in.bytes, task->seat->world_size)) {
    case SHC_ALGO_NOTHING:
        return shc_barrier_run(task);
    case SHC_ALGO_INLINE:
        return run_one_round(task, true);
    case SHC_ALGO_SMALL:
        return run_one_round(task, false);
    default:
        return run_staged(task);
    }
}
