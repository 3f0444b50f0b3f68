// SPDX-License-Identifier: BSD-3-Clause
#pragma once
//
// Stands for shm/proto/layout.h in the weak_*.cc models: relacy's words are larger than the real
// ones, so the offsets cannot be the same. The fields are.

#include "shm/base/atomic.h"

struct shc_bell_shm {
    shc_a32 flag;
    shc_a32 count;
};

// Point-to-point: one eager buffer and two of the pool, so that they are soon used again. A line carries
// one word.
#define SHC_LINE_BYTES          128
#define SHC_PAGE_BYTES          4096
#define SHC_EAGER_BUFFERS       1
#define SHC_EAGER_BYTES         sizeof(shc_word)
#define SHC_HAND_OFF_RANKS      8
#define SHC_POOL_RANKS          2
#define SHC_LONG_HAND_OFF_BYTES (2 * sizeof(shc_word))
#define SHC_POOL_BUFFERS        2
#define SHC_POOL_BYTES          sizeof(shc_word)
#define SHC_CREDIT_BUFFERS      1
#define SHC_ASIDE_PAUSE         1

#define SHC_LINE_OF_HIGHER      (UINT64_C(1) << 63)
#define SHC_LINE_DATA_BYTES     (sizeof(shc_word) - 1) // so that no message is short
#define SHC_HAND_OFF_LINE_BYTES 0

enum shc_memory {
    SHC_IN_LINE,
    SHC_IN_EAGER,
    SHC_IN_HAND_OFF,
    SHC_IN_LONG_HAND_OFF,
    SHC_IN_POOL,
    SHC_MEMORIES
};

struct shc_place {
    uint8_t memory;
    uint8_t index;
};

struct shc_line_shm {
    shc_a64 number;
    shc_word word;
};

struct shc_ack_shm {
    shc_a64 taken;
    shc_a32 eager[SHC_EAGER_BUFFERS];
    shc_a64 pool;
    shc_a32 credit;
    shc_a32 aside;
};
