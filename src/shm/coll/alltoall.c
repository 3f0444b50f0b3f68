/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * All-to-all: block j of rank i's input becomes block i of rank j's output. Blocks may differ in size and may
 * be empty. What rank i sends to rank j is what rank j expects of rank i; otherwise all ranks fail alike.
 *
 *   1. Each rank writes a table: how many bytes it sends to each rank, and how many it expects of each. The
 *      table is in the call line if it fits (up to three ranks), otherwise in the small slot of this epoch's
 *      parity (STAGE-39). Blocks for the call line or the small slot, and the first pieces of longer ones, are
 *      stored now, too.
 *   2. The ranks publish their call lines, and meet.
 *   3. Every rank compares all tables (STAGE-39). It reads each number once: the rank that has written a
 *      number may be writing it still.
 *   4. The blocks go one of these ways:
 *
 *   path         where the bytes go
 *   call line    Two ranks, a block of up to 32 B: after the table in the call line. The table's numbers have
 *                32 bits there unless one of them needs more.
 *   small slot   In the code: packed. Two ranks, a block of up to `small_of_two`, or of up to a slot where
 *                there is no arena (STAGE-41). More ranks, if all blocks of one rank fit: in its slot, after
 *                the table's place.
 *   pipelined In chunks through the exchange cells of the pair, the first one before
 *                the call line (STAGE-11, STAGE-12).
 *   no arena     All other blocks: each rank's whole input goes through small slots (STAGE-42).
 *
 * All pairs take as many turns as the largest block of all needs. So uneven blocks cost turns that move little.
 * Cost: each rank stores the bytes that it sends and loads the bytes that it gets.
 * Edges: call/publish, progress/step.
 */
#include "shm/coll/flow.h"
#include "shm/coll/parts.h"
#include "shm/coll/runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How the blocks of a rank for other ranks go. */
enum way { PIPELINED, PACKED, INLINE };

/* What this rank needs to know. The numbers are copied out of the tables, because the slots may be
 * used again. */
struct layout {
    size_t in_offset[SHC_MAX_WORLD], in_bytes[SHC_MAX_WORLD];   /* my block for rank j */
    size_t out_offset[SHC_MAX_WORLD];                           /* rank i's block in my output */
    size_t its_offset[SHC_MAX_WORLD], its_bytes[SHC_MAX_WORLD]; /* rank i's for me, in its input */
    enum way way[SHC_MAX_WORLD];                                /* of rank i's blocks */
    uint64_t table[2 * SHC_MAX_WORLD];                          /* this rank's */
    uint64_t read_table[4];                                     /* two ranks: the other rank's */
    size_t chunk_bytes;
    /* The largest block that is staged, and the largest input of a rank that stages any. The same
     * on all ranks. */
    size_t block, input;
};

/* These functions are inline and have `world` as an argument: for two ranks it is a constant, and
 * no loop is left. */
SHC_INLINE size_t table_bytes(int world)
{
    return 2 * (size_t)world * sizeof(uint64_t);
}

/* Where a rank's table is, with more than two ranks: the bytes that the rank sends to each rank,
 * and after these the bytes that it expects of each. */
SHC_INLINE char *table_of(const struct shc_task *task, int world, int rank)
{
    return table_bytes(world) > SHC_INLINE_BYTES
               ? shc_seat_small_slot(task->seat, rank, task->wait.epoch)
               : shc_task_payload(task, rank);
}

/* A table of two ranks in a call line: four numbers of 32 bits, and a block after them. Or WIDE,
 * and from WIDE_OFFSET on the numbers in 64 bits. */
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
    shc_copy_once(narrow, payload, NARROW_BYTES);
    if (SHC_UNLIKELY(narrow[0] == WIDE)) {
        shc_copy_once(table, payload + WIDE_OFFSET, table_bytes(2));
        return;
    }
    for (int i = 0; i < 4; i++)
        table[i] = narrow[i];
}

/* What a rank sends to each rank, read once. With two ranks: its whole table, which decides how the
 * block goes. */
SHC_INLINE void hear_row(const struct shc_task *task, int world, const struct layout *layout,
                         int rank, uint64_t *row)
{
    const size_t bytes = world == 2 ? table_bytes(2) : (size_t)world * sizeof *row;
    if (rank == task->seat->rank)
        memcpy(row, layout->table, bytes);
    else if (world == 2)
        memcpy(row, layout->read_table, bytes);
    else
        shc_copy_once(row, table_of(task, world, rank), bytes);
}

/* What a rank expects of the rank `from`. */
SHC_INLINE uint64_t hear_expected(const struct shc_task *task, int world,
                                  const struct layout *layout, int rank, int from)
{
    const size_t index = (size_t)(world + from);
    uint64_t number;
    if (rank == task->seat->rank)
        return layout->table[index];
    if (world == 2)
        return layout->read_table[index];
    shc_copy_once(&number, table_of(task, world, rank) + index * sizeof number, sizeof number);
    return number;
}

/* With two ranks: how a block of `bytes` goes from one to the other. */
SHC_INLINE enum way way_of_two(size_t most_packed, bool narrow, uint64_t bytes)
{
    if (bytes <= SHC_INLINE_BYTES - NARROW_BYTES && narrow)
        return INLINE;
    return bytes <= most_packed ? PACKED : PIPELINED;
}

SHC_INLINE size_t packed_room(int world)
{
    return SHC_SMALL_SLOT_BYTES - table_bytes(world);
}

/* By the rank's table, so that all ranks get the same answer. */
SHC_INLINE enum way way_of(const struct shc_task *task, int world, int rank, const uint64_t *table)
{
    const size_t most = SHC_UNLIKELY(shc_arena_refused(task->arena))
                            ? SHC_SMALL_SLOT_BYTES
                            : task->tuning->small_of_two_bytes;
    size_t total = 0, room = packed_room(world);
    if (world == 2)
        return way_of_two(most, is_narrow(table), table[1 - rank]);
    for (int i = 0; i < world; i++)
        if (table[i] > room || (total += (size_t)table[i]) > room)
            return PIPELINED;
    return PACKED;
}

/* Where the rank's packed blocks are in its small slot, from `offset` on. With two ranks there is
 * only one block. */
SHC_INLINE char *packed_at(const struct shc_task *task, int world, int rank, size_t offset)
{
    return shc_seat_small_slot(task->seat, rank, task->wait.epoch) +
           (world == 2 ? 0 : table_bytes(world) + offset);
}

/* Fills in this rank's table, and where the blocks are in its own tensors. */
SHC_INLINE void look_at_tensors(const struct shc_task *task, int world, struct layout *layout)
{
    uint64_t *const table = layout->table;
    size_t in = 0, out = 0;
    for (int rank = 0; rank < world; rank++) {
        table[rank] = shc_buf_tensor_bytes(&task->in, (uint32_t)rank);
        table[world + rank] = shc_buf_tensor_bytes(&task->out, (uint32_t)rank);
        layout->in_offset[rank] = in;
        layout->in_bytes[rank] = (size_t)table[rank];
        layout->out_offset[rank] = out;
        in += (size_t)table[rank];
        out += (size_t)table[world + rank];
    }
    layout->way[task->seat->rank] = way_of(task, world, task->seat->rank, table);
    layout->chunk_bytes = shc_task_cell_bytes(task);
}

SHC_INLINE void enter(struct shc_task *task, int world, const struct layout *layout)
{
    const int me = task->seat->rank;
    const enum way way = layout->way[me];
    char *payload = shc_task_payload(task, me);
    if (world == 2) {
        if (way != PIPELINED)
            shc_buf_read(&task->in, layout->in_offset[1 - me],
                         way == INLINE ? payload + NARROW_BYTES : packed_at(task, 2, me, 0),
                         layout->in_bytes[1 - me]);
        write_table(payload, layout->table);
    } else {
        if (way == PACKED)
            shc_buf_read(&task->in, 0, packed_at(task, world, me, 0), task->in.bytes);
        memcpy(table_of(task, world, me), layout->table, table_bytes(world));
    }
    shc_task_enter(task);
}

static SHC_COLD enum shc_status fail_splits(struct shc_task *task, int from, uint64_t sent, int to,
                                            uint64_t expected)
{
    const uint32_t elem = task->call.elem_bytes;
    char reason[400];
    snprintf(reason, sizeof reason,
             "splits differ: %s sends %llu elements to %s, which expects %llu",
             shc_seat_rank_name(task->seat, from).text, (unsigned long long)(sent / elem),
             shc_seat_rank_name(task->seat, to).text, (unsigned long long)(expected / elem));
    return shc_wait_give_up(&task->wait, SHC_ERR_MISMATCH, reason);
}

/* Finds how a rank's blocks go, by its row of the table. False: no tensors are so large. */
SHC_INLINE bool measure(const struct shc_task *task, int world, struct layout *layout, int rank,
                        const uint64_t *row)
{
    const int me = task->seat->rank;
    size_t sum = 0, largest = 0;
    for (int to = 0; to < world; to++) {
        if (to == me)
            layout->its_offset[rank] = sum;
        if (to != rank && row[to] > largest)
            largest = (size_t)row[to];
        if (__builtin_add_overflow(sum, (size_t)row[to], &sum))
            return false;
    }
    layout->its_bytes[rank] = (size_t)row[me];
    layout->way[rank] = way_of(task, world, rank, row);
    if (layout->way[rank] != PIPELINED)
        return true;
    layout->block = largest > layout->block ? largest : layout->block;
    layout->input = sum > layout->input ? sum : layout->input;
    return true;
}

/* Compares all tables, and notes what this rank needs to know of them. So the numbers that are used
 * are those that were compared. */
SHC_INLINE enum shc_status compare_tables(struct shc_task *task, int world, struct layout *layout)
{
    uint64_t row[SHC_MAX_WORLD];
    layout->block = layout->input = 0;
    for (int from = 0; from < world; from++) {
        hear_row(task, world, layout, from, row);
        for (int to = 0; to < world; to++) {
            const uint64_t expected = hear_expected(task, world, layout, to, from);
            if (SHC_UNLIKELY(row[to] != expected))
                return fail_splits(task, from, row[to], to, expected);
        }
        if (SHC_UNLIKELY(!measure(task, world, layout, from, row)))
            return shc_task_fail_damaged(task, from);
    }
    return SHC_OK;
}

SHC_INLINE void take_inline_and_packed(struct shc_task *task, int world,
                                       const struct layout *layout)
{
    for (int rank = 0; rank < world; rank++) {
        const char *block = packed_at(task, world, rank, layout->its_offset[rank]);
        if (rank == task->seat->rank || layout->way[rank] == PIPELINED)
            continue;
        if (world == 2 && layout->way[rank] == INLINE)
            block = shc_task_payload(task, rank) + NARROW_BYTES;
        shc_buf_write(&task->out, layout->out_offset[rank], block, layout->its_bytes[rank]);
    }
}

/* ---- through exchange cells ---- */

/* Called before the meeting, too, so it looks at this rank's tensors alone. */
static struct shc_span given(const struct shc_task *task, int peer, uint64_t k)
{
    const struct layout *layout = task->more;
    const size_t bytes = layout->way[task->seat->rank] == PIPELINED ? layout->in_bytes[peer] : 0;
    struct shc_span chunk = shc_plan_chunk(bytes, layout->chunk_bytes, k);
    return (struct shc_span){layout->in_offset[peer] + chunk.offset, chunk.bytes};
}

static struct shc_span got(const struct shc_task *task, int peer, uint64_t k)
{
    const struct layout *layout = task->more;
    const size_t bytes = layout->way[peer] == PIPELINED ? layout->its_bytes[peer] : 0;
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
        if (rank != task->seat->rank && layout->way[rank] == PIPELINED && mine.bytes > 0)
            shc_buf_write(&task->out, layout->out_offset[rank] + (mine.offset - block.offset),
                          slots[rank] + (mine.offset - chunk.offset), mine.bytes);
    }
}

/* Moves the blocks that did not come with the call lines. */
static enum shc_status move(struct shc_swap *swap, struct layout *layout)
{
    struct shc_task *task = swap->task;
    bool arena;
    shc_task_want(task, layout->block * (size_t)task->seat->world_size);
    SHC_TRY(shc_task_arena(task, &arena));
    if (arena) {
        layout->chunk_bytes = shc_task_cell_bytes(task); /* of the arena that there is now */
        swap->chunk_count = shc_plan_chunk_count(layout->block, layout->chunk_bytes);
        return shc_swap_run(swap);
    }
    SHC_TRY(shc_small_slots_reuse(task));
    struct shc_flow flow = {
        .task = task,
        .total_bytes = layout->input,
        .giver = -1,
        .taker = -1,
        .first_step = 1,
        .give = shc_give_input,
        .take = take_own,
    };
    return shc_flow_run(&flow);
}

/* pre: look_at_tensors(). Input and output share whole tensors at most (shc_sides_check()). */
SHC_INLINE bool has_block_in_place(const struct shc_task *task, int world,
                                   const struct layout *layout)
{
    for (int rank = 0; rank < world; rank++)
        if (layout->in_bytes[rank] > 0 && task->in.list[rank].data == task->out.list[rank].data)
            return true;
    return false;
}

SHC_INLINE enum shc_status exchange_blocks(struct shc_task *task, int world, struct layout *layout)
{
    const int me = task->seat->rank;
    struct shc_swap swap = {.task = task, .given = given, .got = got};
    if (layout->way[me] == PIPELINED)
        shc_swap_begin(&swap);
    else
        shc_swap_begin_empty(&swap);
    enter(task, world, layout);
    SHC_TRY(shc_task_meet(task));
    if (world == 2)
        read_table(layout->read_table, shc_task_payload(task, 1 - me));
    SHC_TRY(compare_tables(task, world, layout));
    shc_task_keep(task, layout->in_offset[me], layout->out_offset[me], layout->in_bytes[me]);
    take_inline_and_packed(task, world, layout);
    return layout->block > 0 ? move(&swap, layout) : SHC_OK;
}

/* In place, a block may arrive before the block that it overwrites has left. So the blocks leave from a
 * copy. */
static SHC_NOINLINE enum shc_status exchange_in_place(struct shc_task *task, int world,
                                                      struct layout *layout)
{
    const struct shc_buf in = task->in;
    void *copy;
    SHC_TRY(shc_task_copy_input(task, &copy));
    enum shc_status st = exchange_blocks(task, world, layout);
    task->in = in;
    free(copy);
    return st;
}

SHC_INLINE enum shc_status run(struct shc_task *task, int world)
{
    struct layout layout;
    shc_arena_want(task->arena, world, 0);
    look_at_tensors(task, world, &layout);
    task->more = &layout;
    if (SHC_UNLIKELY(has_block_in_place(task, world, &layout)))
        return exchange_in_place(task, world, &layout);
    return exchange_blocks(task, world, &layout);
}

enum shc_status shc_alltoall_run(struct shc_task *task)
{
    const int world = task->seat->world_size;
    return world == 2 ? run(task, 2) : run(task, world);
}

const char *shc_alltoall_path(const struct shc_tuning *tuning, size_t bytes, int world_size)
{
    static const char *const names[] = {
        [PIPELINED] = "pipelined", [PACKED] = "small slot", [INLINE] = "call line"};
    const size_t most = tuning->small_of_two_bytes;
    if (world_size == 2)
        return names[way_of_two(most, bytes < WIDE, bytes)];
    return names[bytes <= packed_room(world_size) / (size_t)world_size ? PACKED : PIPELINED];
}
