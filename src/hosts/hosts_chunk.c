/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/group.h"

#include "shm/base/num.h"

uint64_t shc_hosts_chunks(const struct shc_hosts *hosts, uint64_t count, uint32_t elem_bytes)
{
    return shc_div_ceil(count, shc_hosts_chunk_elements(&hosts->plan, elem_bytes));
}

struct shc_hosts_chunk shc_hosts_chunk_at(const struct shc_hosts *hosts, uint64_t count,
                                          uint32_t elem_bytes, uint64_t index)
{
    const struct shc_hosts_plan *plan = &hosts->plan;
    const uint64_t each = shc_hosts_chunk_elements(plan, elem_bytes), first = index * each;
    struct shc_hosts_chunk chunk = {.part = {first, shc_min_size(count - first, each)}};
    if (!shc_hosts_carries(hosts))
        return chunk;
    chunk.slice = shc_hosts_slice(chunk.part.count, plan->rails, hosts->local);
    chunk.piece = shc_div_ceil(chunk.slice.count, (size_t)plan->hosts);
    return chunk;
}

/* The chunks of a vector. */
struct vector {
    const struct shc_hosts_call *call;
    uint32_t elem_bytes;
};

static void cut_vector(void *ctx, uint64_t index, struct shc_hosts_chunk *chunk)
{
    const struct vector *vector = ctx;
    *chunk =
        shc_hosts_chunk_at(vector->call->hosts, vector->call->count, vector->elem_bytes, index);
}

static enum shc_status pass(const struct shc_hosts_steps *steps, uint64_t count,
                            void (*cut)(void *ctx, uint64_t index, struct shc_hosts_chunk *chunk),
                            void *cut_ctx)
{
    struct shc_hosts_chunk chunks[SHC_HOSTS_DEPTH] = {{{0, 0}, {0, 0}, 0, NULL}};
    enum shc_status st = SHC_OK;
    for (uint64_t turn = 0; turn < count + SHC_HOSTS_DEPTH - 1; turn++)
        for (uint64_t step = 0; step < SHC_HOSTS_DEPTH && st == SHC_OK; step++) {
            const uint64_t index = turn - step;
            const int place = (int)(index % SHC_HOSTS_DEPTH);
            if (turn < step || index >= count)
                continue;
            if (step == 0) {
                chunks[place] = (struct shc_hosts_chunk){.ticket = NULL};
                cut(cut_ctx, index, &chunks[place]);
            }
            if (steps->step[step])
                st = steps->step[step](steps->ctx, &chunks[place], place);
        }
    for (int place = 0; place < SHC_HOSTS_DEPTH; place++)
        if (chunks[place].ticket)
            shc_gate_abandon(chunks[place].ticket);
    return st;
}

enum shc_status shc_hosts_pass(const struct shc_hosts_steps *steps, uint64_t chunks)
{
    return pass(steps, chunks, steps->cut, steps->ctx);
}

enum shc_status shc_hosts_pass_vector(const struct shc_hosts_call *call, uint32_t elem_bytes,
                                      const struct shc_hosts_steps *steps)
{
    struct vector vector = {call, elem_bytes};
    const uint64_t chunks = shc_hosts_chunks(call->hosts, call->count, elem_bytes);
    return pass(steps, chunks, cut_vector, &vector);
}

enum shc_status shc_hosts_collect(struct shc_hosts *hosts, const struct shc_hosts_chunk *chunk,
                                  uint32_t elem_bytes, const char *slice, char *part)
{
    const int ranks = shc_hosts_plan_size(&hosts->plan, hosts->host), rails = hosts->plan.rails;
    uint64_t sizes[SHC_MAX_WORLD];
    for (int local = 0; local < ranks; local++)
        sizes[local] =
            local < rails ? shc_hosts_slice(chunk->part.count, rails, local).count * elem_bytes : 0;
    return shc_hosts_share(hosts, slice, sizes, part);
}
