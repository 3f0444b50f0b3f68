/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/task.h"

#include "shm/base/num.h"

#include <stdio.h>
#include <stdlib.h>

void shc_task_want(struct shc_task *task, size_t bytes)
{
    const int world = task->seat->world_size;
    const unsigned parts = shc_select_parts(task->call.kind, SHC_ALGO_PIPELINED, bytes, world);
    if (task->call.kind == SHC_ALL_TO_ALL && task->arena->made)
        task->arena->wanted |= parts;
    else
        shc_arena_want(task->arena, world, parts);
}

enum shc_status shc_task_arena(struct shc_task *task, bool *made)
{
    if (SHC_UNLIKELY(!task->arena->tried))
        SHC_TRY(shc_arena_make(task->arena, &task->wait));
    *made = task->arena->made;
    return SHC_OK;
}

size_t shc_task_cell_bytes(const struct shc_task *task)
{
    const size_t turn =
        shc_select_turn(task->tuning, task->call.kind, task->in.bytes, task->seat->world_size);
    const size_t cell = shc_min_size(task->arena->geometry.cell_bytes, turn);
    return cell - cell % task->call.elem_bytes;
}

enum shc_status shc_task_fail_damaged(struct shc_task *task, int rank)
{
    char reason[400];
    snprintf(reason, sizeof reason,
             "%s found sizes of %s that no tensor has: the shared memory is damaged",
             shc_seat_rank_name(task->seat, task->seat->rank).text,
             shc_seat_rank_name(task->seat, rank).text);
    return shc_wait_give_up(&task->wait, SHC_ERR_ABORTED, reason);
}

enum shc_status shc_task_copy_input(struct shc_task *task, void **copy)
{
    *copy = malloc(task->in.bytes);
    if (!*copy)
        return shc_fail(SHC_ERR_NOMEM, "%s in place: no memory for a copy of %zu bytes",
                        shc_op_kind_name(task->call.kind), task->in.bytes);
    shc_buf_read(&task->in, 0, *copy, task->in.bytes);
    task->in = shc_buf_of(*copy, task->in.bytes);
    return SHC_OK;
}
