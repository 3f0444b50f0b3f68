/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Large pieces of work in parts, on the pool's threads.
 *
 * A part begins on a whole line of the piece and has at least SHC_PART_BYTES; only the last one may have a few
 * lines less. Which thread does which part changes no byte. When the call returns, all parts are done, and
 * visible to the calling thread (pool/finished). So a release store after the call also publishes what the
 * pool's threads have stored. That includes non-temporal stores, because each part ends with the fence of the
 * thread that made them (kernel/copy.h).
 */
#include "shm/coll/parts.h"

#include "shm/base/num.h"
#include "shm/kernel/copy.h"

struct job {
    void (*work)(const void *arg, struct shc_span part);
    const void *arg;
    size_t bytes, part_bytes;
};

static void run_part(void *arg, uint32_t index)
{
    const struct job *job = arg;
    job->work(job->arg, shc_plan_chunk(job->bytes, job->part_bytes, index));
}

/* pre: the piece is large enough to be split. */
static void in_parts(const struct shc_task *task, size_t bytes,
                     void (*work)(const void *arg, struct shc_span part), const void *arg)
{
    size_t hands = (size_t)shc_pool_size(task->pool) + 1;
    size_t count = shc_min_size(hands, bytes / SHC_PART_BYTES);
    struct job job = {
        .work = work,
        .arg = arg,
        .bytes = bytes,
        .part_bytes = shc_align_up(shc_div_ceil(bytes, count), SHC_LINE_BYTES),
    };
    shc_pool_run(task->pool, run_part, &job, (uint32_t)shc_div_ceil(bytes, job.part_bytes));
}

/* ---- copies ---- */

struct copy {
    void (*copy)(void *dst, const void *src, size_t bytes);
    char *to;
    const char *from;
};

static void copy_part(const void *arg, struct shc_span part)
{
    const struct copy *copy = arg;
    copy->copy(copy->to + part.offset, copy->from + part.offset, part.bytes);
}

void shc_task_read(const struct shc_task *task, size_t offset, void *cell, size_t bytes)
{
    const struct copy copy = {
        .copy = shc_copy,
        .to = cell,
        .from = shc_task_splits(task, bytes) ? shc_buf_direct(&task->in, offset, bytes) : NULL,
    };
    if (SHC_LIKELY(!copy.from))
        shc_buf_read(&task->in, offset, cell, bytes);
    else
        in_parts(task, bytes, copy_part, &copy);
}

void shc_task_stream(const struct shc_task *task, size_t offset, void *slot, size_t bytes)
{
    const struct copy copy = {
        .copy = shc_copy_stream,
        .to = slot,
        .from = shc_task_splits(task, bytes) ? shc_buf_direct(&task->in, offset, bytes) : NULL,
    };
    if (SHC_LIKELY(!copy.from))
        shc_buf_stream(&task->in, offset, slot, bytes);
    else
        in_parts(task, bytes, copy_part, &copy);
}

/* The copy of shc_task_write(), with non-temporal stores if `past`. */
static void put(const struct shc_task *task, size_t offset, const void *from, size_t bytes,
                bool past)
{
    const bool splits = shc_task_splits(task, bytes);
    const struct copy copy = {
        .copy = past ? shc_copy_stream : shc_copy,
        .to = splits || past ? shc_buf_direct(&task->out, offset, bytes) : NULL,
        .from = from,
    };
    if (SHC_LIKELY(!copy.to))
        shc_buf_write(&task->out, offset, from, bytes);
    else if (splits)
        in_parts(task, bytes, copy_part, &copy);
    else
        copy.copy(copy.to, from, bytes);
}

/* Does shc_task_write() use non-temporal stores? */
static bool streams_out(const struct shc_task *task)
{
    /* The blocks of a scatter and the root's input do not fit the cache together. */
    const int blocks = task->call.kind == SHC_SCATTER ? task->seat->world_size : 1;
    /* An all_reduce in place has just read the memory that it stores to. */
    return task->call.kind != SHC_ALL_REDUCE &&
           shc_select_streams_out(task->tuning, (size_t)blocks * task->out.bytes, false);
}

void shc_task_write(const struct shc_task *task, size_t offset, const void *cell, size_t bytes)
{
    put(task, offset, cell, bytes, streams_out(task));
}

struct exchange {
    void (*exchange)(void *out, void *cell, const void *next, size_t bytes);
    char *out, *cell;
    const char *next;
};

static void exchange_part(const void *arg, struct shc_span part)
{
    const struct exchange *x = arg;
    x->exchange(x->out + part.offset, x->cell + part.offset, x->next + part.offset, part.bytes);
}

/* shc_copy_exchange(), or shc_copy_exchange_past() if the output is large and this is no
 * all_reduce. */
static void exchange_lines(const struct shc_task *task, char *out, char *cell, const char *next,
                           size_t bytes)
{
    /* An all_reduce in place has just read the memory that it stores to. */
    const bool past = task->call.kind != SHC_ALL_REDUCE &&
                      shc_select_streams_out(task->tuning, task->out.bytes, true);
    const struct exchange exchange = {
        .exchange = past ? shc_copy_exchange_past : shc_copy_exchange,
        .out = out,
        .cell = cell,
        .next = next,
    };
    if (shc_task_splits(task, bytes))
        in_parts(task, bytes, exchange_part, &exchange);
    else
        exchange.exchange(out, cell, next, bytes);
}

/* A gather copies what it keeps first: the blocks that come later drive it out of the caches. */
static bool keeps_past(const struct shc_task *task)
{
    return task->call.kind == SHC_GATHER
               ? shc_select_streams_out(task->tuning, task->out.bytes, true)
               : streams_out(task);
}

void shc_task_keep(struct shc_task *task, size_t in_offset, size_t out_offset, size_t bytes)
{
    const char *from = shc_buf_direct(&task->in, in_offset, bytes);
    if (from && from == shc_buf_direct(&task->out, out_offset, bytes))
        return; /* it is there already */
    const bool past = keeps_past(task);
    if (from && (task->pool || past)) {
        put(task, out_offset, from, bytes, past);
        return;
    }
    /* Stores into the caches. That needs pieces, even if the bytes are contiguous: libc copies a large
     * size past the caches. */
    const size_t most = SHC_SCRATCH_BYTES - SHC_SCRATCH_BYTES % task->call.elem_bytes;
    for (size_t done = 0; done < bytes; done += most) {
        size_t piece = shc_min_size(most, bytes - done);
        shc_buf_write(&task->out, out_offset + done,
                      shc_buf_peek(&task->in, in_offset + done, piece, task->scratch), piece);
    }
}

void shc_task_trade(struct shc_task *task, char *cell, struct shc_span got, struct shc_span given)
{
    char *user = shc_buf_direct(&task->out, got.offset, got.bytes);
    const char *input = task->in.flat;
    size_t both = user && input ? shc_min_size(got.bytes, given.bytes) : 0;
    if (both > 0)
        exchange_lines(task, user, cell, input + given.offset, both);
    if (got.bytes > both)
        shc_task_write(task, got.offset + both, cell + both, got.bytes - both);
    if (given.bytes > both)
        shc_task_read(task, given.offset + both, cell + both, given.bytes - both);
}

/* ---- reductions ---- */

struct reduction {
    const struct shc_task *task;
    const struct shc_reduce_args *whole;
};

static void reduce_part(const void *arg, struct shc_span part)
{
    const struct reduction *reduction = arg;
    const struct shc_reduce_args *whole = reduction->whole;
    const void *src[SHC_MAX_WORLD];
    void *dst[SHC_MAX_WORLD];
    for (int i = 0; i < whole->src_count; i++)
        src[i] = (const char *)whole->src[i] + part.offset;
    for (int i = 0; i < whole->dst_count; i++)
        dst[i] = (char *)whole->dst[i] + part.offset;
    struct shc_reduce_args args = *whole;
    args.src = src;
    args.dst = dst;
    args.count = part.bytes / reduction->task->call.elem_bytes; /* elem_bytes divides a line */
    reduction->task->reduce(&args);
}

void shc_task_reduce_in_parts(const struct shc_task *task, const struct shc_reduce_args *args)
{
    const struct reduction reduction = {.task = task, .whole = args};
    in_parts(task, args->count * task->call.elem_bytes, reduce_part, &reduction);
}
