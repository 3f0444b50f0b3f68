/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * All-reduce: every element is combined over the ranks in rank order, with the same bits on every rank.
 * S: bytes of one rank's input. p: number of ranks. The sizes are the defaults (select.c).
 *
 *   path             S           where the bytes go
 *   call line        <= 40 B     In the call lines. Every rank reduces everything.
 *   small slot       <= 8 KiB    In the small slots of this epoch's parity. Every rank reduces everything.
 *                                Two ranks: <= 4 KiB.
 *   two-phase        <= 8 KiB    More than two ranks, if there is a CPU for each. In the small slots; each
 *                                rank reduces its slice for all ranks (two_phase.c).
 *   direct exchange  <= 32 KiB   Two ranks. Each stores its input into the pair's cell before its call
 *                                line, and reduces everything after the meeting (STAGE-2).
 *   pipelined        above       In chunks, two phases per chunk in the same lines (below).
 *   push             >= 64 KiB   If all ranks have their tensors in heaps, each stores its slice of the result into
 *                                the tensors of all (push.c).
 *   no arena         above       In chunks through small slots, used as broadcast slots (STAGE-25). Every
 *                                rank reduces everything, to the same bits.
 *
 * Pipelined (STAGE-7). A chunk has one slice per rank. Rank r owns slice r, and it alone
 * reduces that slice. Chunk k goes through exchange slot k mod depth of every pair of ranks:
 *
 *   1. out(k)    Store my input for each owner's slice into my cell of the pair. This is the first use of
 *                the slot.
 *   2. work(k)   Reduce my own slice, from my user memory and the cells that the others have stored. The
 *                result goes to my output and into the very cells I have just read. This is the second use.
 *   3. back(k)   Copy each owner's result out of the pair's cell. The same pass stores my input for chunk
 *                k + depth into the lines just read, which is the next first use.
 *
 * Order at a rank, with a depth of 3: out(0), out(1), work(0), out(2), work(1), back(0) + out(3), work(2), ...
 * In this order work(k) as a rule finds chunk k stored, and back(k) finds it reduced. No flag says that a cell
 * is free: the rank that has read a cell is the one that stores to it next.
 *
 * Unpipelined (STAGE-8), for two ranks and long messages (shc_select_unpipelined()).
 * Order at a rank: out(0), work(0), back(0) + out(1), work(1), ... in slot 0 alone.
 * Nothing is in flight while a rank waits for the other one. But a pipeline moves two other chunks between
 * out(k) and back(k). So the user memory that out(k) has read, and that back(k) stores to, has left the
 * second-level cache by then. Without the pipeline it is still there.
 *
 * Cost per rank of both: 2S (1 - 1/p) bytes stored to cells, S bytes stored to the output, and as many loaded.
 * Two flags per chunk. Edges: call/publish, progress/step.
 */
#include "shm/coll/flow.h"
#include "shm/coll/parts.h"
#include "shm/coll/reduction.h"
#include "shm/coll/runs.h"

/* ---- in chunks through exchange cells ---- */

struct flow {
    struct shc_task *task;
    size_t chunk_bytes;
    uint64_t chunk_count;
    uint32_t depth; /* chunks in flight, and exchange slots in turn */
    bool unpipelined;
    double factors[SHC_MAX_WORLD];
};

static struct shc_span slice_of(const struct flow *flow, uint64_t k, int rank)
{
    const struct shc_task *task = flow->task;
    return shc_plan_slice(shc_plan_chunk(task->in.bytes, flow->chunk_bytes, k),
                          task->seat->world_size, rank);
}

static uint32_t slot_of(const struct flow *flow, uint64_t k)
{
    return (uint32_t)(k % flow->depth);
}

static uint64_t step_out(const struct flow *flow, uint64_t k)
{
    return flow->unpipelined ? shc_plan_unpipelined_out(k) : shc_plan_step_out(k);
}

static uint64_t step_work(const struct flow *flow, uint64_t k)
{
    return flow->unpipelined ? shc_plan_unpipelined_work(k) : shc_plan_step_work(k);
}

static void stage_out(struct flow *flow, uint64_t k)
{
    struct shc_task *task = flow->task;
    shc_exchange_note(task->arena, task->wait.epoch);
    for (int turn = 1; turn < task->seat->world_size; turn++) {
        const int peer = shc_seat_peer(task->seat, turn);
        struct shc_span slice = slice_of(flow, k, peer);
        shc_task_read(task, slice.offset, shc_task_write_cell(task, peer, slot_of(flow, k)),
                      slice.bytes);
    }
    shc_progress_publish(task->seat, task->wait.epoch, step_out(flow, k));
}

static enum shc_status work(struct flow *flow, uint64_t k)
{
    struct shc_task *task = flow->task;
    const int me = task->seat->rank;
    struct shc_span slice = slice_of(flow, k, me);
    const void *src[SHC_MAX_WORLD];
    void *dst[SHC_MAX_WORLD];
    int cells = 0;
    SHC_TRY(shc_progress_wait_all(&task->wait, step_out(flow, k)));
    for (int peer = 0; peer < task->seat->world_size; peer++) {
        if (peer == me) {
            src[me] = shc_task_own(task, slice);
        } else {
            src[peer] = dst[cells++] = shc_task_read_cell(task, peer, slot_of(flow, k));
            shc_exchange_swap(task->arena, peer, slot_of(flow, k));
        }
    }
    shc_task_reduce_to(task, src, slice, dst, cells);
    shc_progress_publish(task->seat, task->wait.epoch, step_work(flow, k));
    return SHC_OK;
}

/* The other ranks, turn 1 to world_size - 1, in the order in which their results are taken. Each
 * rank begins with another one's result; otherwise all would ask for the same result at the same
 * time. Ranks that share CPUs run one after the other anyway, and take the results by rank number:
 * 256 KiB and 2 MiB of 4 ranks on 2 CPUs are slower by 1.05x in the other order. */
static int back_from(const struct shc_task *task, int turn)
{
    if (task->tuning->crowded)
        return turn <= task->seat->rank ? turn - 1 : turn;
    return shc_seat_peer(task->seat, turn);
}

static enum shc_status take_back(struct flow *flow, uint64_t k)
{
    struct shc_task *task = flow->task;
    uint64_t next = k + flow->depth;
    for (int turn = 1; turn < task->seat->world_size; turn++) {
        const int peer = back_from(task, turn);
        SHC_TRY(shc_progress_wait(&task->wait, peer, step_work(flow, k)));
        shc_task_trade(task, shc_task_read_cell(task, peer, slot_of(flow, k)),
                       slice_of(flow, k, peer),
                       slice_of(flow, next, peer)); /* empty after the last chunk */
        shc_exchange_swap(task->arena, peer, slot_of(flow, k));
    }
    if (next < flow->chunk_count)
        shc_progress_publish(task->seat, task->wait.epoch, step_out(flow, next));
    return SHC_OK;
}

static enum shc_status run_pipeline(struct flow *flow)
{
    const uint64_t n = flow->chunk_count, depth = flow->depth;
    for (uint64_t turn = 0; turn < n + depth; turn++) {
        if (turn >= depth)
            SHC_TRY(take_back(flow, turn - depth));
        else if (turn < n)
            stage_out(flow, turn);
        if (turn == 0)
            SHC_TRY(shc_task_meet_reducing(flow->task, flow->factors));
        if (turn > 0 && turn <= n)
            SHC_TRY(work(flow, turn - 1));
    }
    return SHC_OK;
}

static enum shc_status run_unpipelined(struct flow *flow)
{
    stage_out(flow, 0);
    SHC_TRY(shc_task_meet_reducing(flow->task, flow->factors));
    for (uint64_t k = 0; k < flow->chunk_count; k++) {
        SHC_TRY(work(flow, k));
        SHC_TRY(take_back(flow, k));
    }
    return SHC_OK;
}

static enum shc_status run_exchange(struct shc_task *task)
{
    const int world = task->seat->world_size;
    const bool unpipelined = shc_select_unpipelined(task->tuning, task->in.bytes, world);
    struct flow flow = {
        .task = task,
        .chunk_bytes = shc_task_cell_bytes(task) * (size_t)world,
        .depth = unpipelined ? 1 : task->arena->geometry.depth,
        .unpipelined = unpipelined,
    };
    flow.chunk_count = shc_plan_chunk_count(task->in.bytes, flow.chunk_bytes);
    SHC_TRY(shc_check_length(task, flow.chunk_count));
    return unpipelined ? run_unpipelined(&flow) : run_pipeline(&flow);
}

/* pre: the call line is out. */
static enum shc_status run_pipelined(struct shc_task *task)
{
    bool arena;
    if (task->arena->made)
        return run_exchange(task);
    SHC_TRY(shc_task_meet(task));
    SHC_TRY(shc_task_arena(task, &arena));
    if (arena)
        return run_exchange(task);
    struct shc_flow flow = shc_task_reduce_flow(task, -1);
    return shc_task_run_reduce_flow(&flow);
}

static enum shc_status run_large(struct shc_task *task)
{
    if (task->in.bytes >= task->tuning->push_bytes)
        return shc_push_run(task, run_pipelined);
    shc_task_enter_reducing(task, 0);
    return run_pipelined(task);
}

static struct shc_span all_of(const struct shc_task *task, int peer, uint64_t k)
{
    (void)peer;
    return (struct shc_span){0, k == 0 ? task->in.bytes : 0};
}

static void take_all(struct shc_task *task, uint64_t k, char *const *cells)
{
    const struct shc_span all = all_of(task, 0, k);
    shc_task_reduce_cells(task, cells, all, all);
}

static enum shc_status run_one_use(struct shc_task *task)
{
    /* With a small memory limit, cells are smaller than the limit of this path. The same on all
     * ranks. */
    if (!task->arena->made || task->in.bytes > task->arena->geometry.cell_bytes)
        return run_large(task);
    double factors[SHC_MAX_WORLD];
    struct shc_swap swap = {.task = task, .chunk_count = 1, .given = all_of, .take = take_all};
    shc_swap_begin(&swap);
    shc_task_enter_reducing(task, 0);
    SHC_TRY(shc_task_meet_reducing(task, factors));
    return shc_swap_run(&swap);
}

enum shc_status shc_allreduce_run(struct shc_task *task)
{
    const struct shc_span all = {0, task->in.bytes};
    if (task->seat->world_size == 1)
        return shc_task_reduce_alone(task);
    switch (shc_task_select(task, task->in.bytes)) {
    case SHC_ALGO_NOTHING:
        return shc_barrier_run(task);
    case SHC_ALGO_INLINE:
        return shc_task_reduce_round(task, true, 0, all);
    case SHC_ALGO_SMALL:
        return shc_task_reduce_round(task, false, 0, all);
    case SHC_ALGO_TWO_PHASE:
        return shc_two_phase_run(task);
    case SHC_ALGO_DIRECT:
        return run_one_use(task);
    default:
        return run_large(task);
    }
}
