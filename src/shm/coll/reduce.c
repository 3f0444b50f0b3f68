/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reduce: every element is combined over the ranks in rank order, at the root alone, with the bits of
 * all_reduce. No other rank's output is touched.
 * S: bytes of one rank's input. p: number of ranks. The sizes are the defaults (select.c).
 *
 *   path             S           where the bytes go
 *   call line        <= 40 B     In the call lines. The root reduces.
 *   small slot       <= 8 KiB    In the other ranks' small slots of this epoch's parity. The root reduces.
 *   hand-off         <= 8 KiB    Two ranks: in a hand-off slot, instead of a small slot. The root reduces.
 *   two-phase        <= 8 KiB    Many ranks, if there is a CPU for each. Each rank reduces its slice
 *                                (two_phase.c).
 *   pipelined        above       In chunks through the other ranks' broadcast slots, or small slots without
 *                                an arena. The root reduces, and reads its own input from user memory.
 *   reduce-scatter,  long        Four ranks and more. In chunks through exchange cells. The other ranks
 *   gather                       reduce (below).
 *
 * Cost, except of two-phase and of reduce-scatter, gather: S bytes stored by each other rank, (p - 1) S bytes
 * loaded by the root. Edges: call/publish (call line, small slot, hand-off, two-phase; pipelined: chunk 0),
 * progress/step (two-phase; pipelined; reduce-scatter, gather).
 *
 * Reduce-scatter, gather (STAGE-9). A chunk has one slice for each rank except the root. That rank is
 * the slice's owner. Chunk k goes through exchange slot k mod depth of every pair of ranks:
 *
 *   1. out(k)    Every rank stores its input for each owner's slice into its cell of the pair.
 *   2. work(k)   An owner reduces its slice. It stores the result into the cell in which the root's input
 *                came.
 *   3. take(k)   The root copies the results out of those cells. The same pass stores its input for chunk
 *                k + depth into the lines just read.
 *
 * The order is that of an all_reduce (allreduce.c), without back(k) at the owners and without work(k) at the
 * root. No flag says that a cell is free. Between two owners both cells are used once, and the rank that has
 * read a cell stores to it next. Between an owner and the root, the root's cell is used twice, there and back,
 * and the owner's cell not at all.
 *
 * Cost: each rank stores and loads about S bytes. Two flags per chunk.
 */
#include "shm/coll/flow.h"
#include "shm/coll/parts.h"
#include "shm/coll/reduction.h"
#include "shm/coll/runs.h"

static enum shc_status run_pipelined(struct shc_task *task)
{
    struct shc_flow flow = shc_task_reduce_flow(task, task->call.root);
    shc_flow_begin(&flow);
    shc_task_enter_reducing(task, 0);
    shc_flow_go_on(&flow);
    SHC_TRY(shc_task_meet(task));
    return shc_task_run_reduce_flow(&flow);
}

/* ---- reduce-scatter, then gather ---- */

struct scatter_gather {
    struct shc_task *task;
    int root;
    size_t chunk_bytes;
    uint64_t chunk_count;
    uint32_t depth; /* chunks in flight, and exchange slots in turn */
};

/* pre: the rank is an owner. The slice has no bytes after the last chunk. */
static struct shc_span slice_of(const struct scatter_gather *sg, uint64_t k, int rank)
{
    const struct shc_task *task = sg->task;
    return shc_plan_slice(shc_plan_chunk(task->in.bytes, sg->chunk_bytes, k),
                          task->seat->world_size - 1, rank - (rank > sg->root));
}

static uint32_t slot_of(const struct scatter_gather *sg, uint64_t k)
{
    return (uint32_t)(k % sg->depth);
}

static void stage_out(struct scatter_gather *sg, uint64_t k)
{
    struct shc_task *task = sg->task;
    for (int turn = 1; turn < task->seat->world_size; turn++) {
        const int peer = shc_seat_peer(task->seat, turn);
        if (peer == sg->root)
            continue;
        const struct shc_span slice = slice_of(sg, k, peer);
        shc_task_read(task, slice.offset, shc_task_write_cell(task, peer, slot_of(sg, k)),
                      slice.bytes);
    }
    shc_progress_publish(task->seat, task->wait.epoch, shc_plan_step_out(k));
}

static enum shc_status work(struct scatter_gather *sg, uint64_t k)
{
    struct shc_task *task = sg->task;
    const int me = task->seat->rank;
    const struct shc_span slice = slice_of(sg, k, me);
    const void *src[SHC_MAX_WORLD];
    void *dst[1] = {shc_task_read_cell(task, sg->root, slot_of(sg, k))};
    SHC_TRY(shc_progress_wait_all(&task->wait, shc_plan_step_out(k)));
    src[me] = shc_task_own(task, slice);
    for (int turn = 1; turn < task->seat->world_size; turn++) {
        const int peer = shc_seat_peer(task->seat, turn);
        src[peer] = shc_task_read_cell(task, peer, slot_of(sg, k));
        if (peer != sg->root)
            shc_exchange_swap(task->arena, peer, slot_of(sg, k));
    }
    shc_task_reduce_into(task, src, slice.bytes, dst, 1);
    shc_progress_publish(task->seat, task->wait.epoch, shc_plan_step_work(k));
    return SHC_OK;
}

static enum shc_status take(struct scatter_gather *sg, uint64_t k)
{
    struct shc_task *task = sg->task;
    const uint64_t next = k + sg->depth;
    for (int turn = 1; turn < task->seat->world_size; turn++) {
        const int peer = shc_seat_peer(task->seat, turn);
        SHC_TRY(shc_progress_wait(&task->wait, peer, shc_plan_step_work(k)));
        shc_task_trade(task, shc_task_write_cell(task, peer, slot_of(sg, k)), slice_of(sg, k, peer),
                       slice_of(sg, next, peer));
    }
    if (next < sg->chunk_count)
        shc_progress_publish(task->seat, task->wait.epoch, shc_plan_step_out(next));
    return SHC_OK;
}

static enum shc_status run_root(struct scatter_gather *sg)
{
    const uint64_t n = sg->chunk_count, depth = sg->depth;
    double factors[SHC_MAX_WORLD];
    for (uint64_t k = 0; k < n && k < depth; k++) {
        stage_out(sg, k);
        if (k == 0)
            SHC_TRY(shc_task_meet_reducing(sg->task, factors));
    }
    for (uint64_t k = 0; k < n; k++)
        SHC_TRY(take(sg, k));
    return SHC_OK;
}

static enum shc_status run_owner(struct scatter_gather *sg)
{
    double factors[SHC_MAX_WORLD];
    for (uint64_t turn = 0; turn <= sg->chunk_count; turn++) {
        if (turn < sg->chunk_count)
            stage_out(sg, turn);
        if (turn == 0)
            SHC_TRY(shc_task_meet_reducing(sg->task, factors));
        else
            SHC_TRY(work(sg, turn - 1));
    }
    return SHC_OK;
}

static enum shc_status run_exchange(struct shc_task *task)
{
    struct scatter_gather sg = {
        .task = task,
        .root = task->call.root,
        .chunk_bytes = shc_task_cell_bytes(task) * (size_t)(task->seat->world_size - 1),
        .depth = task->arena->geometry.depth,
    };
    sg.chunk_count = shc_plan_chunk_count(task->in.bytes, sg.chunk_bytes);
    SHC_TRY(shc_check_length(task, sg.chunk_count));
    shc_exchange_note(task->arena, task->wait.epoch);
    return task->seat->rank == sg.root ? run_root(&sg) : run_owner(&sg);
}

static enum shc_status run_scatter_gather(struct shc_task *task)
{
    bool arena;
    shc_task_enter_reducing(task, 0);
    if (task->arena->made)
        return run_exchange(task);
    SHC_TRY(shc_task_meet(task));
    SHC_TRY(shc_task_arena(task, &arena));
    if (arena)
        return run_exchange(task);
    struct shc_flow flow = shc_task_reduce_flow(task, task->call.root);
    return shc_task_run_reduce_flow(&flow);
}

enum shc_status shc_reduce_run(struct shc_task *task)
{
    /* The root's output is as long as its input, and no other rank has one. */
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
        return shc_two_phase_run(task);
    case SHC_ALGO_SCATTER_GATHER:
        return run_scatter_gather(task);
    default:
        return run_pipelined(task);
    }
}
