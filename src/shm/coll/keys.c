/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/keys.h"

#include "shm/coll/select.h"
#include "shm/proto/layout.h"

#include <string.h>

enum { SLOT = SHC_SMALL_SLOT_BYTES, HAND_OFF = SHC_HAND_OFF_SLOT_BYTES, LINE = SHC_LINE_BYTES };
enum { CELL = SHC_ARENA_MAX_CELL_BYTES, LEAST = SHC_ARENA_MIN_CELL_BYTES };
#define MANY ((size_t)1 << 40)

#define FIELD(name) offsetof(struct shc_tuning, name)

const struct shc_key shc_keys[SHC_KEYS] = {
    {"inline", FIELD(inline_bytes), 0, SHC_INLINE_BYTES, .multiple = 1},
    {"small", FIELD(small_bytes), 0, SLOT, .multiple = 1},
    {"small_of_two", FIELD(small_of_two_bytes), 0, SLOT, .multiple = 1},
    {"handoff", FIELD(handoff_bytes), 0, HAND_OFF, .multiple = 1},
    {"all_reduce.direct_exchange", FIELD(direct_exchange_bytes), 0, CELL, .multiple = 1},
    {"all_reduce.two_phase_from", FIELD(two_phase_bytes), 0, MANY, .multiple = 1, .has_never = true,
     .has_auto = true},
    {"reduce.two_phase_from", FIELD(two_phase_reduce_bytes), 0, MANY, .multiple = 1,
     .has_never = true, .has_auto = true},
    {"reduce.scatter_gather_from", FIELD(scatter_gather_bytes), 0, MANY, .multiple = 1,
     .has_never = true, .has_auto = true},
    {"turn", FIELD(turn_bytes), LEAST, CELL, .multiple = LINE},
    {"all_reduce.unpipelined_from", FIELD(unpipelined_bytes), 0, MANY, .multiple = 1,
     .has_never = true},
    {"all_reduce.push_from", FIELD(push_bytes), 1, MANY, .multiple = 1, .has_never = true},
    {"chunk", FIELD(arena.chunk_bytes), 2 * LEAST, 256 * CELL, .multiple = 1, .has_auto = true},
    {"depth", FIELD(arena.depth), 2, SHC_ARENA_MAX_DEPTH, .multiple = 1},
    {"broadcast_slot", FIELD(arena.bcast_slot_bytes), LEAST, CELL, .multiple = LINE},
    {"broadcast_depth", FIELD(arena.bcast_slot_depth), 2, SHC_ARENA_MAX_BCAST_SLOT_DEPTH,
     .multiple = 1, .has_auto = true},
    {"flag_latency", FIELD(flag_bytes), 1, CELL, .multiple = 1},
    {"staging.non_temporal_from", FIELD(staging_non_temporal_bytes), 0, MANY, .multiple = 1,
     .has_never = true, .may_differ = true},
    {"output.non_temporal_from", FIELD(output_non_temporal_bytes), 0, MANY, .multiple = 1,
     .has_never = true, .may_differ = true},
    {"prefetch_up_to", FIELD(prefetch_bytes), 0, MANY, .multiple = 1, .has_never = true,
     .may_differ = true},
    {"scatter.single_copy_from", FIELD(single_copy_bytes), 1, MANY, .multiple = 1,
     .has_never = true, .has_auto = true},
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
