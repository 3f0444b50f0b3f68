/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * All-to-all: block j of rank i's input becomes block i of rank j's output. Blocks may differ in
 * size, also be empty; what i sends to j is what j expects of i, or all ranks fail alike.
 *
 * With its call line each rank says how many bytes it sends to each rank and expects of each: in the
 * line, if that table fits (up to three ranks), else in its small slot of this epoch's parity.
 * Behind the meeting every rank compares all tables. The blocks go
 *
 *   inline     two ranks, a block of up to 32 B: behind the table in the call line, whose numbers have
 *              32 bits there unless one of them needs more
 *   staged     in chunks through the exchange cells of the pair, the first before the call line
 *   packed     behind the table in the small slot, if all of a rank's fit there: more than two
 *              ranks; two without an arena
 *   no arena   the rest with everybody's whole input through small slots
 *
 * The turns are those of the largest block of all, so uneven blocks cost turns that move little.
 * Cost: what a rank sends stored, what it gets loaded. Edges: call/publish, progress/step.
 */
#include "shm/coll/coll.h"

#include <stdio.h>
#include <string.h>

/* What this rank needs to know. Copies of the tables' numbers: the slots may be used again. */
struct layout {
    size_t in_offset[SHC_MAX_WORLD], in_bytes[SHC_MAX_WORLD];   /* my block for rank j */
    size_t out_offset[SHC_MAX_WORLD];                           /* rank i's block in my output */
    size_t its_offset[SHC_MAX_WORLD], its_bytes[SHC_MAX_WORLD]; /* and in its own input */
    bool packed[SHC_MAX_WORLD]; /* rank i's blocks are in its slot */
    const uint64_t
        *tables[SHC_MAX_WORLD]; /* to be read behind the meeting, and before slots are used */
    uint64_t read_table[4];     /* two ranks: the other's */
    size_t chunk_bytes;
};

/* In line, with `world` as an argument: for two ranks it is a constant, and no loop is left. */
SHC_INLINE size_t table_bytes(int world)
{
    return 2 * (size_t)world * sizeof(uint64_t);
}

/* Bytes the rank sends to each rank, and behind that what it expects of each. */
SHC_INLINE const uint64_t *table_of(const struct shc_task *task, int world, int rank)
{
    if (table_bytes(world) > SHC_INLINE_BYTES)
        return shc_task_table(task, rank);
    return (const uint64_t *)(const void *)shc_task_payload(task, rank);
}

/* A table of two ranks in a call line: four numbers of 32 bits, and a block behind them; or WIDE, and
 * the numbers as they are from WIDE_OFFSET on. */
#define NARROW_BYTES (4 * sizeof(uint32_t))
#define WIDE         UINT32_MAX
#define WIDE_OFFSET  sizeof(uint64_t)

SHC_INLINE bool is_narrow(const uint64_t *table)
{
    return (table[0] | table[1] | table[2] | table[3]) < WIDE;
}

static void write_table(char *payload, const uint64_t *table)
{
    uint32_t narrow[4] = {WIDE};
    if (SHC_UNLIKELY(!is_narrow(table))) {
        memcpy(payload, narrow, sizeof narrow[0]);
        memcpy(payload + WIDE_OFFSET, table, table_bytes(2));
        return;
    }
    for (int i = 0; i < 4; i++)
        narrow[i] = (uint32_t)table[i];
    memcpy(payload, narrow, NARROW_BYTES);
}

static void read_table(uint64_t *table, const char *payload)
{
    uint32_t narrow[4];
    memcpy(narrow, payload, NARROW_BYTES);
    if (SHC_UNLIKELY(narrow[0] == WIDE)) {
        memcpy(table, payload + WIDE_OFFSET, table_bytes(2));
        return;
    }
    for (int i = 0; i < 4; i++)
        table[i] = narrow[i];
}

/* Does a block for the other of two ranks go behind this table in the call line? */
SHC_INLINE bool rides(int world, const uint64_t *table, size_t bytes)
{
    return world == 2 && bytes <= SHC_INLINE_BYTES - NARROW_BYTES && is_narrow(table);
}

/* Bytes in front of block `rank` of such a row. */
SHC_INLINE size_t sum_before(const uint64_t *row, int rank)
{
    size_t sum = 0;
    for (int i = 0; i < rank; i++)
        sum += (size_t)row[i];
    return sum;
}

/* Are a rank's blocks packed behind its table? Two ranks do so only where there is no arena, nor will
 * there be: a cell is as fast. */
SHC_INLINE bool packs(const struct shc_task *task, int world, const uint64_t *sends)
{
    size_t total = 0, room = SHC_SMALL_SLOT_BYTES - table_bytes(world);
    if (world == 2 && !shc_arena_refused(task->arena))
        return false;
    for (int i = 0; i < world; i++)
        if (sends[i] > room || (total += (size_t)sends[i]) > room)
            return false;
    return true;
}

/* The table of this rank, and where the blocks lie in its own tensors. */
SHC_INLINE void look_at_tensors(const struct shc_task *task, int world, struct layout *layout,
                                uint64_t *table)
{
    size_t in = 0, out = 0;
    for (int rank = 0; rank < world; rank++) {
        table[rank] = shc_buf_tensor_bytes(&task->in, (uint32_t)rank);
        table[world + rank] = shc_buf_tensor_bytes(&task->out, (uint32_t)rank);
        layout->in_offset[rank] = in;
        layout->in_bytes[rank] = (size_t)table[rank];
        layout->out_offset[rank] = out;
        layout->tables[rank] = rank == task->seat->rank ? table
                               : world == 2             ? layout->read_table
                                                        : table_of(task, world, rank);
        in += (size_t)table[rank];
        out += (size_t)table[world + rank];
    }
    layout->packed[task->seat->rank] = packs(task, world, table);
    layout->chunk_bytes = shc_task_cell_bytes(task);
}

SHC_INLINE void enter(struct shc_task *task, int world, const struct layout *layout,
                      const uint64_t *table)
{
    char *slot = (char *)shc_task_table(task, task->seat->rank);
    if (layout->packed[task->seat->rank])
        shc_buf_read(&task->in, 0, slot + table_bytes(world), task->in.bytes);
    if (table_bytes(world) > SHC_INLINE_BYTES) {
        memcpy(slot, table, table_bytes(world));
        shc_task_enter(task);
        return;
    }
    char *payload = shc_task_payload(task, task->seat->rank);
    const int peer = (task->seat->rank + 1) % world; /* the other one of two */
    if (world == 2)
        write_table(payload, table);
    else
        memcpy(payload, table, table_bytes(world));
    if (rides(world, table, layout->in_bytes[peer]))
        shc_buf_read(&task->in, layout->in_offset[peer], payload + NARROW_BYTES,
                     layout->in_bytes[peer]);
    shc_task_enter(task);
}

SHC_INLINE enum shc_status compare_tables(struct shc_task *task, int world,
                                          const struct layout *layout)
{
    const uint32_t elem = task->call.elem_bytes;
    for (int from = 0; from < world; from++) {
        for (int to = 0; to < world; to++) {
            uint64_t sent = layout->tables[from][to], expected = layout->tables[to][world + from];
            if (SHC_LIKELY(sent == expected))
                continue;
            char reason[160];
            snprintf(reason, sizeof reason,
                     "splits differ: rank %d sends %llu elements to rank %d, which expects %llu",
                     from, (unsigned long long)(sent / elem), to,
                     (unsigned long long)(expected / elem));
            return shc_wait_give_up(&task->wait, SHC_ERR_MISMATCH, reason);
        }
    }
    return SHC_OK;
}

/* The largest block that is not packed, and the largest input of a rank that is not: the same on all
 * ranks. */
SHC_INLINE void measure(const struct shc_task *task, int world, struct layout *layout,
                        size_t *block, size_t *input)
{
    const int me = task->seat->rank;
    *block = *input = 0;
    for (int rank = 0; rank < world; rank++) {
        const uint64_t *its = layout->tables[rank];
        layout->its_offset[rank] = sum_before(its, me);
        layout->its_bytes[rank] = (size_t)its[me];
        layout->packed[rank] = packs(task, world, its);
        for (int to = 0; !layout->packed[rank] && to < world; to++)
            if (to != rank && its[to] > *block && !rides(world, its, (size_t)its[to]))
                *block = (size_t)its[to];
        if (!layout->packed[rank] && sum_before(its, world) > *input)
            *input = sum_before(its, world);
    }
}

SHC_INLINE void take_inline_and_packed(struct shc_task *task, int world,
                                       const struct layout *layout)
{
    const int me = task->seat->rank;
    for (int rank = 0; rank < world; rank++) {
        const char *blocks = (const char *)shc_task_table(task, rank) + table_bytes(world);
        if (rank == me)
            continue;
        if (rides(world, layout->tables[rank], layout->its_bytes[rank]))
            shc_buf_write(&task->out, layout->out_offset[rank],
                          shc_task_payload(task, rank) + NARROW_BYTES, layout->its_bytes[rank]);
        else if (layout->packed[rank])
            shc_buf_write(&task->out, layout->out_offset[rank], blocks + layout->its_offset[rank],
                          layout->its_bytes[rank]);
    }
}

/* ---- by exchange cells ---- */

/* No bytes of a block that goes with the call line. Before the meeting, too: from the tensors alone. */
static struct shc_span given(const struct shc_task *task, int peer, uint64_t k)
{
    const struct layout *layout = task->more;
    const int world = task->seat->world_size;
    const bool there = layout->packed[task->seat->rank] ||
                       rides(world, layout->tables[task->seat->rank], layout->in_bytes[peer]);
    const size_t bytes = there ? 0 : layout->in_bytes[peer];
    struct shc_span chunk = shc_plan_chunk(bytes, layout->chunk_bytes, k);
    return (struct shc_span){layout->in_offset[peer] + chunk.offset, chunk.bytes};
}

static struct shc_span got(const struct shc_task *task, int peer, uint64_t k)
{
    const struct layout *layout = task->more;
    const int world = task->seat->world_size;
    const bool here =
        layout->packed[peer] || rides(world, layout->tables[peer], layout->its_bytes[peer]);
    const size_t bytes = here ? 0 : layout->its_bytes[peer];
    struct shc_span chunk = shc_plan_chunk(bytes, layout->chunk_bytes, k);
    return (struct shc_span){layout->out_offset[peer] + chunk.offset, chunk.bytes};
}

/* ---- without an arena ---- */

static void take_own(struct shc_task *task, struct shc_span chunk, char *const *slots)
{
    const struct layout *layout = task->more;
    for (int rank = 0; rank < task->seat->world_size; rank++) {
        struct shc_span block = {layout->its_offset[rank], layout->its_bytes[rank]};
        struct shc_span mine = shc_plan_overlap(chunk, block);
        if (rank != task->seat->rank && mine.bytes > 0)
            shc_buf_write(&task->out, layout->out_offset[rank] + (mine.offset - block.offset),
                          slots[rank] + (mine.offset - chunk.offset), mine.bytes);
    }
}

/* What did not come with the call lines. */
static enum shc_status move(struct shc_swap *swap, size_t block, size_t input)
{
    struct shc_task *task = swap->task;
    const struct layout *layout = task->more;
    bool arena;
    SHC_TRY(shc_task_arena(task, &arena));
    if (arena) {
        swap->chunk_count = shc_plan_chunk_count(block, layout->chunk_bytes);
        return shc_swap_run(swap);
    }
    SHC_TRY(shc_small_slots_reuse(task));
    struct shc_shout shout = {
        .task = task,
        .total_bytes = input,
        .giver = -1,
        .taker = -1,
        .first_step = 1,
        .give = shc_give_input,
        .take = take_own,
    };
    return shc_shout_run(&shout);
}

SHC_INLINE enum shc_status run(struct shc_task *task, int world)
{
    const int me = task->seat->rank;
    uint64_t table[2 * SHC_MAX_WORLD];
    struct layout layout;
    struct shc_swap swap = {.task = task, .given = given, .got = got};
    size_t block, input;
    look_at_tensors(task, world, &layout, table);
    task->more = &layout;
    shc_swap_begin(&swap);
    enter(task, world, &layout, table);
    SHC_TRY(shc_task_meet(task));
    if (world == 2)
        read_table(layout.read_table, shc_task_payload(task, 1 - me));
    SHC_TRY(compare_tables(task, world, &layout));
    measure(task, world, &layout, &block, &input);
    shc_task_keep(task, layout.in_offset[me], layout.out_offset[me], layout.in_bytes[me]);
    take_inline_and_packed(task, world, &layout);
    return block > 0 ? move(&swap, block, input) : SHC_OK;
}

enum shc_status shc_alltoall_run(struct shc_task *task)
{
    const int world = task->seat->world_size;
    return world == 2 ? run(task, 2) : run(task, world);
}
