/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/group.h"

/* A tensor of bytes for each rank, one after the other. */
static void cut(const struct shc_hosts *hosts, char *data, const uint64_t *bytes, int64_t *sizes,
                struct shc_tensor *list)
{
    const int ranks = shc_hosts_plan_size(&hosts->plan, hosts->host);
    for (int local = 0; local < ranks; local++) {
        sizes[local] = (int64_t)bytes[local];
        list[local] = shc_hosts_flat(data, &sizes[local]);
        data += bytes[local];
    }
}

enum shc_status shc_hosts_share(struct shc_hosts *hosts, const char *in, const uint64_t *sizes,
                                char *out)
{
    const int64_t own = (int64_t)sizes[hosts->local];
    const struct shc_tensor from = shc_hosts_flat((void *)(uintptr_t)in, &own);
    struct shc_tensor to[SHC_MAX_WORLD];
    int64_t to_sizes[SHC_MAX_WORLD];
    cut(hosts, out, sizes, to_sizes, to);
    struct shc_op op = {.kind = SHC_ALL_GATHER_UNEVEN, .dtype = SHC_UINT8};
    op.input = (struct shc_tensors){&from, 1};
    op.output = (struct shc_tensors){to, (uint32_t)shc_hosts_plan_size(&hosts->plan, hosts->host)};
    return shc_hosts_island(hosts, &op);
}

enum shc_status shc_hosts_swap(struct shc_hosts *hosts, const char *in, const uint64_t *give,
                               char *out, const uint64_t *take)
{
    const uint32_t ranks = (uint32_t)shc_hosts_plan_size(&hosts->plan, hosts->host);
    struct shc_tensor from[SHC_MAX_WORLD], to[SHC_MAX_WORLD];
    int64_t from_sizes[SHC_MAX_WORLD], to_sizes[SHC_MAX_WORLD];
    cut(hosts, (char *)(uintptr_t)in, give, from_sizes, from);
    cut(hosts, out, take, to_sizes, to);
    struct shc_op op = {.kind = SHC_ALL_TO_ALL, .dtype = SHC_UINT8};
    op.input = (struct shc_tensors){from, ranks};
    op.output = (struct shc_tensors){to, ranks};
    return shc_hosts_island(hosts, &op);
}

enum shc_status shc_hosts_give(struct shc_hosts *hosts, int root, char *data, uint64_t bytes)
{
    const int64_t size = (int64_t)bytes;
    const struct shc_tensor tensor = shc_hosts_flat(data, &size);
    struct shc_op op = {.kind = SHC_BROADCAST, .dtype = SHC_UINT8, .root = root};
    op.input = op.output = (struct shc_tensors){&tensor, 1};
    return shc_hosts_island(hosts, &op);
}
