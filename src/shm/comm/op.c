/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/op.h"

#include "shm/comm/comm.h"
#include "shm/kernel/alias.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

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

static enum shc_status check_root(struct shc_task *task, const struct shc_op *op)
{
    if (op->root < 0 || op->root >= task->seat->world_size)
        return shc_fail(SHC_ERR_INVALID, "%s: root %d is not a rank (0 to %d)",
                        shc_op_kind_name(op->kind), op->root, task->seat->world_size - 1);
    task->call.root = op->root;
    return SHC_OK;
}

static enum shc_status use_input(struct shc_task *task, const struct shc_op *op)
{
    return shc_buf_init(&task->in, &op->input, task->call.elem_bytes, false);
}

static enum shc_status use_output(struct shc_task *task, const struct shc_op *op)
{
    return shc_buf_init(&task->out, &op->output, task->call.elem_bytes, true);
}

/* One side has a block for each rank, the other one block. */
static enum shc_status check_blocks(const struct shc_task *task, size_t all, size_t one,
                                    const char *format)
{
    uint64_t wanted;
    if (!shc_mul_overflows(one, (uint64_t)task->seat->world_size, &wanted) && wanted == all)
        return SHC_OK;
    char text[160];
    snprintf(text, sizeof text, format, task->seat->world_size, one / task->call.elem_bytes,
             all / task->call.elem_bytes);
    return shc_fail(SHC_ERR_INVALID, "%s: %s", shc_op_kind_name(task->call.kind), text);
}

#define BLOCKS_OUT "%d ranks with %zu elements each, but room for %zu out"
#define BLOCKS_IN  "%d ranks get %zu elements each, but there are %zu in"

static enum shc_status prepare_broadcast(struct shc_task *task, const struct shc_op *op)
{
    SHC_TRY(check_root(task, op));
    bool is_root = op->root == task->seat->rank;
    struct shc_buf *buf = is_root ? &task->in : &task->out;
    SHC_TRY(is_root ? use_input(task, op) : use_output(task, op));
    task->call.count = buf->bytes / task->call.elem_bytes;
    return SHC_OK;
}

/* all_reduce, and reduce, whose output is the root's. */
static enum shc_status prepare_reduce(struct shc_task *task, const struct shc_op *op)
{
    SHC_TRY(check_reduction(task, op));
    if (op->kind == SHC_REDUCE)
        SHC_TRY(check_root(task, op));
    SHC_TRY(use_input(task, op));
    task->call.count = task->in.bytes / task->call.elem_bytes;
    if (op->kind == SHC_REDUCE && op->root != task->seat->rank)
        return SHC_OK;
    if (op->output.list == op->input.list && op->output.count == op->input.count && task->in.flat) {
        task->out = task->in; /* one piece, so that it does not overlap itself */
        return SHC_OK;
    }
    SHC_TRY(use_output(task, op));
    if (task->in.bytes != task->out.bytes)
        return shc_fail(SHC_ERR_INVALID, "%s: %zu elements in, but room for %zu out",
                        shc_op_kind_name(op->kind), task->in.bytes / task->call.elem_bytes,
                        task->out.bytes / task->call.elem_bytes);
    return SHC_OK;
}

/* all_gather, and gather, whose output is the root's. */
static enum shc_status prepare_gather(struct shc_task *task, const struct shc_op *op)
{
    if (op->kind == SHC_GATHER)
        SHC_TRY(check_root(task, op));
    SHC_TRY(use_input(task, op));
    task->call.count = task->in.bytes / task->call.elem_bytes;
    if (op->kind == SHC_GATHER && op->root != task->seat->rank)
        return SHC_OK;
    SHC_TRY(use_output(task, op));
    return check_blocks(task, task->out.bytes, task->in.bytes, BLOCKS_OUT);
}

/* reduce_scatter, and scatter, whose input is the root's. */
static enum shc_status prepare_scatter(struct shc_task *task, const struct shc_op *op)
{
    if (op->kind == SHC_SCATTER)
        SHC_TRY(check_root(task, op));
    else
        SHC_TRY(check_reduction(task, op));
    SHC_TRY(use_output(task, op));
    task->call.count = task->out.bytes / task->call.elem_bytes;
    if (op->kind == SHC_SCATTER && op->root != task->seat->rank)
        return SHC_OK;
    SHC_TRY(use_input(task, op));
    return check_blocks(task, task->in.bytes, task->out.bytes, BLOCKS_IN);
}

/* A list with a tensor for each rank; this rank's is as large as the one on the other side. */
static enum shc_status check_uneven(struct shc_task *task, const struct shc_buf *list,
                                    const struct shc_buf *one)
{
    const struct shc_seat *seat = task->seat;
    const char *name = shc_op_kind_name(task->call.kind);
    if (list->list_count != (uint32_t)seat->world_size)
        return shc_fail(SHC_ERR_INVALID, "%s: a list of %u tensors for %d ranks", name,
                        list->list_count, seat->world_size);
    size_t own = shc_buf_tensor_bytes(list, (uint32_t)seat->rank);
    if (own != one->bytes)
        return shc_fail(SHC_ERR_INVALID,
                        "%s: tensor %d of the list, this rank's, has %zu elements, but there are "
                        "%zu on the other side",
                        name, seat->rank, own / task->call.elem_bytes,
                        one->bytes / task->call.elem_bytes);
    task->call.count = list->bytes / task->call.elem_bytes;
    return SHC_OK;
}

static enum shc_status prepare_uneven(struct shc_task *task, const struct shc_op *op)
{
    if (op->kind == SHC_REDUCE_SCATTER_UNEVEN)
        SHC_TRY(check_reduction(task, op));
    SHC_TRY(use_input(task, op));
    SHC_TRY(use_output(task, op));
    if (op->kind == SHC_REDUCE_SCATTER_UNEVEN)
        return check_uneven(task, &task->in, &task->out);
    return check_uneven(task, &task->out, &task->in);
}

static enum shc_status check_sparse_sizes(const struct shc_sparse *sparse, uint64_t *indexed,
                                          uint64_t *dense)
{
    if (sparse->ndim < 0 || sparse->ndim > SHC_BUF_MAX_DIMS || sparse->sparse_ndim < 0 ||
        sparse->sparse_ndim > sparse->ndim || (sparse->ndim > 0 && !sparse->sizes))
        return shc_fail(SHC_ERR_INVALID,
                        "sparse all_reduce: %d of %d dimensions indexed (0 to %d are possible)",
                        (int)sparse->sparse_ndim, (int)sparse->ndim, SHC_BUF_MAX_DIMS);
    *indexed = *dense = 1;
    for (int d = 0; d < sparse->ndim; d++) {
        uint64_t *product = d < sparse->sparse_ndim ? indexed : dense;
        if (sparse->sizes[d] < 0)
            return shc_fail(SHC_ERR_INVALID, "sparse all_reduce: size %lld in dimension %d",
                            (long long)sparse->sizes[d], d);
        if (shc_mul_overflows(*product, (uint64_t)sparse->sizes[d], product))
            return shc_fail(SHC_ERR_UNSUPPORTED,
                            "sparse all_reduce: a tensor with more than 2^64 positions");
    }
    return SHC_OK;
}

static enum shc_status prepare_sparse(struct shc_task *task, const struct shc_op *op)
{
    const struct shc_sparse *sparse = op->sparse;
    uint64_t indexed, dense;
    if (!sparse)
        return shc_fail(SHC_ERR_INVALID, "sparse all_reduce: no tensor");
    if (op->redop != SHC_SUM && op->redop != SHC_AVG && (unsigned)op->redop < SHC_REDOP_COUNT)
        return shc_fail(SHC_ERR_UNSUPPORTED,
                        "all_reduce: %s of a sparse tensor is not offered; possible: sum, avg",
                        shc_redop_name(op->redop));
    SHC_TRY(check_reduction(task, op));
    SHC_TRY(check_sparse_sizes(sparse, &indexed, &dense));
    uint64_t dense_bytes;
    if (shc_mul_overflows(dense, task->call.elem_bytes, &dense_bytes))
        return shc_fail(SHC_ERR_UNSUPPORTED,
                        "sparse all_reduce: a tensor whose entries have more than 2^64 bytes each");
    if (sparse->count > INT32_MAX)
        return shc_fail(SHC_ERR_UNSUPPORTED, "sparse all_reduce: more than %d entries", INT32_MAX);
    const struct shc_tensors indices = {&sparse->indices, 1}, values = {&sparse->values, 1};
    struct shc_buf buf;
    SHC_TRY(shc_buf_init(&buf, &indices, sizeof(int64_t), false));
    SHC_TRY(shc_buf_init(&task->in, &values, task->call.elem_bytes, false));
    uint64_t wanted;
    if (shc_mul_overflows(dense, sparse->count, &wanted) ||
        task->in.bytes / task->call.elem_bytes != wanted ||
        buf.bytes / sizeof(int64_t) != sparse->count * (uint64_t)sparse->sparse_ndim)
        return shc_fail(SHC_ERR_INVALID,
                        "sparse all_reduce: %llu entries, but %zu indices and %zu elements",
                        (unsigned long long)sparse->count, buf.bytes / sizeof(int64_t),
                        task->in.bytes / task->call.elem_bytes);
    task->sparse = op->sparse;
    task->add = shc_kernel_reduce(op->dtype, SHC_SUM);
    task->call.count = indexed * dense; /* for messages */
    return SHC_OK;
}

static enum shc_status prepare_alltoall(struct shc_task *task, const struct shc_op *op)
{
    const uint32_t world = (uint32_t)task->seat->world_size;
    if (op->input.count != world || op->output.count != world)
        return shc_fail(SHC_ERR_INVALID, "all_to_all: %u tensors in and %u out for %u ranks",
                        op->input.count, op->output.count, world);
    SHC_TRY(use_input(task, op));
    return use_output(task, op);
}

static enum shc_status prepare_function(struct shc_task *task, const struct shc_op *op)
{
    if (task->seat->world_size != 1)
        return shc_fail(SHC_ERR_UNSUPPORTED,
                        "call: a function needs a group of one rank, not of %d",
                        task->seat->world_size);
    if (!op->function || !op->function->run)
        return shc_fail(SHC_ERR_INVALID, "call: no function");
    task->function = op->function;
    task->call.said = op->function->said;
    return SHC_OK;
}

static uint64_t timeout_of(const struct shc_op *op, const struct shc_comm *comm)
{
    /* relaxed: a new time-out concerns only operations that start after it. */
    return op->timeout_ns ? op->timeout_ns : shc_a64_load_relaxed(&comm->timeout_ns);
}

/* Field by field: the compiler clears a large struct with a string instruction, which takes longer than all
 * that follows for a small message. */
static void clear(struct shc_task *task, struct shc_comm *comm, const struct shc_op *op,
                  uint32_t elem_bytes)
{
    const bool typed = elem_bytes != 0;
    task->seat = &comm->seat;
    task->arena = &comm->arena;
    task->tuning = &comm->tuning;
    shc_wait_init(&task->wait, &comm->seat, timeout_of(op, comm));
    task->call = (struct shc_call){
        .kind = op->kind,
        .dtype = typed ? op->dtype : (enum shc_dtype)0,
        .elem_bytes = elem_bytes,
        .dtype_tag = typed && op->dtype == SHC_OPAQUE ? op->dtype_tag : 0,
        .said = comm->said,
    };
    task->in = (struct shc_buf){0};
    task->out = (struct shc_buf){0};
    task->selected = false;
    task->reduce = NULL;
    task->sparse = NULL;
    task->add = NULL;
    task->factor = 0;
    task->factors = NULL;
    task->more = NULL;
    task->trials = comm->trials[op->kind];
    task->cma = comm->cma;
    task->pool = comm->budget.pool;
    task->scratch = comm->scratch;
}

/* Where the output may be the input. The sides have passed all other checks. */
static enum shc_in_place may_be_in_place(const struct shc_task *task, size_t *offset)
{
    const uint32_t rank = (uint32_t)task->seat->rank;
    *offset = 0;
    switch (task->call.kind) {
    case SHC_ALL_GATHER:
    case SHC_GATHER:
        *offset = task->in.bytes * rank;
        return SHC_IN_PLACE_INPUT;
    case SHC_ALL_GATHER_UNEVEN:
        *offset = shc_buf_offset_of(&task->out, rank);
        return SHC_IN_PLACE_INPUT;
    case SHC_REDUCE_SCATTER:
        return SHC_IN_PLACE_BLOCK;
    case SHC_SCATTER: /* its blocks may be read by their receivers while the root writes its own */
        *offset = task->out.bytes * rank;
        return SHC_IN_PLACE_KEPT;
    case SHC_REDUCE_SCATTER_UNEVEN:
        *offset = shc_buf_offset_of(&task->in, rank);
        return SHC_IN_PLACE_OUTPUT;
    case SHC_ALL_TO_ALL:
        return SHC_IN_PLACE_LIST;
    default:
        return SHC_IN_PLACE_ALL;
    }
}

static SHC_NOINLINE enum shc_status check_sides_at_length(const struct shc_task *task)
{
    struct shc_sides sides = {.in = &task->in, .out = &task->out};
    sides.may = may_be_in_place(task, &sides.offset);
    enum shc_status st = shc_sides_check(&sides);
    if (st != SHC_ERR_INVALID)
        return st;
    char text[160];
    snprintf(text, sizeof text, "%s", shc_error_text());
    return shc_fail(st, "%s: %s", shc_op_kind_name(task->call.kind), text);
}

/* No two outputs share memory, and no input and output except where an operation may be in place. */
SHC_INLINE enum shc_status check_sides(const struct shc_task *task)
{
    const bool same = task->out.flat && task->in.flat == task->out.flat;
    if (SHC_LIKELY(shc_bufs_are_apart(&task->in, &task->out)) ||
        (same && task->call.kind <= SHC_REDUCE && task->call.kind != SHC_ALL_GATHER))
        return SHC_OK;
    return check_sides_at_length(task);
}

SHC_INLINE enum shc_status prepare_kind(struct shc_task *task, const struct shc_op *op)
{
    switch (op->kind) {
    case SHC_BARRIER:
        return SHC_OK;
    case SHC_BROADCAST:
        return prepare_broadcast(task, op);
    case SHC_ALL_REDUCE:
    case SHC_REDUCE:
        return prepare_reduce(task, op);
    case SHC_ALL_GATHER:
    case SHC_GATHER:
        return prepare_gather(task, op);
    case SHC_SCATTER:
    case SHC_REDUCE_SCATTER:
        return prepare_scatter(task, op);
    case SHC_ALL_GATHER_UNEVEN:
    case SHC_REDUCE_SCATTER_UNEVEN:
        return prepare_uneven(task, op);
    case SHC_ALL_REDUCE_SPARSE:
        return prepare_sparse(task, op);
    case SHC_CALL:
        return prepare_function(task, op);
    default:
        return prepare_alltoall(task, op);
    }
}

/* What `task` says of rank and world is enough for the checks. */
SHC_INLINE enum shc_status check(struct shc_task *task, const struct shc_op *op)
{
    SHC_TRY(shc_op_check_reserved(op));
    SHC_TRY(prepare_kind(task, op));
    return check_sides(task);
}

static SHC_NOINLINE enum shc_status prepare(struct shc_task *task, struct shc_comm *comm,
                                            const struct shc_op *op)
{
    uint32_t elem_bytes = 0;
    if ((unsigned)op->kind >= SHC_OP_KIND_COUNT)
        return shc_fail(SHC_ERR_INVALID, "operation %d does not exist", (int)op->kind);
    if (op->kind != SHC_BARRIER && op->kind != SHC_CALL)
        SHC_TRY(shc_op_elem_bytes(op, &elem_bytes));
    clear(task, comm, op, elem_bytes);
    return check(task, op);
}

enum shc_status shc_check_for(int rank, int world_size, const struct shc_op *op, uint64_t *count,
                              uint32_t *elem_bytes)
{
    const char *name = shc_op_kind_name(op->kind);
    struct shc_seat seat = {.rank = rank, .world_size = world_size};
    struct shc_task task = {.seat = &seat, .call.kind = op->kind};
    if ((unsigned)op->kind >= SHC_OP_KIND_COUNT || shc_is_message(op->kind))
        return shc_fail(SHC_ERR_UNSUPPORTED, "%s: no collective", name);
    if (world_size < 1 || rank < 0 || rank >= world_size)
        return shc_fail(SHC_ERR_INVALID, "%s: rank %d of %d", name, rank, world_size);
    if (op->kind != SHC_BARRIER && op->kind != SHC_CALL)
        SHC_TRY(shc_op_elem_bytes(op, &task.call.elem_bytes));
    SHC_TRY(check(&task, op));
    *count = task.call.count;
    *elem_bytes = task.call.elem_bytes;
    return SHC_OK;
}

enum shc_status shc_task_prepare(struct shc_task *task, struct shc_comm *comm,
                                 const struct shc_op *op)
{
    SHC_TRY(prepare(task, comm, op));
    shc_call_settle(&task->call);
    return SHC_OK;
}

/* The fields of a descriptor, besides the tensors, on which the checks of a collective depend. */
#define CHECKED_BYTES offsetof(struct shc_op, peer)

/* The output begins at or after the end of the input. Also false if memory is shared in a way that is not
 * allowed: then the full check reports the error. */
static bool repeat_output(struct shc_task *task, const struct shc_op *op)
{
    const bool both = task->in.list && task->out.list && task->in.bytes == task->out.bytes;
    if (!both || op->output.list != op->input.list || op->output.count != op->input.count)
        return shc_buf_repeat(&task->out, &op->output) && check_sides(task) == SHC_OK;
    task->out = task->in; /* in place */
    return task->out.flat || check_sides(task) == SHC_OK;
}

/* Is it the kept call, on as much memory? Then it is made ready again. */
static bool repeat(struct shc_kept *kept, struct shc_comm *comm, const struct shc_op *op)
{
    struct shc_task *task = &kept->task;
    if (!kept->valid || memcmp(&kept->op, op, CHECKED_BYTES) != 0 ||
        !shc_buf_repeat(&task->in, &op->input) || !repeat_output(task, op))
        return false;
    shc_wait_init(&task->wait, &comm->seat, timeout_of(op, comm));
    task->factor = op->premul;
    return true;
}

enum shc_status shc_task_prepare_kept(struct shc_kept *kept, struct shc_comm *comm,
                                      const struct shc_op *op)
{
    struct shc_task *task = &kept->task;
    if (SHC_LIKELY(repeat(kept, comm, op)))
        return SHC_OK;
    kept->valid = false;
    SHC_TRY(shc_task_prepare(task, comm, op));
    kept->op = *op;
    /* Blocks of different sizes have more counts than bytes; what `function` names may be another one. */
    kept->valid = op->kind != SHC_ALL_REDUCE_SPARSE && op->kind != SHC_ALL_GATHER_UNEVEN &&
                  op->kind != SHC_REDUCE_SCATTER_UNEVEN && op->kind != SHC_CALL;
    return SHC_OK;
}
