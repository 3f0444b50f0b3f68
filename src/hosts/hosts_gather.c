/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * All-gather and gather.
 *
 *   short  the island's blocks -> along with the leader's record -> all leaders -> broadcast in the island
 *   long   for each column: a rank hands its part to its carrier, unless it is one
 *          the rails bring the parts to all hosts, or to the root's
 *          all_gather in the island, or its ranks hand all to the root
 *
 * On hosts with a rail for each rank, nothing is handed over before the rails, and the island's all_gather stores
 * straight into outputs whose blocks are a constant distance apart.
 *
 * Bytes out of a host: its blocks, once for each other host; gather: once.
 */
#include "hosts/hosts_blocks.h"

#include "shm/base/num.h"

#include <string.h>

struct gathering {
    struct shc_hosts_blocks blocks; /* first: shc_hosts_blocks_cut() */
    const struct shc_hosts_call *call;
    int root_host; /* -1: all ranks get all blocks */
    bool gets;     /* this rank does */
};

/* Does this host get blocks? */
static bool host_gets(const struct gathering *g)
{
    return g->root_host < 0 || g->root_host == g->blocks.hosts->host;
}

/* Bytes of all blocks of a host. */
static uint64_t host_bytes(const struct shc_hosts_blocks *blocks, int host)
{
    const struct shc_hosts *hosts = blocks->hosts;
    const int ranks = shc_hosts_plan_size(&hosts->plan, host);
    uint64_t elements = 0;
    for (int local = 0; local < ranks; local++)
        elements += shc_hosts_blocks_size(blocks, shc_hosts_rank_at(hosts, host, local));
    return elements * blocks->elem_bytes;
}

/* A part of this rank's input. */
static void read_input(const struct gathering *g, uint64_t first, char *to)
{
    const struct shc_hosts *hosts = g->blocks.hosts;
    const uint64_t count = shc_hosts_blocks_part(&g->blocks, hosts->rank, first);
    if (count > 0)
        shc_vector_read(&g->call->op->input, g->blocks.elem_bytes, (struct shc_slice){first, count},
                        to);
}

/* ---- short ---- */

static bool is_short(const struct shc_hosts_blocks *blocks)
{
    for (int host = 0; host < blocks->hosts->plan.hosts; host++)
        if (host_bytes(blocks, host) > shc_hosts_short_bytes(blocks->hosts))
            return false;
    return true;
}

static struct shc_slice message(const struct shc_hosts_call *call, const void *ctx, int from,
                                int to)
{
    const struct gathering *g = ctx;
    return shc_hosts_message_of(call->hosts, host_bytes(&g->blocks, from),
                                g->root_host < 0 || g->root_host == to);
}

/* All hosts' blocks, one after the other. */
static enum shc_status take_data(const struct shc_hosts_call *call, const void *ctx, char *to)
{
    const struct gathering *g = ctx;
    for (int host = 0; host < call->hosts->plan.hosts; host++) {
        const uint64_t bytes = host_bytes(&g->blocks, host);
        memcpy(to, shc_hosts_data_taken(call->hosts, host, 0, bytes), bytes);
        to += bytes;
    }
    return SHC_OK;
}

static enum shc_status run_short(struct gathering *g)
{
    struct shc_hosts *hosts = g->blocks.hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    const int ranks = shc_hosts_plan_size(plan, hosts->host);
    uint64_t give[SHC_MAX_WORLD] = {0}, take[SHC_MAX_WORLD] = {0}, all = 0;
    char *given = shc_hosts_data_given(hosts, host_bytes(&g->blocks, hosts->host)), *data;
    g->blocks.width = UINT64_MAX; /* whole blocks */
    read_input(g, 0, hosts->stage.narrow);
    give[0] = shc_hosts_blocks_size(&g->blocks, hosts->rank) * g->blocks.elem_bytes;
    for (int local = 0; local < ranks && shc_hosts_leads(hosts); local++)
        take[local] =
            shc_hosts_blocks_size(&g->blocks, shc_hosts_rank_at(hosts, hosts->host, local)) *
            g->blocks.elem_bytes;
    SHC_TRY(shc_hosts_swap(hosts, hosts->stage.narrow, give, given, take));
    for (int host = 0; host < plan->hosts && host_gets(g); host++)
        all += host_bytes(&g->blocks, host);
    const struct shc_hosts_data blocks = {
        .ctx = g, .message = message, .make = host_gets(g) ? take_data : NULL};
    SHC_TRY(shc_hosts_meet(g->call, all, &blocks, &data));
    for (int i = 0; i < plan->world && g->gets; i++)
        data += shc_hosts_blocks_write(&g->blocks, plan->rank_at[i], 0, data);
    return SHC_OK;
}

/* ---- long ---- */

/* The rail's blocks begin to go to the other hosts. */
static enum shc_status send(const struct gathering *g, struct shc_hosts_chunk *chunk, char *in,
                            char *out)
{
    struct shc_hosts *hosts = g->blocks.hosts;
    const struct shc_fabric *rail = &hosts->rail;
    const int all = hosts->plan.hosts;
    bool equal = g->root_host < 0;
    uint64_t most = 0, own = 0;
    for (int host = 0; host < all; host++) {
        const uint64_t bytes =
            shc_hosts_blocks_carried(&g->blocks, host, hosts->local, chunk->part.first);
        hosts->out_bytes[host] = bytes;
        equal = equal && bytes == hosts->out_bytes[0];
        most = bytes > most ? bytes : most;
        own = host == hosts->host ? bytes : own;
    }
    if (most == 0)
        return SHC_OK;
    if (equal)
        return shc_hosts_gather_even(hosts, in, own, out, &chunk->ticket);
    SHC_TRY(shc_hosts_ticket(hosts, &chunk->ticket));
    for (int host = 0; host < all; host++) {
        const bool goes = g->root_host < 0 || g->root_host == host;
        hosts->in_bytes[host] = goes ? own : 0;
        if (g->root_host < 0 && host > 0)
            memcpy(in + (uint64_t)host * own, in, own);
        if (!host_gets(g))
            hosts->out_bytes[host] = 0;
    }
    return shc_hosts_begun(
        hosts, &chunk->ticket,
        rail->exchange(rail->ctx, in, hosts->in_bytes, out, hosts->out_bytes, chunk->ticket));
}

static enum shc_status begin(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct gathering *g = ctx;
    struct shc_hosts *hosts = g->blocks.hosts;
    char *in = hosts->stage.chunk[place].in;
    if (shc_hosts_blocks_are_own(hosts)) {
        read_input(g, chunk->part.first, in);
    } else {
        read_input(g, chunk->part.first, hosts->stage.narrow);
        SHC_TRY(shc_hosts_blocks_bring(&g->blocks, chunk->part.first, hosts->stage.narrow, in));
    }
    return shc_hosts_carries(hosts) ? send(g, chunk, in, hosts->stage.chunk[place].out) : SHC_OK;
}

/* Bytes that each rail has got, of all hosts. */
static void count_rails(const struct gathering *g, uint64_t first, uint64_t *bytes)
{
    const struct shc_hosts_plan *plan = &g->blocks.hosts->plan;
    for (int local = 0; local < shc_hosts_plan_size(plan, g->blocks.hosts->host); local++) {
        bytes[local] = 0;
        for (int host = 0; host < plan->hosts && local < plan->rails; host++)
            bytes[local] += shc_hosts_blocks_carried(&g->blocks, host, local, first);
    }
}

/* Where the parts of the blocks that `rail` carries are in the output, if they are a constant distance apart. */
static bool find_places(const struct gathering *g, int rail, uint64_t first, char **at,
                        int64_t *distance)
{
    const struct shc_hosts *hosts = g->blocks.hosts;
    for (int host = 0; host < hosts->plan.hosts; host++) {
        char *block = shc_hosts_blocks_at(&g->blocks, shc_hosts_rank_at(hosts, host, rail), first);
        if (!block)
            return false;
        const int64_t from_first = host == 0 ? 0 : block - *at;
        if (host == 0)
            *at = block;
        if (host == 1)
            *distance = from_first;
        if (from_first != host * *distance || *distance < 0)
            return false;
    }
    return true;
}

/* The island's all_gather, straight into the output. *done: it was possible. */
static enum shc_status store_straight(const struct gathering *g, uint64_t first, const char *in,
                                      bool *done)
{
    struct shc_hosts *hosts = g->blocks.hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    const int64_t bytes =
        (int64_t)(shc_hosts_blocks_part(&g->blocks, hosts->rank, first) * g->blocks.elem_bytes);
    const int64_t sizes[2] = {plan->hosts, bytes}, own = plan->hosts * bytes;
    const struct shc_tensor from = shc_hosts_flat((void *)(uintptr_t)in, &own);
    int64_t strides[SHC_HOSTS_MAX_RAILS][2] = {{0}};
    struct shc_tensor to[SHC_HOSTS_MAX_RAILS];
    *done = g->blocks.sizes == NULL && plan->world == plan->hosts * plan->rails;
    for (int rail = 0; rail < plan->rails && *done; rail++) {
        char *at = NULL;
        strides[rail][1] = 1;
        *done = find_places(g, rail, first, &at, &strides[rail][0]);
        to[rail] = (struct shc_tensor){at, 2, sizes, strides[rail]};
    }
    if (!*done)
        return SHC_OK;
    struct shc_op op = {.kind = SHC_ALL_GATHER_UNEVEN, .dtype = SHC_UINT8};
    op.input = (struct shc_tensors){&from, 1};
    op.output = (struct shc_tensors){to, (uint32_t)plan->rails};
    return shc_hosts_island(hosts, &op);
}

/* The island's ranks get what its rails have got, one rail after the other. */
static enum shc_status collect(const struct gathering *g, uint64_t first, const char *in, char *all)
{
    struct shc_hosts *hosts = g->blocks.hosts;
    uint64_t bytes[SHC_MAX_WORLD], give[SHC_MAX_WORLD] = {0};
    count_rails(g, first, bytes);
    if (g->root_host < 0)
        return shc_hosts_share(hosts, in, bytes, all);
    give[hosts->plan.local_of[g->call->op->root]] = bytes[hosts->local];
    if (!g->gets)
        memset(bytes, 0, sizeof bytes);
    return shc_hosts_swap(hosts, in, give, all, bytes);
}

static enum shc_status finish(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct gathering *g = ctx;
    struct shc_hosts *hosts = g->blocks.hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    const uint64_t first = chunk->part.first;
    const char *in = hosts->stage.chunk[place].out, *from = hosts->stage.wide;
    bool done = false;
    if (chunk->ticket)
        SHC_TRY(shc_hosts_await(hosts, &chunk->ticket));
    if (!host_gets(g))
        return SHC_OK;
    if (g->root_host < 0)
        SHC_TRY(store_straight(g, first, in, &done));
    if (done)
        return SHC_OK;
    SHC_TRY(collect(g, first, in, hosts->stage.wide));
    for (int rail = 0; rail < plan->rails && g->gets; rail++)
        for (int host = 0; host < plan->hosts; host++)
            for (int local = rail; local < shc_hosts_plan_size(plan, host); local += plan->rails)
                from += shc_hosts_blocks_write(&g->blocks, shc_hosts_rank_at(hosts, host, local),
                                               first, from);
    return SHC_OK;
}

enum shc_status shc_hosts_gather(const struct shc_hosts_call *call)
{
    struct shc_hosts *hosts = call->hosts;
    const bool rooted = call->op->kind == SHC_GATHER;
    struct gathering g = {
        .call = call,
        .root_host = rooted ? hosts->plan.host_of[call->op->root] : -1,
        .gets = !rooted || call->op->root == hosts->rank,
    };
    const struct shc_hosts_steps steps = {{begin, NULL, finish}, &g, shc_hosts_blocks_cut};
    char *nothing;
    SHC_TRY(shc_hosts_blocks_init(&g.blocks, call, g.gets ? &call->op->output : NULL,
                                  call->elem_bytes));
    if (is_short(&g.blocks))
        return run_short(&g);
    SHC_TRY(shc_hosts_meet(call, 0, NULL, &nothing));
    return shc_hosts_pass(&steps, g.blocks.columns);
}
