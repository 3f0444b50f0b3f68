/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A function of the caller's takes its turn in a group of one rank. No other rank is met.
 *
 * Cost: one line stored. Edges: call/publish.
 */
#include "shm/coll/runs.h"
#include "shm/proto/board.h"
#include "shm/proto/member.h"

#include <stdio.h>

enum shc_status shc_function_run(struct shc_task *task)
{
    const struct shc_function *function = task->function;
    const struct shc_call *said = function->said;
    struct shc_board board = task->seat->board;
    struct shc_turn turn;
    turn.timeout_ns = task->wait.timeout_ns;
    turn.interruptible = task->wait.interruptible;
    turn.error[0] = '\0';
    board.calls = board.level;
    shc_task_enter(task);
    if (said)
        shc_board_enter(&board, task->wait.epoch, said);
    const enum shc_status st = function->run(function->ctx, &turn);
    if (said)
        shc_board_leave(&board, task->wait.epoch, said, st, true);
    if (SHC_LIKELY(st == SHC_OK))
        return SHC_OK;
    turn.error[sizeof turn.error - 1] = '\0';
    if (!turn.error[0])
        snprintf(turn.error, sizeof turn.error, "%s", shc_error_text());
    if (st == SHC_ERR_CLOSED)
        return shc_fail(st, "%s", turn.error);
    return shc_group_fail_from(task->seat, task->wait.epoch, st, turn.error, NULL);
}
