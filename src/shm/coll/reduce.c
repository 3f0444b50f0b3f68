/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reduce: every element combined over the ranks in rank order, at the root only; the bits of
 * all_reduce. Nobody else's output is touched.
 *
 *   inline  <= 40 B    in the call lines; the root reduces
 *   small   <= 8 KiB   in the others' small slots of this epoch's parity; the root reduces (two
 *                      ranks: <= 32 KiB, in a relay slot)
 *   sliced  <= 8 KiB   many ranks, if there is a CPU for each: each rank reduces its slice (sliced.c)
 *   staged             chunks through the others' shout slots; the root reduces, its own addend from
 *                      its input. Without an arena they are the small slots
 *   spread             four ranks and more, long: chunks through exchange cells; the others reduce (below)
 *
 * Cost, but for the sliced and the spread ones: S stored by each other rank, (p - 1) S loaded by the root.
 * Edges: call/publish (inline, small; staged: chunk 0), progress/step (staged, spread).
 *
 * Spread. A chunk has one slice per rank but the root, its owner. For chunk k, in exchange slot k mod
 * depth of every pair:
 *
 *   out(k)   everybody stores its input for each owner's slice into its cell of the pair
 *   work(k)  an owner reduces its slice, and stores the result into the cell in which the root's input
 *            came
 *   take(k)  the root copies the results out of those, and in the same pass stores its input for chunk
 *            k + depth into the lines just read
 *
 * Program order as in an all_reduce (allreduce.c), of which the owners leave out back(k), and the root
 * work(k). No flag says that a cell is free. Between two owners both are used once, and who has read one
 * stores to it next; between an owner and the root that of the root is used twice, there and back, and
 * the owner's not at all.
 *
 * Cost: each rank stores and loads S, more or less; two flags per chunk.
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

/* ---- spread ---- */

struct spread {
    struct shc_task *task;
    int root;
    size_t chunk_bytes;
    uint64_t chunk_count;
    uint32_t depth; /* chunks under way, and exchange slots in turn */
};

/* pre: the rank is an owner. Of no bytes behind the last chunk. */
static struct shc_span slice_of(const struct spread *spread, uint64_t k, int rank)
{
    const struct shc_task *task = spread->task;
    return shc_plan_slice(shc_plan_chunk(task->in.bytes, spread->chunk_bytes, k),
                          task->seat->world_size - 1, rank - (rank > spread->root));
}

static uint32_t slot_of(const struct spread *spread, uint64_t k)
{
    return (uint32_t)(k % spread->depth);
}

static void stage_out(struct spread *spread, uint64_t k)
{
    struct shc_task *task = spread->task;
    for (int turn = 1; turn < task->seat->world_size; turn++) {
        const int peer = shc_seat_peer(task->seat, turn);
        if (peer == spread->root)
            continue;
        const struct shc_span slice = slice_of(spread, k, peer);
        shc_task_read(task, slice.offset, shc_task_write_cell(task, peer, slot_of(spread, k)),
                      slice.bytes);
    }
    shc_progress_publish(task->seat, task->wait.epoch, shc_plan_step_out(k));
}

static enum shc_status work(struct spread *spread, uint64_t k)
{
    struct shc_task *task = spread->task;
    const int me = task->seat->rank;
    const struct shc_span slice = slice_of(spread, k, me);
    const void *src[SHC_MAX_WORLD];
    void *dst[1] = {shc_task_read_cell(task, spread->root, slot_of(spread, k))};
    SHC_TRY(shc_progress_wait_all(&task->wait, shc_plan_step_out(k)));
    src[me] = shc_task_own(task, slice);
    for (int turn = 1; turn < task->seat->world_size; turn++) {
        const int peer = shc_seat_peer(task->seat, turn);
        src[peer] = shc_task_read_cell(task, peer, slot_of(spread, k));
        if (peer != spread->root)
            shc_exchange_swap(task->arena, peer, slot_of(spread, k));
    }
    shc_task_reduce_into(task, src, slice.bytes, dst, 1);
    shc_progress_publish(task->seat, task->wait.epoch, shc_plan_step_work(k));
    return SHC_OK;
}

static enum shc_status take(struct spread *spread, uint64_t k)
{
    struct shc_task *task = spread->task;
    const uint64_t next = k + spread->depth;
    for (int turn = 1; turn < task->seat->world_size; turn++) {
        const int peer = shc_seat_peer(task->seat, turn);
        SHC_TRY(shc_progress_wait(&task->wait, peer, shc_plan_step_work(k)));
        shc_task_trade(task, shc_task_write_cell(task, peer, slot_of(spread, k)),
                       slice_of(spread, k, peer), slice_of(spread, next, peer));
    }
    if (next < spread->chunk_count)
        shc_progress_publish(task->seat, task->wait.epoch, shc_plan_step_out(next));
    return SHC_OK;
}

/* The first cells may be filled before the meeting, user memory not. */
static enum shc_status meet(struct spread *spread, double *factors)
{
    SHC_TRY(shc_task_meet(spread->task));
    shc_task_read_factors(spread->task, factors);
    return SHC_OK;
}

static enum shc_status run_root(struct spread *spread)
{
    const uint64_t n = spread->chunk_count, depth = spread->depth;
    double factors[SHC_MAX_WORLD];
    for (uint64_t k = 0; k < n && k < depth; k++) {
        stage_out(spread, k);
        if (k == 0)
            SHC_TRY(meet(spread, factors));
    }
    for (uint64_t k = 0; k < n; k++)
        SHC_TRY(take(spread, k));
    return SHC_OK;
}

static enum shc_status run_owner(struct spread *spread)
{
    double factors[SHC_MAX_WORLD];
    for (uint64_t turn = 0; turn <= spread->chunk_count; turn++) {
        if (turn < spread->chunk_count)
            stage_out(spread, turn);
        if (turn == 0)
            SHC_TRY(meet(spread, factors));
        else
            SHC_TRY(work(spread, turn - 1));
    }
    return SHC_OK;
}

static enum shc_status run_exchange(struct shc_task *task)
{
    struct spread spread = {
        .task = task,
        .root = task->call.root,
        .chunk_bytes = shc_task_cell_bytes(task) * (size_t)(task->seat->world_size - 1),
        .depth = task->arena->geometry.depth,
    };
    spread.chunk_count = shc_plan_chunk_count(task->in.bytes, spread.chunk_bytes);
    SHC_TRY(shc_check_length(task, spread.chunk_count));
    shc_exchange_note(task->arena, task->wait.epoch);
    return task->seat->rank == spread.root ? run_root(&spread) : run_owner(&spread);
}

static enum shc_status run_spread(struct shc_task *task)
{
    bool arena;
    shc_task_enter_reducing(task, 0);
    if (task->arena->made)
        return run_exchange(task);
    SHC_TRY(shc_task_meet(task));
    SHC_TRY(shc_task_arena(task, &arena));
    if (arena)
        return run_exchange(task);
    struct shc_shout shout = shc_task_reduce_shout(task, task->call.root);
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
    case SHC_ALGO_TWO_PHASE:
        return shc_task_run_sliced(task);
    case SHC_ALGO_SCATTER_GATHER:
        return run_spread(task);
    default:
        return run_staged(task);
    }
}
