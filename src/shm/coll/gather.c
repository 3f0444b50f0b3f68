/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Gather: every rank's m bytes, in rank order, to the root.
 *
 *   inline  m <= 48 B    in the call lines
 *   small   m <= 8 KiB   each rank's small slot of this epoch's parity, before its call line
 *   staged               chunks through everybody's shout slots, taken by the root
 *
 * Cost: m stored by each rank, (world - 1) m loaded by the root. Edges: call/publish (inline,
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
    for (int rank = 0; rank < task->seat->world_size; rank++)
        if (rank != task->seat->rank)
            shc_buf_write(&task->out, (size_t)rank * task->in.bytes + chunk.offset, slots[rank],
                          chunk.bytes);
}

static void keep_own(struct shc_task *task)
{
    shc_task_keep(task, 0, (size_t)task->seat->rank * task->in.bytes, task->in.bytes);
}

/* All of it lies in the call lines or in the small slots. */
static enum shc_status run_one_round(struct shc_task *task, bool in_line)
{
    const uint64_t epoch = task->wait.epoch;
    const struct shc_span all = {0, task->in.bytes};
    char payload[SHC_INLINE_BYTES], *slots[SHC_MAX_WORLD];
    for (int rank = 0; rank < task->seat->world_size; rank++)
        slots[rank] = shc_seat_small_slot(task->seat, rank, epoch);
    shc_buf_read(&task->in, 0, in_line ? payload : slots[task->seat->rank], all.bytes);
    shc_task_enter(task, payload, in_line ? all.bytes : 0);
    SHC_TRY(shc_task_meet(task));
    if (task->seat->rank != task->call.root)
        return SHC_OK;
    for (int rank = 0; in_line && rank < task->seat->world_size; rank++)
        slots[rank] = (char *)shc_call_payload(task->seat, rank, epoch);
    take(task, all, slots);
    keep_own(task);
    return SHC_OK;
}

static enum shc_status run_staged(struct shc_task *task)
{
    shc_task_enter(task, NULL, 0);
    SHC_TRY(shc_task_meet(task));
    if (task->seat->rank == task->call.root)
        keep_own(task);
    if (task->seat->world_size == 1)
        return SHC_OK;
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

enum shc_status shc_gather_run(struct shc_task *task)
{
    switch (shc_select(SHC_GATHER, task->in.bytes, task->seat->world_size)) {
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
