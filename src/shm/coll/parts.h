/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Copies and reductions of pieces of a task's tensors: large ones in parts, also on the pool's threads. The bytes
 * stay the same.
 */

#include "shm/coll/task.h"

SHC_INLINE bool shc_task_splits(const struct shc_task *task, size_t bytes)
{
    return SHC_UNLIKELY(bytes >= 2 * SHC_PART_BYTES && task->pool);
}

/* shc_buf_read() of the input, shc_buf_stream() of the input, and shc_buf_write() to the output. */
void shc_task_read(const struct shc_task *task, size_t offset, void *cell, size_t bytes);
void shc_task_stream(const struct shc_task *task, size_t offset, void *slot, size_t bytes);
void shc_task_write(const struct shc_task *task, size_t offset, const void *cell, size_t bytes);

/* task->reduce(args), in parts if it is large. Small calls come this way too, and there each
 * instruction counts. */
void shc_task_reduce_in_parts(const struct shc_task *task, const struct shc_reduce_args *args);

SHC_INLINE void shc_task_reduce(const struct shc_task *task, const struct shc_reduce_args *args)
{
    if (shc_task_splits(task, args->count * task->call.elem_bytes))
        shc_task_reduce_in_parts(task, args);
    else
        task->reduce(args);
}

/* Copies this rank's own bytes from its input to its output. Uses the scratch. */
void shc_task_keep(struct shc_task *task, size_t in_offset, size_t out_offset, size_t bytes);

/*
 * A cell changes hands. What the peer left in the cell goes to the piece `got` of the output. The
 * piece `given` of the input goes into the lines just read, in one pass if both pieces are
 * contiguous. Either piece may be empty. The caller tells the arena that the cell has been used.
 */
void shc_task_trade(struct shc_task *task, char *cell, struct shc_span got, struct shc_span given);
