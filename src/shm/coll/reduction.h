/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * What all_reduce, reduce and reduce_scatter share: the factors of the ranks, reductions of pieces, and whole
 * operations over call lines, slots and broadcast slots.
 */

#include "shm/coll/flow.h"
#include "shm/coll/parts.h"

/* ---- pieces ---- */

/* Bytes of the rank's factor, which comes before its payload. */
SHC_INLINE size_t shc_task_factor_bytes(const struct shc_task *task)
{
    return task->call.redop == SHC_PREMUL_SUM ? sizeof task->factor : 0;
}

/*
 * Enters an operation that reduces. The payload is the rank's factor, if there is one, and after it
 * the first `inline_bytes` of its input.
 *
 * After the meeting, shc_task_read_factors() reads all ranks' factors into `factors` (room for each
 * rank), for shc_task_reduce_to().
 */
SHC_INLINE void shc_task_enter_reducing(struct shc_task *task, size_t inline_bytes)
{
    char *payload = shc_task_payload(task, task->seat->rank);
    size_t used = shc_task_factor_bytes(task);
    if (used != 0)
        memcpy(payload, &task->factor, used);
    shc_buf_read(&task->in, 0, payload + used, inline_bytes);
    shc_task_enter(task);
}

void shc_task_read_factors(struct shc_task *task, double *factors);

/* Meets, and reads the factors. The first cells may be filled before the meeting; user memory may not
 * change before it. */
SHC_NODISCARD enum shc_status shc_task_meet_reducing(struct shc_task *task, double *factors);

/* Reduces `bytes` bytes of each of src[0..world_size-1] into dst[0..dst_count-1]. */
SHC_INLINE void shc_task_reduce_into(struct shc_task *task, const void *const *src, size_t bytes,
                                     void *const *dst, int dst_count)
{
    /* A type that can be reduced has 1, 2, 4, 8 or 16 bytes. A shift is faster than a division. */
    const struct shc_reduce_args args = {
        .src = src,
        .dst = dst,
        .src_count = task->seat->world_size,
        .dst_count = dst_count,
        .count = bytes >> __builtin_ctz(task->call.elem_bytes),
        .factors = task->call.redop == SHC_PREMUL_SUM ? task->factors : NULL,
    };
    shc_task_reduce(task, &args);
}

/* Reduces src[0..world_size-1] into that piece of the output, and into dst[0..more-1] as well. dst
 * has room for one more pointer. Uses the first half of the scratch. */
SHC_INLINE void shc_task_reduce_to(struct shc_task *task, const void *const *src,
                                   struct shc_span where, void **dst, int more)
{
    void *direct = shc_buf_direct(&task->out, where.offset, where.bytes);
    dst[more] = direct ? direct : task->scratch;
    shc_task_reduce_into(task, src, where.bytes, dst, more + 1);
    if (!direct)
        shc_buf_write(&task->out, where.offset, task->scratch, where.bytes);
}

/* Reduces what the other ranks have stored, in cells[rank], and the piece `own` of this rank's
 * input, into the piece `where` of the output. The own input is read from user memory, not from a
 * cell that this rank has just filled: once the peer has read that cell, it may store its next
 * operation there (STAGE-5). Uses the scratch. */
void shc_task_reduce_cells(struct shc_task *task, char *const *cells, struct shc_span own,
                           struct shc_span where);

/* That piece of this rank's own input, as a source of a reduction. Uses the second half of the
 * scratch. */
const void *shc_task_own(struct shc_task *task, struct shc_span piece);

/* ---- whole operations ---- */

/* A whole operation that reduces, in a world of one. It still divides, scales and rounds. */
SHC_NODISCARD enum shc_status shc_task_reduce_alone(struct shc_task *task);

/* A whole operation that reduces in one round. The input of each rank is in its call line
 * (in_line), in its small slot or in a hand-off slot. The root of a reduce stores its input into no
 * slot. What this rank reduces into the piece `where` of its output begins `skip` bytes into each
 * input. */
SHC_NODISCARD enum shc_status shc_task_reduce_round(struct shc_task *task, bool in_line,
                                                    size_t skip, struct shc_span where);

/* An operation through broadcast slots whose inputs the rank `taker` reduces, or all ranks if it is
 * -1; and the part of that operation after the meeting. */
struct shc_flow shc_task_reduce_flow(struct shc_task *task, int taker);
SHC_NODISCARD enum shc_status shc_task_run_reduce_flow(struct shc_flow *flow);
