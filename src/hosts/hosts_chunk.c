/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/group.h"

#include "shm/base/num.h"

/* A vector, and the elements of its chunks. */
struct vector {
    const struct shc_hosts *hosts;
    uint64_t count, each;
};

static void cut_vector(void *ctx, uint64_t index, struct shc_hosts_chunk *chunk)
{
    const struct vector *vector = ctx;
    const struct shc_hosts *hosts = vector->hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    const uint64_t first = index * vector->each;
    chunk->part = (struct shc_slice){first, shc_min_size(vector->count - first, vector->each)};
    if (!shc_hosts_carries(hosts))
        return;
    chunk->slice = shc_hosts_slice(chunk->part.count, plan->rails, hosts->local);
    chunk->piece = shc_div_ceil(chunk->slice.count, (size_t)plan->hosts);
}

static enum shc_status pass(const struct shc_hosts_steps *steps, uint64_t count,
                            void (*cut)(void *ctx, uint64_t index, struct shc_hosts_chunk *chunk),
                            void *cut_ctx)
{
    struct shc_hosts_chunk chunks[SHC_HOSTS_DEPTH] = {{{0, 0}, {0, 0}, 0, NULL}};
    enum shc_status st = SHC_OK;
    for (uint64_t turn = 0; turn < count + SHC_HOSTS_DEPTH - 1 && st == SHC_OK; turn++)
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

enum shc_status shc_hosts_pass_vector(const struct shc_hosts_call *call, uint64_t each,
                                      const struct shc_hosts_steps *steps)
{
    struct vector vector = {call->hosts, call->count, each};
    return pass(steps, shc_div_ceil(call->count, each), cut_vector, &vector);
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
