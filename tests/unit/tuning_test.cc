// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/base/status.h"
#include "shm/coll/tuning.h"
#include "shm/kernel/cpu.h"
#include "shm/os/os.h"
}

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <unistd.h>

namespace
{

shc_tuning preset_here()
{
    return shc_tuning_preset(shc_cpu_amd_family(), shc_os_shared_cache_bytes());
}

shc_tuning read_good(const std::string &text)
{
    const shc_tuning preset = preset_here();
    shc_tuning tuning;
    EXPECT_EQ(shc_tuning_read("somebody", text.c_str(), &preset, &tuning), SHC_OK)
        << shc_error_text();
    return tuning;
}

std::string error_of(const std::string &text)
{
    const shc_tuning preset = preset_here();
    shc_tuning tuning;
    EXPECT_EQ(shc_tuning_read("somebody", text.c_str(), &preset, &tuning), SHC_ERR_INVALID) << text;
    return shc_error_text();
}

// key -> value of all keys.
std::map<std::string, std::string> shown(const shc_tuning &tuning)
{
    std::string text(shc_tuning_print(&tuning, nullptr, 0) + 1, '\0');
    shc_tuning_print(&tuning, text.data(), text.size());
    std::map<std::string, std::string> values;
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
        std::string line = text.substr(at, end - at);
        EXPECT_EQ(line.rfind("tuning.", 0), 0u) << line;
        size_t equals = line.find('=');
        values[line.substr(7, equals - 7)] = line.substr(equals + 1);
    }
    return values;
}

class File
{
  public:
    explicit File(const std::string &content)
    {
        char pattern[] = "/tmp/shmcoll-tuning-XXXXXX";
        int fd = mkstemp(pattern);
        EXPECT_GE(fd, 0);
        close(fd);
        path_ = pattern;
        std::ofstream(path_) << content;
    }
    ~File() { remove(path_.c_str()); }
    File(const File &) = delete;
    File &operator=(const File &) = delete;
    const std::string &path() const { return path_; }

  private:
    std::string path_;
};

TEST(Tuning, NothingSaidIsThePreset)
{
    const shc_tuning preset = preset_here();
    shc_tuning tuning;
    ASSERT_EQ(shc_tuning_read("nobody", nullptr, &preset, &tuning), SHC_OK);
    EXPECT_EQ(shown(tuning), shown(preset_here()));
    EXPECT_EQ(shown(read_good("")), shown(preset_here()));
    EXPECT_EQ(shown(read_good(" , \n# nothing\n")), shown(preset_here()));
}

TEST(Tuning, OnAZen5OnlyShortMessagesAskAhead)
{
    auto zen_5 = shown(shc_tuning_preset(0x1a, 0)), other = shown(shc_tuning_preset(0, 0));
    EXPECT_EQ(zen_5["ask_ahead"], "512");
    EXPECT_EQ(other["ask_ahead"], "32768");
    EXPECT_EQ(shown(shc_tuning_preset(0x19, 0)), other);
    zen_5.erase("ask_ahead");
    other.erase("ask_ahead");
    EXPECT_EQ(zen_5, other);
}

TEST(Tuning, LongOutputsPassACacheThatDoesNotHoldThem)
{
    const size_t mib = size_t{1} << 20;
    const shc_tuning known = shc_tuning_preset(0, 64 * mib), unknown = shc_tuning_preset(0, 0);
    EXPECT_EQ(shown(known).at("stream_out"), std::to_string(32 * mib));
    EXPECT_EQ(shown(unknown).at("stream_out"), std::to_string(16 * mib));
    EXPECT_TRUE(shc_select_streams_out(&known, 32 * mib, true));
    EXPECT_FALSE(shc_select_streams_out(&known, 32 * mib - 1, true));
    EXPECT_TRUE(shc_select_streams_out(&known, 64 * mib, false));
    EXPECT_FALSE(shc_select_streams_out(&known, 64 * mib - 1, false));
    const shc_tuning never = read_good("stream_out=never");
    EXPECT_FALSE(shc_select_streams_out(&never, SIZE_MAX - 1, true));
    EXPECT_FALSE(shc_select_streams_out(&never, SIZE_MAX, false));
}

TEST(Tuning, EveryKeyIsReadAndShownAndLeavesTheOthersAlone)
{
    const auto preset = shown(preset_here());
    EXPECT_EQ(preset.size(), 44u);
    for (const auto &[key, value] : preset) {
        std::string other = key.find(".inline") != std::string::npos ? "7"
                            : key.find("depth") != std::string::npos ? "2"
                                                                     : "8192";
        if (other == value)
            other = "4096";
        auto values = shown(read_good(key + "=" + other));
        EXPECT_EQ(values[key], other);
        values[key] = value;
        EXPECT_EQ(values, preset) << key;
    }
}

TEST(Tuning, SizesHaveUnitsAndSomeMayBeNever)
{
    EXPECT_EQ(read_good("turn=8k").turn_bytes, 8192u);
    EXPECT_EQ(read_good(" long_turn_from = 2M ").long_turn_bytes, 2u << 20);
    EXPECT_EQ(read_good("long_turn_from=1g").long_turn_bytes, 1u << 30);
    EXPECT_EQ(read_good("stream=never").stream_bytes, SIZE_MAX);
    EXPECT_EQ(shown(read_good("stream=never"))["stream"], "never");
}

TEST(Tuning, WhatIsWrongIsNamed)
{
    const std::map<std::string, std::string> wrong = {
        {"turns=64k", "somebody: \"turns\" is not a key"},
        {"turn", "\"turn\" is not key=value"},
        {"turn=64k,turn=64k", "\"turn\" is given twice"},
        {"turn=", "\"turn=\" is not a multiple of 128 from 2048 to 131072"},
        {"turn=64q", "\"turn=64q\" is not a multiple of 128 from 2048 to 131072"},
        {"turn=64kb", "\"turn=64kb\" is not"},
        {"turn=-64k", "\"turn=-64k\" is not"},
        {"turn=2049", "\"turn=2049\" is not"},
        {"turn=1k", "\"turn=1k\" is not"},
        {"turn=256k", "\"turn=256k\" is not"},
        {"turn=never", "\"turn=never\" is not"},
        {"turn=99999999999999999999", "is not a multiple"},
        {"turn=17179869185g", "is not a multiple"}, // times 2^30 it wraps
        {"depth=1", "\"depth=1\" is not a number from 2 to 4"},
        {"depth=5", "\"depth=5\" is not a number from 2 to 4"},
        {"shout_depth=1", "is not a number from 2 to 32"},
        {"all_reduce.inline=41", "is not a number from 0 to 40"},
        {"all_gather.inline=49", "is not a number from 0 to 48"},
        {"all_reduce.small=8193", "is not a number from 0 to 8192"},
        {"all_gather.small_of_two=8193", "is not a number from 0 to 8192"},
        {"broadcast.small_of_two=32769", "is not a number from 0 to 32768"},
        {"stream=2000g", "is not a number from 0 to 1099511627776, nor never"},
        {"broadcast.one_use=1", "\"broadcast.one_use\" is not a key"},
        {std::string(100, 'x') + "=1", "a word that is too long"},
        {"turn=" + std::string(100, '1'), "a word that is too long"},
    };
    for (const auto &[text, said] : wrong)
        EXPECT_NE(error_of(text).find(said), std::string::npos) << text << ": " << error_of(text);
}

TEST(Tuning, AFileHasAPairOnEachLine)
{
    File file("# of a machine\nturn = 8k  # short\n\n\tdepth=2\r\n");
    for (const std::string &text : {file.path(), "@" + file.path()}) {
        shc_tuning tuning = read_good(text);
        EXPECT_EQ(tuning.turn_bytes, 8192u);
        EXPECT_EQ(tuning.arena.depth, 2u);
    }
}

TEST(Tuning, AnErrorInAFileNamesItsLine)
{
    File file("turn = 8k\ndepth = 9\n");
    EXPECT_NE(error_of(file.path()).find("line 2 of " + file.path()), std::string::npos);
    EXPECT_NE(error_of("/nowhere/at/all").find("cannot read /nowhere/at/all: No such file"),
              std::string::npos);
    EXPECT_NE(error_of("@").find("cannot read"), std::string::npos);
    File large(std::string(20000, '\n'));
    EXPECT_NE(error_of(large.path()).find("has more than"), std::string::npos);
    File cut(std::string("turn = 8k\n\0depth = 9\n", 22));
    EXPECT_NE(error_of(cut.path()).find("cannot read " + cut.path()), std::string::npos);
}

TEST(Tuning, RanksCompareAllButWhatEachMayDecide)
{
    uint64_t words[SHC_TUNING_WORDS];
    const shc_tuning preset = preset_here();
    shc_tuning_share(&preset, words);
    EXPECT_EQ(shc_tuning_compare(&preset, words), SHC_OK);
    for (const auto &[key, value] : shown(preset)) {
        std::string other = key.find("depth") != std::string::npos     ? "2"
                            : key.find(".inline") != std::string::npos ? "8"
                                                                       : "6k";
        shc_tuning mine = read_good(key + "=" + other);
        if (key == "stream" || key == "stream_out" || key == "ask_ahead") {
            EXPECT_EQ(shc_tuning_compare(&mine, words), SHC_OK);
            continue;
        }
        EXPECT_EQ(shc_tuning_compare(&mine, words), SHC_ERR_MISMATCH) << key;
        std::string said = "tuning differs: " + key + " is ";
        EXPECT_NE(std::string(shc_error_text()).find(said), std::string::npos);
        EXPECT_NE(std::string(shc_error_text()).find("on rank 0 it is " + value + ";"),
                  std::string::npos)
            << shc_error_text();
    }
}

// ---- what the keys do ----

TEST(Tuning, AFormEndsWhereItsKeySays)
{
    const std::map<std::string, shc_op_kind> kinds = {
        {"broadcast", SHC_BROADCAST},   {"gather", SHC_GATHER},
        {"scatter", SHC_SCATTER},       {"reduce", SHC_REDUCE},
        {"all_gather", SHC_ALL_GATHER}, {"reduce_scatter", SHC_REDUCE_SCATTER},
        {"all_reduce", SHC_ALL_REDUCE},
    };
    for (const auto &[name, kind] : kinds) {
        shc_tuning t = read_good(name + ".inline=16," + name + ".small=100," + name +
                                 ".small_of_two=50,all_reduce.one_use=70");
        for (int world : {2, 3}) {
            const size_t small = world == 2 ? 50 : 100;
            EXPECT_EQ(shc_select(&t, kind, 16, world), SHC_ALGO_INLINE) << name;
            EXPECT_EQ(shc_select(&t, kind, 17, world), SHC_ALGO_SMALL) << name;
            EXPECT_EQ(shc_select(&t, kind, small, world), SHC_ALGO_SMALL) << name;
            EXPECT_EQ(shc_select(&t, kind, 101, world), SHC_ALGO_STAGED) << name;
        }
        EXPECT_EQ(shc_select(&t, kind, 51, 2),
                  kind == SHC_ALL_REDUCE ? SHC_ALGO_ONE_USE : SHC_ALGO_STAGED);
        EXPECT_EQ(shc_select(&t, kind, 71, 2), SHC_ALGO_STAGED);
    }
}

// What each rank need not read counts; ranks that share CPUs have a limit of their own, which is never.
TEST(Tuning, SumsOfManyRanksAreSlicedFromALimitOn)
{
    shc_tuning t = read_good("all_reduce.sliced_from=3k");
    EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 2047, 4), SHC_ALGO_SMALL);
    EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 2048, 4), SHC_ALGO_SLICED);
    EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 4607, 3), SHC_ALGO_SMALL);
    EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 4608, 3), SHC_ALGO_SLICED);
    EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 256, 16), SHC_ALGO_SLICED);
    EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 8192, 4), SHC_ALGO_SLICED);
    EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 8193, 4), SHC_ALGO_STAGED);
    EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 4096, 2), SHC_ALGO_SMALL);
    EXPECT_EQ(shc_select(&t, SHC_REDUCE_SCATTER, 8192, 4), SHC_ALGO_SMALL);
    t.crowded = true;
    EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 8192, 64), SHC_ALGO_SMALL);
    t = read_good("all_reduce.sliced_from_crowded=0");
    t.crowded = true;
    EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 41, 3), SHC_ALGO_SLICED);
}

// What the root need not move counts.
TEST(Tuning, ReducesOfManyRanksAreSpreadFromALimitOn)
{
    shc_tuning t = read_good("reduce.sliced_from=9k,reduce.spread_from=9k");
    EXPECT_EQ(shc_select(&t, SHC_REDUCE, 6143, 4), SHC_ALGO_SMALL);
    EXPECT_EQ(shc_select(&t, SHC_REDUCE, 6144, 4), SHC_ALGO_SLICED);
    EXPECT_EQ(shc_select(&t, SHC_REDUCE, 9215, 4), SHC_ALGO_STAGED);
    EXPECT_EQ(shc_select(&t, SHC_REDUCE, 9216, 4), SHC_ALGO_SPREAD);
    EXPECT_EQ(shc_select(&t, SHC_REDUCE, 8200, 5), SHC_ALGO_SPREAD);
    EXPECT_EQ(shc_select(&t, SHC_REDUCE, size_t{1} << 40, 3), SHC_ALGO_STAGED);
    EXPECT_EQ(shc_select(&t, SHC_REDUCE, size_t{1} << 40, 2), SHC_ALGO_STAGED);
    EXPECT_EQ(shc_select(&t, SHC_BROADCAST, 9216, 4), SHC_ALGO_STAGED);
    t.crowded = true;
    EXPECT_EQ(shc_select(&t, SHC_REDUCE, 9216, 4), SHC_ALGO_STAGED);
    EXPECT_EQ(shc_select(&t, SHC_REDUCE, 8192, 4), SHC_ALGO_SMALL);
    t = read_good("reduce.sliced_from_crowded=0,reduce.spread_from_crowded=0");
    t.crowded = true;
    EXPECT_EQ(shc_select(&t, SHC_REDUCE, 41, 3), SHC_ALGO_SLICED);
    EXPECT_EQ(shc_select(&t, SHC_REDUCE, 8193, 4), SHC_ALGO_SPREAD);
}

TEST(Tuning, ATurnIsAsLongAsItsKeysSay)
{
    shc_tuning t = read_good("turn=4k,long_turn_from=1m");
    EXPECT_EQ(shc_select_turn(&t, SHC_ALL_GATHER, 2 << 20, 2), 4096u);
    EXPECT_EQ(shc_select_turn(&t, SHC_ALL_REDUCE, (1 << 20) - 1, 2), 4096u);
    EXPECT_EQ(shc_select_turn(&t, SHC_ALL_REDUCE, 1 << 20, 2), SIZE_MAX);
    EXPECT_EQ(shc_select_turn(&t, SHC_ALL_REDUCE, 1, 3), SIZE_MAX);
    t = read_good("long_turn_from=never");
    EXPECT_EQ(shc_select_turn(&t, SHC_ALL_REDUCE, size_t{1} << 50, 2), 65536u);
}

TEST(Tuning, TwoRanksGoInLockstepFromWhereTheKeySays)
{
    shc_tuning t = read_good("lockstep_from=1m");
    EXPECT_FALSE(shc_select_lockstep(&t, (1 << 20) - 1, 2));
    EXPECT_TRUE(shc_select_lockstep(&t, 1 << 20, 2));
    EXPECT_FALSE(shc_select_lockstep(&t, 1 << 20, 3));
    t.crowded = true;
    EXPECT_FALSE(shc_select_lockstep(&t, size_t{1} << 50, 2));
    t = read_good("lockstep_from=never");
    EXPECT_FALSE(shc_select_lockstep(&t, size_t{1} << 50, 2));
}

TEST(Tuning, AScatterIsPulledFromWhereItsKeysSay)
{
    const shc_tuning t = read_good("scatter.cma=1m,scatter.cma_of_many=64k");
    EXPECT_FALSE(shc_select_pulls(&t, size_t{1} << 50, 2));
    for (int world : {3, 4, 5, 126}) {
        const size_t from = world > 4 ? 64 << 10 : 1 << 20;
        EXPECT_FALSE(shc_select_pulls(&t, from - 1, world)) << world;
        EXPECT_TRUE(shc_select_pulls(&t, from, world)) << world;
    }
}

// A turn, a cell and a slot have a part for each of a pool's threads and their caller, as far as they
// can be that long; without a pool nothing changes.
TEST(Tuning, WithAPoolEverythingIsLongEnoughForItsParts)
{
    for (int threads : {0, 1, 2, 3, 11, 256}) {
        for (int world : {2, 3, 4, 5, 8}) {
            shc_tuning t = read_good("turn=4k,chunk=64k,chunk_of_many=64k,shout=8k"), before = t;
            shc_select_for_pool(&t, world, threads);
            if (threads == 0) {
                EXPECT_EQ(memcmp(&t, &before, sizeof t), 0);
                continue;
            }
            EXPECT_FALSE(shc_select_lockstep(&t, size_t{1} << 50, 2));
            EXPECT_EQ(t.long_turn_bytes, 8u << 20);
            const size_t parts = static_cast<size_t>(std::min(threads, 3)) + 1;
            shc_arena_geometry g = shc_arena_plan(world, 64 << 20, &t.arena, SHC_ARENA_WHOLE);
            EXPECT_EQ(g.cell_bytes / SHC_PART_BYTES, parts) << threads << " " << world;
            EXPECT_EQ(g.shout_bytes / SHC_PART_BYTES, parts) << threads << " " << world;
            EXPECT_GE(shc_select_turn(&t, SHC_ALL_GATHER, 1, world), parts * SHC_PART_BYTES);
            for (size_t bytes : {size_t{32} << 10, size_t{64} << 10, size_t{1} << 20})
                EXPECT_GE(shc_select_piece(&t, bytes, g.shout_bytes, world),
                          std::min(bytes, g.shout_bytes));
        }
    }
    shc_tuning longer = read_good("turn=128k,shout=128k,chunk=1m");
    shc_select_for_pool(&longer, 2, 1);
    EXPECT_EQ(longer.turn_bytes, 131072u);
    EXPECT_EQ(longer.arena.shout_bytes, 131072u);
    EXPECT_EQ(longer.arena.chunk_bytes, size_t{1} << 20);
}

TEST(Tuning, APieceHasAboutTheRootOfTheBytesThatWouldPassMeanwhile)
{
    const shc_tuning t = read_good("flag=2k");
    auto piece = [&t](size_t bytes, size_t slot) { return shc_select_piece(&t, bytes, slot, 2); };
    EXPECT_EQ(piece(32 << 10, 64 << 10), 8u << 10);
    EXPECT_EQ(piece((32 << 10) + 1, 64 << 10), 16u << 10);
    EXPECT_EQ(piece(512 << 10, 64 << 10), 32u << 10);
    EXPECT_EQ(piece((512 << 10) + 1, 64 << 10), 64u << 10);
    EXPECT_EQ(piece(size_t{1} << 50, 64 << 10), 64u << 10);
    EXPECT_EQ(piece(1, 64 << 10), 2u << 10) << "there is a shortest";
    EXPECT_EQ(piece(1, 2 << 10), 2u << 10);
    EXPECT_EQ(shc_select_piece(&t, 1, 64 << 10, 3), 64u << 10) << "a wait may take a time slice";
    for (size_t slot : {size_t{2176}, size_t{65664}, size_t{131072}})
        for (size_t bytes = 1; bytes < size_t{1} << 24; bytes = 3 * bytes + 1) {
            EXPECT_EQ(piece(bytes, slot) % SHC_LINE_BYTES, 0u) << slot;
            EXPECT_LE(piece(bytes, slot), slot);
        }
    const shc_tuning least = read_good("flag=1"), most = read_good("flag=131072");
    EXPECT_EQ(shc_select_piece(&least, 4 << 20, 64 << 10, 2), 2u << 10);
    EXPECT_EQ(shc_select_piece(&most, 32 << 10, 64 << 10, 2), 64u << 10);
}

TEST(Tuning, StreamsFromItsKeyOn)
{
    shc_tuning t = read_good("stream=100");
    EXPECT_FALSE(shc_select_streams(&t, 99));
    EXPECT_TRUE(shc_select_streams(&t, 100));
    t = read_good("stream=never");
    EXPECT_FALSE(shc_select_streams(&t, size_t{1} << 50));
}

shc_arena_geometry plan_of(const std::string &text, int world)
{
    shc_tuning t = read_good(text);
    return shc_arena_plan(world, size_t{1} << 40, &t.arena, SHC_ARENA_WHOLE);
}

TEST(Tuning, TheArenaHasTheSizesThatItsKeysSay)
{
    EXPECT_EQ(plan_of("chunk=64k", 4).cell_bytes, 16384u);
    EXPECT_EQ(plan_of("chunk=64k", 5).cell_bytes, plan_of("", 5).cell_bytes);
    EXPECT_EQ(plan_of("chunk_of_many=64k", 8).cell_bytes, 8192u);
    EXPECT_EQ(plan_of("chunk_of_many=64k", 4).cell_bytes, 65536u);
    EXPECT_EQ(plan_of("chunk=4k", 4).cell_bytes, 2048u) << "a cell has a least size";
    EXPECT_EQ(plan_of("chunk=32m", 2).cell_bytes, 131072u) << "and a largest one";
    EXPECT_EQ(plan_of("chunk=4100", 2).cell_bytes % SHC_LINE_BYTES, 0u);
    EXPECT_EQ(plan_of("depth=4", 2).depth, 4u);
    EXPECT_EQ(plan_of("shout=16k", 3).shout_bytes, 16384u);
    EXPECT_EQ(plan_of("shout_depth=16", 2).shout_depth, 16u);
    EXPECT_EQ(plan_of("shout_depth=16", 3).shout_depth, 11u) << "as many in all, or more";
    EXPECT_EQ(plan_of("shout_depth=2", 4).shout_depth, 2u) << "with one, all wait for all";
    EXPECT_EQ(plan_of("shout_depth=16", 5).shout_depth, plan_of("", 5).shout_depth);
    EXPECT_EQ(plan_of("shout_depth_of_many=16", 5).shout_depth, 16u);
}

TEST(Tuning, AnArenaOfAnySizesStaysWithinItsLimit)
{
    for (const char *text : {"chunk=32m,shout=128k,depth=4,shout_depth=32", "shout=65664",
                             "chunk=4k,shout=2k,depth=2,shout_depth=2"}) {
        shc_tuning t = read_good(text);
        for (int world : {2, 3, 8, 64})
            for (size_t limit : {size_t{100} << 10, size_t{1} << 20, size_t{32} << 20}) {
                shc_arena_geometry g = shc_arena_plan(world, limit, &t.arena, SHC_ARENA_WHOLE);
                EXPECT_LE(g.range_bytes * static_cast<size_t>(world), limit) << text;
                EXPECT_EQ(g.shout_bytes % SHC_LINE_BYTES, 0u);
                EXPECT_EQ(g.cell_bytes % SHC_LINE_BYTES, 0u);
            }
    }
}

} // namespace
