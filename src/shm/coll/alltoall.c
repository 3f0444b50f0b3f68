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
 *   packed     two ranks, a block of up to `small_of_two`, or a slot where there is no arena: in the
 *              small slot; more ranks, if all of one fit: behind the table there
 *   staged     in chunks through the exchange cells of the pair, the first before the call line
 *   no arena   the rest with everybody's whole input through small slots
 *
 * The turns are those of the largest block of all, so uneven blocks cost turns that move little.
 * Cost: what a rank sends stored, what it gets loaded. Edges: call/publish, progress/step.
 */
#include "shm/coll/coll.h"

#include <stdio.h>
#include <string.h>

/* How a rank's blocks for others go. */
enum way { STAGED, PACKED, INLINE };

/* What this rank needs to know. Copies of the tables' numbers: the slots may be used again. */
struct layout {
    size_t in_offset[SHC_MAX_WORLD], in_bytes[SHC_MAX_WORLD];   /* my block for rank j */
    size_t out_offset[SHC_MAX_WORLD];                           /* rank i's block in my output */
    size_t its_offset[SHC_MAX_WORLD], its_bytes[SHC_MAX_WORLD]; /* and in its own input */
    enum way way[SHC_MAX_WORLD];                                /* of rank i's blocks */
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

/* Bytes in front of block `rank` of such a row. */
SHC_INLINE size_t sum_before(const uint64_t *row, int rank)
{
    size_t sum = 0;
    for (int i = 0; i < rank; i++)
        sum += (size_t)row[i];
    return sum;
}

/* Of two ranks the one for the other, `bytes` of it. */
SHC_INLINE enum way way_of_two(const struct shc_task *task, const uint64_t *table, uint64_t bytes)
{
    const size_t small = SHC_UNLIKELY(shc_arena_refused(task->arena))
                             ? SHC_SMALL_SLOT_BYTES
                             : task->tuning->forms[SHC_ALL_TO_ALL].small_bytes_of_two;
    if (bytes <= SHC_INLINE_BYTES - NARROW_BYTES && is_narrow(table))
        return INLINE;
    return bytes <= small ? PACKED : STAGED;
}

/* By its table, so that all ranks find the same. */
SHC_INLINE enum way way_of(const struct shc_task *task, int world, int rank, const uint64_t *table)
{
    size_t total = 0, room = SHC_SMALL_SLOT_BYTES - table_bytes(world);
    if (world == 2)
        return way_of_two(task, table, table[1 - rank]);
    for (int i = 0; i < world; i++)
        if (table[i] > room || (total += (size_t)table[i]) > room)
            return STAGED;
    return PACKED;
}

/* Where they lie in its small slot, that many bytes into them; of two ranks one alone is there. */
SHC_INLINE char *packed_at(const struct shc_task *task, int world, int rank, size_t offset)
{
    return (char *)shc_task_table(task, rank) + (world == 2 ? 0 : table_bytes(world) + offset);
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
    layout->way[task->seat->rank] = way_of(task, world, task->seat->rank, table);
    layout->chunk_bytes = shc_task_cell_bytes(task);
}

SHC_INLINE void enter(struct shc_task *task, int world, const struct layout *layout,
                      const uint64_t *table)
{
    const int me = task->seat->rank;
    const enum way way = layout->way[me];
    char *payload = shc_task_payload(task, me);
    if (world == 2) {
        if (way != STAGED)
            shc_buf_read(&task->in, layout->in_offset[1 - me],
                         way == INLINE ? payload + NARROW_BYTES : packed_at(task, 2, me, 0),
                         layout->in_bytes[1 - me]);
        write_table(payload, table);
    } else {
        if (way == PACKED)
            shc_buf_read(&task->in, 0, packed_at(task, world, me, 0), task->in.bytes);
        memcpy(table_bytes(world) > SHC_INLINE_BYTES ? (char *)shc_task_table(task, me) : payload,
               table, table_bytes(world));
    }
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

/* The largest block that is staged, and the largest input of a rank that stages any: the same on all
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
        layout->way[rank] = way_of(task, world, rank, its);
        if (layout->way[rank] != STAGED)
            continue;
        for (int to = 0; to < world; to++)
            if (to != rank && its[to] > *block)
                *block = (size_t)its[to];
        if (sum_before(its, world) > *input)
            *input = sum_before(its, world);
    }
}

SHC_INLINE void take_inline_and_packed(struct shc_task *task, int world,
                                       const struct layout *layout)
{
    for (int rank = 0; rank < world; rank++) {
        const char *block = packed_at(task, world, rank, layout->its_offset[rank]);
        if (rank == task->seat->rank || layout->way[rank] == STAGED)
            continue;
        if (world == 2 && layout->way[rank] == INLINE)
            block = shc_task_payload(task, rank) + NARROW_BYTES;
        shc_buf_write(&task->out, layout->out_offset[rank], block, layout->its_bytes[rank]);
    }
}

/* ---- by exchange cells ---- */

/* Before the meeting, too: from the tensors alone. */
static struct shc_span given(const struct shc_task *task, int peer, uint64_t k)
{
    const struct layout *layout = task->more;
    const size_t bytes = layout->way[task->seat->rank] == STAGED ? layout->in_bytes[peer] : 0;
    struct shc_span chunk = shc_plan_chunk(bytes, layout->chunk_bytes, k);
    return (struct shc_span){layout->in_offset[peer] + chunk.offset, chunk.bytes};
}

static struct shc_span got(const struct shc_task *task, int peer, uint64_t k)
{
    const struct layout *layout = task->more;
    const size_t bytes = layout->way[peer] == STAGED ? layout->its_bytes[peer] : 0;
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
        if (rank != task->seat->rank && layout->way[rank] == STAGED && mine.bytes > 0)
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
    if (layout.way[me] == STAGED)
        shc_swap_begin(&swap);
    else
        shc_swap_begin_empty(&swap);
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
