/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * All-reduce and reduce. Each host adds its ranks' inputs, in their order, and then the hosts' sums are added in the
 * order of hosts (hosts_sum.h).
 *
 *   short  reduce in the island -> along with the record -> all leaders add -> broadcast in the island
 *   long   for each chunk: reduce_scatter in the island: each rail has a slice
 *          1. two hosts: they give each other the slice, and both add it
 *          2. more: each host gets a piece of the slice from all, adds it, and all give one another the pieces
 *          all_gather in the island
 *
 * For a reduce the last call between hosts goes to the root's host alone, whose other ranks drop the sum.
 *
 * Bytes out of a host for n bytes and H hosts: n for two, else 2n(H - 1)/H; reduce: n.
 */
#include "hosts/hosts_sum.h"

#include <string.h>

static bool is_rooted(const struct shc_hosts_sum *r)
{
    return r->call->op->kind == SHC_REDUCE;
}

/* Does this rank get the sum? */
static bool gets(const struct shc_hosts_sum *r)
{
    return !is_rooted(r) || r->call->op->root == r->call->hosts->rank;
}

static bool one_gets(const struct shc_hosts_sum *r, int host)
{
    return !is_rooted(r) || r->call->hosts->plan.host_of[r->call->op->root] == host;
}

/* Does a rank of this host? */
static bool host_gets(const struct shc_hosts_sum *r)
{
    return one_gets(r, r->call->hosts->host);
}

/* The elements of the part as sums, and contiguous: user memory if it is both, otherwise staging memory. */
static enum shc_status load(const struct shc_hosts_sum *r, struct shc_slice part, char **at)
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
static char *place_for(const struct shc_hosts_sum *r, struct shc_slice part)
{
    const struct shc_hosts_call *call = r->call;
    const struct shc_hosts_stage *stage = &call->hosts->stage;
    char *at =
        gets(r) ? shc_vector_at(&call->op->output, call->elem_bytes, part.first) : stage->narrow;
    return r->wider ? stage->wide : at ? at : stage->narrow;
}

static enum shc_status store(const struct shc_hosts_sum *r, struct shc_slice part, char *from)
{
    const struct shc_hosts_call *call = r->call;
    if (!gets(r))
        return SHC_OK;
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

/* ---- short ---- */

static struct shc_slice message(const struct shc_hosts_call *call, const void *ctx, int from,
                                int to)
{
    const struct shc_hosts_sum *r = ctx;
    (void)from;
    return shc_hosts_message_of(call->hosts, call->count * r->elem_bytes, one_gets(r, to));
}

static enum shc_status add(const struct shc_hosts_call *call, const void *ctx, char *to)
{
    const struct shc_hosts_sum *r = ctx;
    return shc_hosts_fold_data(r, 0, call->count * r->elem_bytes, to, call->count);
}

static enum shc_status run_short(const struct shc_hosts_sum *r)
{
    const struct shc_hosts_call *call = r->call;
    struct shc_hosts *hosts = call->hosts;
    const struct shc_slice all = {0, call->count};
    const int64_t count = (int64_t)call->count;
    const uint64_t bytes = call->count * r->elem_bytes;
    const struct shc_hosts_data sums = {
        .ctx = r, .message = message, .make = host_gets(r) ? add : NULL};
    char *from, *sum;
    SHC_TRY(load(r, all, &from));
    const struct shc_tensor in = shc_hosts_flat(from, &count);
    const struct shc_tensor out = shc_hosts_flat(shc_hosts_data_given(hosts, bytes), &count);
    struct shc_op op = shc_hosts_island_sum(r, SHC_REDUCE);
    op.input = (struct shc_tensors){&in, 1};
    op.output = (struct shc_tensors){&out, 1};
    SHC_TRY(shc_hosts_island(hosts, &op));
    SHC_TRY(shc_hosts_meet(call, host_gets(r) ? bytes : 0, &sums, &sum));
    return store(r, all, sum);
}

/* ---- long ---- */

static enum shc_status reduce_in_island(const struct shc_hosts_sum *r,
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
    struct shc_op op = shc_hosts_island_sum(r, SHC_REDUCE_SCATTER_UNEVEN);
    op.input = (struct shc_tensors){in, (uint32_t)ranks};
    op.output = (struct shc_tensors){&out, 1};
    return shc_hosts_island(hosts, &op);
}

/* Begins to bring `bytes` of each host to all, or to the root's host. */
static enum shc_status bring(const struct shc_hosts_sum *r, const char *in, uint64_t bytes,
                             char *out, struct shc_ticket **ticket)
{
    struct shc_hosts *hosts = r->call->hosts;
    const struct shc_fabric *rail = &hosts->rail;
    if (!is_rooted(r))
        return shc_hosts_gather_even(hosts, in, bytes, out, ticket);
    SHC_TRY(shc_hosts_rail_ticket(
        hosts, host_gets(r) ? bytes * (uint64_t)(hosts->plan.hosts - 1) : 0, ticket));
    for (int host = 0; host < hosts->plan.hosts; host++) {
        hosts->in_bytes[host] = hosts->plan.host_of[r->call->op->root] == host ? bytes : 0;
        hosts->out_bytes[host] = host_gets(r) ? bytes : 0;
    }
    return shc_hosts_begun(
        hosts, ticket,
        rail->exchange(rail->ctx, in, hosts->in_bytes, out, hosts->out_bytes, *ticket));
}

/* Step 0: the island's sum of the slice begins to go to the other hosts. */
static enum shc_status begin(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct shc_hosts_sum *r = ctx;
    struct shc_hosts *hosts = r->call->hosts;
    char *in = hosts->stage.chunk[place].in, *out = hosts->stage.chunk[place].out;
    SHC_TRY(reduce_in_island(r, chunk, in));
    if (chunk->slice.count == 0)
        return SHC_OK;
    if (!shc_hosts_adds_whole(&hosts->plan))
        return shc_hosts_exchange_even(hosts, in, chunk->piece * r->elem_bytes, out,
                                       &chunk->ticket);
    return bring(r, in, chunk->slice.count * r->elem_bytes, out, &chunk->ticket);
}

/* Step 1, where hosts add pieces: this host's is added, and begins to go to the others. */
static enum shc_status add_piece(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct shc_hosts_sum *r = ctx;
    struct shc_hosts *hosts = r->call->hosts;
    char *in = hosts->stage.chunk[place].in, *out = hosts->stage.chunk[place].out;
    char *sum = hosts->stage.chunk[place].sum;
    const size_t bytes = chunk->piece * r->elem_bytes;
    if (chunk->slice.count == 0)
        return SHC_OK;
    SHC_TRY(shc_hosts_await(hosts, &chunk->ticket));
    SHC_TRY(shc_hosts_fold(r, out, bytes, sum, chunk->piece));
    return bring(r, sum, bytes, in, &chunk->ticket);
}

/* Step 2: the slice is complete, and the island puts the part together. */
static enum shc_status finish(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct shc_hosts_sum *r = ctx;
    struct shc_hosts *hosts = r->call->hosts;
    const bool whole = shc_hosts_adds_whole(&hosts->plan);
    const char *out = hosts->stage.chunk[place].out;
    char *sum = hosts->stage.chunk[place].sum;
    if (chunk->slice.count > 0)
        SHC_TRY(shc_hosts_await(hosts, &chunk->ticket));
    if (!host_gets(r))
        return SHC_OK;
    if (chunk->slice.count > 0 && whole)
        SHC_TRY(
            shc_hosts_fold(r, out, chunk->slice.count * r->elem_bytes, sum, chunk->slice.count));
    char *part = place_for(r, chunk->part);
    SHC_TRY(shc_hosts_collect(hosts, chunk, r->elem_bytes,
                              whole ? sum : hosts->stage.chunk[place].in, part));
    return store(r, chunk->part, part);
}

enum shc_status shc_hosts_reduce(const struct shc_hosts_call *call)
{
    struct shc_hosts *hosts = call->hosts;
    struct shc_hosts_sum r = shc_hosts_sum_of(call);
    if (call->count <= shc_hosts_short_bytes(hosts) / r.elem_bytes)
        return run_short(&r);
    const struct shc_hosts_steps steps = {
        .step = {begin, shc_hosts_adds_whole(&hosts->plan) ? NULL : add_piece, finish},
        .ctx = &r,
    };
    char *nothing;
    SHC_TRY(shc_hosts_meet(call, 0, NULL, &nothing));
    return shc_hosts_pass_vector(
        call, shc_hosts_chunk_by_rate(&hosts->plan, r.elem_bytes, call->count, hosts->rate),
        &steps);
}
