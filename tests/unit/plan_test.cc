// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/coll/plan.h"
#include "shm/coll/select.h"
#include "shm/coll/task.h"
#include "shm/os/numa.h"
#include "shm/proto/arena.h"
}

#include <gtest/gtest.h>
#include <set>
#include <string>
#include <vector>

namespace
{

// The default limits in a group of so many ranks.
shc_tuning defaults(int world)
{
    shc_tuning tuning = shc_tuning_default(0, 0);
    shc_select_settle(&tuning, world, 0, false);
    return tuning;
}

shc_arena_geometry plan(int world, size_t limit, unsigned parts)
{
    const shc_tuning tuning = defaults(world);
    return shc_arena_plan(world, limit, &tuning.arena, parts);
}

TEST(Plan, ChunksCoverTheMessageWithoutOverlap)
{
    for (size_t total : {1u, 100u, 4096u, 4097u, 100000u}) {
        for (size_t chunk : {64u, 100u, 4096u}) {
            size_t next = 0;
            uint64_t count = shc_plan_chunk_count(total, chunk);
            for (uint64_t k = 0; k < count; k++) {
                shc_span span = shc_plan_chunk(total, chunk, k);
                EXPECT_EQ(span.offset, next);
                EXPECT_GT(span.bytes, 0u);
                EXPECT_LE(span.bytes, chunk);
                next += span.bytes;
            }
            EXPECT_EQ(next, total);
            EXPECT_EQ(shc_plan_chunk(total, chunk, count).bytes, 0u);
            EXPECT_EQ(shc_plan_chunk(total, chunk, count + 3).offset, total);
        }
    }
}

TEST(Plan, FreePlacesAreThoseThatNoChunkHasComeRoundTo)
{
    EXPECT_EQ(shc_plan_free_bytes(1, 4, 100, 1000), 300u);
    EXPECT_EQ(shc_plan_free_bytes(3, 4, 100, 1000), 100u);
    EXPECT_EQ(shc_plan_free_bytes(3, 4, 100, SIZE_MAX), 100u);
    EXPECT_EQ(shc_plan_free_bytes(3, 4, 100, 99), 99u);
    EXPECT_EQ(shc_plan_free_bytes(4, 4, 100, 1000), 0u);
    EXPECT_EQ(shc_plan_free_bytes(5, 4, 100, SIZE_MAX), 0u);
    EXPECT_EQ(shc_plan_free_bytes(UINT64_MAX, 4, 100, 1000), 0u);
    EXPECT_EQ(shc_plan_free_bytes(1, 2, 100, 0), 0u);
}

TEST(Plan, SlicesCoverAChunkAndBeginOnWholeLines)
{
    for (int world : {1, 2, 3, 7, 64}) {
        for (size_t bytes : {1u, 8u, 127u, 128u, 129u, 5000u, 131072u}) {
            shc_span chunk = {1000, bytes};
            size_t next = chunk.offset;
            for (int rank = 0; rank < world; rank++) {
                shc_span slice = shc_plan_slice(chunk, world, rank);
                EXPECT_EQ(slice.offset, next);
                if (slice.bytes > 0) {
                    EXPECT_EQ((slice.offset - chunk.offset) % SHC_LINE_BYTES, 0u);
                }
                next += slice.bytes;
            }
            EXPECT_EQ(next, chunk.offset + bytes);
        }
    }
}

TEST(Plan, NoSliceIsLargerThanACellOfAFullChunk)
{
    for (int world = 2; world <= 64; world++) {
        shc_arena_geometry g = plan(world, 32u << 20, SHC_ARENA_WHOLE);
        if (g.depth == 0)
            continue;
        size_t chunk_bytes = g.cell_bytes * static_cast<size_t>(world);
        for (size_t bytes : {chunk_bytes, chunk_bytes - 1, chunk_bytes / 2 + 1, size_t{1}})
            for (int rank = 0; rank < world; rank++)
                EXPECT_LE(shc_plan_slice({0, bytes}, world, rank).bytes, g.cell_bytes)
                    << "world " << world << " bytes " << bytes;
    }
}

TEST(Plan, StepsGrowInProgramOrder)
{
    uint64_t last = 0;
    for (uint64_t k = 0; k < 1000; k++) {
        EXPECT_GT(shc_plan_step_out(k), last);
        last = shc_plan_step_out(k);
        if (k > 0) {
            EXPECT_GT(shc_plan_step_work(k - 1), last);
            last = shc_plan_step_work(k - 1);
        }
    }
    last = 0;
    for (uint64_t k = 0; k < 1000; k++) {
        EXPECT_GT(shc_plan_unpipelined_out(k), last);
        EXPECT_GT(shc_plan_unpipelined_work(k), shc_plan_unpipelined_out(k));
        last = shc_plan_unpipelined_work(k);
    }
}

// As it is when operations have asked for these parts long.
shc_arena arena_of(int world, unsigned parts)
{
    shc_arena arena = {};
    const shc_tuning tuning = defaults(world);
    shc_arena_init(&arena, world, size_t{256} << 20, &tuning.arena);
    shc_arena_want(&arena, world, parts);
    return arena;
}

const unsigned kAllParts[] = {0, SHC_ARENA_CELLS, SHC_ARENA_BCAST_SLOTS, SHC_ARENA_WHOLE};

void expect_cells_of_its_own(unsigned parts)
{
    for (int world : {2, 3, 4, 5, 8, 17, 64}) {
        shc_arena arena = arena_of(world, parts);
        const shc_arena_geometry &g = arena.geometry;
        ASSERT_GT(g.depth, 0u);
        std::set<char *> begins;
        for (int a = 0; a < world; a++) {
            for (int b = a + 1; b < world; b++) {
                for (uint32_t slot = 0; slot < g.depth; slot++) {
                    char *begin = shc_arena_cells(&arena, a, b, world, slot);
                    EXPECT_EQ(begin, shc_arena_cells(&arena, b, a, world, slot)) << a << " " << b;
                    EXPECT_TRUE(begins.insert(begin).second) << "shared: " << a << " " << b;
                    size_t offset = static_cast<size_t>(begin - arena.segment.base);
                    EXPECT_EQ(offset % g.range_bytes % (2 * g.cell_bytes), 0u);
                    const int host = static_cast<int>(offset / g.range_bytes);
                    const shc_arena_extent extent = shc_arena_extent_of(&g, world, host);
                    EXPECT_GE(offset, extent.offset);
                    EXPECT_LE(offset + 2 * g.cell_bytes, extent.offset + extent.bytes);
                }
            }
        }
    }
}

TEST(Arena, EveryPairHasCellsOfItsOwnInsideWhatItsHostReserves)
{
    for (unsigned parts : kAllParts)
        expect_cells_of_its_own(parts);
}

// Byte by byte: what the operation before has used, and where the next ones may store early.
TEST(Arena, APlaceIsFreeWhereTheOperationBeforeUsedNoByteOfIt)
{
    const uint64_t epoch = 7;
    for (size_t ring = 1; ring <= 6; ring++)
        for (size_t first = 0; first < ring; first++)
            for (size_t used = 1; used <= 2 * ring; used++) {
                shc_arena arena = {};
                arena.in_bcast_slots = {epoch - 1, first, used, ring, -1, -1};
                std::set<size_t> bytes;
                for (size_t i = 0; i < used; i++)
                    bytes.insert((first + i) % ring);
                EXPECT_EQ(shc_arena_places_end(&arena.in_bcast_slots), (first + used) % ring);
                for (size_t at = 0; at < 8; at++)
                    for (size_t size = 1; size <= 3; size++) {
                        bool clear = used < ring;
                        for (size_t i = at; i < at + size; i++)
                            clear = clear && bytes.count(i) == 0;
                        EXPECT_EQ(shc_arena_is_free(&arena, epoch, -1, at, size), clear)
                            << ring << " " << first << " " << used << " " << at << " " << size;
                        EXPECT_TRUE(shc_arena_is_free(&arena, epoch + 1, -1, at, size));
                    }
            }
}

// Slots of different owners are different places, unless in one of the two flows each rank uses its own.
TEST(Arena, APlaceOfAnotherOwnerIsFree)
{
    for (int last : {-1, 0, 1})
        for (int owner : {-1, 0, 1}) {
            shc_arena arena = {};
            arena.in_bcast_slots = {6, 0, 128, 1024, last, last};
            const bool apart = last >= 0 && owner >= 0 && last != owner;
            EXPECT_EQ(shc_arena_is_free(&arena, 7, owner, 0, 128), apart) << last << " " << owner;
            EXPECT_TRUE(shc_arena_is_free(&arena, 7, owner, 128, 128));
        }
}

TEST(Arena, NoPlaceIsFreeBehindAnExchange)
{
    shc_arena arena = {};
    shc_exchange_note(&arena, 6);
    EXPECT_FALSE(shc_arena_is_free(&arena, 6, -1, 0, 64));
    EXPECT_FALSE(shc_arena_is_free(&arena, 7, -1, 0, 64));
    EXPECT_TRUE(shc_arena_is_free(&arena, 8, -1, 0, 64));
    EXPECT_EQ(arena.stored_epoch, 6u);
    EXPECT_EQ(shc_arena_places_end(&arena.in_bcast_slots), 0u) << "nobody has in_bcast_slots";
}

// These are stored to before the ranks have met, when others may still read an earlier broadcast slot.
void expect_slot_zero_alone(unsigned parts)
{
    for (int world : {2, 3, 4, 5, 8, 17, 64}) {
        shc_arena arena = arena_of(world, parts);
        const shc_arena_geometry &g = arena.geometry;
        for (int a = 0; a < world; a++)
            for (int b = a + 1; b < world; b++) {
                char *end = shc_arena_cells(&arena, a, b, world, 0) + 2 * g.cell_bytes;
                size_t in_range = static_cast<size_t>(end - 1 - arena.segment.base) % g.range_bytes;
                EXPECT_LT(in_range, static_cast<size_t>(shc_arena_bcast_slots(&arena, 0) -
                                                        arena.segment.base));
            }
        for (int rank = 0; rank < world; rank++) {
            const shc_arena_extent extent = shc_arena_extent_of(&g, world, rank);
            const size_t bcast_slots =
                static_cast<size_t>(shc_arena_bcast_slots(&arena, rank) - arena.segment.base);
            EXPECT_GE(bcast_slots, extent.offset);
            EXPECT_LE(bcast_slots + g.bcast_slot_depth * g.bcast_slot_bytes,
                      extent.offset + extent.bytes);
            EXPECT_LE(extent.offset + extent.bytes,
                      g.range_bytes * (static_cast<size_t>(rank) + 1));
        }
    }
}

TEST(Arena, NoBcastSlotSlotLiesOverACellOfSlotZeroNorBeyondWhatIsReserved)
{
    for (unsigned parts : kAllParts)
        expect_slot_zero_alone(parts);
}

size_t reserved_bytes(int world, unsigned parts)
{
    const shc_arena_geometry g = plan(world, size_t{256} << 20, parts);
    size_t sum = 0;
    for (int rank = 0; rank < world; rank++)
        sum += shc_arena_extent_of(&g, world, rank).bytes;
    return sum;
}

// docs/operate/memory.md says so.
TEST(Arena, AGroupReservesNoMoreThanItsLongestOperationsNeed)
{
    EXPECT_LE(reserved_bytes(2, 0), size_t{160} << 10);
    EXPECT_LE(reserved_bytes(2, SHC_ARENA_CELLS), size_t{800} << 10);
    EXPECT_LE(reserved_bytes(8, 0), size_t{1280} << 10);
    for (int world = 2; world <= 64; world++) {
        EXPECT_LE(reserved_bytes(world, 0), reserved_bytes(world, SHC_ARENA_CELLS)) << world;
        EXPECT_LE(reserved_bytes(world, 0), reserved_bytes(world, SHC_ARENA_BCAST_SLOTS)) << world;
        EXPECT_LE(reserved_bytes(world, SHC_ARENA_CELLS), reserved_bytes(world, SHC_ARENA_WHOLE));
    }
}

TEST(Arena, WhatIsWantedOnceStaysLong)
{
    shc_arena arena = arena_of(2, 0);
    const size_t small = arena.geometry.range_bytes;
    shc_arena_want(&arena, 2, SHC_ARENA_CELLS);
    EXPECT_EQ(arena.geometry.cell_bytes, size_t{128} << 10);
    EXPECT_EQ(arena.geometry.bcast_slot_bytes, size_t{8} << 10);
    shc_arena_want(&arena, 2, 0);
    EXPECT_EQ(arena.geometry.cell_bytes, size_t{128} << 10);
    shc_arena_want(&arena, 2, SHC_ARENA_BCAST_SLOTS);
    EXPECT_EQ(arena.geometry.cell_bytes, size_t{128} << 10);
    EXPECT_EQ(arena.geometry.bcast_slot_bytes, size_t{64} << 10);
    EXPECT_GT(arena.geometry.range_bytes, 10 * small);
}

TEST(Arena, WhereTheLimitLeavesNothingLongerNoOtherOneIsMade)
{
    shc_arena arena = {};
    shc_arena_sizes wish = defaults(4).arena;
    wish.depth = 2;
    shc_arena_init(&arena, 4, shc_arena_least_limit(4), &wish);
    arena.made = arena.tried = true; // as if the ranks had made it
    arena.parity[1][0] = 1;
    const size_t cell_bytes = arena.geometry.cell_bytes;
    shc_arena_want(&arena, 4, SHC_ARENA_WHOLE);
    EXPECT_TRUE(arena.made && arena.tried);
    EXPECT_EQ(arena.geometry.cell_bytes, cell_bytes);
    EXPECT_EQ(arena.parity[1][0], 1);
}

// "a-b:nodes", bits of nodes, in units of a cell and from the range's beginning on.
std::vector<std::string> homes_of(const shc_arena_geometry &g, const std::vector<int8_t> &node_of,
                                  int rank)
{
    shc_arena_home homes[SHC_ARENA_MOST_HOMES];
    const int world = static_cast<int>(node_of.size());
    const int count = shc_arena_homes(&g, world, rank, node_of.data(), homes);
    const shc_arena_extent extent = shc_arena_extent_of(&g, world, rank);
    size_t at = extent.offset;
    std::vector<std::string> texts;
    for (int i = 0; i < count; i++) {
        EXPECT_EQ(homes[i].offset, at) << "a gap, or an overlap";
        at += homes[i].bytes;
        const size_t first = homes[i].offset - static_cast<size_t>(rank) * g.range_bytes;
        texts.push_back(std::to_string(first / g.cell_bytes) + "-" +
                        std::to_string((first + homes[i].bytes) / g.cell_bytes) + ":" +
                        std::to_string(homes[i].nodes));
    }
    EXPECT_EQ(at, extent.offset + extent.bytes) << "the whole extent";
    return texts;
}

// MEM-15: two cells for each pair, then cells and broadcast slots, then broadcast slots alone.
TEST(Arena, APartsMemoryIsFromTheNodesOfTheRanksThatReadIt)
{
    using Texts = std::vector<std::string>;
    shc_arena_geometry g = {};
    g.depth = 2;
    g.cell_bytes = 4096;
    g.bcast_slot_depth = 8;
    g.bcast_slot_bytes = 4096;
    g.pairs_hosted = 1;
    g.range_bytes = 10 * 4096;
    // Rank 0 has the cells of both. Its other slots only rank 1 reads.
    EXPECT_EQ(homes_of(g, {0, 1}, 0), (Texts{"0-4:3", "4-10:2"}));
    EXPECT_EQ(homes_of(g, {0, 1}, 1), (Texts{"2-10:1"}));
    EXPECT_EQ(homes_of(g, {5, 5}, 0), (Texts{"0-10:32"}));
    EXPECT_EQ(homes_of(g, {-1, -1}, 0), (Texts{"0-10:0"}));
    EXPECT_EQ(homes_of(g, {-1, 0}, 0), (Texts{"0-10:1"}));
    EXPECT_EQ(homes_of(g, {-1, 0}, 1), (Texts{"2-10:0"}));
    // Of four ranks on two nodes each has the cells of pairs with the next two.
    g.pairs_hosted = 2;
    g.range_bytes = 12 * 4096;
    EXPECT_EQ(homes_of(g, {0, 0, 1, 1}, 0), (Texts{"0-2:1", "2-12:3"}));
    EXPECT_EQ(homes_of(g, {0, 0, 1, 1}, 1), (Texts{"0-12:3"}));
    EXPECT_EQ(homes_of(g, {0, 1, 1, 1}, 0), (Texts{"0-8:3", "8-12:2"}));
    for (int world : {2, 3, 64, SHC_MAX_WORLD}) { // every rank on another node than the next
        std::vector<int8_t> node_of;
        for (int rank = 0; rank < world; rank++)
            node_of.push_back(static_cast<int8_t>(rank % SHC_NUMA_MAX_NODES));
        const shc_arena_geometry whole = plan(world, size_t{256} << 20, SHC_ARENA_WHOLE);
        for (int rank = 0; rank < world; rank++)
            homes_of(whole, node_of, rank);
    }
}

// docs/notebook/waiting-and-start-up.md: with the first segment, less than 4 MiB and 64 KiB a rank.
TEST(Arena, EightRanksStageInThreeMebibytes)
{
    shc_arena_geometry g = plan(8, size_t{256} << 20, SHC_ARENA_WHOLE);
    EXPECT_LE(8 * g.range_bytes, size_t{3} << 20);
    EXPECT_EQ(g.cell_bytes, size_t{16} << 10) << "nothing was cut";
    EXPECT_EQ(g.bcast_slot_bytes, size_t{64} << 10) << "nothing was cut";
}

TEST(Arena, BothSidesOfAUseNameTheSameCells)
{
    shc_arena low = arena_of(4, SHC_ARENA_CELLS), high = arena_of(4, SHC_ARENA_CELLS);
    for (int use = 0; use < 5; use++) {
        char *mine = shc_exchange_write_cell(&low, 1, 3, 4, 2);
        char *theirs = shc_exchange_read_cell(&low, 1, 3, 4, 2);
        EXPECT_NE(mine, theirs);
        EXPECT_EQ(mine, shc_exchange_read_cell(&high, 3, 1, 4, 2));
        EXPECT_EQ(theirs, shc_exchange_write_cell(&high, 3, 1, 4, 2));
        shc_exchange_swap(&low, 3, 2);
        shc_exchange_swap(&high, 1, 2);
        EXPECT_EQ(shc_exchange_write_cell(&low, 1, 3, 4, 2), theirs) << "who has read is next";
    }
}

// Tensors that are not contiguous go through one half of the scratch, piece by piece.
TEST(Arena, APieceFitsHalfOfTheScratch)
{
    for (int world = 2; world <= SHC_MAX_WORLD; world++) {
        shc_arena_geometry g = plan(world, size_t{1} << 40, SHC_ARENA_WHOLE);
        EXPECT_LE(g.cell_bytes, size_t{SHC_SCRATCH_BYTES} / 2) << world;
        EXPECT_LE(g.bcast_slot_bytes, size_t{SHC_SCRATCH_BYTES} / 2) << world;
    }
}

TEST(Arena, StaysWithinItsLimitOrDoesWithout)
{
    for (int world = 2; world <= SHC_MAX_WORLD; world++) {
        for (size_t limit : {size_t{0}, size_t{1} << 20, size_t{8} << 20, size_t{32} << 20}) {
            shc_arena_geometry g = plan(world, limit, SHC_ARENA_WHOLE);
            EXPECT_LE(g.range_bytes * static_cast<size_t>(world), limit);
            if (g.depth > 0) {
                EXPECT_GE(g.depth, 2u);
                EXPECT_LE(g.depth, static_cast<uint32_t>(SHC_ARENA_MAX_DEPTH));
                EXPECT_EQ(g.cell_bytes % SHC_LINE_BYTES, 0u);
            }
        }
    }
}

// With the usual limit every group that can be made has an arena with all slots that the default limits wish for.
TEST(Arena, FitsTheUsualLimitInEveryWorld)
{
    for (int world = 2; world <= SHC_MAX_WORLD; world++) {
        const size_t limit = shc_arena_usual_limit(world);
        const auto g = plan(world, limit, SHC_ARENA_WHOLE);
        EXPECT_EQ(g.depth, defaults(world).arena.depth) << world;
        EXPECT_EQ(g.bcast_slot_bytes, defaults(world).arena.bcast_slot_bytes) << world;
        EXPECT_EQ(limit > size_t{32} << 20, world > 73) << world;
    }
}

TEST(Arena, TheLeastLimitIsTheLeast)
{
    for (int world = 2; world <= SHC_MAX_WORLD; world++)
        for (unsigned parts : kAllParts) {
            const size_t least = shc_arena_least_limit(world);
            EXPECT_GT(plan(world, least, parts).depth, 0u) << world;
            EXPECT_EQ(plan(world, least - 1, parts).depth, 0u) << world;
        }
}

// Fewer slots first, then shorter ones, then shorter cells.
TEST(Arena, MakesTheMostOfASmallLimit)
{
    const struct {
        int world;
        size_t limit_kib, cell_bytes, bcast_slot_kib;
        uint32_t bcast_slot_depth;
    } cases[] = {{2, 3000, 131072, 64, 19}, {2, 1536, 131072, 64, 8}, {2, 1024, 65536, 64, 6},
                 {2, 150, 8192, 8, 4},      {2, 72, 2048, 8, 4},      {3, 120, 2816, 8, 4},
                 {4, 160, 2048, 8, 4}};
    for (const auto &c : cases) {
        shc_arena_geometry g = plan(c.world, c.limit_kib << 10, SHC_ARENA_WHOLE);
        SCOPED_TRACE(c.limit_kib);
        EXPECT_EQ(g.cell_bytes, c.cell_bytes);
        EXPECT_EQ(g.bcast_slot_bytes, c.bcast_slot_kib << 10);
        EXPECT_EQ(g.bcast_slot_depth, c.bcast_slot_depth);
    }
}

TEST(Select, NothingMovesForAnEmptyMessage)
{
    const shc_tuning tuning = defaults(4);
    for (shc_op_kind kind : {SHC_BARRIER, SHC_BROADCAST, SHC_ALL_REDUCE, SHC_ALL_GATHER, SHC_REDUCE,
                             SHC_GATHER, SHC_SCATTER, SHC_REDUCE_SCATTER})
        EXPECT_EQ(shc_select(&tuning, kind, 0, 4), SHC_ALGO_NOTHING);
}

TEST(Select, APayloadWithAFactorFitsTheCallLine)
{
    const shc_tuning tuning = defaults(4);
    for (size_t bytes = 1; bytes <= 64; bytes++) {
        if (shc_select(&tuning, SHC_ALL_REDUCE, bytes, 4) == SHC_ALGO_INLINE) {
            EXPECT_LE(bytes + sizeof(double), static_cast<size_t>(SHC_INLINE_BYTES));
        }
    }
}

TEST(Select, ADirectExchangeIsForTwoRanksAndFitsACell)
{
    const shc_tuning two = defaults(2), three = defaults(3);
    for (size_t bytes = 1; bytes < (1u << 20); bytes += 777) {
        EXPECT_NE(shc_select(&three, SHC_ALL_REDUCE, bytes, 3), SHC_ALGO_DIRECT);
        if (shc_select(&two, SHC_ALL_REDUCE, bytes, 2) == SHC_ALGO_DIRECT) {
            EXPECT_LE(bytes, plan(2, 32u << 20, SHC_ARENA_WHOLE).cell_bytes);
        }
    }
}

// The ranks of an all-to-all, or of an uneven operation, have inputs of different sizes.
TEST(Select, ATurnDoesNotDependOnASizeThatRanksDoNotShare)
{
    for (int world : {2, 3, 8}) {
        const shc_tuning tuning = defaults(world);
        for (int kind = 0; kind < SHC_OP_KIND_COUNT; kind++)
            for (size_t bytes = 1; bytes < (1u << 30); bytes *= 4)
                if (kind != SHC_ALL_REDUCE) {
                    const auto op = static_cast<shc_op_kind>(kind);
                    EXPECT_EQ(shc_select_turn(&tuning, op, bytes, world),
                              shc_select_turn(&tuning, op, 0, world));
                }
    }
}

} // namespace
