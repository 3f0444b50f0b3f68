// SPDX-License-Identifier: BSD-3-Clause
// Which algorithm the default settings choose, for every operation, size and number of ranks.
//
// The expected values were recorded when the table had 44 keys. A change of a default, or of how a default is
// derived, changes this test.
extern "C" {
#include "shm/coll/select.h"
#include "shm/proto/arena.h"
}

#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace
{

shc_tuning defaults(int world, int threads, bool crowded)
{
    shc_tuning tuning = shc_tuning_default(0, 0);
    shc_select_settle(&tuning, world, threads, crowded);
    return tuning;
}

const char *name_of(shc_algorithm algorithm)
{
    switch (algorithm) {
    case SHC_ALGO_NOTHING:
        return "nothing";
    case SHC_ALGO_INLINE:
        return "inline";
    case SHC_ALGO_SMALL:
        return "small";
    case SHC_ALGO_TWO_PHASE:
        return "two-phase";
    case SHC_ALGO_DIRECT:
        return "direct";
    case SHC_ALGO_PIPELINED:
        return "pipelined";
    case SHC_ALGO_SCATTER_GATHER:
        return "scatter-gather";
    }
    return "?";
}

// Every operation that asks for an algorithm. All-to-all decides for each block by itself.
const shc_op_kind kKinds[] = {SHC_BARRIER, SHC_BROADCAST, SHC_ALL_REDUCE, SHC_ALL_GATHER,
                              SHC_REDUCE,  SHC_GATHER,    SHC_SCATTER,    SHC_REDUCE_SCATTER};

// All sizes at which one of the default limits, or a limit divided by a number of ranks, can lie.
template <typename Body>
void every_size(const Body &body)
{
    for (size_t bytes = 0; bytes <= 50 << 10; bytes++)
        body(bytes);
    for (size_t bytes = size_t{64} << 10; bytes <= size_t{1} << 34; bytes *= 2)
        for (size_t size : {bytes - 1, bytes, bytes + 1})
            body(size);
}

// "inline 48, small 8192, pipelined": each algorithm with the largest size that it carries.
std::string choice(shc_op_kind kind, int world, bool crowded)
{
    const shc_tuning tuning = defaults(world, 0, crowded);
    std::string text;
    size_t last = 0;
    shc_algorithm now = shc_select(&tuning, kind, 1, world);
    every_size([&](size_t bytes) {
        if (bytes == 0)
            return;
        const shc_algorithm next = shc_select(&tuning, kind, bytes, world);
        if (next != now)
            text += std::string(name_of(now)) + " " + std::to_string(last) + ", ";
        now = next;
        last = bytes;
    });
    return text + name_of(now);
}

enum Cpus { kEnough = 1, kShared = 2, kEither = kEnough | kShared };

struct Row {
    shc_op_kind kind;
    std::vector<int> worlds;
    Cpus cpus;
    const char *choice;
};

const std::vector<int> kTwo = {2}, kNotTwo = {1, 3, 4, 5, 8, 16, 64, 256};

const Row kRows[] = {
    {SHC_BARRIER, kTwo, kEither, "nothing"},
    {SHC_BARRIER, kNotTwo, kEither, "nothing"},
    {SHC_BROADCAST, kTwo, kEither, "inline 48, small 8192, pipelined"},
    {SHC_BROADCAST, kNotTwo, kEither, "inline 48, small 8192, pipelined"},
    {SHC_GATHER, kTwo, kEither, "inline 48, small 8192, pipelined"},
    {SHC_GATHER, kNotTwo, kEither, "inline 48, small 8192, pipelined"},
    {SHC_SCATTER, kTwo, kEither, "inline 48, small 8192, pipelined"},
    {SHC_SCATTER, kNotTwo, kEither, "inline 48, small 8192, pipelined"},
    {SHC_ALL_GATHER, kTwo, kEither, "inline 48, small 4096, pipelined"},
    {SHC_ALL_GATHER, kNotTwo, kEither, "inline 48, small 8192, pipelined"},
    {SHC_REDUCE_SCATTER, kTwo, kEither, "inline 40, small 2048, pipelined"},
    {SHC_REDUCE_SCATTER, kNotTwo, kEither, "inline 40, small 8192, pipelined"},
    {SHC_ALL_REDUCE, kTwo, kEither, "inline 40, small 4096, direct 32768, pipelined"},
    {SHC_ALL_REDUCE, kNotTwo, kShared, "inline 40, small 8192, pipelined"},
    {SHC_ALL_REDUCE, {1}, kEnough, "inline 40, small 8192, pipelined"},
    {SHC_ALL_REDUCE, {3}, kEnough, "inline 40, small 4607, two-phase 8192, pipelined"},
    {SHC_ALL_REDUCE, {4}, kEnough, "inline 40, small 2047, two-phase 8192, pipelined"},
    {SHC_ALL_REDUCE, {5}, kEnough, "inline 40, small 1279, two-phase 8192, pipelined"},
    {SHC_ALL_REDUCE, {8}, kEnough, "inline 40, small 585, two-phase 8192, pipelined"},
    {SHC_ALL_REDUCE, {16}, kEnough, "inline 40, small 234, two-phase 8192, pipelined"},
    {SHC_ALL_REDUCE, {64}, kEnough, "inline 40, small 50, two-phase 8192, pipelined"},
    {SHC_ALL_REDUCE, {256}, kEnough, "inline 40, two-phase 8192, pipelined"},
    {SHC_REDUCE, kTwo, kEither, "inline 40, small 8192, pipelined"},
    {SHC_REDUCE, kNotTwo, kShared, "inline 40, small 8192, pipelined"},
    {SHC_REDUCE, {1, 3}, kEnough, "inline 40, small 8192, pipelined"},
    {SHC_REDUCE, {4}, kEnough, "inline 40, small 8192, pipelined 49151, scatter-gather"},
    {SHC_REDUCE, {5}, kEnough, "inline 40, small 8192, pipelined 24575, scatter-gather"},
    {SHC_REDUCE,
     {8},
     kEnough,
     "inline 40, small 3900, two-phase 8192, pipelined 9830, scatter-gather"},
    {SHC_REDUCE, {16}, kEnough, "inline 40, small 1560, two-phase 8192, scatter-gather"},
    {SHC_REDUCE, {64}, kEnough, "inline 40, small 335, two-phase 8192, scatter-gather"},
    {SHC_REDUCE, {256}, kEnough, "inline 40, small 80, two-phase 8192, scatter-gather"},
};

TEST(Select, DefaultsChooseWhatIsRecorded)
{
    for (const Row &row : kRows)
        for (int world : row.worlds)
            for (bool crowded : {false, true})
                if (row.cpus & (crowded ? kShared : kEnough)) {
                    EXPECT_EQ(choice(row.kind, world, crowded), row.choice)
                        << shc_op_kind_name(row.kind) << ", " << world << " ranks"
                        << (crowded ? ", more than CPUs" : "");
                }
}

class Checksum
{
  public:
    void add(uint64_t value)
    {
        for (int byte = 0; byte < 8; byte++, value >>= 8)
            sum_ = (sum_ ^ (value & 255)) * 0x100000001b3;
    }
    uint64_t sum() const { return sum_; }

  private:
    uint64_t sum_ = 0xcbf29ce484222325;
};

TEST(Select, DefaultsChooseTheSameInEveryWorld)
{
    Checksum choices;
    for (bool crowded : {false, true})
        for (int world = 1; world <= SHC_MAX_WORLD; world++) {
            const shc_tuning tuning = defaults(world, 0, crowded);
            for (shc_op_kind kind : kKinds)
                for (size_t bytes = 0; bytes <= 50 << 10; bytes += bytes < 8200 ? 1 : 61)
                    choices.add(shc_select(&tuning, kind, bytes, world));
        }
    EXPECT_EQ(choices.sum(), 16349357882159103396u);
}

// What follows the choice of an algorithm: turns, pieces, and what the kernel copies.
TEST(Select, DefaultsCutTheSamePiecesInEveryWorld)
{
    Checksum pieces;
    for (int threads : {0, 1, 3, 11})
        for (bool crowded : {false, true})
            for (int world = 1; world <= SHC_MAX_WORLD; world++) {
                const shc_tuning tuning = defaults(world, threads, crowded);
                for (size_t bytes = 1; bytes <= size_t{64} << 20; bytes += bytes / 7 + 1) {
                    for (shc_op_kind kind : kKinds)
                        pieces.add(shc_select_turn(&tuning, kind, bytes, world));
                    pieces.add(shc_select_unpipelined(&tuning, bytes, world));
                    pieces.add(shc_select_pulls(&tuning, bytes, world));
                    pieces.add(shc_select_piece(&tuning, bytes, size_t{64} << 10, world));
                    pieces.add(shc_select_streams(&tuning, bytes));
                    pieces.add(shc_select_streams_out(&tuning, bytes, true));
                }
            }
    EXPECT_EQ(pieces.sum(), 16303850664727381140u);
}

TEST(Select, DefaultsMakeTheSameArenaInEveryWorld)
{
    Checksum sizes;
    for (int threads : {0, 1, 3, 11})
        for (int world = 1; world <= SHC_MAX_WORLD; world++) {
            const shc_tuning tuning = defaults(world, threads, false);
            for (size_t limit : {size_t{1} << 20, size_t{32} << 20, size_t{1} << 34})
                for (unsigned parts = 0; parts <= SHC_ARENA_WHOLE; parts++) {
                    const auto g = shc_arena_plan(world, limit, &tuning.arena, parts);
                    for (size_t value : {size_t{g.depth}, g.cell_bytes, size_t{g.bcast_slot_depth},
                                         g.bcast_slot_bytes, g.range_bytes})
                        sizes.add(value);
                }
        }
    EXPECT_EQ(sizes.sum(), 9159165197075113980u);
}

} // namespace
