/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/reduction.h"

#include "shm/base/num.h"
#include "shm/coll/round.h"

/* ---- pieces ---- */

enum shc_status shc_task_meet_reducing(struct shc_task *task, double *factors)
{
    SHC_TRY(shc_task_meet(task));
    shc_task_read_factors(task, factors);
    return SHC_OK;
}

void shc_task_read_factors(struct shc_task *task, double *factors)
{
    task->factors = factors;
    if (shc_task_factor_bytes(task) == 0)
        return;
    for (int rank = 0; rank < task->seat->world_size; rank++)
        shc_copy_once(&factors[rank], shc_task_payload(task, rank), sizeof factors[rank]);
}

const void *shc_task_own(struct shc_task *task, struct shc_span piece)
{
    return shc_buf_peek(&task->in, piece.offset, piece.bytes,
                        task->scratch + SHC_SCRATCH_BYTES / 2);
}

void shc_task_reduce_cells(struct shc_task *task, char *const *cells, struct shc_span own,
                           struct shc_span where)
{
    const void *src[SHC_MAX_WORLD];
    void *dst[1];
    for (int rank = 0; rank < task->seat->world_size; rank++)
        src[rank] = cells[rank];
    src[task->seat->rank] = shc_task_own(task, own);
    shc_task_reduce_to(task, src, where, dst, 0);
}

/* ---- whole operations ---- */

enum shc_status shc_task_reduce_alone(struct shc_task *task)
{
    const void *src[1];
    void *dst[1];
    shc_task_enter_reducing(task, 0);
    SHC_TRY(shc_task_meet(task));
    task->factors = &task->factor;
    for (size_t done = 0; done < task->in.bytes; done += SHC_SCRATCH_BYTES / 2) {
        struct shc_span piece = {done, shc_min_size(SHC_SCRATCH_BYTES / 2, task->in.bytes - done)};
        src[0] = shc_task_own(task, piece);
        shc_task_reduce_to(task, src, piece, dst, 0);
    }
    return SHC_OK;
}

/* Two ranks whose inputs are contiguous, as is the output: the usual case. It looks at nothing
 * else, so that 8 bytes are faster by 1.03x. */
static void reduce_pair(struct shc_task *task, const char *theirs, size_t skip,
                        struct shc_span where)
{
    const int me = task->seat->rank;
    const void *src[2];
    void *dst[1] = {task->out.flat + where.offset};
    src[me] = task->in.flat + skip;
    src[1 - me] = theirs;
    const struct shc_reduce_args args = {
        .src = src,
        .dst = dst,
        .src_count = 2,
        .dst_count = 1,
        .count = where.bytes >> __builtin_ctz(task->call.elem_bytes),
    };
    task->reduce(&args);
}

enum shc_status shc_task_reduce_round(struct shc_task *task, bool in_line, size_t skip,
                                      struct shc_span where)
{
    const struct shc_seat *seat = task->seat;
    const void *src[SHC_MAX_WORLD];
    double factors[SHC_MAX_WORLD];
    void *dst[1];
    const bool one_way = task->call.kind == SHC_REDUCE;
    const bool gives = !(one_way && task->call.root == seat->rank);
    const struct shc_round round =
        shc_round_begin(task, in_line, one_way, gives ? task->in.bytes : 0);
    if (!in_line && gives)
        shc_buf_read(&task->in, 0, shc_round_place(task, &round, seat->rank), task->in.bytes);
    shc_task_enter_reducing(task, in_line ? task->in.bytes : 0);
    SHC_TRY(shc_task_meet(task));
    if (where.bytes == 0)
        return SHC_OK;
    if (SHC_LIKELY(seat->world_size == 2 && task->in.flat && task->out.flat &&
                   shc_task_factor_bytes(task) == 0)) {
        reduce_pair(task, shc_round_place(task, &round, 1 - seat->rank) + skip, skip, where);
        return SHC_OK;
    }
    shc_task_read_factors(task, factors);
    const size_t ahead = in_line ? shc_task_factor_bytes(task) : 0;
    for (int rank = 0; rank < seat->world_size; rank++)
        src[rank] = shc_round_place(task, &round, rank) + ahead + skip;
    /* A rank reads its own input from user memory. The others have fetched the lines that it has
     * stored to, and a reduce's root has stored to none: an older operation's bytes are there.
     * (Through shc_task_reduce_cells(), which has a second table of places, 8 and 64 bytes are
     * slower by 1.07x to 1.2x.) */
    src[seat->rank] = shc_task_own(task, (struct shc_span){skip, where.bytes});
    shc_task_reduce_to(task, src, where, dst, 0);
    return SHC_OK;
}

static void take_reduced(struct shc_task *task, struct shc_span chunk, char *const *slots)
{
    shc_task_reduce_cells(task, slots, chunk, chunk);
}

struct shc_flow shc_task_reduce_flow(struct shc_task *task, int taker)
{
    return (struct shc_flow){
        .task = task,
        .total_bytes = task->in.bytes,
        .giver = -1,
        .taker = taker,
        .give = shc_give_input,
        .take = take_reduced,
    };
}

enum shc_status shc_task_run_reduce_flow(struct shc_flow *flow)
{
    double factors[SHC_MAX_WORLD];
    shc_task_read_factors(flow->task, factors);
    return shc_flow_run(flow);
}
