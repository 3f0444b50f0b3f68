/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/keys.h"

#include "shm/coll/select.h"
#include "shm/proto/layout.h"

#include <string.h>

enum { SLOT = SHC_SMALL_SLOT_BYTES, HAND_OFF = SHC_HAND_OFF_SLOT_BYTES, LINE = SHC_LINE_BYTES };
enum { CELL = SHC_ARENA_MAX_CELL_BYTES, LEAST = SHC_ARENA_MIN_CELL_BYTES };
#define MANY ((size_t)1 << 40)

/* The field, and which values it may have. */
#define FROM_TO(field, least, most)                                                      \
    .offset = offsetof(struct shc_tuning, field), .minimum = (least), .maximum = (most), \
    .multiple = 1
#define OF_LINES(field, least, most)                                                     \
    .offset = offsetof(struct shc_tuning, field), .minimum = (least), .maximum = (most), \
    .multiple = LINE
#define LIMIT(field, least) FROM_TO(field, least, MANY), .has_never = true
#define AUTO(words)         .has_auto = true, .otherwise = words

/* S: bytes of one rank's input. p: ranks. */
const struct shc_key shc_keys[SHC_KEYS] = {
    {
        "inline",
        FROM_TO(inline_bytes, 0, SHC_INLINE_BYTES),
        .sets = "Inputs up to this size travel in the call line. Operations that reduce "
                "stop at 40 bytes.",
        .row = "all_reduce, broadcast, 8 to 48 bytes",
    },
    {
        "small",
        FROM_TO(small_bytes, 0, SLOT),
        .sets = "More than two ranks: inputs up to this size take one round over the "
                "small slots.",
        .row = "all_reduce, all_gather, 256 to 8k, 3 ranks and more",
    },
    {
        "small_of_two",
        FROM_TO(small_of_two_bytes, 0, SLOT),
        .sets = "Two ranks: all_reduce, all_gather and a block of all_to_all use the "
                "small slots up to this size, reduce_scatter up to half of it.",
        .row = "all_reduce, reduce_scatter, all_gather, 512 to 8k, 2 ranks",
    },
    {
        "handoff",
        FROM_TO(handoff_bytes, 0, HAND_OFF),
        .sets = "Two ranks: inputs up to this size go through one hand-off buffer in "
                "broadcast, gather, scatter and reduce.",
        .row = "broadcast, reduce, 1k to 64k, 2 ranks",
    },
    {
        "all_reduce.direct_exchange",
        FROM_TO(direct_exchange_bytes, 0, CELL),
        .sets = "Two ranks: up to this size each rank reads the other's whole input from "
                "one cell, and both reduce all of it.",
        .row = "all_reduce, 8k to 128k, 2 ranks",
    },
    {
        "all_reduce.two_phase_from",
        LIMIT(two_phase_bytes, 0),
        AUTO("3k; never with more ranks than CPUs"),
        .sets = "More than two ranks, S up to small: each rank reduces one slice, if it "
                "then reads this many bytes less, S (p - 1) (p - 2) / p.",
        .row = "all_reduce, 512 to 8k, 3 ranks and more",
    },
    {
        "reduce.two_phase_from",
        LIMIT(two_phase_reduce_bytes, 0),
        AUTO("20k; never with more ranks than CPUs"),
        .sets = "More than two ranks, S up to small: each rank reduces one slice for the "
                "root, if the root then reads this many bytes less, S (p - 1) (p - 2) / "
                "p.",
        .row = "reduce, 512 to 8k, 3 ranks and more",
    },
    {
        "reduce.scatter_gather_from",
        LIMIT(scatter_gather_bytes, 0),
        AUTO("48k; never with more ranks than CPUs"),
        .sets = "More than three ranks, S above small: reduce-scatter, then gather at the "
                "root, if the root then moves this many bytes less, S (p - 3).",
        .row = "reduce, 16k to 1m, 4 ranks and more",
    },
    {
        "turn",
        OF_LINES(turn_bytes, LEAST, CELL),
        .sets = "Two ranks: bytes of a cell that one step fills. Reduction threads raise it.",
        .row = "all_reduce, 128k to 4m, 2 ranks",
    },
    {
        "all_reduce.unpipelined_from",
        LIMIT(unpipelined_bytes, 0),
        .sets = "Two ranks with a CPU each: from this S on, one chunk is in flight at a "
                "time. A step fills whole cells from this S on, or from 8m if that is "
                "less.",
        .row = "all_reduce, 2m to 32m, 2 ranks",
    },
    {
        "all_reduce.push_from",
        LIMIT(push_bytes, 1),
        .sets =
            "From this S on, where an all_reduce is pipelined or unpipelined: each rank stores its "
            "slice of the result into the tensors of all, if all have theirs in shared memory.",
        .row = "none; `benchmarks/push.c`",
    },
    {
        "chunk",
        FROM_TO(arena.chunk_bytes, 2 * LEAST, 256 * CELL),
        AUTO("256k; 128k with more than four ranks"),
        .sets = "Bytes of a chunk, the slices of all ranks together. A cell holds one slice, 2k to "
                "128k. Reduction threads raise it.",
        .row = "all_reduce, 128k to 4m, 3 ranks and more",
    },
    {
        "depth",
        FROM_TO(arena.depth, 2, SHC_ARENA_MAX_DEPTH),
        .sets = "Chunks in flight between two ranks, except where all_reduce is unpipelined.",
        .row = "all_reduce, 128k to 4m",
    },
    {
        "broadcast_slot",
        OF_LINES(arena.bcast_slot_bytes, LEAST, CELL),
        .sets = "Bytes of a broadcast slot, which one rank fills and all others read. Reduction "
                "threads raise it.",
        .row = "broadcast, 128k to 4m",
    },
    {
        "broadcast_depth",
        FROM_TO(arena.bcast_slot_depth, 2, SHC_ARENA_MAX_BCAST_SLOT_DEPTH),
        AUTO("24; 4 with more than four ranks"),
        .sets = "Broadcast slots of each rank. Three and four ranks share twice as many.",
        .row = "broadcast, 128k to 4m",
    },
    {
        "flag_latency",
        FROM_TO(flag_bytes, 1, CELL),
        .sets = "Two ranks: bytes copied during the one-way latency of a flag. A message goes in "
                "pieces of about sqrt(S * flag_latency).",
        .row = "broadcast, 64k to 1m, 2 ranks",
    },
    {
        "staging.non_temporal_from",
        LIMIT(staging_non_temporal_bytes, 0),
        .may_differ = true,
        .sets = "From this S on, one-way operations and messages may use non-temporal "
                "stores to staging memory, where these are measured to be faster.",
        .row = "broadcast, 16k to 1m",
    },
    {
        "output.non_temporal_from",
        LIMIT(output_non_temporal_bytes, 0),
        .may_differ = true,
        .otherwise = "half of the cache that CPUs share; 16m if its size is unknown",
        .sets = "From this size on, outputs are stored non-temporally where two ranks "
                "exchange cells; elsewhere from twice this size on.",
        .row = "all_to_all, 8m to 32m, 2 ranks",
    },
    {
        "prefetch_up_to",
        LIMIT(prefetch_bytes, 0),
        .may_differ = true,
        .otherwise = "32k; 512 on Zen 5",
        .sets = "Up to this S, a rank that takes nothing prefetches the lines that it "
                "stores to next, once the others have read them.",
        .row = "broadcast, 256 to 64k, 2 ranks",
    },
    {
        "scatter.single_copy_from",
        LIMIT(single_copy_bytes, 1),
        AUTO("8m; 512k with more than four ranks"),
        .sets =
            "3 to 126 ranks: a scatter with this many bytes for others is copied by them from the "
            "root's memory (CMA).",
        .row = "scatter, 512k to 16m, 3 ranks and more",
    },
};

/* A name that begins with a dot: of every operation, except those before it. */
static const struct {
    const char *name, *instead;
} retired[] = {
    {"broadcast.small_of_two", "handoff"},
    {"gather.small_of_two", "handoff"},
    {"scatter.small_of_two", "handoff"},
    {"reduce.small_of_two", "handoff"},
    {".small_of_two", "small_of_two"},
    {".inline", "inline"},
    {".small", "small"},
    {"all_reduce.one_use", "all_reduce.direct_exchange"},
    {"all_reduce.sliced_from", "all_reduce.two_phase_from"},
    {"all_reduce.sliced_from_crowded", "all_reduce.two_phase_from"},
    {"reduce.sliced_from", "reduce.two_phase_from"},
    {"reduce.sliced_from_crowded", "reduce.two_phase_from"},
    {"reduce.spread_from", "reduce.scatter_gather_from"},
    {"reduce.spread_from_crowded", "reduce.scatter_gather_from"},
    {"long_turn_from", "all_reduce.unpipelined_from"},
    {"lockstep_from", "all_reduce.unpipelined_from"},
    {"chunk_of_many", "chunk"},
    {"shout", "broadcast_slot"},
    {"shout_depth", "broadcast_depth"},
    {"shout_depth_of_many", "broadcast_depth"},
    {"flag", "flag_latency"},
    {"stream", "staging.non_temporal_from"},
    {"stream_out", "output.non_temporal_from"},
    {"ask_ahead", "prefetch_up_to"},
    {"scatter.cma", "scatter.single_copy_from"},
    {"scatter.cma_of_many", "scatter.single_copy_from"},
};

const char *shc_key_instead_of(const char *name)
{
    const char *dot = strchr(name, '.');
    for (size_t i = 0; i < sizeof retired / sizeof retired[0]; i++)
        if (strcmp(retired[i].name, retired[i].name[0] == '.' && dot ? dot : name) == 0)
            return retired[i].instead;
    return NULL;
}
