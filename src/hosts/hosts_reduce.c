/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * All-reduce. Each host adds its ranks' inputs, in their order, and then the hosts' sums are added in the order of
 * hosts, by the library and never by an engine.
 *
 *   short  reduce in the island -> the record's payload -> all leaders add -> broadcast in the island
 *   long   for each chunk: reduce_scatter in the island: each rail has a slice
 *          1. two hosts: they give each other the slice, and both add it
 *          2. more: each host gets a piece of the slice from all, adds it, and all give one another the pieces
 *          all_gather in the island
 *
 * Bytes out of a host for n bytes and H hosts: n for two, else 2n(H - 1)/H. Sums of narrow floats and averages of
 * integers go in a wider type, and are rounded once.
 */
#include "hosts/group.h"

#include <string.h>

struct reduction {
    const struct shc_hosts_call *call;
    enum shc_dtype dtype; /* of the sums */
    uint32_t elem_bytes;  /* of these */
    bool wider;
};

/* The range of a float of 16 or 8 bits is too small for the sum of an average. (bfloat16 has that of float32.) */
static enum shc_dtype dtype_of_sums(const struct shc_op *op)
{
    const bool order = op->redop == SHC_MIN || op->redop == SHC_MAX;
    if (op->dtype == SHC_FLOAT16 ||
        (op->dtype >= SHC_FLOAT8_E4M3FN && op->dtype <= SHC_FLOAT8_E5M2FNUZ))
        return order ? op->dtype : SHC_FLOAT32;
    const bool integer = op->dtype <= SHC_UINT32 && op->dtype != SHC_INT64;
    return integer && op->redop == SHC_AVG ? SHC_INT64 : op->dtype;
}

/* The elements of the part as sums, and contiguous: user memory if it is both, otherwise staging memory. */
static enum shc_status load(const struct reduction *r, struct shc_slice part, char **at)
{
    const struct shc_hosts_call *call = r->call;
    const struct shc_hosts_stage *stage = &call->hosts->stage;
    *at = shc_vector_at(&call->op->input, call->elem_bytes, part.first);
    if (!*at) {
        shc_vector_read(&call->op->input, call->elem_bytes, part, stage->narrow);
        *at = stage->narrow;
    }
    if (!r->wider)
        return SHC_OK;
    SHC_TRY(shc_convert(call->op->dtype, *at, r->dtype, stage->wide, part.count));
    *at = stage->wide;
    return SHC_OK;
}

/* Where sums of the part are put: user memory if store() has nothing to do then. */
static char *place_for(const struct reduction *r, struct shc_slice part)
{
    const struct shc_hosts_call *call = r->call;
    const struct shc_hosts_stage *stage = &call->hosts->stage;
    char *at = shc_vector_at(&call->op->output, call->elem_bytes, part.first);
    return r->wider ? stage->wide : at ? at : stage->narrow;
}

static enum shc_status store(const struct reduction *r, struct shc_slice part, char *from)
{
    const struct shc_hosts_call *call = r->call;
    char *at = shc_vector_at(&call->op->output, call->elem_bytes, part.first);
    if (r->wider) {
        char *narrow = at ? at : call->hosts->stage.narrow;
        SHC_TRY(shc_convert(r->dtype, from, call->op->dtype, narrow, part.count));
        from = narrow;
    }
    if (!at)
        shc_vector_write(&call->op->output, call->elem_bytes, part, from);
    else if (at != from)
        memcpy(at, from, part.count * call->elem_bytes);
    return SHC_OK;
}

/* Adds as many arrays as there are hosts, one every `stride` bytes. */
static enum shc_status fold(const struct reduction *r, const char *from, size_t stride, char *to,
                            uint64_t count)
{
    struct shc_hosts *hosts = r->call->hosts;
    for (int host = 0; host < hosts->plan.hosts; host++)
        hosts->sources[host] = from + (size_t)host * stride;
    return shc_fold(r->dtype, r->call->op->redop, hosts->sources, hosts->plan.hosts, to, count,
                    (uint32_t)hosts->plan.world);
}

/* The reduction in the island: its sum is divided by the number of all ranks later. */
static struct shc_op island_op(const struct reduction *r, enum shc_op_kind kind)
{
    const struct shc_op *op = r->call->op;
    return (struct shc_op){
        .kind = kind,
        .dtype = r->dtype,
        .redop = op->redop == SHC_AVG ? SHC_SUM : op->redop,
        .premul = op->premul,
    };
}

/* ---- short ---- */

static enum shc_status add_payloads(const struct shc_hosts_call *call, char *to)
{
    struct reduction r = {.call = call, .dtype = dtype_of_sums(call->op)};
    struct shc_hosts *hosts = call->hosts;
    return fold(&r, shc_hosts_payload(shc_hosts_record_of(hosts, 0)), shc_hosts_record_bytes(hosts),
                to, call->count);
}

static enum shc_status run_short(const struct reduction *r)
{
    const struct shc_hosts_call *call = r->call;
    struct shc_hosts *hosts = call->hosts;
    const struct shc_slice all = {0, call->count};
    const int64_t count = (int64_t)call->count;
    char *from, *sum;
    SHC_TRY(load(r, all, &from));
    const struct shc_tensor in = shc_hosts_flat(from, &count);
    const struct shc_tensor out = shc_hosts_flat(
        shc_hosts_payload((struct shc_hosts_record *)(void *)hosts->stage.record), &count);
    struct shc_op op = island_op(r, SHC_REDUCE);
    op.input = (struct shc_tensors){&in, 1};
    op.output = (struct shc_tensors){&out, 1};
    SHC_TRY(shc_hosts_island(hosts, &op));
    SHC_TRY(shc_hosts_meet(call, call->count * r->elem_bytes, add_payloads, &sum));
    return store(r, all, sum);
}

/* ---- long ---- */

static enum shc_status reduce_in_island(const struct reduction *r,
                                        const struct shc_hosts_chunk *chunk, char *slice)
{
    struct shc_hosts *hosts = r->call->hosts;
    const int ranks = shc_hosts_plan_size(&hosts->plan, hosts->host), rails = hosts->plan.rails;
    const int64_t own = (int64_t)chunk->slice.count;
    struct shc_tensor in[SHC_MAX_WORLD];
    int64_t sizes[SHC_MAX_WORLD];
    char *from;
    SHC_TRY(load(r, chunk->part, &from));
    for (int local = 0; local < ranks; local++) {
        struct shc_slice of = {chunk->part.count, 0};
        if (local < rails)
            of = shc_hosts_slice(chunk->part.count, rails, local);
        sizes[local] = (int64_t)of.count;
        in[local] = shc_hosts_flat(from + of.first * r->elem_bytes, &sizes[local]);
    }
    const struct shc_tensor out = shc_hosts_flat(slice, &own);
    struct shc_op op = island_op(r, SHC_REDUCE_SCATTER_UNEVEN);
    op.input = (struct shc_tensors){in, (uint32_t)ranks};
    op.output = (struct shc_tensors){&out, 1};
    return shc_hosts_island(hosts, &op);
}

/* Step 0: the island's sum of the slice begins to go to the other hosts. */
static enum shc_status begin(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct reduction *r = ctx;
    struct shc_hosts *hosts = r->call->hosts;
    const struct shc_fabric *rail = &hosts->rail;
    char *in = hosts->stage.chunk[place].in, *out = hosts->stage.chunk[place].out;
    SHC_TRY(reduce_in_island(r, chunk, in));
    if (chunk->slice.count == 0)
        return SHC_OK;
    if (!shc_hosts_adds_whole(&hosts->plan))
        return shc_hosts_exchange_even(hosts, in, chunk->piece * r->elem_bytes, out,
                                       &chunk->ticket);
    SHC_TRY(shc_hosts_ticket(hosts, &chunk->ticket));
    const size_t bytes = chunk->slice.count * r->elem_bytes;
    return shc_hosts_begun(hosts, &chunk->ticket,
                           rail->gather(rail->ctx, in, bytes, out, chunk->ticket));
}

/* Step 1, where hosts add pieces: this host's is added, and begins to go to the others. */
static enum shc_status add_piece(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct reduction *r = ctx;
    struct shc_hosts *hosts = r->call->hosts;
    const struct shc_fabric *rail = &hosts->rail;
    char *in = hosts->stage.chunk[place].in, *out = hosts->stage.chunk[place].out;
    char *sum = hosts->stage.chunk[place].sum;
    const size_t bytes = chunk->piece * r->elem_bytes;
    if (chunk->slice.count == 0)
        return SHC_OK;
    SHC_TRY(shc_hosts_await(hosts, &chunk->ticket));
    SHC_TRY(fold(r, out, bytes, sum, chunk->piece));
    SHC_TRY(shc_hosts_ticket(hosts, &chunk->ticket));
    return shc_hosts_begun(hosts, &chunk->ticket,
                           rail->gather(rail->ctx, sum, bytes, in, chunk->ticket));
}

/* Step 2: the slice is complete, and the island puts the part together. */
static enum shc_status finish(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct reduction *r = ctx;
    struct shc_hosts *hosts = r->call->hosts;
    const bool whole = shc_hosts_adds_whole(&hosts->plan);
    const char *out = hosts->stage.chunk[place].out;
    char *sum = hosts->stage.chunk[place].sum;
    if (chunk->slice.count > 0)
        SHC_TRY(shc_hosts_await(hosts, &chunk->ticket));
    if (chunk->slice.count > 0 && whole)
        SHC_TRY(fold(r, out, chunk->slice.count * r->elem_bytes, sum, chunk->slice.count));
    char *part = place_for(r, chunk->part);
    SHC_TRY(shc_hosts_collect(hosts, chunk, r->elem_bytes,
                              whole ? sum : hosts->stage.chunk[place].in, part));
    return store(r, chunk->part, part);
}

enum shc_status shc_hosts_allreduce(const struct shc_hosts_call *call)
{
    struct shc_hosts *hosts = call->hosts;
    struct reduction r = {.call = call, .dtype = dtype_of_sums(call->op)};
    r.elem_bytes = (uint32_t)shc_dtype_bytes(r.dtype);
    r.wider = r.dtype != call->op->dtype;
    if (call->count <= hosts->payload_bytes / r.elem_bytes)
        return run_short(&r);
    const struct shc_hosts_steps steps = {
        .step = {begin, shc_hosts_adds_whole(&hosts->plan) ? NULL : add_piece, finish},
        .ctx = &r,
    };
    char *nothing;
    SHC_TRY(shc_hosts_meet(call, 0, NULL, &nothing));
    return shc_hosts_pass(call, r.elem_bytes, &steps);
}
