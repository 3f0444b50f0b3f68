/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Barrier: all ranks publish their call lines, and meet.
 *
 * Cost: one line stored, world - 1 lines loaded. Edges: call/publish.
 */
#include "shm/coll/runs.h"

enum shc_status shc_barrier_run(struct shc_task *task)
{
    shc_task_enter(task);
    return shc_task_meet(task);
}
