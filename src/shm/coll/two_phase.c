/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two-phase: an all_reduce or a reduce of more than two ranks over the small slots (STAGE-24). S: bytes of one
 * rank's input. p: number of ranks.
 *
 *   1. Store my input into my small slot of this epoch. Publish the call line, and meet.
 *   2. Reduce my slice, into my output and over the same slice of my slot. Rank r alone reads slice r, which
 *      is whole lines, of all slots. So slice r of its own slot is free for the result.
 *   3. Publish step 1.
 *   4. Take the others' slices.
 *
 * In a reduce, the root does not store its slice into its slot and publishes no step. The ranks except the root
 * have no output, and end after 3.
 *
 * Cost per rank: S + S/p bytes stored, 2S (1 - 1/p) bytes loaded, and one more flag. A rank that reduces
 * everything loads S (p - 1) bytes, in an all_reduce at the same time and out of the same lines as the others.
 * Edges: call/publish, progress/step.
 */
#include "shm/coll/reduction.h"
#include "shm/coll/runs.h"
#include "shm/proto/seat.h"

static struct shc_span slice_of(const struct shc_task *task, int rank)
{
    return shc_plan_slice((struct shc_span){0, task->in.bytes}, task->seat->world_size, rank);
}

static char *slot_of(const struct shc_task *task, int rank)
{
    return shc_seat_small_slot(task->seat, rank, task->wait.epoch);
}

static void reduce_own(struct shc_task *task, bool gives, bool takes)
{
    const int me = task->seat->rank;
    const struct shc_span own = slice_of(task, me);
    const void *src[SHC_MAX_WORLD];
    void *dst[2] = {slot_of(task, me) + own.offset};
    if (own.bytes == 0)
        return;
    for (int rank = 0; rank < task->seat->world_size; rank++)
        src[rank] = slot_of(task, rank) + own.offset;
    src[me] = shc_task_own(task, own);
    if (takes)
        shc_task_reduce_to(task, src, own, dst, gives ? 1 : 0);
    else
        shc_task_reduce_into(task, src, own.bytes, dst, 1);
}

static enum shc_status take(struct shc_task *task, int peer)
{
    const struct shc_span slice = slice_of(task, peer);
    if (slice.bytes == 0)
        return SHC_OK;
    SHC_TRY(shc_progress_wait(&task->wait, peer, 1));
    shc_buf_write(&task->out, slice.offset, slot_of(task, peer) + slice.offset, slice.bytes);
    return SHC_OK;
}

enum shc_status shc_two_phase_run(struct shc_task *task)
{
    const struct shc_seat *seat = task->seat;
    const bool to_all = task->call.kind != SHC_REDUCE;
    const bool takes = to_all || seat->rank == task->call.root;
    const bool gives = to_all || !takes;
    double factors[SHC_MAX_WORLD];
    shc_buf_read(&task->in, 0, slot_of(task, seat->rank), task->in.bytes);
    shc_task_enter_reducing(task, 0);
    SHC_TRY(shc_task_meet_reducing(task, factors));
    reduce_own(task, gives, takes);
    if (gives)
        shc_progress_publish(seat, task->wait.epoch, 1);
    for (int turn = 1; takes && turn < seat->world_size; turn++)
        SHC_TRY(take(task, shc_seat_peer(seat, turn)));
    return SHC_OK;
}
