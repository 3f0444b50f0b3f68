/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reduce-scatter and scatter.
 *
 *   short  reduce in the island, or the root's input -> along with the leader's record -> all leaders -> broadcast in
 *          the island
 *   long   for each column: each rail gets the parts that it carries for all hosts: by a reduce_scatter in the island,
 *          or from the root
 *          the rails bring each host its parts; sums are added in the order of hosts
 *          a carrier hands on the parts of others
 *
 * On hosts with a rail for each rank, nothing is handed on. Bytes out of a host: all blocks of the others, once;
 * scatter: of the root's host alone.
 */
#include "hosts/hosts_blocks.h"
#include "hosts/hosts_sum.h"

#include <string.h>

struct scattering {
    struct shc_hosts_blocks blocks; /* first: shc_hosts_blocks_cut() */
    struct shc_hosts_sum sum;
    const struct shc_hosts_call *call;
    int root_host; /* -1: all ranks give, and their sum is scattered */
    bool gives;    /* this rank does */
};

/* This rank's result, or a part of it, into its output. */
static enum shc_status store(const struct scattering *s, struct shc_slice part, char *from)
{
    const struct shc_hosts_call *call = s->call;
    if (part.count == 0)
        return SHC_OK;
    if (s->root_host < 0)
        SHC_TRY(shc_hosts_narrow(&s->sum, from, call->hosts->stage.narrow, part.count, &from));
    shc_vector_write(&call->op->output, call->elem_bytes, part, from);
    return SHC_OK;
}

/* ---- short: blocks lie host by host ---- */

/* Bytes of blocks [begin, end). */
static uint64_t blocks_bytes(const struct scattering *s, int begin, int end)
{
    const int32_t *rank_at = s->blocks.hosts->plan.rank_at;
    uint64_t count = 0;
    if (!s->blocks.sizes)
        return (uint64_t)(end - begin) * s->blocks.each * s->blocks.elem_bytes;
    for (int i = begin; i < end; i++)
        count += shc_hosts_blocks_size(&s->blocks, rank_at[i]);
    return count * s->blocks.elem_bytes;
}

/* The blocks of a host, in bytes. */
static struct shc_slice part_of(const struct scattering *s, int host)
{
    const int32_t *first = s->blocks.hosts->plan.first;
    return (struct shc_slice){
        .first = blocks_bytes(s, 0, first[host]),
        .count = blocks_bytes(s, first[host], first[host + 1]),
    };
}

static uint64_t total_of(const struct scattering *s)
{
    return blocks_bytes(s, 0, s->blocks.hosts->plan.world);
}

static bool is_short(const struct scattering *s)
{
    const struct shc_hosts *hosts = s->blocks.hosts;
    const uint64_t message = shc_hosts_message_bytes(hosts);
    bool fit = message > 0;
    for (int host = 0; host < hosts->plan.hosts && fit; host++)
        fit = part_of(s, host).count <= message;
    return fit || total_of(s) <= hosts->payload_bytes;
}

static struct shc_slice message(const struct shc_hosts_call *call, const void *ctx, int from,
                                int to)
{
    const struct scattering *s = ctx;
    const bool gives = s->root_host < 0 || s->root_host == from;
    return gives && total_of(s) > call->hosts->payload_bytes ? part_of(s, to)
                                                             : (struct shc_slice){0, 0};
}

static enum shc_status take(const struct shc_hosts_call *call, const void *ctx, char *to)
{
    const struct scattering *s = ctx;
    const struct shc_slice own = part_of(s, call->hosts->host);
    const uint64_t all = total_of(s);
    if (s->root_host < 0)
        return shc_hosts_fold_data(&s->sum, own.first, all, to, own.count / s->sum.elem_bytes);
    memcpy(to, shc_hosts_data_taken(call->hosts, s->root_host, own.first, all), own.count);
    return SHC_OK;
}

static void read_blocks(const struct scattering *s, char *to)
{
    const struct shc_hosts *hosts = s->blocks.hosts;
    for (int i = 0; i < hosts->plan.world; i++)
        to += shc_hosts_blocks_read(&s->blocks, hosts->plan.rank_at[i], 0, to);
}

/* What this host gives: its ranks' sum, or what the root has. */
static enum shc_status give(const struct scattering *s, char *given)
{
    const struct shc_hosts_call *call = s->call;
    struct shc_hosts *hosts = call->hosts;
    const uint64_t bytes = total_of(s);
    const int64_t size = (int64_t)(bytes / s->blocks.elem_bytes);
    char *from = hosts->stage.narrow;
    if (s->root_host >= 0) {
        if (s->gives)
            read_blocks(s, given);
        const bool far = hosts->host == s->root_host && hosts->plan.local_of[call->op->root] != 0;
        return far ? shc_hosts_give(hosts, hosts->plan.local_of[call->op->root], given, bytes)
                   : SHC_OK;
    }
    read_blocks(s, from);
    SHC_TRY(shc_hosts_widen(&s->sum, from, hosts->stage.wide, (uint64_t)size, &from));
    const struct shc_tensor in = shc_hosts_flat(from, &size), out = shc_hosts_flat(given, &size);
    struct shc_op op = shc_hosts_island_sum(&s->sum, SHC_REDUCE);
    op.input = (struct shc_tensors){&in, 1};
    op.output = (struct shc_tensors){&out, 1};
    return shc_hosts_island(hosts, &op);
}

static enum shc_status run_short(struct scattering *s)
{
    struct shc_hosts *hosts = s->call->hosts;
    const struct shc_hosts_data blocks = {.ctx = s, .message = message, .make = take};
    const uint64_t own = shc_hosts_blocks_size(&s->blocks, hosts->rank);
    char *data;
    s->blocks.width = UINT64_MAX; /* whole blocks */
    SHC_TRY(give(s, shc_hosts_data_given(hosts, total_of(s))));
    SHC_TRY(shc_hosts_meet(s->call, part_of(s, hosts->host).count, &blocks, &data));
    const int first = hosts->plan.first[hosts->host];
    data += blocks_bytes(s, first, first + hosts->local);
    return store(s, (struct shc_slice){0, own}, data);
}

/* ---- long ---- */

/* Bytes of a column of all hosts that a local rank carries. */
static uint64_t rail_bytes(const struct scattering *s, int local, uint64_t first)
{
    const struct shc_hosts_plan *plan = &s->blocks.hosts->plan;
    uint64_t bytes = 0;
    for (int host = 0; host < plan->hosts && local < plan->rails; host++)
        bytes += shc_hosts_blocks_carried(&s->blocks, host, local, first);
    return bytes;
}

/* A column of this rank's input: what each rail carries, host by host. Returns the elements. */
static uint64_t read_input(const struct scattering *s, uint64_t first, char *to)
{
    const struct shc_hosts *hosts = s->blocks.hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    char *at = to;
    for (int rail = 0; rail < plan->rails; rail++)
        for (int host = 0; host < plan->hosts; host++)
            for (int local = rail; local < shc_hosts_plan_size(plan, host); local += plan->rails)
                at += shc_hosts_blocks_read(&s->blocks, shc_hosts_rank_at(hosts, host, local),
                                            first, at);
    return (uint64_t)(at - to) / s->call->elem_bytes;
}

/* The rails get the island's sums. */
static enum shc_status reduce_in_island(const struct scattering *s, uint64_t first, char *to)
{
    struct shc_hosts *hosts = s->blocks.hosts;
    const int ranks = shc_hosts_plan_size(&hosts->plan, hosts->host);
    struct shc_tensor in[SHC_MAX_WORLD];
    int64_t sizes[SHC_MAX_WORLD];
    char *from = hosts->stage.narrow;
    const uint64_t count = read_input(s, first, from);
    SHC_TRY(shc_hosts_widen(&s->sum, from, hosts->stage.wide, count, &from));
    for (int local = 0; local < ranks; local++) {
        const uint64_t bytes = rail_bytes(s, local, first);
        sizes[local] = (int64_t)(bytes / s->sum.elem_bytes);
        in[local] = shc_hosts_flat(from, &sizes[local]);
        from += bytes;
    }
    const struct shc_tensor out = shc_hosts_flat(to, &sizes[hosts->local]);
    struct shc_op op = shc_hosts_island_sum(&s->sum, SHC_REDUCE_SCATTER_UNEVEN);
    op.input = (struct shc_tensors){in, (uint32_t)ranks};
    op.output = (struct shc_tensors){&out, 1};
    return shc_hosts_island(hosts, &op);
}

/* The rails of the root's host get what the root gives. */
static enum shc_status take_from_root(const struct scattering *s, uint64_t first, char *to)
{
    struct shc_hosts *hosts = s->blocks.hosts;
    const int ranks = shc_hosts_plan_size(&hosts->plan, hosts->host);
    uint64_t give[SHC_MAX_WORLD] = {0}, take[SHC_MAX_WORLD] = {0};
    if (hosts->host != s->root_host)
        return SHC_OK;
    if (s->gives)
        (void)read_input(s, first, hosts->stage.narrow);
    for (int local = 0; local < ranks && s->gives; local++)
        give[local] = rail_bytes(s, local, first);
    take[hosts->plan.local_of[s->call->op->root]] = rail_bytes(s, hosts->local, first);
    return shc_hosts_swap(hosts, hosts->stage.narrow, give, to, take);
}

static enum shc_status begin(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct scattering *s = ctx;
    struct shc_hosts *hosts = s->blocks.hosts;
    const struct shc_fabric *rail = &hosts->rail;
    const uint64_t first = chunk->part.first;
    char *in = hosts->stage.chunk[place].in, *out = hosts->stage.chunk[place].out;
    SHC_TRY(s->root_host < 0 ? reduce_in_island(s, first, in) : take_from_root(s, first, in));
    if (rail_bytes(s, hosts->local, first) == 0)
        return SHC_OK;
    const bool gives = s->root_host < 0 || s->root_host == hosts->host;
    const uint64_t own = shc_hosts_blocks_carried(&s->blocks, hosts->host, hosts->local, first);
    for (int host = 0; host < hosts->plan.hosts; host++) {
        const uint64_t bytes = shc_hosts_blocks_carried(&s->blocks, host, hosts->local, first);
        hosts->in_bytes[host] = gives ? bytes : 0;
        hosts->out_bytes[host] = s->root_host < 0 || s->root_host == host ? own : 0;
    }
    SHC_TRY(shc_hosts_ticket(hosts, &chunk->ticket));
    return shc_hosts_begun(
        hosts, &chunk->ticket,
        rail->exchange(rail->ctx, in, hosts->in_bytes, out, hosts->out_bytes, chunk->ticket));
}

static enum shc_status finish(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct scattering *s = ctx;
    struct shc_hosts *hosts = s->blocks.hosts;
    const uint64_t first = chunk->part.first;
    char *from = hosts->stage.chunk[place].out, *sum = hosts->stage.chunk[place].sum;
    if (chunk->ticket)
        SHC_TRY(shc_hosts_await(hosts, &chunk->ticket));
    if (s->root_host < 0 && shc_hosts_carries(hosts)) {
        const uint64_t own = shc_hosts_blocks_carried(&s->blocks, hosts->host, hosts->local, first);
        if (own > 0)
            SHC_TRY(shc_hosts_fold(&s->sum, from, own, sum, own / s->sum.elem_bytes));
        from = sum;
    }
    SHC_TRY(shc_hosts_blocks_spread(&s->blocks, first, from, hosts->stage.wide, &from));
    const uint64_t count = shc_hosts_blocks_part(&s->blocks, hosts->rank, first);
    return store(s, (struct shc_slice){first, count}, from);
}

enum shc_status shc_hosts_scatter(const struct shc_hosts_call *call)
{
    struct shc_hosts *hosts = call->hosts;
    const bool rooted = call->op->kind == SHC_SCATTER;
    struct scattering s = {
        .call = call,
        .root_host = rooted ? hosts->plan.host_of[call->op->root] : -1,
        .gives = !rooted || call->op->root == hosts->rank,
    };
    const struct shc_hosts_steps steps = {{begin, NULL, finish}, &s, shc_hosts_blocks_cut};
    char *nothing;
    if (!rooted)
        s.sum = shc_hosts_sum_of(call);
    SHC_TRY(shc_hosts_blocks_init(&s.blocks, call, s.gives ? &call->op->input : NULL,
                                  rooted ? call->elem_bytes : s.sum.elem_bytes));
    if (is_short(&s))
        return run_short(&s);
    SHC_TRY(shc_hosts_meet(call, 0, NULL, &nothing));
    return shc_hosts_pass(&steps, s.blocks.columns);
}
