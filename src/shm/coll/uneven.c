/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Lists of uneven sizes: what the uneven operations share, and the uneven all-gather (STAGE-43).
 *
 *   1. Before its call line each rank puts a table into its small slot of this epoch's parity: how many bytes
 *      each tensor of its list has. All-gather: each rank puts its block after the table, if it fits there.
 *   2. The ranks publish their call lines, and meet.
 *   3. Every rank compares all tables. They must be the same; otherwise all ranks fail alike, before user
 *      memory changes. A rank moves bytes by its own list alone.
 *   4. All-gather: every rank copies the blocks that came with the tables. The other blocks go in chunks
 *      through the ranks' broadcast slots.
 *
 * All-gather: rank r's m_r bytes to every rank, in rank order.
 * Cost: m_r bytes stored by each rank, the sum of the others' loaded. The number of turns is that of the
 * largest block. Edges: call/publish, progress/step (in chunks).
 */
#include "shm/coll/uneven.h"

#include "shm/coll/flow.h"
#include "shm/coll/parts.h"
#include "shm/coll/runs.h"

#include <stdio.h>

/* ---- tables ---- */

static size_t table_bytes(const struct shc_task *task)
{
    return (size_t)task->seat->world_size * sizeof(uint64_t);
}

void shc_uneven_fill_table(struct shc_task *task, const struct shc_buf *list,
                           struct shc_blocks *blocks)
{
    uint64_t table[SHC_MAX_WORLD];
    blocks->begin[0] = 0;
    for (int rank = 0; rank < task->seat->world_size; rank++) {
        table[rank] = shc_buf_tensor_bytes(list, (uint32_t)rank);
        blocks->begin[rank + 1] = blocks->begin[rank] + (size_t)table[rank];
    }
    shc_task_say(task, table, table_bytes(task));
}

/* The entry of a rank's table for the rank `of`. */
static uint64_t entry_of(const struct shc_task *task, const struct shc_blocks *blocks, int rank,
                         int of)
{
    return rank == task->seat->rank ? shc_blocks_at(blocks, of).bytes
                                    : shc_task_hear_number(task, rank, (size_t)of);
}

/* The tables differ: names the first rank whose own entry is not the entry that another rank has
 * for it. */
static SHC_COLD enum shc_status fail_sizes(struct shc_task *task, const char *format,
                                           const struct shc_blocks *blocks)
{
    const int world = task->seat->world_size;
    const uint32_t elem = task->call.elem_bytes;
    const struct shc_seat *seat = task->seat;
    char reason[400] = "sizes differ";
    for (int rank = 0; rank < world; rank++) {
        uint64_t own = entry_of(task, blocks, rank, rank);
        for (int other = 0; other < world; other++) {
            uint64_t its = entry_of(task, blocks, other, rank);
            if (its == own)
                continue;
            snprintf(reason, sizeof reason, format, shc_seat_rank_name(seat, rank).text,
                     (unsigned long long)(own / elem), shc_seat_rank_name(seat, other).text,
                     (unsigned long long)(its / elem));
            return shc_wait_give_up(&task->wait, SHC_ERR_MISMATCH, reason);
        }
    }
    return shc_wait_give_up(&task->wait, SHC_ERR_MISMATCH, reason);
}

static bool is_same(const struct shc_task *task, int other, const struct shc_blocks *blocks)
{
    uint64_t its[SHC_MAX_WORLD], differences = 0;
    shc_task_hear(task, other, its, table_bytes(task));
    for (int rank = 0; rank < task->seat->world_size; rank++)
        differences |= its[rank] ^ shc_blocks_at(blocks, rank).bytes;
    return differences == 0;
}

enum shc_status shc_uneven_compare_tables(struct shc_task *task, const char *format,
                                          const struct shc_blocks *blocks)
{
    for (int rank = 0; rank < task->seat->world_size; rank++)
        if (rank != task->seat->rank && !is_same(task, rank, blocks))
            return fail_sizes(task, format, blocks);
    return SHC_OK;
}

/* ---- blocks to all ---- */

void shc_blocks_pack(struct shc_task *task, size_t skip)
{
    char *slot = shc_seat_small_slot(task->seat, task->seat->rank, task->wait.epoch);
    if (shc_blocks_packed(task->in.bytes, skip))
        shc_buf_read(&task->in, 0, slot + skip, task->in.bytes);
}

/* What the flow's callbacks need. */
struct spread {
    const struct shc_blocks *blocks;
    size_t skip;
};

static void take(struct shc_task *task, struct shc_span chunk, char *const *slots)
{
    const struct spread *spread = task->more;
    for (int rank = 0; rank < task->seat->world_size; rank++) {
        struct shc_span block = shc_blocks_at(spread->blocks, rank);
        struct shc_span its = shc_plan_overlap(chunk, (struct shc_span){0, block.bytes});
        if (rank != task->seat->rank && !shc_blocks_packed(block.bytes, spread->skip))
            shc_task_write(task, block.offset + its.offset, slots[rank], its.bytes);
    }
}

static void keep(struct shc_task *task, struct shc_span chunk)
{
    const struct spread *spread = task->more;
    const struct shc_span own = shc_blocks_at(spread->blocks, task->seat->rank);
    const struct shc_span piece = shc_plan_overlap(chunk, (struct shc_span){0, own.bytes});
    shc_task_keep(task, piece.offset, own.offset + piece.offset, piece.bytes);
}

/* Takes the blocks that came with the call lines. Returns the largest size of those that did not. */
static size_t take_packed(struct shc_task *task, const struct spread *spread)
{
    size_t largest = 0;
    for (int rank = 0; rank < task->seat->world_size; rank++) {
        struct shc_span block = shc_blocks_at(spread->blocks, rank);
        const char *slot = shc_seat_small_slot(task->seat, rank, task->wait.epoch);
        if (!shc_blocks_packed(block.bytes, spread->skip))
            largest = largest > block.bytes ? largest : block.bytes;
        else if (rank != task->seat->rank)
            shc_buf_write(&task->out, block.offset, slot + spread->skip, block.bytes);
    }
    return largest;
}

enum shc_status shc_blocks_spread(struct shc_task *task, const struct shc_blocks *blocks,
                                  size_t skip)
{
    const struct spread spread = {.blocks = blocks, .skip = skip};
    bool arena;
    task->more = &spread;
    size_t largest = take_packed(task, &spread);
    if (largest == 0 || task->seat->world_size == 1) {
        keep(task, (struct shc_span){0, task->in.bytes});
        return SHC_OK;
    }
    shc_task_want(task, largest);
    SHC_TRY(shc_task_arena(task, &arena));
    if (!arena) /* the packed blocks are in the slots that are filled next */
        SHC_TRY(shc_small_slots_reuse(task));
    struct shc_flow flow = {
        .task = task,
        .total_bytes = largest,
        .giver = -1,
        .taker = -1,
        .first_step = arena ? 0 : 1,
        .give = shc_give_input,
        .take = take,
        .keep = keep,
    };
    return shc_flow_run(&flow);
}

enum shc_status shc_gather_uneven_run(struct shc_task *task)
{
    struct shc_blocks blocks;
    shc_uneven_fill_table(task, &task->out, &blocks);
    shc_blocks_pack(task, table_bytes(task));
    shc_task_enter(task);
    SHC_TRY(shc_task_meet(task));
    SHC_TRY(shc_uneven_compare_tables(
        task, "sizes differ: %s gives %llu elements, but %s has room for %llu", &blocks));
    return shc_blocks_spread(task, &blocks, table_bytes(task));
}
