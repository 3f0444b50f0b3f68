/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Gather: every rank's m bytes, in rank order, to the root. All-gather: to every rank. A list of outputs and a
 * flat output are the same vector here. The sizes are the defaults (select.c).
 *
 *   path         m           where the bytes go
 *   call line    <= 48 B     In the call lines.
 *   small slot   <= 8 KiB    In each rank's small slot of this epoch's parity. The root of a gather needs
 *                            none. All-gather of two ranks: <= 4 KiB.
 *   hand-off     <= 8 KiB    Gather of two ranks: in a hand-off slot, instead of a small slot.
 *   pipelined    above       In chunks through the broadcast slots of the ranks that give. All-gather of two
 *                            ranks: through the exchange cells of the pair, the first chunk before the call
 *                            line.
 *
 * Call line, small slot and hand-off:
 *   1. Each rank stores its m bytes. The root of a gather stores nothing.
 *   2. All ranks publish their call lines, and meet.
 *   3. Each rank that takes copies the others' blocks to its output, and its own block from its input.
 *
 * Cost: m bytes stored by each rank that gives (not the root of a gather); (world - 1) m bytes loaded, and m
 * bytes copied inside user memory, by each rank that takes.
 * Edges: call/publish (call line, small slot, hand-off; pipelined all-gather: chunk 0), progress/step (pipelined).
 */
#include "shm/coll/flow.h"
#include "shm/coll/parts.h"
#include "shm/coll/round.h"
#include "shm/coll/runs.h"

/* The only rank that takes. -1: all ranks take. */
static int taker_of(const struct shc_task *task)
{
    return task->call.kind == SHC_GATHER ? task->call.root : -1;
}

static bool takes(const struct shc_task *task)
{
    return taker_of(task) < 0 || taker_of(task) == task->seat->rank;
}

static void take(struct shc_task *task, struct shc_span chunk, char *const *slots)
{
    for (int rank = 0; rank < task->seat->world_size; rank++)
        if (rank != task->seat->rank)
            shc_task_write(task, (size_t)rank * task->in.bytes + chunk.offset, slots[rank],
                           chunk.bytes);
}

/* Copies that piece of this rank's own block. Does nothing if the input is that block. */
static void keep(struct shc_task *task, struct shc_span piece)
{
    const size_t own = (size_t)task->seat->rank * task->in.bytes;
    shc_task_keep(task, piece.offset, own + piece.offset, piece.bytes);
}

static void keep_own(struct shc_task *task)
{
    keep(task, (struct shc_span){0, task->in.bytes});
}

/* All blocks are in the call lines, in small slots or in a hand-off slot. */
static enum shc_status run_one_round(struct shc_task *task, bool in_line)
{
    const struct shc_span all = {0, task->in.bytes};
    const bool gives = taker_of(task) != task->seat->rank;
    char *slots[SHC_MAX_WORLD];
    const struct shc_round round =
        shc_round_begin(task, in_line, taker_of(task) >= 0, gives ? all.bytes : 0);
    for (int rank = 0; rank < task->seat->world_size; rank++)
        slots[rank] = shc_round_place(task, &round, rank);
    if (gives)
        shc_buf_read(&task->in, 0, slots[task->seat->rank], all.bytes);
    shc_task_enter(task);
    SHC_TRY(shc_task_meet(task));
    if (!takes(task))
        return SHC_OK;
    take(task, all, slots);
    keep_own(task);
    return SHC_OK;
}

static struct shc_span given(const struct shc_task *task, int peer, uint64_t k)
{
    (void)peer;
    return shc_plan_chunk(task->in.bytes, shc_task_cell_bytes(task), k);
}

static struct shc_span got(const struct shc_task *task, int peer, uint64_t k)
{
    struct shc_span chunk = given(task, peer, k);
    return (struct shc_span){(size_t)peer * task->in.bytes + chunk.offset, chunk.bytes};
}

static void keep_chunk(struct shc_task *task, uint64_t k)
{
    keep(task, given(task, -1, k));
}

static enum shc_status run_pipelined(struct shc_task *task)
{
    /* All-gather of two ranks: what a rank has read is where it stores next. */
    const bool swaps = task->seat->world_size == 2 && task->call.kind == SHC_ALL_GATHER;
    struct shc_swap swap = {.task = task, .given = given, .got = got, .keep = keep_chunk};
    bool arena;
    struct shc_flow flow = {
        .task = task,
        .total_bytes = task->in.bytes,
        .giver = -1,
        .taker = taker_of(task),
        .give = shc_give_input,
        .take = take,
        .keep = taker_of(task) < 0 ? keep : NULL,
    };
    if (swaps)
        shc_swap_begin(&swap);
    else if (taker_of(task) < 0) /* a gather stores nothing so early (STAGE-18) */
        shc_flow_begin(&flow);
    shc_task_enter(task);
    if (!swaps)
        shc_flow_go_on(&flow);
    SHC_TRY(shc_task_meet(task));
    if (task->seat->world_size == 1 || taker_of(task) == task->seat->rank)
        keep_own(task);
    if (task->seat->world_size == 1)
        return SHC_OK;
    SHC_TRY(shc_task_arena(task, &arena));
    if (arena && swaps) {
        swap.chunk_count = shc_plan_chunk_count(task->in.bytes, shc_task_cell_bytes(task));
        return shc_swap_run(&swap);
    }
    return shc_flow_run(&flow);
}

enum shc_status shc_gather_run(struct shc_task *task)
{
    switch (shc_task_select(task, task->in.bytes)) {
    case SHC_ALGO_NOTHING:
        return shc_barrier_run(task);
    case SHC_ALGO_INLINE:
        return run_one_round(task, true);
    case SHC_ALGO_SMALL:
        return run_one_round(task, false);
    default:
        return run_pipelined(task);
    }
}
