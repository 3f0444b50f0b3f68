/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Small integer helpers. They check for overflow where an argument can come from outside.
 */

#include "shm/base/attrs.h"
#include <stdbool.h>

SHC_INLINE size_t shc_align_up(size_t v, size_t align)
{
    return (v + align - 1) & ~(align - 1); /* align: a power of two */
}

SHC_INLINE size_t shc_div_ceil(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

SHC_INLINE uint64_t shc_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

SHC_INLINE size_t shc_min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

SHC_INLINE bool shc_mul_overflows(uint64_t a, uint64_t b, uint64_t *product)
{
    return __builtin_mul_overflow(a, b, product);
}

/* Counters that run for ever are compared by signed difference only: "a has reached b" also holds
 * after the counter has wrapped. */
SHC_INLINE bool shc_reached(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) >= 0;
}
