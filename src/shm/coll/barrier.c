/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Barrier: the meeting itself. Cost: one line stored, world - 1 lines read.
 */
#include "shm/coll/coll.h"

enum shc_status shc_barrier_run(struct shc_task *task)
{
    shc_task_enter(task);
    return shc_task_meet(task);
}
