/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/select.h"

#include "shm/base/config.h"
#include "shm/proto/layout.h"

struct row {
    enum shc_op_kind kind;
    int max_world;
    size_t max_bytes;
    enum shc_algorithm algorithm;
};

#define ANY_SIZE SIZE_MAX

/* The first row that fits. The bounds between rows are measured (docs/PERFORMANCE.md). A premul
 * factor takes 8 of the inline bytes, so that inline all_reduce ends where that still fits. */
static const struct row rows[] = {
    {SHC_BARRIER, SHC_MAX_WORLD, ANY_SIZE, SHC_ALGO_NOTHING},

    {SHC_BROADCAST, SHC_MAX_WORLD, 0, SHC_ALGO_NOTHING},
    {SHC_BROADCAST, SHC_MAX_WORLD, SHC_INLINE_BYTES, SHC_ALGO_INLINE},
    {SHC_BROADCAST, SHC_MAX_WORLD, SHC_SMALL_SLOT_BYTES, SHC_ALGO_SMALL},
    {SHC_BROADCAST, SHC_MAX_WORLD, ANY_SIZE, SHC_ALGO_STAGED},

    {SHC_ALL_REDUCE, SHC_MAX_WORLD, 0, SHC_ALGO_NOTHING},
    {SHC_ALL_REDUCE, SHC_MAX_WORLD, SHC_INLINE_BYTES - 8, SHC_ALGO_INLINE},
    {SHC_ALL_REDUCE, SHC_MAX_WORLD, SHC_SMALL_SLOT_BYTES, SHC_ALGO_SMALL},
    {SHC_ALL_REDUCE, 2, 32 << 10, SHC_ALGO_ONE_USE},
    {SHC_ALL_REDUCE, SHC_MAX_WORLD, ANY_SIZE, SHC_ALGO_STAGED},

    {SHC_ALL_GATHER, SHC_MAX_WORLD, 0, SHC_ALGO_NOTHING},
    {SHC_ALL_GATHER, SHC_MAX_WORLD, SHC_INLINE_BYTES, SHC_ALGO_INLINE},
    {SHC_ALL_GATHER, SHC_MAX_WORLD, SHC_SMALL_SLOT_BYTES, SHC_ALGO_SMALL},
    {SHC_ALL_GATHER, SHC_MAX_WORLD, ANY_SIZE, SHC_ALGO_STAGED},

    {SHC_REDUCE, SHC_MAX_WORLD, 0, SHC_ALGO_NOTHING},
    {SHC_REDUCE, SHC_MAX_WORLD, SHC_INLINE_BYTES - 8, SHC_ALGO_INLINE},
    {SHC_REDUCE, SHC_MAX_WORLD, SHC_SMALL_SLOT_BYTES, SHC_ALGO_SMALL},
    {SHC_REDUCE, SHC_MAX_WORLD, ANY_SIZE, SHC_ALGO_STAGED},

    {SHC_GATHER, SHC_MAX_WORLD, 0, SHC_ALGO_NOTHING},
    {SHC_GATHER, SHC_MAX_WORLD, SHC_INLINE_BYTES, SHC_ALGO_INLINE},
    {SHC_GATHER, SHC_MAX_WORLD, SHC_SMALL_SLOT_BYTES, SHC_ALGO_SMALL},
    {SHC_GATHER, SHC_MAX_WORLD, ANY_SIZE, SHC_ALGO_STAGED},

    {SHC_SCATTER, SHC_MAX_WORLD, 0, SHC_ALGO_NOTHING},
    {SHC_SCATTER, SHC_MAX_WORLD, SHC_INLINE_BYTES, SHC_ALGO_INLINE},
    {SHC_SCATTER, SHC_MAX_WORLD, SHC_SMALL_SLOT_BYTES, SHC_ALGO_SMALL},
    {SHC_SCATTER, SHC_MAX_WORLD, ANY_SIZE, SHC_ALGO_STAGED},

    {SHC_REDUCE_SCATTER, SHC_MAX_WORLD, 0, SHC_ALGO_NOTHING},
    {SHC_REDUCE_SCATTER, SHC_MAX_WORLD, SHC_INLINE_BYTES - 8, SHC_ALGO_INLINE},
    {SHC_REDUCE_SCATTER, SHC_MAX_WORLD, SHC_SMALL_SLOT_BYTES, SHC_ALGO_SMALL},
    {SHC_REDUCE_SCATTER, SHC_MAX_WORLD, ANY_SIZE, SHC_ALGO_STAGED},
};

enum shc_algorithm shc_select(enum shc_op_kind kind, size_t bytes, int world_size)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].kind == kind && world_size <= rows[i].max_world && bytes <= rows[i].max_bytes)
            return rows[i].algorithm;
    return SHC_ALGO_STAGED;
}

bool shc_select_streams(size_t bytes)
{
    const int kib = shc_config_get()->stream_kib;
    return kib >= 0 && bytes >= (size_t)kib << 10;
}
