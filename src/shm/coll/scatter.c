/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Scatter: block r of the root's input, m bytes, to rank r. The sizes are the defaults (select.c).
 *
 *   path          (world - 1) m   where the bytes go
 *   call line     <= 48 B         In the root's call line.
 *   small slot    <= 8 KiB        In the root's small slot of this epoch's parity.
 *   hand-off      <= 8 KiB        Two ranks: in a hand-off slot, instead of a small slot.
 *   pipelined     above           In chunks through the root's broadcast slots. A rank copies what of a
 *                                 chunk is its own.
 *   single-copy   long            Each rank copies its block out of the root's memory, all at the same time,
 *                                 if the kernel lets all of them do so (shc_select_pulls(); STAGE-30 to
 *                                 STAGE-38).
 *
 * Call line, small slot and hand-off:
 *   1. The root stores all blocks except its own.
 *   2. All ranks publish their call lines, and meet.
 *   3. Each other rank copies its block out. The root copies its own block inside user memory.
 *
 * Single-copy:
 *   1. Every rank says whether it is able to take part, the root also where each block is.
 *   2. All ranks publish their call lines, and meet. If one of them is unable, the blocks go in chunks.
 *   3. Each other rank copies its block, and then publishes step 1. The root waits for these steps.
 *
 * Cost: (world - 1) m bytes stored by the root, m bytes loaded by each other rank. Single-copy: m bytes copied
 * by each rank. Edges: call/publish (call line, small slot, hand-off; pipelined: chunk 0; single-copy: where the
 * blocks are), progress/step (pipelined; single-copy: that a block has been taken), cma/withdrawn (single-copy).
 */
#include "shm/coll/flow.h"
#include "shm/coll/parts.h"
#include "shm/coll/round.h"
#include "shm/coll/runs.h"
#include "shm/proto/cma.h"

/* The root's input without the root's own block, which never leaves it. */
static size_t others_bytes(const struct shc_task *task)
{
    return (size_t)(task->seat->world_size - 1) * task->out.bytes;
}

typedef void (*put_fn)(struct shc_task *task, struct shc_span piece, char *slot);

/* Puts bytes [chunk) of the blocks that travel, from the root's input. */
static void put_chunk(struct shc_task *task, struct shc_span chunk, char *slot, put_fn put)
{
    size_t own = (size_t)task->seat->rank * task->out.bytes;
    size_t before = chunk.offset < own ? shc_min_size(chunk.bytes, own - chunk.offset) : 0;
    put(task, (struct shc_span){chunk.offset, before}, slot);
    put(task, (struct shc_span){chunk.offset + before + task->out.bytes, chunk.bytes - before},
        slot + before);
}

static void give(struct shc_task *task, struct shc_span chunk, char *slot)
{
    put_chunk(task, chunk, slot, shc_give_piece);
}

static void read_piece(struct shc_task *task, struct shc_span piece, char *slot)
{
    shc_buf_read(&task->in, piece.offset, slot, piece.bytes);
}

/* Takes what of the chunk is this rank's. */
static void take(struct shc_task *task, struct shc_span chunk, char *const *slots)
{
    int root = task->call.root, me = task->seat->rank;
    size_t own = (size_t)(me > root ? me - 1 : me) * task->out.bytes;
    struct shc_span mine = shc_plan_overlap(chunk, (struct shc_span){own, task->out.bytes});
    if (mine.bytes > 0)
        shc_task_write(task, mine.offset - own, slots[root] + (mine.offset - chunk.offset),
                       mine.bytes);
}

/* Copies the root's own block. */
static void keep_own(struct shc_task *task)
{
    shc_task_keep(task, (size_t)task->seat->rank * task->out.bytes, 0, task->out.bytes);
}

/* All blocks are in the root's call line, in its small slot or in a hand-off slot. */
static enum shc_status run_one_round(struct shc_task *task, bool in_line)
{
    const int root = task->call.root;
    const bool is_root = task->seat->rank == root;
    const struct shc_span all = {0, others_bytes(task)};
    char *slots[SHC_MAX_WORLD];
    const struct shc_round round = shc_round_begin(task, in_line, true, is_root ? all.bytes : 0);
    slots[root] = shc_round_place(task, &round, root);
    if (is_root)
        put_chunk(task, all, slots[root], read_piece);
    shc_task_enter(task);
    SHC_TRY(shc_task_meet(task));
    if (is_root)
        keep_own(task);
    else
        take(task, all, slots);
    return SHC_OK;
}

/* ---- single-copy ---- */

#define TAKEN_STEP 1

/* Notes where each block is. False: a block is not in one piece, or not where the kernel can copy
 * it from. */
static bool offer_blocks(const struct shc_task *task, struct shc_cma_shm *offer)
{
    const size_t bytes = task->out.bytes;
    for (int rank = 0; rank < task->seat->world_size; rank++) {
        const void *block = shc_buf_direct(&task->in, (size_t)rank * bytes, bytes);
        if (rank != task->seat->rank && (!block || !shc_cma_is_readable(block, bytes)))
            return false;
        offer->address[rank] = (uint64_t)(uintptr_t)block;
    }
    return true;
}

/* Before the call line. */
static bool offer(const struct shc_task *task)
{
    struct shc_cma_shm *mine = shc_seat_cma(task->seat, task->seat->rank, task->wait.epoch);
    const int root = task->call.root;
    bool able = task->cma;
    if (task->seat->rank == root)
        able = able && offer_blocks(task, mine);
    else
        able = able && shc_buf_direct(&task->out, 0, task->out.bytes) &&
               shc_cma_reaches(task->seat, root);
    mine->able = able;
    return able;
}

/* After the meeting. The same on all ranks. */
static bool others_are_able(const struct shc_task *task)
{
    for (int turn = 1; turn < task->seat->world_size; turn++) {
        const int peer = shc_seat_peer(task->seat, turn);
        if (!SHC_READ_ONCE(shc_seat_cma(task->seat, peer, task->wait.epoch)->able))
            return false;
    }
    return true;
}

/* The root's blocks must stay as they are until all have been taken. */
static enum shc_status run_single_copy(struct shc_task *task)
{
    const int root = task->call.root;
    /* relaxed: a number for people. */
    const uint64_t copies = shc_a64_load_relaxed(&task->seat->single_copies);
    /* relaxed: a number for people. */
    shc_a64_store_relaxed(&task->seat->single_copies, copies + 1);
    if (task->seat->rank == root) {
        keep_own(task);
        shc_progress_publish(task->seat, task->wait.epoch, TAKEN_STEP);
        return shc_progress_wait_all(&task->wait, TAKEN_STEP);
    }
    void *to = shc_buf_direct(&task->out, 0, task->out.bytes);
    SHC_TRY(shc_cma_copy(&task->wait, root, to, task->out.bytes));
    shc_progress_publish(task->seat, task->wait.epoch, TAKEN_STEP);
    return SHC_OK;
}

/* ---- in chunks, or single-copy ---- */

static enum shc_status run_long(struct shc_task *task)
{
    const bool is_root = task->seat->rank == task->call.root;
    const bool offers = shc_select_pulls(task->tuning, others_bytes(task), task->seat->world_size);
    struct shc_flow flow = {
        .task = task,
        .total_bytes = others_bytes(task),
        .giver = task->call.root,
        .taker = -1,
        .give = give,
        .take = take,
    };
    const bool able = offers && offer(task);
    if (!offers)
        shc_flow_begin(&flow);
    shc_task_enter(task);
    if (!able) /* if this rank is unable, no rank copies from the root */
        shc_flow_go_on(&flow);
    SHC_TRY(shc_task_meet(task));
    if (able && others_are_able(task))
        return run_single_copy(task);
    if (task->seat->world_size > 1)
        SHC_TRY(shc_flow_run(&flow));
    if (is_root) /* last, because the others do not wait for it */
        keep_own(task);
    return SHC_OK;
}

enum shc_status shc_scatter_run(struct shc_task *task)
{
    const size_t bytes = task->seat->world_size == 1 ? task->out.bytes : others_bytes(task);
    switch (shc_task_select(task, bytes)) {
    case SHC_ALGO_NOTHING:
        return shc_barrier_run(task);
    case SHC_ALGO_INLINE:
        return run_one_round(task, true);
    case SHC_ALGO_SMALL:
        return run_one_round(task, false);
    default:
        return run_long(task);
    }
}
