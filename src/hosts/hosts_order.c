/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Sums in the order of all ranks: the bits are those of one host, on any map. A run is a row of ranks with successive
 * numbers on one host; a map with blocks of ranks has as many as hosts. docs/internals/protocol/order.md.
 *
 *   short  all inputs of the island -> along with the leader's record -> all leaders add -> broadcast in the island
 *   long   for each chunk: each rail gets its slice of all inputs of the island
 *          the first run's host adds these, and sends the sum to the next run's, which adds its own to it, and so on
 *          the last one divides, and gives the sum to all hosts, or to that of the root
 *          all_gather in the island
 *
 * Bytes out of a host for n bytes: n for each of its runs, and n * (hosts - 1) from the last one, spread by the engine's
 * broadcast. While a chunk goes along the chain, the one after it is in the island. The chunks of a reduce_scatter are
 * columns of its blocks (hosts_blocks.h), of which each rank keeps its own.
 */
#include "hosts/hosts_blocks.h"
#include "hosts/hosts_sum.h"

#include "shm/base/num.h"

#include <string.h>

#define FACTOR_BYTES sizeof(double)

struct ordered {
    struct shc_hosts_sum sum;
    const struct shc_hosts_call *call;
    uint64_t count;                 /* elements that are added */
    struct shc_slice own;           /* of them: what this rank gets */
    uint64_t each;                  /* elements of a chunk */
    struct shc_hosts_blocks blocks; /* of a reduce_scatter */
};

static bool adds_floats(const struct shc_op *op)
{
    return op->dtype >= SHC_FLOAT16 && op->dtype <= SHC_COMPLEX128 &&
           (op->redop == SHC_SUM || op->redop == SHC_AVG || op->redop == SHC_PRODUCT ||
            op->redop == SHC_PREMUL_SUM);
}

static bool is_reduction(enum shc_op_kind kind)
{
    return kind == SHC_ALL_REDUCE || kind == SHC_REDUCE || kind == SHC_REDUCE_SCATTER ||
           kind == SHC_REDUCE_SCATTER_UNEVEN || kind == SHC_ALL_REDUCE_SPARSE;
}

bool shc_hosts_is_ordered(const struct shc_hosts *hosts, const struct shc_op *op)
{
    return hosts->by_rank && hosts->plan.hosts > 1 && hosts->plan.most > 1 &&
           is_reduction(op->kind) && adds_floats(op);
}

static bool scatters(const struct ordered *o)
{
    return o->call->op->kind == SHC_REDUCE_SCATTER ||
           o->call->op->kind == SHC_REDUCE_SCATTER_UNEVEN;
}

/* The host of the one rank that gets the sum; -1: all do. */
static int root_host(const struct ordered *o)
{
    const struct shc_op *op = o->call->op;
    return op->kind == SHC_REDUCE ? o->call->hosts->plan.host_of[op->root] : -1;
}

/* Elements that this rank gets, into the output. */
static void store(const struct ordered *o, struct shc_slice part, const char *from)
{
    if (part.count > 0)
        shc_vector_write(&o->call->op->output, o->call->elem_bytes, part, from);
}

/* ---- short ---- */

/* A rank's part of what its host gives: its input, and the factor of a SHC_PREMUL_SUM. */
static size_t entry_bytes(const struct ordered *o)
{
    return shc_align_up(o->count * o->call->elem_bytes, FACTOR_BYTES) + FACTOR_BYTES;
}

static uint64_t host_bytes(const struct ordered *o, int host)
{
    return (uint64_t)shc_hosts_plan_size(&o->call->hosts->plan, host) * entry_bytes(o);
}

static bool is_short(const struct ordered *o)
{
    const struct shc_hosts *hosts = o->call->hosts;
    const uint64_t room = shc_hosts_short_bytes(hosts) / (uint64_t)hosts->plan.most;
    return o->count <= room / o->call->elem_bytes && entry_bytes(o) <= room;
}

static struct shc_slice message(const struct shc_hosts_call *call, const void *ctx, int from,
                                int to)
{
    (void)to;
    return shc_hosts_message_of(call->hosts, host_bytes(ctx, from), true);
}

static enum shc_status add(const struct shc_hosts_call *call, const void *ctx, char *to)
{
    const struct ordered *o = ctx;
    struct shc_hosts *hosts = call->hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    const size_t bytes = entry_bytes(o);
    double *factors = (double *)(void *)hosts->stage.narrow;
    for (int rank = 0; rank < plan->world; rank++) {
        const int host = plan->host_of[rank];
        const char *entry = shc_hosts_data_taken(hosts, host, 0, host_bytes(o, host)) +
                            (size_t)plan->local_of[rank] * bytes;
        hosts->sources[rank] = entry;
        memcpy(&factors[rank], entry + bytes - FACTOR_BYTES, FACTOR_BYTES);
    }
    return shc_reduce_local(call->op->dtype, call->op->redop, hosts->sources, plan->world, to,
                            o->count, factors);
}

static enum shc_status run_short(const struct ordered *o)
{
    const struct shc_hosts_call *call = o->call;
    struct shc_hosts *hosts = call->hosts;
    const struct shc_slice all = {0, o->count};
    const struct shc_hosts_data entries = {.ctx = o, .message = message, .make = add};
    const double factor = call->op->premul;
    char *entry = hosts->stage.narrow, *sum;
    uint64_t sizes[SHC_MAX_WORLD];
    memset(entry, 0, entry_bytes(o));
    shc_vector_read(&call->op->input, call->elem_bytes, all, entry);
    memcpy(entry + entry_bytes(o) - FACTOR_BYTES, &factor, FACTOR_BYTES);
    for (int local = 0; local < shc_hosts_plan_size(&hosts->plan, hosts->host); local++)
        sizes[local] = entry_bytes(o);
    char *given = shc_hosts_data_given(hosts, host_bytes(o, hosts->host));
    SHC_TRY(shc_hosts_share(hosts, entry, sizes, given));
    SHC_TRY(shc_hosts_meet(call, o->count * call->elem_bytes, &entries, &sum));
    store(o, (struct shc_slice){0, o->own.count}, sum + o->own.first * call->elem_bytes);
    return SHC_OK;
}

/* ---- long ---- */

static uint64_t slice_bytes(const struct ordered *o, const struct shc_hosts_chunk *chunk)
{
    return chunk->slice.count * o->sum.elem_bytes;
}

/* A column of all blocks of this rank. */
static void read_column(const struct ordered *o, uint64_t first, char *to)
{
    for (int rank = 0; rank < o->call->hosts->plan.world; rank++)
        to += shc_hosts_blocks_read(&o->blocks, rank, first, to);
}

/* This rank's part of the chunk, as sums, in memory that nothing changes before the end of the step. */
static enum shc_status load(const struct ordered *o, struct shc_slice part, const char **at)
{
    const struct shc_hosts_call *call = o->call;
    const struct shc_hosts_stage *stage = &call->hosts->stage;
    char *from = NULL;
    if (!scatters(o))
        from = shc_vector_at(&call->op->input, call->elem_bytes, part.first);
    if (!from) {
        from = stage->narrow;
        if (scatters(o))
            read_column(o, part.first, from);
        else
            shc_vector_read(&call->op->input, call->elem_bytes, part, from);
    }
    SHC_TRY(shc_hosts_widen(&o->sum, from, stage->wide, part.count, &from));
    *at = from;
    if (call->op->redop != SHC_PREMUL_SUM)
        return SHC_OK;
    const void *source = from;
    const double factor = call->op->premul;
    *at = stage->wide;
    return shc_reduce_local(o->sum.dtype, SHC_PREMUL_SUM, &source, 1, stage->wide, part.count,
                            &factor);
}

static int host_of_run(const struct shc_hosts_plan *plan, int run)
{
    return plan->host_of[plan->run[run]];
}

/* Adds the inputs of a run, and what comes before them, if something does. */
static enum shc_status add_run(const struct ordered *o, const struct shc_hosts_chunk *chunk,
                               int place, int run)
{
    struct shc_hosts *hosts = o->call->hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    const enum shc_redop redop = o->call->op->redop;
    const void *sources[SHC_MAX_WORLD + 1];
    char *sum = hosts->stage.chunk[place].sum;
    int count = 0;
    if (chunk->slice.count == 0 || host_of_run(plan, run) != hosts->host)
        return SHC_OK;
    if (run > 0)
        sources[count++] = hosts->stage.chunk[place].out;
    for (int rank = plan->run[run]; rank < plan->run[run + 1]; rank++)
        sources[count++] =
            hosts->stage.chunk[place].inputs + (size_t)plan->local_of[rank] * slice_bytes(o, chunk);
    SHC_TRY(shc_fold(o->sum.dtype, redop == SHC_PRODUCT ? SHC_PRODUCT : SHC_SUM, sources, count,
                     sum, chunk->slice.count, 1));
    if (redop != SHC_AVG || run < plan->runs - 1)
        return SHC_OK;
    const void *whole = sum;
    return shc_fold(o->sum.dtype, SHC_AVG, &whole, 1, sum, chunk->slice.count,
                    (uint32_t)plan->world);
}

/* Begins to bring the sum of one host to another. */
static enum shc_status send(const struct ordered *o, struct shc_hosts_chunk *chunk, int place,
                            int from, int to)
{
    struct shc_hosts *hosts = o->call->hosts;
    const struct shc_fabric *rail = &hosts->rail;
    for (int host = 0; host < hosts->plan.hosts; host++) {
        const bool gives = from == hosts->host && to == host;
        const bool takes = to == hosts->host && from == host;
        hosts->in_bytes[host] = gives ? slice_bytes(o, chunk) : 0;
        hosts->out_bytes[host] = takes ? slice_bytes(o, chunk) : 0;
    }
    SHC_TRY(shc_hosts_ticket(hosts, &chunk->ticket));
    return shc_hosts_begun(hosts, &chunk->ticket,
                           rail->exchange(rail->ctx, hosts->stage.chunk[place].sum, hosts->in_bytes,
                                          hosts->stage.chunk[place].out, hosts->out_bytes,
                                          chunk->ticket));
}

/* Step 0: the rails get all inputs of the island, and the first run's sum begins to go to the second one. */
static enum shc_status begin(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct ordered *o = ctx;
    struct shc_hosts *hosts = o->call->hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    const int ranks = shc_hosts_plan_size(plan, hosts->host);
    uint64_t give[SHC_MAX_WORLD] = {0}, take[SHC_MAX_WORLD];
    const char *from;
    SHC_TRY(load(o, chunk->part, &from));
    for (int local = 0; local < ranks; local++) {
        if (local < plan->rails)
            give[local] =
                shc_hosts_slice(chunk->part.count, plan->rails, local).count * o->sum.elem_bytes;
        take[local] = slice_bytes(o, chunk);
    }
    SHC_TRY(shc_hosts_swap(hosts, from, give, hosts->stage.chunk[place].inputs, take));
    if (chunk->slice.count == 0)
        return SHC_OK;
    SHC_TRY(add_run(o, chunk, place, 0));
    return send(o, chunk, place, host_of_run(plan, 0), host_of_run(plan, 1));
}

/* Step 1: from run to run; and the whole sum begins to go to all who get it. */
static enum shc_status chain(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct ordered *o = ctx;
    struct shc_hosts *hosts = o->call->hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    const int last = host_of_run(plan, plan->runs - 1), root = root_host(o);
    if (chunk->slice.count == 0)
        return SHC_OK;
    for (int run = 1; run < plan->runs; run++) {
        SHC_TRY(shc_hosts_await(hosts, &chunk->ticket));
        SHC_TRY(add_run(o, chunk, place, run));
        if (run < plan->runs - 1)
            SHC_TRY(send(o, chunk, place, host_of_run(plan, run), host_of_run(plan, run + 1)));
    }
    if (root >= 0)
        return root == last ? SHC_OK : send(o, chunk, place, last, root);
    SHC_TRY(shc_hosts_ticket(hosts, &chunk->ticket));
    return shc_hosts_begun(hosts, &chunk->ticket,
                           hosts->rail.broadcast(hosts->rail.ctx, hosts->stage.chunk[place].sum,
                                                 slice_bytes(o, chunk), last, chunk->ticket));
}

/* Step 2: the slice is complete, and the island puts the part together. */
static enum shc_status finish(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct ordered *o = ctx;
    const struct shc_hosts_call *call = o->call;
    struct shc_hosts *hosts = call->hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    const int root = root_host(o), last = host_of_run(plan, plan->runs - 1);
    char *slice = hosts->stage.chunk[place].sum, *part = NULL;
    if (chunk->ticket)
        SHC_TRY(shc_hosts_await(hosts, &chunk->ticket));
    if (root >= 0 && root != hosts->host)
        return SHC_OK;
    if (root >= 0 && root != last)
        slice = hosts->stage.chunk[place].out;
    if (!scatters(o) && o->own.count > 0 && !o->sum.wider)
        part = shc_vector_at(&call->op->output, call->elem_bytes, chunk->part.first);
    char *const at = part ? part : o->sum.wider ? hosts->stage.wide : hosts->stage.narrow;
    SHC_TRY(shc_hosts_collect(hosts, chunk, o->sum.elem_bytes, slice, at));
    if (part)
        return SHC_OK;
    SHC_TRY(shc_hosts_narrow(&o->sum, at, hosts->stage.narrow, chunk->part.count, &part));
    struct shc_slice own = {chunk->part.first, o->own.count > 0 ? chunk->part.count : 0};
    if (scatters(o)) {
        for (int rank = 0; rank < hosts->rank; rank++)
            part += shc_hosts_blocks_part(&o->blocks, rank, own.first) * call->elem_bytes;
        own.count = shc_hosts_blocks_part(&o->blocks, hosts->rank, own.first);
    }
    store(o, own, part);
    return SHC_OK;
}

static void cut(void *ctx, uint64_t index, struct shc_hosts_chunk *chunk)
{
    const struct ordered *o = ctx;
    const struct shc_hosts *hosts = o->call->hosts;
    const uint64_t first = index * o->each;
    chunk->part = (struct shc_slice){first, 0};
    if (!scatters(o))
        chunk->part.count = shc_min_size(o->count - first, o->each);
    for (int rank = 0; scatters(o) && rank < hosts->plan.world; rank++)
        chunk->part.count += shc_hosts_blocks_part(&o->blocks, rank, first);
    if (shc_hosts_carries(hosts))
        chunk->slice = shc_hosts_slice(chunk->part.count, hosts->plan.rails, hosts->local);
}

/* ---- both ---- */

/* What is added, and what this rank gets of it. */
static enum shc_status find(const struct shc_hosts_call *call, struct ordered *o, uint64_t *chunks)
{
    const struct shc_op *op = call->op;
    const struct shc_hosts *hosts = call->hosts;
    *o = (struct ordered){.sum = shc_hosts_sum_of(call), .call = call, .count = call->count};
    o->each = shc_hosts_ordered_elements(&hosts->plan, o->sum.elem_bytes);
    *chunks = shc_div_ceil(o->count, o->each);
    if (!scatters(o)) {
        o->own.count = op->kind == SHC_REDUCE && op->root != hosts->rank ? 0 : call->count;
        return SHC_OK;
    }
    SHC_TRY(shc_hosts_blocks_init(&o->blocks, call, &op->input, o->sum.elem_bytes));
    const uint64_t world = (uint64_t)hosts->plan.world;
    uint64_t longest = 0;
    o->count = 0;
    for (int rank = 0; rank < hosts->plan.world; rank++) {
        const uint64_t size = shc_hosts_blocks_size(&o->blocks, rank);
        if (rank == hosts->rank)
            o->own = (struct shc_slice){o->count, size};
        o->count += size;
        longest = size > longest ? size : longest;
    }
    if (o->each < world)
        return shc_hosts_fail(call->hosts, SHC_ERR_UNSUPPORTED,
                              "%s: a group of %d ranks on %d hosts has too little staging memory "
                              "for sums in the order of ranks",
                              shc_op_kind_name(op->kind), hosts->plan.world, hosts->plan.hosts);
    o->each = o->blocks.width = o->each / world;
    *chunks = shc_div_ceil(longest, o->each);
    return SHC_OK;
}

enum shc_status shc_hosts_ordered(const struct shc_hosts_call *call)
{
    struct ordered o;
    const struct shc_hosts_steps steps = {{begin, chain, finish}, &o, cut};
    uint64_t chunks;
    char *nothing;
    SHC_TRY(find(call, &o, &chunks));
    if (is_short(&o))
        return run_short(&o);
    SHC_TRY(shc_hosts_meet(call, 0, NULL, &nothing));
    return shc_hosts_pass(&steps, chunks);
}
