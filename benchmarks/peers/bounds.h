/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/* What the bounds share among themselves. */
#include "peers.h"

#include <shm/base/atomic.h>

#define BLOCK_BYTES ((size_t)256 << 10)
#define RING_BYTES  ((size_t)1536 << 10)

/* Two blocks, a ring and two flags that all ranks see. */
struct shared {
    _Alignas(128) shc_a64 flag[2][16];
    _Alignas(4096) uint64_t block[2][BLOCK_BYTES / 8];
    _Alignas(4096) char ring[RING_BYTES];
};

/* Made once, by all ranks together; freed when the processes end. */
struct shared *shared(void);

/* The median over turns of the slowest rank's seconds; all ranks call it. */
double median_of_slowest(double *seconds, int count);
