/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/paths.h"

#include "shm/coll/runs.h"

static const char *const names[] = {
    [SHC_ALGO_NOTHING] = "nothing moves",
    [SHC_ALGO_INLINE] = "call line",
    [SHC_ALGO_SMALL] = "small slot",
    [SHC_ALGO_TWO_PHASE] = "two-phase",
    [SHC_ALGO_DIRECT] = "direct exchange",
    [SHC_ALGO_PIPELINED] = "pipelined",
    [SHC_ALGO_SCATTER_GATHER] = "reduce-scatter, gather",
};

/* Operations in which one rank alone gives, or gets. Two ranks use a hand-off slot instead of small
 * slots; its last reader fills it (STAGE-27). */
static const char *rooted(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                          int world_size)
{
    const enum shc_algorithm algorithm = shc_select(tuning, kind, bytes, world_size);
    return world_size == 2 && algorithm == SHC_ALGO_SMALL ? "hand-off" : names[algorithm];
}

static const char *long_sum(const struct shc_tuning *tuning, size_t bytes, int world_size)
{
    const bool unpipelined = shc_select_unpipelined(tuning, bytes, world_size);
    if (bytes < tuning->push_bytes)
        return unpipelined ? "unpipelined" : names[SHC_ALGO_PIPELINED];
    return unpipelined ? "unpipelined; push if shared" : "pipelined; push if shared";
}

const char *shc_coll_path(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                          int world_size, bool copies)
{
    const size_t others_bytes = bytes * ((size_t)world_size - 1);
    enum shc_algorithm algorithm;
    switch (kind) {
    case SHC_BROADCAST:
    case SHC_GATHER:
    case SHC_REDUCE:
        return rooted(tuning, kind, bytes, world_size);
    case SHC_SCATTER:
        if (copies && shc_select_pulls(tuning, others_bytes, world_size))
            return "single-copy";
        return rooted(tuning, kind, others_bytes, world_size);
    case SHC_ALL_REDUCE:
        algorithm = shc_select(tuning, kind, bytes, world_size);
        return algorithm == SHC_ALGO_PIPELINED ? long_sum(tuning, bytes, world_size)
                                               : names[algorithm];
    case SHC_ALL_GATHER:
    case SHC_REDUCE_SCATTER:
        return names[shc_select(tuning, kind, bytes, world_size)];
    case SHC_ALL_TO_ALL:
        return shc_alltoall_path(tuning, bytes, world_size);
    default:
        return NULL;
    }
}
