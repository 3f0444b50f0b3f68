/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/op.h"

#include "shm/comm/comm.h"

#include <stdio.h>
#include <string.h>

static enum shc_status check_dtype(const struct shc_op *op, uint32_t *elem_bytes)
{
    if ((unsigned)op->dtype >= SHC_DTYPE_COUNT)
        return shc_fail(SHC_ERR_INVALID, "%s: dtype %d does not exist", shc_op_kind_name(op->kind),
                        (int)op->dtype);
    *elem_bytes = op->dtype == SHC_OPAQUE ? op->elem_bytes : (uint32_t)shc_dtype_bytes(op->dtype);
    if (*elem_bytes == 0 || *elem_bytes > SHC_INLINE_BYTES)
        return shc_fail(SHC_ERR_INVALID, "%s: an element of %u bytes (1 to %d are possible)",
                        shc_op_kind_name(op->kind), *elem_bytes, SHC_INLINE_BYTES);
    return SHC_OK;
}

/* What this dtype can be reduced with, for the error text. */
static enum shc_status fail_reduction(const struct shc_op *op)
{
    char allowed[160] = "";
    size_t used = 0;
    for (int redop = 0; redop < SHC_REDOP_COUNT; redop++)
        if (shc_reduction_supported(op->dtype, (enum shc_redop)redop))
            used += (size_t)snprintf(allowed + used, sizeof allowed - used, "%s%s",
                                     used ? ", " : "", shc_redop_name((enum shc_redop)redop));
    return shc_fail(SHC_ERR_UNSUPPORTED, "%s: %s of %s does not exist; possible: %s",
                    shc_op_kind_name(op->kind), shc_redop_name(op->redop),
                    shc_dtype_name(op->dtype), used ? allowed : "nothing (it can be moved)");
}

static enum shc_status check_reduction(struct shc_task *task, const struct shc_op *op)
{
    if ((unsigned)op->redop >= SHC_REDOP_COUNT)
        return shc_fail(SHC_ERR_INVALID, "%s: reduce op %d does not exist",
                        shc_op_kind_name(op->kind), (int)op->redop);
    task->reduce = shc_kernel_reduce(op->dtype, op->redop);
    if (!task->reduce)
        return fail_reduction(op);
    task->call.redop = op->redop;
    task->factor = op->premul;
    return SHC_OK;
}

static enum shc_status prepare_broadcast(struct shc_task *task, const struct shc_op *op)
{
    const struct shc_seat *seat = task->seat;
    if (op->root < 0 || op->root >= seat->world_size)
        return shc_fail(SHC_ERR_INVALID, "broadcast: root %d is not a rank (0 to %d)", op->root,
                        seat->world_size - 1);
    bool is_root = op->root == seat->rank;
    struct shc_buf *buf = is_root ? &task->in : &task->out;
    SHC_TRY(shc_buf_init(buf, is_root ? &op->input : &op->output, task->call.elem_bytes, !is_root));
    task->call.root = op->root;
    task->call.count = buf->bytes / task->call.elem_bytes;
    return SHC_OK;
}

static enum shc_status prepare_allreduce(struct shc_task *task, const struct shc_op *op)
{
    SHC_TRY(check_reduction(task, op));
    SHC_TRY(shc_buf_init(&task->in, &op->input, task->call.elem_bytes, false));
    SHC_TRY(shc_buf_init(&task->out, &op->output, task->call.elem_bytes, true));
    if (task->in.bytes != task->out.bytes)
        return shc_fail(SHC_ERR_INVALID, "all_reduce: %zu elements in, but room for %zu out",
                        task->in.bytes / task->call.elem_bytes,
                        task->out.bytes / task->call.elem_bytes);
    task->call.count = task->in.bytes / task->call.elem_bytes;
    return SHC_OK;
}

static enum shc_status prepare_allgather(struct shc_task *task, const struct shc_op *op)
{
    SHC_TRY(shc_buf_init(&task->in, &op->input, task->call.elem_bytes, false));
    SHC_TRY(shc_buf_init(&task->out, &op->output, task->call.elem_bytes, true));
    uint64_t wanted;
    if (shc_mul_overflows(task->in.bytes, (uint64_t)task->seat->world_size, &wanted) ||
        wanted != task->out.bytes)
        return shc_fail(SHC_ERR_INVALID,
                        "all_gather: %d ranks with %zu elements each, but room for %zu out",
                        task->seat->world_size, task->in.bytes / task->call.elem_bytes,
                        task->out.bytes / task->call.elem_bytes);
    task->call.count = task->in.bytes / task->call.elem_bytes;
    return SHC_OK;
}

enum shc_status shc_task_prepare(struct shc_task *task, struct shc_comm *comm,
                                 const struct shc_op *op)
{
    uint32_t elem_bytes = 0;
    if ((unsigned)op->kind >= SHC_OP_KIND_COUNT)
        return shc_fail(SHC_ERR_INVALID, "operation %d does not exist", (int)op->kind);
    if (op->kind != SHC_BARRIER)
        SHC_TRY(check_dtype(op, &elem_bytes));
    /* relaxed: a new time-out concerns the operations that start behind it. */
    uint64_t group_timeout_ns = shc_a64_load_relaxed(&comm->timeout_ns);
    memset(task, 0, sizeof *task);
    task->seat = &comm->seat;
    task->arena = &comm->arena;
    task->scratch = comm->scratch;
    task->pool = comm->pool;
    task->wait.seat = &comm->seat;
    task->wait.timeout_ns = op->timeout_ns ? op->timeout_ns : group_timeout_ns;
    task->call.kind = op->kind;
    task->call.elem_bytes = elem_bytes;
    if (op->kind == SHC_BARRIER)
        return SHC_OK;
    task->call.dtype = op->dtype;
    task->call.dtype_tag = op->dtype == SHC_OPAQUE ? op->dtype_tag : 0;
    switch (op->kind) {
    case SHC_BROADCAST:
        return prepare_broadcast(task, op);
    case SHC_ALL_REDUCE:
        return prepare_allreduce(task, op);
    default:
        return prepare_allgather(task, op);
    }
}
