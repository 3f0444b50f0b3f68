/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reduce: every element combined over the ranks in rank order, at the root only; the bits of
 * all_reduce. Nobody else's output is touched.
 *
 *   inline  <= 40 B    in the call lines; the root reduces
 *   small   <= 8 KiB   in the others' small slots of this epoch's parity; the root reduces (two
 *                      ranks: <= 32 KiB, in a relay slot)
 *   staged             chunks through the others' shout slots; the root reduces, its own addend from
 *                      its input. Without an arena they are the small slots
 *
 * Cost: S stored by each other rank, (world - 1) S loaded by the root. Edges: call/publish (inline,
 * small; staged: chunk 0), progress/step (staged).
 */
#include "shm/coll/coll.h"

#include "shm/coll/select.h"

static enum shc_status run_staged(struct shc_task *task)
{
    struct shc_shout shout = shc_task_reduce_shout(task, task->call.root);
    shc_shout_begin(&shout);
    shc_task_enter_reducing(task, 0);
    shc_shout_go_on(&shout);
    SHC_TRY(shc_task_meet(task));
    return shc_task_run_reduce_shout(&shout);
}

enum shc_status shc_reduce_run(struct shc_task *task)
{
    /* The root's output is as long as its input, and nobody else has one. */
    const struct shc_span where = {0, task->out.bytes};
    if (task->seat->world_size == 1)
        return shc_task_reduce_alone(task);
    switch (shc_task_select(task, task->in.bytes)) {
    case SHC_ALGO_NOTHING:
        return shc_barrier_run(task);
    case SHC_ALGO_INLINE:
        return shc_task_reduce_round(task, true, 0, where);
    case SHC_ALGO_SMALL:
        return shc_task_reduce_round(task, false, 0, where);
    default:
        return run_staged(task);
    }
}
