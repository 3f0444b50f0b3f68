/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Broadcast: the root's S bytes to every rank. The sizes are the defaults (select.c).
 *
 *   path         S           where the bytes go
 *   call line    <= 48 B     In the root's call line.
 *   small slot   <= 8 KiB    In the root's small slot of this epoch's parity.
 *   hand-off     <= 8 KiB    Two ranks: in a hand-off slot, instead of a small slot.
 *   pipelined    above       In chunks through the root's broadcast slots (flow.c).
 *
 * Call line, small slot and hand-off:
 *   1. The root stores S bytes.
 *   2. All ranks publish their call lines, and meet.
 *   3. The other ranks copy the bytes out.
 *
 * Cost: S bytes stored by the root, S bytes loaded by each other rank. Call line: one line loaded by each.
 * Edges: call/publish (call line, small slot, hand-off; pipelined: chunk 0), progress/step (pipelined).
 */
#include "shm/coll/flow.h"
#include "shm/coll/parts.h"
#include "shm/coll/round.h"
#include "shm/coll/runs.h"

static void take(struct shc_task *task, struct shc_span chunk, char *const *slots)
{
    shc_task_write(task, chunk.offset, slots[task->call.root], chunk.bytes);
}

static enum shc_status run_one_round(struct shc_task *task, bool in_line, size_t bytes)
{
    const bool is_root = task->seat->rank == task->call.root;
    const struct shc_round round = shc_round_begin(task, in_line, true, is_root ? bytes : 0);
    char *slot = shc_round_place(task, &round, task->call.root);
    if (is_root)
        shc_buf_read(&task->in, 0, slot, bytes);
    shc_task_enter(task);
    SHC_TRY(shc_task_meet(task));
    if (!is_root)
        shc_buf_write(&task->out, 0, slot, bytes);
    return SHC_OK;
}

static enum shc_status run_pipelined(struct shc_task *task, size_t bytes)
{
    struct shc_flow flow = {
        .task = task,
        .total_bytes = bytes,
        .giver = task->call.root,
        .taker = -1,
        .give = shc_give_input,
        .take = take,
    };
    shc_flow_begin(&flow);
    shc_task_enter(task);
    shc_flow_go_on(&flow);
    SHC_TRY(shc_task_meet(task));
    return task->seat->world_size > 1 ? shc_flow_run(&flow) : SHC_OK;
}

enum shc_status shc_broadcast_run(struct shc_task *task)
{
    size_t bytes = (size_t)task->call.count * task->call.elem_bytes;
    switch (shc_task_select(task, bytes)) {
    case SHC_ALGO_NOTHING:
        return shc_barrier_run(task);
    case SHC_ALGO_INLINE:
        return run_one_round(task, true, bytes);
    case SHC_ALGO_SMALL:
        return run_one_round(task, false, bytes);
    default:
        return run_pipelined(task, bytes);
    }
}
