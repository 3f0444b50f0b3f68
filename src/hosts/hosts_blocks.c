/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/hosts_blocks.h"

#include "shm/base/num.h"

uint64_t shc_hosts_blocks_size(const struct shc_hosts_blocks *blocks, int rank)
{
    return blocks->sizes ? shc_vector_elements(&blocks->sizes->list[rank]) : blocks->each;
}

static uint64_t part_of(uint64_t size, uint64_t first, uint64_t width)
{
    return size <= first ? 0 : shc_min_size(size - first, width);
}

uint64_t shc_hosts_blocks_part(const struct shc_hosts_blocks *blocks, int rank, uint64_t first)
{
    return part_of(shc_hosts_blocks_size(blocks, rank), first, blocks->width);
}

uint64_t shc_hosts_blocks_carried(const struct shc_hosts_blocks *blocks, int host, int rail,
                                  uint64_t first)
{
    const struct shc_hosts *hosts = blocks->hosts;
    const int ranks = shc_hosts_plan_size(&hosts->plan, host);
    uint64_t elements = 0;
    for (int local = rail; local < ranks; local += hosts->plan.rails)
        elements += shc_hosts_blocks_part(blocks, shc_hosts_rank_at(hosts, host, local), first);
    return elements * blocks->elem_bytes;
}

/* The most that a rail carries for a host, in the first column: no other one has more. */
static uint64_t most_carried(const struct shc_hosts_blocks *blocks)
{
    const struct shc_hosts_plan *plan = &blocks->hosts->plan;
    uint64_t most = 0;
    for (int host = 0; host < plan->hosts; host++)
        for (int rail = 0; rail < plan->rails; rail++) {
            const uint64_t bytes = shc_hosts_blocks_carried(blocks, host, rail, 0);
            most = bytes > most ? bytes : most;
        }
    return most;
}

/* The widest column for which all blocks of a rail, as many as hosts times the largest, fit its staging memory. */
static void find_width(struct shc_hosts_blocks *blocks, uint64_t longest)
{
    const struct shc_hosts_plan *plan = &blocks->hosts->plan;
    const uint64_t room =
        shc_hosts_chunk_elements(plan, 1) / ((uint64_t)plan->rails * (uint64_t)plan->hosts);
    blocks->width = 1;
    const uint64_t load = most_carried(blocks);
    uint64_t good = shc_min_size(room / load, longest), bad = longest + 1;
    while (blocks->sizes && good > 0 && bad - good > 1) {
        blocks->width = good + (bad - good) / 2;
        if (most_carried(blocks) <= room)
            good = blocks->width;
        else
            bad = blocks->width;
    }
    blocks->width = good;
}

enum shc_status shc_hosts_blocks_init(struct shc_hosts_blocks *blocks,
                                      const struct shc_hosts_call *call,
                                      const struct shc_tensors *tensors, uint32_t elem_bytes)
{
    const struct shc_op *op = call->op;
    struct shc_hosts *hosts = call->hosts;
    const uint32_t world = (uint32_t)hosts->plan.world;
    *blocks = (struct shc_hosts_blocks){.hosts = hosts,
                                        .tensors = tensors,
                                        .each = call->count,
                                        .elem_bytes = elem_bytes,
                                        .user_bytes = call->elem_bytes};
    if (op->kind == SHC_ALL_GATHER_UNEVEN)
        blocks->sizes = &op->output;
    if (op->kind == SHC_REDUCE_SCATTER_UNEVEN)
        blocks->sizes = &op->input;
    uint64_t longest = 0;
    for (int rank = 0; rank < hosts->plan.world; rank++) {
        const uint64_t size = shc_hosts_blocks_size(blocks, rank);
        longest = size > longest ? size : longest;
    }
    blocks->lists = tensors && tensors->count == world;
    for (uint32_t i = 0; blocks->lists && !blocks->sizes && i < world; i++)
        blocks->lists = shc_vector_elements(&tensors->list[i]) == blocks->each;
    if (longest == 0)
        return SHC_OK;
    find_width(blocks, longest);
    if (blocks->width == 0)
        return shc_hosts_fail(hosts, SHC_ERR_UNSUPPORTED,
                              "%s: a group of %u ranks on %d hosts cannot move elements of %u "
                              "bytes in its staging memory",
                              shc_op_kind_name(op->kind), world, hosts->plan.hosts,
                              (unsigned)elem_bytes);
    blocks->columns = shc_div_ceil(longest, blocks->width);
    return SHC_OK;
}

/* ---- user memory ---- */

/* The tensors in which a block is, and *first: where it begins there. */
static struct shc_tensors block_of(const struct shc_hosts_blocks *blocks, int rank, uint64_t *first)
{
    *first = blocks->lists ? 0 : (uint64_t)rank * blocks->each;
    return blocks->lists ? (struct shc_tensors){&blocks->tensors->list[rank], 1} : *blocks->tensors;
}

uint64_t shc_hosts_blocks_read(const struct shc_hosts_blocks *blocks, int rank, uint64_t first,
                               char *to)
{
    const uint64_t count = shc_hosts_blocks_part(blocks, rank, first);
    uint64_t begin;
    const struct shc_tensors tensors = block_of(blocks, rank, &begin);
    if (count > 0)
        shc_vector_read(&tensors, blocks->user_bytes, (struct shc_slice){begin + first, count}, to);
    return count * blocks->user_bytes;
}

uint64_t shc_hosts_blocks_write(const struct shc_hosts_blocks *blocks, int rank, uint64_t first,
                                const char *from)
{
    const uint64_t count = shc_hosts_blocks_part(blocks, rank, first);
    uint64_t begin;
    const struct shc_tensors tensors = block_of(blocks, rank, &begin);
    if (count > 0)
        shc_vector_write(&tensors, blocks->user_bytes, (struct shc_slice){begin + first, count},
                         from);
    return count * blocks->user_bytes;
}

char *shc_hosts_blocks_at(const struct shc_hosts_blocks *blocks, int rank, uint64_t first)
{
    uint64_t begin;
    const struct shc_tensors tensors = block_of(blocks, rank, &begin);
    return shc_vector_at(&tensors, blocks->user_bytes, begin + first);
}

/* ---- columns ---- */

void shc_hosts_blocks_cut(void *ctx, uint64_t index, struct shc_hosts_chunk *chunk)
{
    const struct shc_hosts_blocks *blocks = ctx;
    chunk->part = (struct shc_slice){index * blocks->width, blocks->width};
}

/* Bytes that each rank of the island and its carrier hand over: this rank's at its carrier, and those of the ranks
 * that it carries at these. */
static void hand(const struct shc_hosts_blocks *blocks, uint64_t first, uint64_t *at_carrier,
                 uint64_t *at_ranks)
{
    const struct shc_hosts *hosts = blocks->hosts;
    const int ranks = shc_hosts_plan_size(&hosts->plan, hosts->host), rails = hosts->plan.rails;
    for (int local = 0; local < ranks; local++)
        at_carrier[local] = at_ranks[local] = 0;
    at_carrier[hosts->local % rails] =
        shc_hosts_blocks_part(blocks, hosts->rank, first) * blocks->elem_bytes;
    for (int local = hosts->local; shc_hosts_carries(hosts) && local < ranks; local += rails) {
        const int rank = shc_hosts_rank_at(hosts, hosts->host, local);
        at_ranks[local] = shc_hosts_blocks_part(blocks, rank, first) * blocks->elem_bytes;
    }
}

enum shc_status shc_hosts_blocks_bring(const struct shc_hosts_blocks *blocks, uint64_t first,
                                       const char *own, char *to)
{
    uint64_t at_carrier[SHC_MAX_WORLD], at_ranks[SHC_MAX_WORLD];
    hand(blocks, first, at_carrier, at_ranks);
    return shc_hosts_swap(blocks->hosts, own, at_carrier, to, at_ranks);
}

enum shc_status shc_hosts_blocks_spread(const struct shc_hosts_blocks *blocks, uint64_t first,
                                        char *from, char *room, char **own)
{
    uint64_t at_carrier[SHC_MAX_WORLD], at_ranks[SHC_MAX_WORLD];
    *own = from;
    if (shc_hosts_blocks_are_own(blocks->hosts))
        return SHC_OK;
    *own = room;
    hand(blocks, first, at_carrier, at_ranks);
    return shc_hosts_swap(blocks->hosts, from, at_ranks, room, at_carrier);
}
