/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Positions of the entries of a sparse tensor: the index in all indexed dimensions, as one number. That is how entries
 * travel, between ranks and between hosts.
 */

#include "shm/shmcoll.h"

#include "shm/base/attrs.h"

#include <stdbool.h>

/* Are they ascending, each of them once, and below `limit`? */
SHC_INLINE bool shc_positions_are_sound(const uint64_t *positions, uint64_t count, uint64_t limit)
{
    for (uint64_t i = 0; i < count; i++)
        if (positions[i] >= limit || (i > 0 && positions[i] <= positions[i - 1]))
            return false;
    return true;
}

/* Turns positions into an index in each indexed dimension, one row per dimension. Overwrites the positions. */
SHC_INLINE void shc_positions_spell(const struct shc_sparse *tensor, uint64_t *positions,
                                    uint64_t count, int64_t *indices)
{
    for (int d = tensor->sparse_ndim - 1; d >= 0; d--) {
        const uint64_t size = (uint64_t)tensor->sizes[d];
        for (uint64_t i = 0; i < count; i++) {
            indices[(uint64_t)d * count + i] = (int64_t)(positions[i] % size);
            positions[i] /= size;
        }
    }
}
