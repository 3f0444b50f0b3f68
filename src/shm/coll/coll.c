/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/coll.h"

enum shc_status shc_coll_run(struct shc_task *task)
{
    switch (task->call.kind) {
    case SHC_BARRIER:
        return shc_barrier_run(task);
    case SHC_BROADCAST:
        return shc_broadcast_run(task);
    case SHC_ALL_REDUCE:
        return shc_allreduce_run(task);
    case SHC_ALL_GATHER:
        return shc_allgather_run(task);
    default:
        return shc_fail(SHC_ERR_UNSUPPORTED, "operation %d is not offered", (int)task->call.kind);
    }
}

void shc_task_enter(struct shc_task *task, const void *payload, size_t payload_bytes)
{
    shc_call_publish(task->seat, task->wait.epoch, &task->call, payload, payload_bytes);
    task->wait.published = true;
    shc_bell_ring(shc_seat_bell(task->seat, task->seat->rank), true);
}

enum shc_status shc_task_meet(struct shc_task *task)
{
    return shc_call_meet(&task->wait);
}

enum shc_status shc_task_arena(struct shc_task *task, bool *made)
{
    if (SHC_UNLIKELY(!task->arena->tried))
        SHC_TRY(shc_arena_make(task->arena, &task->wait));
    *made = task->arena->made;
    return SHC_OK;
}

/* ---- reductions in parts ---- */

#define PART_BYTES (32u << 10) /* a smaller part costs more to hand out than to reduce */

struct parts {
    const struct shc_task *task;
    const struct shc_reduce_args *whole;
    size_t part_elements;
};

static void reduce_part(void *arg, uint32_t index)
{
    const struct parts *parts = arg;
    const struct shc_reduce_args *whole = parts->whole;
    size_t first = index * parts->part_elements;
    size_t skip = first * parts->task->call.elem_bytes;
    const void *src[SHC_MAX_WORLD];
    void *dst[SHC_MAX_WORLD];
    for (int i = 0; i < whole->src_count; i++)
        src[i] = (const char *)whole->src[i] + skip;
    for (int i = 0; i < whole->dst_count; i++)
        dst[i] = (char *)whole->dst[i] + skip;
    struct shc_reduce_args args = *whole;
    args.src = src;
    args.dst = dst;
    args.count = shc_min_size(parts->part_elements, whole->count - first);
    parts->task->reduce(&args);
}

void shc_task_reduce(struct shc_task *task, const struct shc_reduce_args *args)
{
    size_t helpers = (size_t)shc_pool_size(task->pool);
    size_t bytes = args->count * task->call.elem_bytes;
    if (SHC_LIKELY(helpers == 0 || bytes < 2 * PART_BYTES)) {
        task->reduce(args);
        return;
    }
    size_t count = shc_min_size(helpers + 1, bytes / PART_BYTES);
    /* Parts begin on whole lines of the slice. */
    size_t part_bytes = shc_align_up(shc_div_ceil(bytes, count), SHC_LINE_BYTES);
    struct parts parts = {
        .task = task,
        .whole = args,
        .part_elements = part_bytes / task->call.elem_bytes,
    };
    shc_pool_run(task->pool, reduce_part, &parts,
                 (uint32_t)shc_div_ceil(args->count, parts.part_elements));
}

/*
 * Chunks through shout slots.
 *
 * Cost: givers store S, takers load S per giver; one flag per chunk and side. Order at a rank:
 *     give 0, give 1, take 0, give 2, take 1, ..., take n-1
 * so that a taker finds the next chunk already there. Slot k mod depth is refilled when all takers
 * have published take(k - depth). Edges: progress/step both ways.
 *
 * The small slots serve other operations by parity of the epoch, without a look: an operation that
 * cuts a message through them ends only when all have taken the last chunk.
 */
struct shout_flow {
    const struct shc_shout *shout;
    bool small;
    uint32_t depth;
    size_t slot_bytes;
    uint64_t chunk_count;
    bool gives, takes;
};

static char *slot_of(const struct shout_flow *flow, int rank, uint64_t k)
{
    const struct shc_task *task = flow->shout->task;
    if (flow->small)
        return shc_seat_small_slot(task->seat, rank, k);
    return shc_arena_shout_slot(task->arena, rank, (uint32_t)(k % flow->depth));
}

static struct shc_span chunk_of(const struct shout_flow *flow, uint64_t k)
{
    return shc_plan_chunk(flow->shout->total_bytes, flow->slot_bytes, k);
}

/* All takers but this rank have taken chunk k. The giver of a one-sided flow takes nothing. */
static enum shc_status wait_taken(const struct shout_flow *flow, uint64_t k)
{
    struct shc_wait *wait = &flow->shout->task->wait;
    for (int rank = 0; rank < wait->seat->world_size; rank++)
        if (rank != wait->seat->rank && rank != flow->shout->giver)
            SHC_TRY(shc_progress_wait(wait, rank, shc_plan_step_work(k)));
    return SHC_OK;
}

static enum shc_status give_chunk(const struct shout_flow *flow, uint64_t k)
{
    struct shc_task *task = flow->shout->task;
    if (k >= flow->depth)
        SHC_TRY(wait_taken(flow, k - flow->depth));
    flow->shout->give(task, chunk_of(flow, k), slot_of(flow, task->seat->rank, k));
    shc_progress_publish(task->seat, task->wait.epoch, shc_plan_step_out(k));
    return SHC_OK;
}

static enum shc_status take_chunk(const struct shout_flow *flow, uint64_t k)
{
    struct shc_task *task = flow->shout->task;
    char *slots[SHC_MAX_WORLD];
    for (int rank = 0; rank < task->seat->world_size; rank++) {
        slots[rank] = slot_of(flow, rank, k);
        bool from_it = flow->shout->giver < 0 || flow->shout->giver == rank;
        if (rank != task->seat->rank && from_it)
            SHC_TRY(shc_progress_wait(&task->wait, rank, shc_plan_step_out(k)));
    }
    flow->shout->take(task, chunk_of(flow, k), slots);
    shc_progress_publish(task->seat, task->wait.epoch, shc_plan_step_work(k));
    return SHC_OK;
}

/* Long before this a chunk count does not fit the steps: more than 64 GiB through 8 KiB slots. */
static enum shc_status check_length(struct shc_task *task, uint64_t chunk_count)
{
    if (SHC_LIKELY(chunk_count <= SHC_PLAN_MAX_CHUNKS))
        return SHC_OK;
    return shc_wait_give_up(&task->wait, SHC_ERR_UNSUPPORTED,
                            "the message is too long for the staging memory of this group");
}

enum shc_status shc_shout_run(const struct shc_shout *shout)
{
    struct shc_task *task = shout->task;
    bool arena;
    SHC_TRY(shc_task_arena(task, &arena));
    const struct shc_arena_geometry *geometry = &task->arena->geometry;
    struct shout_flow flow = {
        .shout = shout,
        .small = !arena,
        .depth = arena ? geometry->shout_depth : SHC_SMALL_SLOTS,
        .slot_bytes = arena ? geometry->shout_bytes : SHC_SMALL_SLOT_BYTES,
        .gives = shout->giver < 0 || shout->giver == task->seat->rank,
        .takes = shout->giver != task->seat->rank,
    };
    flow.slot_bytes -= flow.slot_bytes % task->call.elem_bytes; /* opaque ones may not divide it */
    uint64_t n = flow.chunk_count = shc_plan_chunk_count(shout->total_bytes, flow.slot_bytes);
    SHC_TRY(check_length(task, n));
    for (uint64_t k = 0; k <= n; k++) {
        if (k < n && flow.gives)
            SHC_TRY(give_chunk(&flow, k));
        if (k > 0 && flow.takes)
            SHC_TRY(take_chunk(&flow, k - 1));
    }
    return flow.small ? wait_taken(&flow, n - 1) : SHC_OK;
}
