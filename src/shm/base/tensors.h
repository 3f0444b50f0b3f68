/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Copies of what a descriptor refers to: an operation that is submitted outlives its caller's lists.
 */

#include "shm/shmcoll.h"

#include "shm/base/attrs.h"

#include <string.h>

/* Room for the copies of a list's tensors and of their sizes and strides. */
SHC_INLINE size_t shc_tensors_room(const struct shc_tensors *tensors)
{
    size_t bytes = tensors->count * sizeof(struct shc_tensor);
    for (uint32_t i = 0; i < tensors->count; i++)
        if (tensors->list[i].ndim > 0)
            bytes += 2 * (size_t)tensors->list[i].ndim * sizeof(int64_t);
    return bytes;
}

SHC_INLINE const int64_t *shc_tensors_copy_dims(const int64_t *dims, int32_t ndim, char **at)
{
    if (!dims || ndim <= 0)
        return NULL;
    const size_t bytes = (size_t)ndim * sizeof *dims;
    int64_t *copy = (int64_t *)memcpy(*at, dims, bytes);
    *at += bytes;
    return copy;
}

/* Copies the list to *at, which moves to the end of the copy. pre: there is room, aligned for a tensor. */
SHC_INLINE void shc_tensors_copy(struct shc_tensors *tensors, char **at)
{
    struct shc_tensor *list = (struct shc_tensor *)(void *)*at;
    *at += tensors->count * sizeof *list;
    for (uint32_t i = 0; i < tensors->count; i++) {
        list[i] = tensors->list[i];
        list[i].sizes = shc_tensors_copy_dims(list[i].sizes, list[i].ndim, at);
        list[i].strides = shc_tensors_copy_dims(list[i].strides, list[i].ndim, at);
    }
    tensors->list = list;
}
