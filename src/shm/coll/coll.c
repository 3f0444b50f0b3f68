/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/coll.h"

#include "shm/base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum shc_status shc_coll_run(struct shc_task *task)
{
    switch (task->call.kind) {
    case SHC_BARRIER:
        return shc_barrier_run(task);
    case SHC_BROADCAST:
        return shc_broadcast_run(task);
    case SHC_ALL_REDUCE:
        return shc_allreduce_run(task);
    case SHC_REDUCE:
        return shc_reduce_run(task);
    case SHC_ALL_GATHER:
    case SHC_GATHER:
        return shc_gather_run(task);
    case SHC_SCATTER:
        return shc_scatter_run(task);
    case SHC_REDUCE_SCATTER:
        return shc_reduce_scatter_run(task);
    case SHC_ALL_TO_ALL:
        return shc_alltoall_run(task);
    case SHC_ALL_REDUCE_SPARSE:
        return shc_allreduce_sparse_run(task);
    case SHC_ALL_GATHER_UNEVEN:
        return shc_gather_uneven_run(task);
    case SHC_REDUCE_SCATTER_UNEVEN:
        return shc_reduce_scatter_uneven_run(task);
    default:
        return shc_fail(SHC_ERR_UNSUPPORTED, "operation %d is not offered", (int)task->call.kind);
    }
}

void shc_task_read_factors(struct shc_task *task, double *factors)
{
    task->factors = factors;
    if (shc_task_factor_bytes(task) == 0)
        return;
    for (int rank = 0; rank < task->seat->world_size; rank++)
        shc_copy_once(&factors[rank], shc_task_payload(task, rank), sizeof factors[rank]);
}

enum shc_status shc_task_fail_damaged(struct shc_task *task, int rank)
{
    char reason[160];
    snprintf(reason, sizeof reason,
             "rank %d found sizes of rank %d that no tensor has: the shared memory is damaged",
             task->seat->rank, rank);
    return shc_wait_give_up(&task->wait, SHC_ERR_ABORTED, reason);
}

/* A gather copies first what it keeps. The blocks that come then drive that out of the caches. */
static bool keeps_past(const struct shc_task *task)
{
    return task->call.kind == SHC_GATHER
               ? shc_select_streams_out(task->tuning, task->out.bytes, true)
               : shc_task_streams_out(task);
}

void shc_task_keep(struct shc_task *task, size_t in_offset, size_t out_offset, size_t bytes)
{
    const char *from = shc_buf_direct(&task->in, in_offset, bytes);
    if (from && from == shc_buf_direct(&task->out, out_offset, bytes))
        return; /* it is there already */
    const bool past = keeps_past(task);
    if (from && (task->pool || past)) {
        shc_task_put(task, out_offset, from, bytes, past);
        return;
    }
    /* With stores into the caches, and therefore in pieces, even if the bytes are contiguous: libc
     * copies a large size past the caches. */
    const size_t most = SHC_SCRATCH_BYTES - SHC_SCRATCH_BYTES % task->call.elem_bytes;
    for (size_t done = 0; done < bytes; done += most) {
        size_t piece = shc_min_size(most, bytes - done);
        shc_buf_write(&task->out, out_offset + done,
                      shc_buf_peek(&task->in, in_offset + done, piece, task->scratch), piece);
    }
}

enum shc_status shc_task_copy_input(struct shc_task *task, void **copy)
{
    *copy = malloc(task->in.bytes);
    if (!*copy)
        return shc_fail(SHC_ERR_NOMEM, "%s in place: no memory for a copy of %zu bytes",
                        shc_op_kind_name(task->call.kind), task->in.bytes);
    shc_buf_read(&task->in, 0, *copy, task->in.bytes);
    task->in = shc_buf_of(*copy, task->in.bytes);
    return SHC_OK;
}

void shc_task_trade(struct shc_task *task, char *cell, struct shc_span got, struct shc_span given)
{
    char *user = shc_buf_direct(&task->out, got.offset, got.bytes);
    const char *input = task->in.flat;
    size_t both = user && input ? shc_min_size(got.bytes, given.bytes) : 0;
    if (both > 0)
        shc_task_exchange(task, user, cell, input + given.offset, both);
    if (got.bytes > both)
        shc_task_write(task, got.offset + both, cell + both, got.bytes - both);
    if (given.bytes > both)
        shc_task_read(task, given.offset + both, cell + both, given.bytes - both);
}

size_t shc_task_cell_bytes(const struct shc_task *task)
{
    const size_t turn =
        shc_select_turn(task->tuning, task->call.kind, task->in.bytes, task->seat->world_size);
    const size_t cell = shc_min_size(task->arena->geometry.cell_bytes, turn);
    return cell - cell % task->call.elem_bytes;
}

void shc_task_want(struct shc_task *task, size_t bytes)
{
    const int world = task->seat->world_size;
    const unsigned parts = shc_select_parts(task->call.kind, SHC_ALGO_PIPELINED, bytes, world);
    if (task->call.kind == SHC_ALL_TO_ALL && task->arena->made)
        task->arena->wanted |= parts;
    else
        shc_arena_want(task->arena, world, parts);
}

enum shc_status shc_task_arena(struct shc_task *task, bool *made)
{
    if (SHC_UNLIKELY(!task->arena->tried))
        SHC_TRY(shc_arena_make(task->arena, &task->wait));
    *made = task->arena->made;
    return SHC_OK;
}

const void *shc_task_own(struct shc_task *task, struct shc_span piece)
{
    return shc_buf_peek(&task->in, piece.offset, piece.bytes,
                        task->scratch + SHC_SCRATCH_BYTES / 2);
}

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

static void take_reduced(struct shc_task *task, struct shc_span chunk, char *const *slots)
{
    shc_task_reduce_cells(task, slots, chunk, chunk);
}

struct shc_shout shc_task_reduce_shout(struct shc_task *task, int taker)
{
    return (struct shc_shout){
        .task = task,
        .total_bytes = task->in.bytes,
        .giver = -1,
        .taker = taker,
        .give = shc_give_input,
        .take = take_reduced,
    };
}

enum shc_status shc_task_run_reduce_shout(struct shc_shout *shout)
{
    double factors[SHC_MAX_WORLD];
    shc_task_read_factors(shout->task, factors);
    return shc_shout_run(shout);
}
