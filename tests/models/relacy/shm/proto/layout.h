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

// Point-to-point: one window, so that it is soon used again. A line carries one word.
#define SHC_LINE_BYTES     128
#define SHC_PAGE_BYTES     4096
#define SHC_WINDOWS        1
#define SHC_WINDOW_BYTES   sizeof(shc_word)
#define SHC_SHUTTLE_RANKS  8
#define SHC_SHUTTLE_OURS   1
#define SHC_SHUTTLE_THEIRS 2
#define SHC_BULK_RANKS     2
#define SHC_FERRY_OURS     3
#define SHC_FERRY_THEIRS   4
#define SHC_FERRY_BYTES    (2 * sizeof(shc_word))
#define SHC_BULK_NAME      5
#define SHC_BULK_WINDOWS   2
#define SHC_BULK_BYTES     sizeof(shc_word)
#define SHC_WINDOW_NAMES   7
#define SHC_ASIDE_WINDOWS  1
#define SHC_ASIDE_PAUSE    1
#define SHC_NO_WINDOW      255

#define SHC_LINE_OF_HIGHER     (UINT64_C(1) << 63)
#define SHC_LINE_DATA_BYTES    (sizeof(shc_word) - 1) // so that no message is short
#define SHC_SHUTTLE_LINE_BYTES 0

struct shc_line_shm {
    shc_a64 number;
    shc_word word;
};

struct shc_ack_shm {
    shc_a64 taken;
    shc_a32 windows[SHC_WINDOWS];
    shc_a32 bulk;
    shc_a32 whole;
    shc_a32 aside;
};
