/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Scatter: block r of the root's input, m bytes, to rank r.
 *
 *   inline  world * m <= 48 B    in the root's call line
 *   small   world * m <= 8 KiB   in the root's small slot of this epoch's parity
 *   staged                       chunks through the root's shout slots; a rank copies what of a
 *                                chunk is its own
 *
 * Cost: (world - 1) m stored by the root, m loaded by each other rank. Edges: call/publish (inline,
 * small), progress/step (staged).
 */
#include "shm/coll/coll.h"

#include "shm/coll/select.h"

/* The root's whole input, without the root's own block: that one never leaves it. */
static size_t others_bytes(const struct shc_task *task)
{
    return (size_t)(task->seat->world_size - 1) * task->out.bytes;
}

/* Bytes [chunk) of the blocks that travel, from the root's input. */
static void give(struct shc_task *task, struct shc_span chunk, char *slot)
{
    size_t own = (size_t)task->seat->rank * task->out.bytes;
    size_t before = chunk.offset < own ? shc_min_size(chunk.bytes, own - chunk.offset) : 0;
    shc_give_piece(task, (struct shc_span){chunk.offset, before}, slot);
    shc_give_piece(task,
                   (struct shc_span){chunk.offset + before + task->out.bytes, chunk.bytes - before},
                   slot + before);
}

/* What of the chunk is this rank's. */
static void take(struct shc_task *task, struct shc_span chunk, char *const *slots)
{
    int root = task->call.root, me = task->seat->rank;
    size_t own = (size_t)(me > root ? me - 1 : me) * task->out.bytes;
    struct shc_span mine = shc_plan_overlap(chunk, (struct shc_span){own, task->out.bytes});
    if (mine.bytes > 0)
        shc_task_write(task, mine.offset - own, slots[root] + (mine.offset - chunk.offset),
                       mine.bytes);
}

/* All of it lies in the root's call line or small slot. */
static enum shc_status run_one_round(struct shc_task *task, bool in_line)
{
    const int root = task->call.root;
    const bool is_root = task->seat->rank == root;
    const struct shc_span all = {0, others_bytes(task)};
    char *slots[SHC_MAX_WORLD];
    slots[root] = shc_task_round_place(task, root, in_line);
    if (is_root)
        give(task, all, slots[root]);
    shc_task_enter(task);
    SHC_TRY(shc_task_meet(task));
    if (is_root)
        shc_task_keep(task, (size_t)root * task->out.bytes, 0, task->out.bytes);
    else
        take(task, all, slots);
    return SHC_OK;
}

static enum shc_status run_staged(struct shc_task *task)
{
    const bool is_root = task->seat->rank == task->call.root;
    struct shc_shout shout = {
        .task = task,
        .total_bytes = others_bytes(task),
        .giver = task->call.root,
        .taker = -1,
        .give = give,
        .take = take,
    };
    shc_task_enter(task);
    if (is_root)
        shc_shout_begin(&shout);
    SHC_TRY(shc_task_meet(task));
    if (task->seat->world_size > 1)
        SHC_TRY(shc_shout_run(&shout));
    if (is_root) /* last: the others do not wait for it */
        shc_task_keep(task, (size_t)task->call.root * task->out.bytes, 0, task->out.bytes);
    return SHC_OK;
}

enum shc_status shc_scatter_run(struct shc_task *task)
{
    size_t bytes = (size_t)task->seat->world_size * task->out.bytes;
    switch (shc_task_select(task, bytes)) {
    case SHC_ALGO_NOTHING:
        return shc_barrier_run(task);
    case SHC_ALGO_INLINE:
        return run_one_round(task, true);
    case SHC_ALGO_SMALL:
        return run_one_round(task, false);
    default:
        return run_staged(task);
    }
}
