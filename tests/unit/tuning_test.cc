// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/base/status.h"
#include "shm/coll/keys.h"
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
#include <set>
#include <sstream>
#include <string>
#include <unistd.h>

namespace
{

shc_tuning default_here()
{
    return shc_tuning_default(shc_cpu_amd_family(), shc_os_shared_cache_bytes());
}

shc_tuning read_good(const std::string &text)
{
    const shc_tuning defaults = default_here();
    shc_tuning tuning;
    EXPECT_EQ(shc_tuning_read("somebody", text.c_str(), &defaults, &tuning), SHC_OK)
        << shc_error_text();
    return tuning;
}

// As in a group of that many ranks.
shc_tuning settled(const std::string &text, int world, bool crowded = false)
{
    shc_tuning tuning = read_good(text);
    shc_select_settle(&tuning, world, 0, crowded);
    return tuning;
}

std::string error_of(const std::string &text)
{
    const shc_tuning defaults = default_here();
    shc_tuning tuning;
    EXPECT_EQ(shc_tuning_read("somebody", text.c_str(), &defaults, &tuning), SHC_ERR_INVALID)
        << text;
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

TEST(Tuning, AnEmptyTextLeavesTheDefaults)
{
    const shc_tuning defaults = default_here();
    shc_tuning tuning;
    ASSERT_EQ(shc_tuning_read("nobody", nullptr, &defaults, &tuning), SHC_OK);
    EXPECT_EQ(shown(tuning), shown(default_here()));
    EXPECT_EQ(shown(read_good("")), shown(default_here()));
    EXPECT_EQ(shown(read_good(" , \n# nothing\n")), shown(default_here()));
}

TEST(Tuning, OnAZen5OnlyShortMessagesPrefetch)
{
    auto zen_5 = shown(shc_tuning_default(0x1a, 0)), other = shown(shc_tuning_default(0, 0));
    EXPECT_EQ(zen_5["prefetch_up_to"], "512");
    EXPECT_EQ(other["prefetch_up_to"], "32768");
    EXPECT_EQ(shown(shc_tuning_default(0x19, 0)), other);
    zen_5.erase("prefetch_up_to");
    other.erase("prefetch_up_to");
    EXPECT_EQ(zen_5, other);
}

TEST(Tuning, OutputsThatACacheDoesNotHoldAreStoredNonTemporally)
{
    const size_t mib = size_t{1} << 20;
    const shc_tuning known = shc_tuning_default(0, 64 * mib), unknown = shc_tuning_default(0, 0);
    EXPECT_EQ(shown(known).at("output.non_temporal_from"), std::to_string(32 * mib));
    EXPECT_EQ(shown(unknown).at("output.non_temporal_from"), std::to_string(16 * mib));
    EXPECT_TRUE(shc_select_streams_out(&known, 32 * mib, true));
    EXPECT_FALSE(shc_select_streams_out(&known, 32 * mib - 1, true));
    EXPECT_TRUE(shc_select_streams_out(&known, 64 * mib, false));
    EXPECT_FALSE(shc_select_streams_out(&known, 64 * mib - 1, false));
    const shc_tuning never = read_good("output.non_temporal_from=never");
    EXPECT_FALSE(shc_select_streams_out(&never, SIZE_MAX - 1, true));
    EXPECT_FALSE(shc_select_streams_out(&never, SIZE_MAX, false));
}

TEST(Tuning, EveryKeyIsReadAndShownAndLeavesTheOthersAlone)
{
    const auto defaults = shown(default_here());
    EXPECT_EQ(defaults.size(), size_t{SHC_KEYS});
    for (const shc_key &key : shc_keys) {
        std::string other = std::to_string(key.minimum);
        if (other == defaults.at(key.name))
            other = std::to_string(key.maximum);
        auto values = shown(read_good(std::string(key.name) + "=" + other));
        EXPECT_EQ(values[key.name], other);
        values[key.name] = defaults.at(key.name);
        EXPECT_EQ(values, defaults) << key.name;
    }
}

TEST(Tuning, SizesHaveUnitsAndSomeMayBeNever)
{
    EXPECT_EQ(read_good("turn=8k").turn_bytes, 8192u);
    EXPECT_EQ(read_good(" all_reduce.unpipelined_from = 2M ").unpipelined_bytes, 2u << 20);
    EXPECT_EQ(read_good("all_reduce.unpipelined_from=1g").unpipelined_bytes, 1u << 30);
    EXPECT_EQ(read_good("prefetch_up_to=never").prefetch_bytes, SIZE_MAX);
    EXPECT_EQ(shown(read_good("prefetch_up_to=never"))["prefetch_up_to"], "never");
}

// The defaults of these keys follow from the group.
TEST(Tuning, AutoIsTheDefaultThatTheGroupSettles)
{
    for (const shc_key &key : shc_keys)
        EXPECT_EQ(shown(default_here()).at(key.name) == "auto", key.has_auto) << key.name;
    const struct {
        const char *key, *few, *many, *crowded, *given;
    } cases[] = {
        {"chunk", "262144", "131072", "131072", "4100"},
        {"broadcast_depth", "24", "4", "4", "9"},
        {"scatter.single_copy_from", "8388608", "524288", "524288", "1"},
        {"all_reduce.two_phase_from", "3072", "3072", "never", "0"},
        {"reduce.two_phase_from", "20480", "20480", "never", "0"},
        {"reduce.scatter_gather_from", "49152", "49152", "never", "0"},
    };
    for (const auto &c : cases) {
        const std::string key = c.key;
        for (int world : {2, 3, 4})
            EXPECT_EQ(shown(settled(key + "=auto", world)).at(key), c.few) << key;
        for (int world : {5, 256}) {
            EXPECT_EQ(shown(settled(key + "=auto", world)).at(key), c.many) << key;
            EXPECT_EQ(shown(settled(key + "=auto", world, true)).at(key), c.crowded) << key;
            EXPECT_EQ(shown(settled(key + "=" + c.given, world, true)).at(key), c.given)
                << "a value that is given holds in every group";
        }
    }
}

TEST(Tuning, WhatIsWrongIsNamed)
{
    const std::map<std::string, std::string> wrong = {
        {"turns=64k", "somebody: \"turns\" is not a key"},
        {"turn", "\"turn\" is not key=value"},
        {"my.tuning", "\"my.tuning\" is not key=value (a file: /its/path, or @its/path)"},
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
        {"broadcast_depth=1", "is not a number from 2 to 32, nor auto"},
        {"inline=49", "is not a number from 0 to 48"},
        {"small=8193", "is not a number from 0 to 8192"},
        {"small=auto", "is not a number from 0 to 8192"},
        {"small_of_two=8193", "is not a number from 0 to 8192"},
        {"handoff=8193", "is not a number from 0 to 8192"},
        {"prefetch_up_to=2000g", "is not a number from 0 to 1099511627776, nor never"},
        {"chunk=1", "is not a number from 4096 to 33554432, nor auto"},
        {"chunk=never", "\"chunk=never\" is not a number"},
        {"reduce.two_phase_from=x", "from 0 to 1099511627776, nor never, nor auto"},
        {"broadcast.direct_exchange=1", "\"broadcast.direct_exchange\" is not a key "
                                        "(docs/reference/tuning-keys.md has them)"},
        {std::string(100, 'x') + "=1", "a word that is too long"},
        {"turn=" + std::string(100, '1'), "a word that is too long"},
    };
    for (const auto &[text, said] : wrong)
        EXPECT_NE(error_of(text).find(said), std::string::npos) << text << ": " << error_of(text);
}

TEST(Tuning, ARetiredKeyIsAnErrorThatNamesTheNewOne)
{
    const std::map<std::string, std::string> instead = {
        {"broadcast.inline", "inline"},
        {"all_reduce.small", "small"},
        {"reduce_scatter.small_of_two", "small_of_two"},
        {"gather.small_of_two", "handoff"},
        {"all_reduce.one_use", "all_reduce.direct_exchange"},
        {"reduce.sliced_from_crowded", "reduce.two_phase_from"},
        {"reduce.spread_from", "reduce.scatter_gather_from"},
        {"lockstep_from", "all_reduce.unpipelined_from"},
        {"long_turn_from", "all_reduce.unpipelined_from"},
        {"chunk_of_many", "chunk"},
        {"shout", "broadcast_slot"},
        {"shout_depth_of_many", "broadcast_depth"},
        {"flag", "flag_latency"},
        {"stream", "staging.non_temporal_from"},
        {"stream_out", "output.non_temporal_from"},
        {"ask_ahead", "prefetch_up_to"},
        {"scatter.cma_of_many", "scatter.single_copy_from"},
    };
    for (const auto &[old_key, key] : instead)
        EXPECT_EQ(error_of("turn=8k," + old_key + "=1"),
                  "somebody: \"" + old_key + "\" is retired; use " + key + " instead");
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
    const shc_tuning defaults = default_here();
    shc_tuning_share(&defaults, words);
    EXPECT_EQ(shc_tuning_compare(&defaults, words), SHC_OK);
    for (const shc_key &key : shc_keys) {
        const std::string name = key.name, value = shown(defaults).at(name);
        const shc_tuning mine = read_good(name + "=" + std::to_string(key.minimum));
        if (key.may_differ) {
            EXPECT_EQ(shc_tuning_compare(&mine, words), SHC_OK);
            continue;
        }
        ASSERT_NE(value, std::to_string(key.minimum));
        EXPECT_EQ(shc_tuning_compare(&mine, words), SHC_ERR_MISMATCH) << name;
        std::string said = "tuning differs: " + name + " is ";
        EXPECT_NE(std::string(shc_error_text()).find(said), std::string::npos);
        EXPECT_NE(std::string(shc_error_text()).find("on rank 0 it is " + value + ";"),
                  std::string::npos)
            << shc_error_text();
    }
}

// A group whose CPUs are shared must not read it as one thing on one rank and as another on the next.
TEST(Tuning, AutoDiffersFromTheValueThatItWouldSettleAt)
{
    uint64_t words[SHC_TUNING_WORDS];
    const shc_tuning defaults = default_here(), mine = read_good("all_reduce.two_phase_from=3k");
    shc_tuning_share(&defaults, words);
    EXPECT_EQ(shc_tuning_compare(&mine, words), SHC_ERR_MISMATCH);
    EXPECT_NE(std::string(shc_error_text()).find("is 3072, on rank 0 it is auto;"),
              std::string::npos);
}

// ---- the page ----

std::string size_text(size_t value)
{
    if (value == SIZE_MAX)
        return "never";
    for (int unit = 2; unit >= 0; unit--)
        if (value > 0 && value % (size_t{1} << 10 * (unit + 1)) == 0)
            return std::to_string(value >> 10 * (unit + 1)) + "kmg"[unit];
    return std::to_string(value);
}

std::string values_of(const shc_key &key)
{
    std::string values = size_text(key.minimum) + " to " + size_text(key.maximum);
    if (key.multiple > 1)
        values += ", multiples of " + std::to_string(key.multiple);
    if (key.has_never)
        values += ", never";
    if (key.has_auto)
        values += ", auto";
    return values;
}

// What the key is by default in groups of few ranks, of many, with more ranks than CPUs, and on a Zen 5.
std::set<std::string> defaults_of(const shc_key &key)
{
    const struct {
        unsigned amd_family;
        int world;
        bool crowded;
    } groups[] = {{0, 2, false}, {0, 5, false}, {0, 5, true}, {0x1a, 2, false}};
    std::set<std::string> defaults;
    for (const auto &group : groups) {
        shc_tuning tuning = shc_tuning_default(group.amd_family, 0);
        shc_select_settle(&tuning, group.world, 0, group.crowded);
        size_t value;
        memcpy(&value, reinterpret_cast<const char *>(&tuning) + key.offset, sizeof value);
        defaults.insert(size_text(value));
    }
    return defaults;
}

TEST(TuningPage, HasTheKeysOfTheCodeTheirValuesAndDefaults)
{
    std::ifstream page(SHMCOLL_SOURCE_DIR "/docs/reference/tuning-keys.md");
    std::string line;
    while (line != "|---|---|---|---|---|")
        ASSERT_TRUE(std::getline(page, line)) << "the page has no table of the keys";
    for (const shc_key &key : shc_keys) {
        const std::string begin = std::string("| `") + key.name + "` | " + values_of(key) + " | ";
        std::getline(page, line);
        ASSERT_EQ(line.substr(0, begin.size()), begin);
        const size_t end = line.find(" | ", begin.size());
        ASSERT_NE(end, std::string::npos) << line;
        std::istringstream said(line.substr(begin.size(), end - begin.size()));
        std::set<std::string> words;
        for (std::string word; said >> word;)
            words.insert(word.substr(0, word.find(';')));
        for (const std::string &value : defaults_of(key))
            EXPECT_EQ(words.count(value), 1u) << key.name << " is " << value << " by default";
    }
    std::getline(page, line);
    EXPECT_EQ(line, "") << "is in the table, and no key of the code";
}

// ---- what the keys do ----

TEST(Tuning, AFormEndsWhereItsKeySays)
{
    const shc_tuning t =
        read_good("inline=16,small=100,small_of_two=50,handoff=60,all_reduce.direct_exchange=70");
    const std::map<shc_op_kind, size_t> of_two = {
        {SHC_BROADCAST, 60},      {SHC_GATHER, 60},     {SHC_SCATTER, 60},    {SHC_REDUCE, 60},
        {SHC_REDUCE_SCATTER, 25}, {SHC_ALL_GATHER, 50}, {SHC_ALL_REDUCE, 50},
    };
    for (const auto &[kind, small_of_two] : of_two) {
        for (int world : {2, 3}) {
            const size_t small = world == 2 ? small_of_two : 100;
            EXPECT_EQ(shc_select(&t, kind, 16, world), SHC_ALGO_INLINE) << kind;
            EXPECT_EQ(shc_select(&t, kind, 17, world), SHC_ALGO_SMALL) << kind;
            EXPECT_EQ(shc_select(&t, kind, small, world), SHC_ALGO_SMALL) << kind;
            EXPECT_EQ(shc_select(&t, kind, 101, world), SHC_ALGO_PIPELINED) << kind;
        }
        EXPECT_EQ(shc_select(&t, kind, small_of_two + 1, 2),
                  kind == SHC_ALL_REDUCE ? SHC_ALGO_DIRECT : SHC_ALGO_PIPELINED);
        EXPECT_EQ(shc_select(&t, kind, 71, 2), SHC_ALGO_PIPELINED);
    }
    const shc_tuning none = read_good("inline=0");
    for (const auto &[kind, small_of_two] : of_two)
        EXPECT_EQ(shc_select(&none, kind, 1, 2), SHC_ALGO_SMALL) << kind;
}

TEST(Tuning, AnAllReduceOfManyRanksHasTwoPhasesFromItsKeyOn)
{
    for (bool crowded : {false, true}) {
        shc_tuning t = settled("all_reduce.two_phase_from=3k", 4, crowded);
        EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 2047, 4), SHC_ALGO_SMALL);
        EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 2048, 4), SHC_ALGO_TWO_PHASE);
        EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 4607, 3), SHC_ALGO_SMALL);
        EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 4608, 3), SHC_ALGO_TWO_PHASE);
        EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 256, 16), SHC_ALGO_TWO_PHASE);
        EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 8192, 4), SHC_ALGO_TWO_PHASE);
        EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 8193, 4), SHC_ALGO_PIPELINED);
        EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 4096, 2), SHC_ALGO_SMALL);
        EXPECT_EQ(shc_select(&t, SHC_REDUCE_SCATTER, 8192, 4), SHC_ALGO_SMALL);
        t = settled("all_reduce.two_phase_from=0", 3, crowded);
        EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 41, 3), SHC_ALGO_TWO_PHASE);
        t = settled("all_reduce.two_phase_from=never", 3, crowded);
        EXPECT_EQ(shc_select(&t, SHC_ALL_REDUCE, 8192, 64), SHC_ALGO_SMALL);
    }
}

TEST(Tuning, AReduceOfManyRanksSharesTheWorkFromItsKeysOn)
{
    for (bool crowded : {false, true}) {
        const shc_tuning t =
            settled("reduce.two_phase_from=9k,reduce.scatter_gather_from=9k", 4, crowded);
        EXPECT_EQ(shc_select(&t, SHC_REDUCE, 6143, 4), SHC_ALGO_SMALL);
        EXPECT_EQ(shc_select(&t, SHC_REDUCE, 6144, 4), SHC_ALGO_TWO_PHASE);
        EXPECT_EQ(shc_select(&t, SHC_REDUCE, 9215, 4), SHC_ALGO_PIPELINED);
        EXPECT_EQ(shc_select(&t, SHC_REDUCE, 9216, 4), SHC_ALGO_SCATTER_GATHER);
        EXPECT_EQ(shc_select(&t, SHC_REDUCE, 8200, 5), SHC_ALGO_SCATTER_GATHER);
        EXPECT_EQ(shc_select(&t, SHC_REDUCE, size_t{1} << 40, 3), SHC_ALGO_PIPELINED);
        EXPECT_EQ(shc_select(&t, SHC_REDUCE, size_t{1} << 40, 2), SHC_ALGO_PIPELINED);
        EXPECT_EQ(shc_select(&t, SHC_BROADCAST, 9216, 4), SHC_ALGO_PIPELINED);
    }
}

TEST(Tuning, ATurnIsAsLongAsItsKeysSay)
{
    shc_tuning t = read_good("turn=4k,all_reduce.unpipelined_from=1m");
    EXPECT_EQ(shc_select_turn(&t, SHC_ALL_GATHER, 2 << 20, 2), 4096u);
    EXPECT_EQ(shc_select_turn(&t, SHC_ALL_REDUCE, (1 << 20) - 1, 2), 4096u);
    EXPECT_EQ(shc_select_turn(&t, SHC_ALL_REDUCE, 1 << 20, 2), SIZE_MAX);
    EXPECT_EQ(shc_select_turn(&t, SHC_ALL_REDUCE, 1, 3), SIZE_MAX);
    t = read_good("all_reduce.unpipelined_from=never");
    EXPECT_EQ(shc_select_turn(&t, SHC_ALL_REDUCE, (8 << 20) - 1, 2), 65536u);
    EXPECT_EQ(shc_select_turn(&t, SHC_ALL_REDUCE, 8 << 20, 2), SIZE_MAX) << "at the latest";
}

TEST(Tuning, TwoRanksGoUnpipelinedFromWhereTheKeySays)
{
    shc_tuning t = read_good("all_reduce.unpipelined_from=1m");
    EXPECT_FALSE(shc_select_unpipelined(&t, (1 << 20) - 1, 2));
    EXPECT_TRUE(shc_select_unpipelined(&t, 1 << 20, 2));
    EXPECT_FALSE(shc_select_unpipelined(&t, 1 << 20, 3));
    t.crowded = true;
    EXPECT_FALSE(shc_select_unpipelined(&t, size_t{1} << 50, 2));
    t = read_good("all_reduce.unpipelined_from=never");
    EXPECT_FALSE(shc_select_unpipelined(&t, size_t{1} << 50, 2));
}

TEST(Tuning, AScatterIsPulledFromWhereItsKeySays)
{
    const shc_tuning t = read_good("scatter.single_copy_from=1m");
    EXPECT_FALSE(shc_select_pulls(&t, size_t{1} << 50, 2));
    EXPECT_FALSE(shc_select_pulls(&t, size_t{1} << 50, SHC_CMA_RANKS + 1));
    for (int world : {3, 4, 5, SHC_CMA_RANKS}) {
        EXPECT_FALSE(shc_select_pulls(&t, (1 << 20) - 1, world)) << world;
        EXPECT_TRUE(shc_select_pulls(&t, 1 << 20, world)) << world;
    }
}

// A step, a cell and a slot have a part for each of a pool's threads and their caller, as far as they
// can be that long. Without a pool nothing changes.
TEST(Tuning, WithAPoolEverythingIsLongEnoughForItsParts)
{
    for (int threads : {0, 1, 2, 3, 11, 256}) {
        for (int world : {2, 3, 4, 5, 8}) {
            const std::string text = "turn=4k,chunk=64k,broadcast_slot=8k";
            const shc_tuning without = settled(text, world);
            shc_tuning t = read_good(text);
            shc_select_settle(&t, world, threads, false);
            if (threads == 0) {
                EXPECT_EQ(shown(t), shown(without));
                continue;
            }
            EXPECT_FALSE(shc_select_unpipelined(&t, size_t{1} << 50, 2));
            EXPECT_LT(shc_select_turn(&t, SHC_ALL_REDUCE, (8 << 20) - 1, 2), SIZE_MAX);
            EXPECT_EQ(shc_select_turn(&t, SHC_ALL_REDUCE, 8 << 20, 2), SIZE_MAX);
            const size_t parts = static_cast<size_t>(std::min(threads, 3)) + 1;
            shc_arena_geometry g = shc_arena_plan(world, 64 << 20, &t.arena, SHC_ARENA_WHOLE);
            EXPECT_EQ(g.cell_bytes / SHC_PART_BYTES, parts) << threads << " " << world;
            EXPECT_EQ(g.bcast_slot_bytes / SHC_PART_BYTES, parts) << threads << " " << world;
            EXPECT_GE(shc_select_turn(&t, SHC_ALL_GATHER, 1, world), parts * SHC_PART_BYTES);
            for (size_t bytes : {size_t{32} << 10, size_t{64} << 10, size_t{1} << 20})
                EXPECT_GE(shc_select_piece(&t, bytes, g.bcast_slot_bytes, world),
                          std::min(bytes, g.bcast_slot_bytes));
        }
    }
    shc_tuning longer = read_good("turn=128k,broadcast_slot=128k,chunk=1m");
    shc_select_settle(&longer, 2, 1, false);
    EXPECT_EQ(longer.turn_bytes, 131072u);
    EXPECT_EQ(longer.arena.bcast_slot_bytes, 131072u);
    EXPECT_EQ(longer.arena.chunk_bytes, size_t{1} << 20);
}

TEST(Tuning, APieceHasAboutTheRootOfTheBytesThatWouldPassMeanwhile)
{
    const shc_tuning t = read_good("flag_latency=2k");
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
    const shc_tuning least = read_good("flag_latency=1"), most = read_good("flag_latency=131072");
    EXPECT_EQ(shc_select_piece(&least, 4 << 20, 64 << 10, 2), 2u << 10);
    EXPECT_EQ(shc_select_piece(&most, 32 << 10, 64 << 10, 2), 64u << 10);
}

TEST(Tuning, MayStoreNonTemporallyFromItsKeyOn)
{
    shc_tuning t = read_good("staging.non_temporal_from=100");
    EXPECT_FALSE(shc_select_streams(&t, 99));
    EXPECT_TRUE(shc_select_streams(&t, 100));
    t = read_good("staging.non_temporal_from=never");
    EXPECT_FALSE(shc_select_streams(&t, size_t{1} << 50));
}

shc_arena_geometry plan_of(const std::string &text, int world)
{
    const shc_tuning t = settled(text, world);
    return shc_arena_plan(world, size_t{1} << 40, &t.arena, SHC_ARENA_WHOLE);
}

TEST(Tuning, TheArenaHasTheSizesThatItsKeysSay)
{
    EXPECT_EQ(plan_of("chunk=64k", 4).cell_bytes, 16384u);
    EXPECT_EQ(plan_of("chunk=64k", 8).cell_bytes, 8192u);
    EXPECT_EQ(plan_of("", 4).cell_bytes, 65536u);
    EXPECT_EQ(plan_of("", 8).cell_bytes, 16384u);
    EXPECT_EQ(plan_of("chunk=4k", 4).cell_bytes, 2048u) << "a cell has a least size";
    EXPECT_EQ(plan_of("chunk=32m", 2).cell_bytes, 131072u) << "and a largest one";
    EXPECT_EQ(plan_of("chunk=4100", 2).cell_bytes % SHC_LINE_BYTES, 0u);
    EXPECT_EQ(plan_of("depth=4", 2).depth, 4u);
    EXPECT_EQ(plan_of("broadcast_slot=16k", 3).bcast_slot_bytes, 16384u);
    EXPECT_EQ(plan_of("broadcast_depth=16", 2).bcast_slot_depth, 16u);
    EXPECT_EQ(plan_of("broadcast_depth=16", 3).bcast_slot_depth, 11u) << "as many in all, or more";
    EXPECT_EQ(plan_of("broadcast_depth=2", 4).bcast_slot_depth, 2u) << "with one, all wait for all";
    EXPECT_EQ(plan_of("broadcast_depth=16", 5).bcast_slot_depth, 16u);
    EXPECT_EQ(plan_of("", 2).bcast_slot_depth, 24u);
    EXPECT_EQ(plan_of("", 4).bcast_slot_depth, 12u);
    EXPECT_EQ(plan_of("", 5).bcast_slot_depth, 4u);
}

TEST(Tuning, AnArenaOfAnySizesStaysWithinItsLimit)
{
    for (const char *text :
         {"chunk=32m,broadcast_slot=128k,depth=4,broadcast_depth=32", "broadcast_slot=65664",
          "chunk=4k,broadcast_slot=2k,depth=2,broadcast_depth=2"}) {
        for (int world : {2, 3, 8, 64}) {
            const shc_tuning t = settled(text, world);
            for (size_t limit : {size_t{100} << 10, size_t{1} << 20, size_t{32} << 20}) {
                shc_arena_geometry g = shc_arena_plan(world, limit, &t.arena, SHC_ARENA_WHOLE);
                EXPECT_LE(g.range_bytes * static_cast<size_t>(world), limit) << text;
                EXPECT_EQ(g.bcast_slot_bytes % SHC_LINE_BYTES, 0u);
                EXPECT_EQ(g.cell_bytes % SHC_LINE_BYTES, 0u);
            }
        }
    }
}

} // namespace
