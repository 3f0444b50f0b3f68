/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Sparse all-reduce: every rank's entries to every rank; each rank adds up for itself. The bits are those of
 * all_reduce over the same tensors made dense.
 *
 *   1. Make each position unique: a rank adds its entries that share a position, in their order.
 *   2. Put sizes and number of entries into the small slot. Put the entries after them if they fit: positions
 *      first, then values. Publish the call line.
 *   3. Meet, and compare the sizes. From here on all ranks know all numbers of entries.
 *   4. Get the other ranks' entries, as uneven blocks (uneven.c).
 *   5. Sort all entries by position, those of one position in rank order, and reduce each position.
 *
 * User memory is only read. The result is in memory of its own.
 *
 * Cost: a rank stores its own entries, loads all others', and takes N log2(world) steps to sort the N entries
 * of all ranks. Edges: call/publish, progress/step (if the entries do not fit).
 */
#include "shm/base/positions.h"
#include "shm/coll/runs.h"
#include "shm/coll/uneven.h"
#include "shm/kernel/entries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank says of its tensor, in its small slot. */
struct shape {
    uint64_t count; /* of entries, each position once */
    int32_t ndim, sparse_ndim;
    int64_t sizes[SHC_BUF_MAX_DIMS];
};

/* Memory of one operation. */
struct work {
    struct shc_task *task;
    const struct shc_sparse *tensor;
    size_t value_bytes;
    uint64_t positions; /* how many positions there are */
    struct shape shape; /* of this rank's tensor */
    char *given;        /* this rank's entries, in the form in which they travel */
    char *copied;       /* values that are not contiguous */
    char *all;          /* the entries of all ranks */
    char *zero;         /* a value of zero */
    struct shc_entries entries, spare;
};

static void *room_for(size_t count, size_t bytes)
{
    return calloc(count ? count : 1, bytes ? bytes : 1);
}

static bool make_entries(struct shc_entries *entries, size_t count)
{
    entries->count = count;
    entries->position = room_for(count, sizeof *entries->position);
    entries->value = room_for(count, sizeof *entries->value);
    return entries->position && entries->value;
}

static void free_entries(struct shc_entries *entries)
{
    free(entries->position);
    free((void *)entries->value);
    *entries = (struct shc_entries){0};
}

static enum shc_status no_memory(struct work *work)
{
    return shc_wait_give_up(&work->task->wait, SHC_ERR_NOMEM,
                            "no memory for the entries of a sparse tensor");
}

/* ---- this rank's entries ---- */

/* Bytes of `count` entries as they travel: whole words, so that positions are aligned. pre: this many
 * entries are in memory, or could be. */
static size_t block_bytes(const struct work *work, uint64_t count)
{
    return shc_align_up((size_t)count * (sizeof(uint64_t) + work->value_bytes), sizeof(uint64_t));
}

static enum shc_status number_entries(struct work *work)
{
    const struct shc_sparse *tensor = work->tensor;
    const struct shc_tensors list = {&tensor->indices, 1};
    const size_t row_bytes = (size_t)tensor->count * sizeof(int64_t);
    struct shc_buf indices;
    SHC_TRY(shc_buf_init(&indices, &list, sizeof(int64_t), false));
    int64_t *row = room_for((size_t)tensor->count, sizeof *row);
    if (!row)
        return no_memory(work);
    enum shc_status st = SHC_OK;
    for (int d = 0; d < tensor->sparse_ndim && st == SHC_OK; d++) {
        shc_buf_read(&indices, (size_t)d * row_bytes, row, row_bytes);
        for (uint64_t i = 0; i < tensor->count && st == SHC_OK; i++) {
            uint64_t *position = &work->entries.position[i];
            if (row[i] < 0 || row[i] >= tensor->sizes[d])
                st = shc_fail(SHC_ERR_INVALID,
                              "sparse all_reduce: index %lld of entry %llu in dimension %d, whose "
                              "size is %lld",
                              (long long)row[i], (unsigned long long)i, d,
                              (long long)tensor->sizes[d]);
            *position = *position * (uint64_t)tensor->sizes[d] + (uint64_t)row[i];
        }
    }
    free(row);
    return st;
}

/* Finds the values of the entries, without copying them if they are contiguous. */
static enum shc_status find_values(struct work *work)
{
    const struct shc_buf *in = &work->task->in;
    if (!in->flat && !(work->copied = room_for(in->bytes, 1)))
        return no_memory(work);
    const char *values = shc_buf_peek(in, 0, in->bytes, work->copied);
    for (uint64_t i = 0; i < work->tensor->count; i++)
        work->entries.value[i] = values + i * work->value_bytes;
    return SHC_OK;
}

/* Fills work->given: each position once, ascending. */
static enum shc_status gather_own(struct work *work, uint64_t *count)
{
    struct shc_task *task = work->task;
    const size_t entries = (size_t)work->tensor->count;
    if (!make_entries(&work->entries, entries) || !make_entries(&work->spare, entries))
        return no_memory(work);
    SHC_TRY(number_entries(work));
    SHC_TRY(find_values(work));
    shc_entries_sort(&work->entries, &work->spare);
    *count = shc_entries_distinct(&work->entries);
    work->given = room_for(block_bytes(work, *count), 1);
    if (!work->given)
        return no_memory(work);
    const struct shc_combine how = {
        .reduce = task->add,
        .elements = work->value_bytes / task->call.elem_bytes,
        .bytes = work->value_bytes,
    };
    shc_entries_combine(&work->entries, &how, (uint64_t *)(void *)work->given,
                        work->given + *count * sizeof(uint64_t));
    free_entries(&work->entries);
    free_entries(&work->spare);
    free(work->copied);
    work->copied = NULL;
    return SHC_OK;
}

/* ---- what the ranks agree on ---- */

static void say_shape(struct work *work, uint64_t count)
{
    struct shape *shape = &work->shape; /* all zero */
    shape->count = count;
    shape->ndim = work->tensor->ndim;
    shape->sparse_ndim = work->tensor->sparse_ndim;
    if (shape->ndim > 0)
        memcpy(shape->sizes, work->tensor->sizes, (size_t)shape->ndim * sizeof shape->sizes[0]);
    shc_task_say(work->task, shape, sizeof *shape);
}

/* "float32[3, 4] with 1 indexed dimension" */
static void shape_text(const struct shc_task *task, const struct shape *shape, char *text,
                       size_t capacity)
{
    size_t used = (size_t)snprintf(text, capacity, "%s[", shc_dtype_name(task->call.dtype));
    for (int d = 0; d < shape->ndim && d < SHC_BUF_MAX_DIMS && used + 24 < capacity; d++)
        used += (size_t)snprintf(text + used, capacity - used, "%s%lld", d ? ", " : "",
                                 (long long)shape->sizes[d]);
    snprintf(text + used, capacity - used, "], %d indexed", shape->sparse_ndim);
}

static SHC_COLD enum shc_status fail_shapes(struct work *work, int rank, const struct shape *its)
{
    struct shc_task *task = work->task;
    char ours[160], theirs[160], reason[640];
    shape_text(task, &work->shape, ours, sizeof ours);
    shape_text(task, its, theirs, sizeof theirs);
    snprintf(reason, sizeof reason, "sparse tensors differ: that of %s is %s, but that of %s is %s",
             shc_seat_rank_name(task->seat, task->seat->rank).text, ours,
             shc_seat_rank_name(task->seat, rank).text, theirs);
    return shc_wait_give_up(&task->wait, SHC_ERR_MISMATCH, reason);
}

/* Compares the other ranks' shapes with this rank's, and copies their numbers of entries. */
static enum shc_status hear_shapes(struct work *work, uint64_t *counts)
{
    struct shc_task *task = work->task;
    const size_t skip = offsetof(struct shape, ndim);
    counts[task->seat->rank] = work->shape.count;
    for (int turn = 1; turn < task->seat->world_size; turn++) {
        const int peer = shc_seat_peer(task->seat, turn);
        struct shape its;
        shc_task_hear(task, peer, &its, sizeof its);
        if (memcmp((const char *)&its + skip, (const char *)&work->shape + skip,
                   sizeof its - skip) != 0)
            return fail_shapes(work, peer, &its);
        if (its.count > work->positions)
            return shc_task_fail_damaged(task, peer);
        counts[peer] = its.count;
    }
    return SHC_OK;
}

/* ---- the entries of all ranks ---- */

/* Finds where each rank's entries are among all. False: so many could not be in any memory. */
static bool lay_out(const struct work *work, const uint64_t *counts, struct shc_blocks *blocks)
{
    const size_t most = SIZE_MAX / 4; /* leaves room for all numbers that follow from the sum */
    const size_t entry_bytes = sizeof(uint64_t) + work->value_bytes;
    blocks->begin[0] = 0;
    for (int rank = 0; rank < work->task->seat->world_size; rank++) {
        if (counts[rank] > (most - blocks->begin[rank]) / entry_bytes)
            return false;
        blocks->begin[rank + 1] = blocks->begin[rank] + block_bytes(work, counts[rank]);
        if (blocks->begin[rank + 1] > most)
            return false;
    }
    return true;
}

/* Brings all entries into work->all. */
static enum shc_status gather_all(struct work *work, const uint64_t *counts,
                                  struct shc_blocks *blocks)
{
    struct shc_task *task = work->task;
    const int world = task->seat->world_size;
    size_t total = 0;
    if (!lay_out(work, counts, blocks))
        return no_memory(work);
    for (int rank = 0; rank < world; rank++)
        total += (size_t)counts[rank];
    work->all = room_for(blocks->begin[world], 1);
    work->zero = room_for(work->value_bytes, 1);
    if (!work->all || !work->zero || !make_entries(&work->entries, total) ||
        !make_entries(&work->spare, total))
        return no_memory(work);
    task->out = shc_buf_of(work->all, blocks->begin[world]);
    return shc_blocks_spread(task, blocks, sizeof(struct shape));
}

static enum shc_status list_entries(struct work *work, const uint64_t *counts,
                                    const struct shc_blocks *blocks)
{
    size_t at = 0;
    for (int rank = 0; rank < work->task->seat->world_size; rank++) {
        const char *block = work->all + blocks->begin[rank];
        const char *values = block + counts[rank] * sizeof(uint64_t);
        memcpy(work->entries.position + at, block, (size_t)counts[rank] * sizeof(uint64_t));
        if (!shc_positions_are_sound(work->entries.position + at, counts[rank], work->positions))
            return shc_task_fail_damaged(work->task, rank);
        for (uint64_t i = 0; i < counts[rank]; i++)
            work->entries.value[at + i] = values + i * work->value_bytes;
        at += (size_t)counts[rank];
    }
    return SHC_OK;
}

static enum shc_status add_up(struct work *work, struct shc_sparse *result)
{
    struct shc_task *task = work->task;
    const struct shc_combine how = {
        .reduce = task->reduce,
        .elements = work->value_bytes / task->call.elem_bytes,
        .bytes = work->value_bytes,
        .full = task->seat->world_size,
        .average = task->call.redop == SHC_AVG,
        .zero = work->zero,
    };
    shc_entries_sort(&work->entries, &work->spare);
    const size_t count = shc_entries_distinct(&work->entries);
    int64_t *indices = room_for(count, (size_t)work->tensor->sparse_ndim * sizeof *indices);
    char *values = room_for(count, work->value_bytes);
    if (!indices || !values) {
        free(indices);
        free(values);
        return no_memory(work);
    }
    shc_entries_combine(&work->entries, &how, work->spare.position, values);
    shc_positions_spell(work->tensor, work->spare.position, count, indices);
    result->sum_count = count;
    result->sum_indices = indices;
    result->sum_values = values;
    return SHC_OK;
}

static enum shc_status run(struct work *work)
{
    struct shc_task *task = work->task;
    uint64_t count = 0, counts[SHC_MAX_WORLD];
    struct shc_blocks blocks;
    SHC_TRY(gather_own(work, &count));
    task->in = shc_buf_of(work->given, block_bytes(work, count));
    say_shape(work, count);
    shc_blocks_pack(task, sizeof(struct shape));
    shc_task_enter(task);
    SHC_TRY(shc_task_meet(task));
    SHC_TRY(hear_shapes(work, counts));
    SHC_TRY(gather_all(work, counts, &blocks));
    SHC_TRY(list_entries(work, counts, &blocks));
    return add_up(work, task->sparse);
}

enum shc_status shc_allreduce_sparse_run(struct shc_task *task)
{
    struct work work = {
        .task = task,
        .tensor = task->sparse,
        .value_bytes = task->call.elem_bytes,
        .positions = 1,
    };
    for (int d = 0; d < task->sparse->sparse_ndim; d++)
        work.positions *= (uint64_t)task->sparse->sizes[d];
    for (int d = task->sparse->sparse_ndim; d < task->sparse->ndim; d++)
        work.value_bytes *= (size_t)task->sparse->sizes[d];
    enum shc_status st = run(&work);
    free(work.given);
    free(work.copied);
    free(work.all);
    free(work.zero);
    free_entries(&work.entries);
    free_entries(&work.spare);
    return st;
}
