/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Operations of one round: each rank that gives stores all its bytes before its call line, and each rank that
 * takes reads them after the meeting.
 */

#include "shm/coll/task.h"

/* An operation of one round: where the bytes of each rank are. Only shc_round_begin() makes it,
 * before the operation stores anything. */
struct shc_round {
    bool in_line; /* in the call lines; otherwise in slots */
    bool one_way; /* not every rank stores */
};

/* Where the bytes of that rank are: in its call line, or in its small slot of this epoch. If not
 * all ranks store, the rank of two that stores uses a hand-off slot (STAGE-26).
 * With more ranks each one stays in its own block, so that fewer lines move between caches
 * (CALL-5). */
SHC_INLINE char *shc_round_place(const struct shc_task *task, const struct shc_round *round,
                                 int rank)
{
    if (round->in_line)
        return shc_task_payload(task, rank);
    if (!round->one_way)
        return shc_seat_small_slot(task->seat, rank, task->wait.epoch);
    if (task->seat->world_size == SHC_HAND_OFF_SLOT_RANKS)
        return shc_seat_hand_off_slot(task->seat, task->seat->hand_off_slot.slot);
    return shc_seat_slot_in(task->seat, rank, task->wait.epoch);
}

/*
 * Begins an operation of one round. All ranks call it, and nothing fails between it and the call
 * line: it notes which rank gives, so that both ranks count the hand-off slots alike (STAGE-26).
 *
 * `lent_bytes`: how many bytes this rank stores in an operation in which it takes nothing,
 * otherwise 0. The others have read those bytes when all ranks meet in the next operation. Then
 * this rank asks for the lines (CALL-6), if it is likely to store to them in the operation after
 * that.
 */
SHC_INLINE struct shc_round shc_round_begin(const struct shc_task *task, bool in_line, bool one_way,
                                            size_t lent_bytes)
{
    struct shc_seat *seat = task->seat;
    const struct shc_round round = {.in_line = in_line, .one_way = one_way};
    if (in_line || !one_way)
        return round;
    const bool root_takes = task->call.kind == SHC_GATHER || task->call.kind == SHC_REDUCE;
    if (seat->world_size == SHC_HAND_OFF_SLOT_RANKS)
        shc_hand_off_slot_pass(seat, root_takes ? 1 - task->call.root : task->call.root,
                               task->wait.epoch);
    seat->lent[task->wait.epoch & 1] =
        lent_bytes <= task->tuning->prefetch_bytes ? (uint32_t)lent_bytes : 0;
    return round;
}
