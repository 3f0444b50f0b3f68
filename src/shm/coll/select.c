/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/select.h"

#include "shm/base/config.h"
#include "shm/proto/layout.h"

/* How many bytes each form carries at most; the first that carries them is chosen. Where one ends is
 * measured (docs/PERFORMANCE.md). */
struct row {
    size_t inline_bytes;
    size_t small_bytes;
    size_t small_bytes_of_two; /* ranks; less where they can swap lines instead */
    size_t one_use_bytes;      /* two ranks only */
};

/* A premul factor takes 8 of the inline bytes, so that what reduces ends where that still fits. */
enum { MOVES = SHC_INLINE_BYTES, REDUCES = SHC_INLINE_BYTES - 8, SLOT = SHC_SMALL_SLOT_BYTES };

/* clang-format off */
static const struct row rows[SHC_OP_KIND_COUNT] = {
    [SHC_BROADCAST]      = {MOVES,   SLOT, SLOT, 0},
    [SHC_GATHER]         = {MOVES,   SLOT, SLOT, 0},
    [SHC_SCATTER]        = {MOVES,   SLOT, SLOT, 0},
    [SHC_REDUCE]         = {REDUCES, SLOT, SLOT, 0},
    [SHC_ALL_GATHER]     = {MOVES,   SLOT, 2048, 0},
    [SHC_REDUCE_SCATTER] = {REDUCES, SLOT,  512, 0},
    [SHC_ALL_REDUCE]     = {REDUCES, SLOT,  256, 32 << 10},
};
/* clang-format on */

enum shc_algorithm shc_select(enum shc_op_kind kind, size_t bytes, int world_size)
{
    const struct row *row = &rows[kind];
    if (bytes == 0 || kind == SHC_BARRIER)
        return SHC_ALGO_NOTHING;
    if (bytes <= row->inline_bytes)
        return SHC_ALGO_INLINE;
    if (bytes <= (world_size == 2 ? row->small_bytes_of_two : row->small_bytes))
        return SHC_ALGO_SMALL;
    return world_size == 2 && bytes <= row->one_use_bytes ? SHC_ALGO_ONE_USE : SHC_ALGO_STAGED;
}

/* Two ranks: a turn ends soon, so that the next one finds its lines in the nearest cache, until the
 * input is larger than that anyway; then fewer flags count. More ranks than CPUs: each wait is a
 * context switch, so that a turn should be long. */
#define SHORT_TURN_BYTES  (64u << 10)
#define LONG_TURNS_BEHIND (8u << 20)

size_t shc_select_turn(enum shc_op_kind kind, size_t bytes, int world_size)
{
    if (world_size > 2 || (kind == SHC_ALL_REDUCE && bytes >= LONG_TURNS_BEHIND))
        return SIZE_MAX;
    return SHORT_TURN_BYTES;
}

bool shc_select_streams(size_t bytes)
{
    const int kib = shc_config_get()->stream_kib;
    return kib >= 0 && bytes >= (size_t)kib << 10;
}
