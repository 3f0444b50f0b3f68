/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * All-gather: every rank's m bytes, in rank order, to every rank. The list form and the flat form
 * are the same vector here.
 *
 *   inline  m <= 48 B    in the call lines
 *   small   m <= 8 KiB   each rank's small slot of this epoch's parity, before its call line
 *   staged               chunks through everybody's shout slots
 *
 * Cost: m stored, (world - 1) m loaded per rank, and m copied in place. Edges: call/publish
 * (inline, small), progress/step (staged).
 */
#include "shm/coll/coll.h"

#include "shm/coll/select.h"

/* This rank's own block; nothing to do where the input is that block. */
static void keep_own(struct shc_task *task)
{
    shc_task_keep(task, 0, (size_t)task->seat->rank * task->in.bytes, task->in.bytes);
}

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

static enum shc_status run_inline(struct shc_task *task)
{
    const uint64_t epoch = task->wait.epoch;
    const size_t bytes = task->in.bytes;
    char payload[SHC_INLINE_BYTES];
    shc_buf_read(&task->in, 0, payload, bytes);
    shc_task_enter(task, payload, bytes);
    SHC_TRY(shc_task_meet(task));
    for (int rank = 0; rank < task->seat->world_size; rank++)
        shc_buf_write(&task->out, (size_t)rank * bytes, shc_call_payload(task->seat, rank, epoch),
                      bytes);
    return SHC_OK;
}

static enum shc_status run_small(struct shc_task *task)
{
    const uint64_t epoch = task->wait.epoch;
    const size_t bytes = task->in.bytes;
    shc_buf_read(&task->in, 0, shc_seat_small_slot(task->seat, task->seat->rank, epoch), bytes);
    shc_task_enter(task, NULL, 0);
    SHC_TRY(shc_task_meet(task));
    for (int rank = 0; rank < task->seat->world_size; rank++)
        if (rank != task->seat->rank)
            shc_buf_write(&task->out, (size_t)rank * bytes,
                          shc_seat_small_slot(task->seat, rank, epoch), bytes);
    keep_own(task);
    return SHC_OK;
}

static enum shc_status run_staged(struct shc_task *task)
{
    shc_task_enter(task, NULL, 0);
    SHC_TRY(shc_task_meet(task));
    keep_own(task);
    if (task->seat->world_size == 1)
        return SHC_OK;
    struct shc_shout shout = {
        .task = task,
        .total_bytes = task->in.bytes,
        .giver = -1,
        .taker = -1,
        .give = give,
        .take = take,
    };
    return shc_shout_run(&shout);
}

enum shc_status shc_allgather_run(struct shc_task *task)
{
    switch (shc_select(SHC_ALL_GATHER, task->in.bytes, task->seat->world_size)) {
    case SHC_ALGO_NOTHING:
        return shc_barrier_run(task);
    case SHC_ALGO_INLINE:
        return run_inline(task);
    case SHC_ALGO_SMALL:
        return run_small(task);
    default:
        return run_staged(task);
    }
}
