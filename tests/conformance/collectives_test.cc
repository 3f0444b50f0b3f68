// SPDX-License-Identifier: BSD-3-Clause

// What every collective must do, whatever carries it: worlds, sizes,
// layouts, in place or not, with and without an arena, ranks as threads and as processes.
#include "tests/conformance/world.h"

#include <cstring>
#include <functional>
#include <gtest/gtest.h>

using namespace shmcoll::test;

namespace
{

void all_reduce_in_place(Rank &rank, size_t count)
{
    std::vector<float> values = input_of(rank.rank, count);
    int64_t size;
    shc_tensor tensor = vector_of(values, &size);
    shc_op op = op_of(SHC_ALL_REDUCE);
    op.input = op.output = {&tensor, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    EXPECT_TRUE(same(values, sum_of(rank.world, count))) << "count " << count;
}

void all_reduce_out_of_place(Rank &rank, size_t count)
{
    std::vector<float> in = input_of(rank.rank, count), out(count, -1.f);
    int64_t size;
    shc_tensor from = vector_of(in, &size), to = vector_of(out, &size);
    shc_op op = op_of(SHC_ALL_REDUCE);
    op.input = {&from, 1};
    op.output = {&to, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    EXPECT_TRUE(same(out, sum_of(rank.world, count))) << "count " << count;
    EXPECT_TRUE(same(in, input_of(rank.rank, count))) << "the input has changed, count " << count;
}

void broadcast_from(Rank &rank, int root, size_t count)
{
    std::vector<float> values =
        rank.rank == root ? input_of(root, count) : std::vector<float>(count, -1.f);
    int64_t size;
    shc_tensor tensor = vector_of(values, &size);
    shc_op op = op_of(SHC_BROADCAST);
    op.root = root;
    op.input = op.output = {&tensor, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    EXPECT_TRUE(same(values, input_of(root, count))) << "root " << root << " count " << count;
}

std::vector<float> gathered(int world, size_t count)
{
    std::vector<float> all;
    all.reserve(count * static_cast<size_t>(world));
    for (int r = 0; r < world; r++) {
        const std::vector<float> one = input_of(r, count);
        all.insert(all.end(), one.begin(), one.end());
    }
    return all;
}

void all_gather_flat(Rank &rank, size_t count, bool aliased)
{
    std::vector<float> in = input_of(rank.rank, count);
    std::vector<float> out(count * static_cast<size_t>(rank.world), -1.f);
    int64_t in_size, out_size;
    shc_tensor from = vector_of(in, &in_size), to = vector_of(out, &out_size);
    if (aliased) {
        float *own = out.data() + count * static_cast<size_t>(rank.rank);
        std::copy(in.begin(), in.end(), own);
        from.data = own;
    }
    shc_op op = op_of(SHC_ALL_GATHER);
    op.input = {&from, 1};
    op.output = {&to, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    EXPECT_TRUE(same(out, gathered(rank.world, count))) << "count " << count;
}

void all_gather_list(Rank &rank, size_t count)
{
    std::vector<float> in = input_of(rank.rank, count);
    std::vector<std::vector<float>> outs(static_cast<size_t>(rank.world),
                                         std::vector<float>(count, -1.f));
    int64_t size;
    shc_tensor from = vector_of(in, &size);
    std::vector<shc_tensor> to;
    for (std::vector<float> &out : outs)
        to.push_back(vector_of(out, &size));
    shc_op op = op_of(SHC_ALL_GATHER);
    op.input = {&from, 1};
    op.output = {to.data(), static_cast<uint32_t>(to.size())};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    for (int r = 0; r < rank.world; r++)
        EXPECT_TRUE(same(outs[static_cast<size_t>(r)], input_of(r, count))) << "count " << count;
}

void reduce_to(Rank &rank, int root, size_t count)
{
    std::vector<float> in = input_of(rank.rank, count), out(count, -1.f);
    int64_t size;
    shc_tensor from = vector_of(in, &size), to = vector_of(out, &size);
    shc_op op = op_of(SHC_REDUCE);
    op.root = root;
    op.input = {&from, 1};
    op.output = {&to, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    EXPECT_TRUE(same(in, input_of(rank.rank, count))) << "the input has changed, count " << count;
    if (rank.rank == root)
        EXPECT_TRUE(same(out, sum_of(rank.world, count))) << "root " << root << " count " << count;
    else
        EXPECT_TRUE(same(out, std::vector<float>(count, -1.f)))
            << "root " << root << " count " << count;
}

void gather_to(Rank &rank, int root, size_t count)
{
    std::vector<float> in = input_of(rank.rank, count);
    std::vector<float> out(count * static_cast<size_t>(rank.world), -1.f);
    int64_t in_size, out_size;
    shc_tensor from = vector_of(in, &in_size), to = vector_of(out, &out_size);
    shc_op op = op_of(SHC_GATHER);
    op.root = root;
    op.input = {&from, 1};
    if (rank.rank == root)
        op.output = {&to, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    if (rank.rank == root) {
        EXPECT_TRUE(same(out, gathered(rank.world, count)))
            << "root " << root << " count " << count;
    }
}

void scatter_from(Rank &rank, int root, size_t count)
{
    std::vector<float> in = gathered(rank.world, count), out(count, -1.f);
    int64_t in_size, out_size;
    shc_tensor from = vector_of(in, &in_size), to = vector_of(out, &out_size);
    shc_op op = op_of(SHC_SCATTER);
    op.root = root;
    if (rank.rank == root)
        op.input = {&from, 1};
    op.output = {&to, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    EXPECT_TRUE(same(out, input_of(rank.rank, count))) << "root " << root << " count " << count;
}

void reduce_scatter(Rank &rank, size_t count)
{
    const size_t all = count * static_cast<size_t>(rank.world);
    std::vector<float> in = input_of(rank.rank, all), out(count, -1.f);
    int64_t in_size, out_size;
    shc_tensor from = vector_of(in, &in_size), to = vector_of(out, &out_size);
    shc_op op = op_of(SHC_REDUCE_SCATTER);
    op.input = {&from, 1};
    op.output = {&to, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    EXPECT_TRUE(same(in, input_of(rank.rank, all))) << "the input has changed, count " << count;
    std::vector<float> sum = sum_of(rank.world, all);
    auto begin = sum.begin() + static_cast<std::ptrdiff_t>(count) * rank.rank;
    EXPECT_TRUE(same(out, std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(count))))
        << "count " << count;
}

// How many elements go from one rank to another; zero, too.
size_t block_of(int from, int to, size_t count)
{
    return count * static_cast<size_t>((from * 3 + to * 5) % 4) / 2;
}

// That many elements from each rank to each other one.
void all_to_all_of(Rank &rank, const std::function<size_t(int from, int to)> &count_of)
{
    const size_t world = static_cast<size_t>(rank.world);
    std::vector<std::vector<float>> ins(world), outs(world);
    std::vector<int64_t> in_sizes(world), out_sizes(world);
    std::vector<shc_tensor> from, to;
    for (size_t r = 0; r < world; r++) {
        int other = static_cast<int>(r);
        ins[r] = input_of(rank.rank * 16 + other, count_of(rank.rank, other));
        outs[r].assign(count_of(other, rank.rank), -1.f);
        from.push_back(vector_of(ins[r], &in_sizes[r]));
        to.push_back(vector_of(outs[r], &out_sizes[r]));
    }
    shc_op op = op_of(SHC_ALL_TO_ALL);
    op.input = {from.data(), static_cast<uint32_t>(world)};
    op.output = {to.data(), static_cast<uint32_t>(world)};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    for (size_t r = 0; r < world; r++)
        EXPECT_TRUE(same(outs[r], input_of(static_cast<int>(r) * 16 + rank.rank, outs[r].size())))
            << "from " << r << " count " << outs[r].size();
}

// Even blocks, or uneven ones of which some are empty.
void all_to_all(Rank &rank, size_t count, bool even)
{
    all_to_all_of(rank, [&](int from, int to) { return even ? count : block_of(from, to, count); });
}

void barrier(Rank &rank)
{
    shc_op op = op_of(SHC_BARRIER);
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
}

// Around every bound between algorithms: inline, small slot, direct exchange, one chunk, many chunks.
#ifdef __SANITIZE_THREAD__ // one of each algorithm: its code paths do not grow with the size
const size_t kCounts[] = {0, 1, 11, 13, 100, 257, 1025, 2049, 8193, 32769, 70000};
#elif defined(__SANITIZE_ADDRESS__) // the last two have no bound of their own
const size_t kCounts[] = {0,    1,    2,    10,   11,   12,   13,    100,   256,   257,   1024,
                          1025, 2047, 2048, 2049, 8192, 8193, 16384, 32767, 32768, 32769, 70000};
#else
const size_t kCounts[] = {0,    1,     2,     10,    11,    12,    13,     100,   255,
                          256,  257,   1023,  1024,  1025,  2047,  2048,   2049,  8192,
                          8193, 16384, 32767, 32768, 32769, 70000, 200003, 600011};
#endif

void every_operation(Rank &rank)
{
    for (size_t count : kCounts) {
        const int root = static_cast<int>(count) % rank.world;
        reduce_to(rank, root, count);
        gather_to(rank, root, count);
        scatter_from(rank, root, count);
        reduce_scatter(rank, count);
        all_to_all(rank, count, true);
        all_to_all(rank, count, false);
        all_reduce_in_place(rank, count);
        all_reduce_out_of_place(rank, count);
        broadcast_from(rank, root, count);
        barrier(rank);
        all_gather_flat(rank, count, false);
        all_gather_flat(rank, count, true);
        all_gather_list(rank, count);
        if (::testing::Test::HasFailure())
            return;
    }
}

// One of them, from a seed that is the same on all ranks.
void any_operation(Rank &rank, unsigned seed, size_t count)
{
    const int root = rand_r(&seed) % rank.world;
    const bool other = rand_r(&seed) % 2 == 0;
    switch (rand_r(&seed) % 11) {
    case 0:
        return broadcast_from(rank, root, count);
    case 1:
        return all_gather_flat(rank, count, other);
    case 2:
        return barrier(rank);
    case 3:
        return reduce_to(rank, root, count);
    case 4:
        return gather_to(rank, root, count);
    case 5:
        return scatter_from(rank, root, count);
    case 6:
        return reduce_scatter(rank, count);
    case 7:
    case 8:
        return all_to_all(rank, count, other);
    default:
        return all_reduce_in_place(rank, count);
    }
}

class Collectives : public ::testing::TestWithParam<Case>
{
};

TEST_P(Collectives, GiveTheRightResultAtEverySize)
{
    const Options options = options_of(GetParam());
    run_ranks(GetParam().mode, GetParam().world, every_operation, options);
}

TEST_P(Collectives, GiveTheRightResultWhenCountersWrap)
{
    const Options options = options_of(GetParam(), true);
    run_ranks(GetParam().mode, GetParam().world, every_operation, options);
}

void late_at_random(Rank &rank)
{
    unsigned seed = 12345u + static_cast<unsigned>(rank.rank);
    for (int round = 0, end = rounds(150); round < end && !::testing::Test::HasFailure(); round++) {
        if (rand_r(&seed) % 8 == 0)
            shc_os_sleep_ns(static_cast<uint64_t>(rand_r(&seed) % 300) * 1000);
        unsigned shared_seed = 99u + static_cast<unsigned>(round);
        size_t count = kCounts[static_cast<size_t>(rand_r(&shared_seed)) %
                               (sizeof kCounts / sizeof kCounts[0] - 1)];
        any_operation(rank, shared_seed, count);
    }
}

// A rank that is late at random finds lines and cells as they should be.
TEST_P(Collectives, GiveTheRightResultWhenRanksAreLateAtRandom)
{
    run_ranks(GetParam().mode, GetParam().world, late_at_random, options_of(GetParam()));
}

// Small slots change hands in some operations and stay in others: each kind after each other one, in every
// place of the turn.
TEST_P(Collectives, GiveTheRightResultWhenSmallOnesFollowInAnyOrder)
{
    const Options options = options_of(GetParam());
    run_ranks(
        GetParam().mode, GetParam().world,
        [](Rank &rank) {
            const size_t counts[] = {1, 20, 100, 513, 1100, 4096, 8192};
            for (unsigned round = 0; round < 600 && !::testing::Test::HasFailure(); round++)
                any_operation(rank, 7 * round, counts[round / 3 % std::size(counts)]);
        },
        options);
}

// A small limit makes cells smaller than the messages that some algorithms put into one.
TEST(SmallArenas, ChangeNoResult)
{
    for (Mode mode : modes()) {
        for (size_t limit_kib : {64u, 150u, 300u, 1000u}) {
            Options options;
            options.knobs.arena_limit = limit_kib << 10;
            run_ranks(mode, 2, every_operation, options);
        }
    }
}

Options in_unpipelined(const char *tuning, bool wrap = false)
{
    Options options = options_of({all_modes().front(), 2, true}, wrap);
    options.knobs.roomy = true;
    options.tuning = tuning;
    return options;
}

// A chunk at a time, in cells from small ones on, followed by what takes all slots in turn.
TEST(Unpipelined, ChangesNoResult)
{
    for (Mode mode : modes()) {
        for (size_t limit_kib : {64u, 300u, 4096u}) {
            Options options = in_unpipelined("all_reduce.unpipelined_from=0");
            options.knobs.arena_limit = limit_kib << 10;
            run_ranks(mode, 2, every_operation, options);
            run_ranks(mode, 2, late_at_random, options);
        }
    }
}

// Shorter sums through all slots in turn, longer ones unpipelined and by whole cells; and counters wrap.
TEST(Unpipelined, GoesWithThePipelineInOneGroup)
{
    for (Mode mode : modes())
        run_ranks(
            mode, 2, every_operation,
            in_unpipelined("all_reduce.unpipelined_from=200k,turn=128k,output.non_temporal_from=0",
                           true));
}

// After the meeting come the factors, and the first store to user memory.
TEST(Unpipelined, MeetsFirst)
{
    const auto body = [](Rank &rank) {
        const size_t count = 100000;
        const int64_t sizes[] = {100000, rank.rank == 0 ? 100000 : 99999};
        std::vector<float> values = input_of(rank.rank, count), expected(count, 0.f);
        for (int r = 0; r < rank.world; r++) {
            const std::vector<float> one = input_of(r, count);
            for (size_t i = 0; i < count; i++)
                expected[i] += static_cast<float>(r + 2) * one[i];
        }
        shc_op op = op_of(SHC_ALL_REDUCE);
        op.redop = SHC_PREMUL_SUM;
        op.premul = rank.rank + 2;
        shc_tensor tensor = {
            .data = values.data(), .ndim = 1, .sizes = &sizes[0], .strides = nullptr};
        op.input = op.output = {&tensor, 1};
        ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
        EXPECT_TRUE(same(values, expected));
        tensor.sizes = &sizes[1];
        EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_MISMATCH) << error_text();
        EXPECT_TRUE(same(values, expected)) << "changed by a call that failed";
    };
    Options options = in_unpipelined("all_reduce.unpipelined_from=0");
    options.timeout_ns = 5ULL * 1000 * 1000 * 1000;
    for (Mode mode : modes())
        run_ranks(mode, 2, body, options);
}

const char *const kExtremes[] = {
    // the smallest cells and slots, and as few of them as there may be
    "chunk=4k,turn=2k,depth=2,broadcast_slot=2k,broadcast_depth=2,prefetch_up_to=never",
    // the largest
    "chunk=32m,turn=128k,depth=4,broadcast_slot=128k,broadcast_depth=32,flag_latency=128k,"
    "all_reduce.direct_exchange=128k,prefetch_up_to=0,output.non_temporal_from=0",
    // everything through the small slots that they can carry
    "inline=0,small=8k,small_of_two=8k,handoff=8k,staging.non_temporal_from=0",
    // everything in chunks
    "inline=0,small=0,small_of_two=0,handoff=0,all_reduce.direct_exchange=0,turn=128k,"
    "staging.non_temporal_from=never",
    // the shortest pieces of the longest slots, which two ranks have
    "flag_latency=1,broadcast_slot=128k,broadcast_depth=2",
};

// Blocks of any size are copied by the kernel, out of the root's memory.
TEST(Pulls, ChangeNoResult)
{
    for (Mode mode : modes()) {
        for (int world : {3, 4}) {
            Options options = options_of({mode, world, world == 3}, world == 4);
            options.tuning = std::string(kExtremes[3]) + ",scatter.single_copy_from=1";
            run_ranks(
                mode, world,
                [](Rank &rank) {
                    every_operation(rank);
                    char text[8192];
                    ASSERT_EQ(shc_comm_info(rank.comm, text, sizeof text), SHC_OK) << error_text();
                    EXPECT_NE(strstr(text, "\ncma=on\n"), nullptr) << text;
                    EXPECT_EQ(strstr(text, "\npulled=0\n"), nullptr) << text;
                },
                options);
        }
    }
}

// What ranks do that have a CPU each, independent of the machine's CPUs.
TEST(Room, ChangesNoResult)
{
    for (Mode mode : modes()) {
        for (int world : {3, 4}) {
            Options options = options_of({mode, world, true});
            options.knobs.roomy = true;
            run_ranks(mode, world, every_operation, options);
        }
    }
}

// Reduces between operations that use the same cells, slots and lines in another way.
void reduces(Rank &rank)
{
    for (size_t count : kCounts) {
        const int root = static_cast<int>(count) % rank.world;
        reduce_to(rank, root, count);
        reduce_to(rank, (root + 1) % rank.world, count);
        all_reduce_in_place(rank, count);
        reduce_to(rank, root, count);
        scatter_from(rank, root, count);
        if (::testing::Test::HasFailure())
            return;
    }
}

// Slices are even with 4 ranks alone. To the thread sanitizer 7 ranks show no other code than 3.
#ifdef __SANITIZE_THREAD__
const std::vector<int> kSpreadWorlds = {3, 4};
#else
const std::vector<int> kSpreadWorlds = {3, 4, 7};
#endif

// By slices through the small slots, independent of the machine's CPUs: of lines, a part of one, or none.
TEST(Tunings, SumsBySlicesChangeNoResult)
{
    for (Mode mode : modes()) {
        for (int world : kSpreadWorlds) {
            Options options = options_of({mode, world, true});
            options.tuning = "inline=0,all_reduce.two_phase_from=0";
            run_ranks(mode, world, every_operation, options);
        }
    }
}

// By slices through the small slots, through cells in few and in many chunks, and without an arena.
TEST(Tunings, ReducesThatAreSpreadChangeNoResult)
{
    const std::string spread = "inline=0,reduce.two_phase_from=0,reduce.scatter_gather_from=0";
    const std::string cells = ",small=0", chunks = ",chunk=4k,depth=2";
    for (Mode mode : modes()) {
        const auto run = [&](int world, bool arena, const std::string &more) {
            SCOPED_TRACE(more);
            Options options = options_of({mode, world, arena});
            options.tuning = spread + more;
            run_ranks(mode, world, reduces, options);
        };
        for (int world : kSpreadWorlds)
            run(world, true, world == 3 ? cells : "");
        for (int world : kSpreadWorlds)
            if (world > 3)
                run(world, true, cells + chunks);
        run(4, false, "");
    }
}

// Each with two or three ranks, in turns; one rank, or no arena, makes little use of it.
TEST(Tunings, ChangeNoResult)
{
    const Mode mode = all_modes().front();
    int world = 3;
    for (const char *tuning : kExtremes) {
        world = 5 - world;
        Options options = options_of({mode, world, true});
        options.tuning = tuning;
        SCOPED_TRACE(tuning);
        run_ranks(mode, world, every_operation, options);
    }
    for (const Case &c : {Case{Mode::kOneMapping, 1, true}, Case{Mode::kOneMapping, 3, false}}) {
        Options options = options_of(c);
        options.tuning = kExtremes[0];
        run_ranks(c.mode, c.world, every_operation, options);
    }
}

// Groups of one process may differ in it.
TEST(Tunings, AreTheGroupsOwn)
{
    Options options;
    options.tuning = "depth=2";
    run_ranks(
        Mode::kProcesses, 2,
        [](Rank &rank) {
            shc_comm *other = nullptr;
            rank.tuning = "depth=4,turn=8k";
            ASSERT_EQ(rank.make_group(&other, "other"), SHC_OK) << error_text();
            for (shc_comm *comm : {rank.comm, other, rank.comm}) {
                char text[8192];
                Rank same = rank;
                same.comm = comm;
                every_operation(same); // it has long cells from then on
                ASSERT_EQ(shc_comm_info(comm, text, sizeof text), SHC_OK) << error_text();
                const char *depth = comm == other ? "\ndepth=4\n" : "\ndepth=2\n";
                const char *turn = comm == other ? "turn=8192\n" : "turn=65536\n";
                EXPECT_NE(strstr(text, depth), nullptr) << text;
                EXPECT_NE(strstr(text, turn), nullptr) << text;
            }
            shc_comm_free(other);
        },
        options);
}

TEST(Tunings, ThatDifferFailOnEveryRankAndNameThem)
{
    Options options;
    options.make_group = false;
    run_ranks(
        Mode::kProcesses, 4,
        [](Rank &rank) {
            rank.tuning = rank.rank % 2 ? "turn=4k,prefetch_up_to=1" : "prefetch_up_to=2";
            EXPECT_EQ(rank.make_group(&rank.comm), SHC_ERR_MISMATCH);
            EXPECT_NE(error_text().find("rank 1, 3: tuning differs: turn is 4096, on rank "
                                        "0 it is 65536"),
                      std::string::npos)
                << error_text();
            rank.tuning = rank.rank % 2 ? "prefetch_up_to=1" : "prefetch_up_to=2"; // may differ
            EXPECT_EQ(rank.make_group(&rank.comm), SHC_OK) << error_text();
        },
        options);
}

// One rank cannot read its settings: no rank waits for it.
TEST(Tunings, ThatAreWrongOnOneRankFailOnEveryRank)
{
    Options options;
    options.make_group = false;
    run_ranks(
        Mode::kProcesses, 3,
        [](Rank &rank) {
            rank.tuning = rank.rank == 2 ? "depth=9" : "depth=4";
            EXPECT_EQ(rank.make_group(&rank.comm), SHC_ERR_INVALID);
            EXPECT_NE(error_text().find("\"depth=9\" is not a number from 2 to 4"),
                      std::string::npos)
                << error_text();
        },
        options);
}

// With the call line, in small slots, or staged: each of the two in its own way, one operation after the
// other.
TEST(Splits, OfTwoGoEachInItsWay)
{
    const size_t counts[] = {0, 1, 8, 9, 1024, 1025, 2048, 2049, 5000};
    for (Mode mode : modes())
        for (bool arena : {true, false}) {
            Options options;
            options.knobs.no_arena = !arena;
            run_ranks(
                mode, 2,
                [&](Rank &rank) {
                    for (size_t lower : counts)
                        for (size_t upper : counts) {
                            all_to_all_of(rank, [&](int from, int to) {
                                return from == to ? 3 : from == 0 ? lower : upper;
                            });
                            if (lower % 2 == 1)
                                all_reduce_in_place(rank, 20); // its slots are the same
                            else // chunk 0 is announced, or not: both know which rank used which memory
                                broadcast_from(rank, lower < upper, 25000);
                        }
                },
                options);
        }
}

// Staging memory is made for what needs it, by both, and not before.
TEST(Splits, OfTwoThatAreShortNeedNoArena)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        all_to_all_of(rank, [](int, int) { return 1024; });
        EXPECT_FALSE(rank.comm->arena.tried);
        all_to_all_of(rank, [](int from, int) { return from == 0 ? 1025 : 1024; });
        EXPECT_TRUE(rank.comm->arena.made);
    });
}

// A rank sends another number of elements than the other one expects: all ranks are told, nothing is
// written.
TEST(Splits, ThatDifferFailOnEveryRank)
{
    for (size_t count : {10u, 100000u}) {
        run_ranks(Mode::kOwnMapping, 3, [count](Rank &rank) {
            std::vector<float> in(3 * count, 1.f), out(3 * count, -1.f);
            int64_t sizes[3] = {static_cast<int64_t>(count), static_cast<int64_t>(count),
                                static_cast<int64_t>(count)};
            int64_t less = static_cast<int64_t>(count) - 1;
            shc_tensor from[3], to[3];
            for (size_t r = 0; r < 3; r++) {
                from[r] = {in.data() + r * count, 1, &sizes[r], nullptr};
                to[r] = {out.data() + r * count, 1, &sizes[r], nullptr};
            }
            if (rank.rank == 2)
                to[1].sizes = &less; // rank 1 sends one more
            shc_op op = op_of(SHC_ALL_TO_ALL);
            op.input = {from, 3};
            op.output = {to, 3};
            EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_MISMATCH);
            std::string expected = "rank 1 sends " + std::to_string(count) +
                                   " elements to rank 2, which expects " + std::to_string(less);
            EXPECT_NE(error_text().find(expected), std::string::npos) << error_text();
            EXPECT_TRUE(same(out, std::vector<float>(3 * count, -1.f)));
        });
    }
}

// Bytes that no type describes, of a size that divides neither slots nor lines, with holes.
TEST(OpaqueElements, MoveWhole)
{
    struct Element {
        char bytes[12];
    };
    for (bool arena : {true, false}) {
        Options options;
        options.knobs.no_arena = !arena;
        run_ranks(
            Mode::kOwnMapping, 2,
            [](Rank &rank) {
                const int64_t count = 30001, two = 2, flat_count = 2 * count;
                const size_t n = static_cast<size_t>(count);
                std::vector<Element> in(2 * n), out(2 * n);
                for (size_t i = 0; i < 2 * n; i++)
                    memset(in[i].bytes, static_cast<int>(i % 100) + 100 * rank.rank, 12);
                shc_tensor strided = {in.data(), 1, &count, &two};
                shc_tensor flat = {out.data(), 1, &flat_count, nullptr};
                shc_op op = op_of(SHC_ALL_GATHER);
                op.dtype = SHC_OPAQUE;
                op.elem_bytes = sizeof(Element);
                op.input = {&strided, 1};
                op.output = {&flat, 1};
                ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
                for (size_t i = 0; i < 2 * n; i++) {
                    size_t from = 2 * (i % n);
                    int value = static_cast<int>(from % 100) + (i < n ? 0 : 100);
                    for (char byte : out[i].bytes)
                        ASSERT_EQ(static_cast<unsigned char>(byte), value) << i;
                }
                op = op_of(SHC_BROADCAST);
                op.dtype = SHC_OPAQUE;
                op.elem_bytes = sizeof(Element);
                op.root = 1;
                op.input = op.output = {&strided, 1};
                ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
                for (size_t i = 0; i < 2 * n; i++) {
                    int value = static_cast<int>(i % 100) + (i % 2 == 0 ? 100 : 100 * rank.rank);
                    ASSERT_EQ(static_cast<unsigned char>(in[i].bytes[11]), value) << i;
                }
            },
            options);
    }
}

INSTANTIATE_TEST_SUITE_P(All, Collectives, ::testing::ValuesIn(cases()), case_name);

} // namespace
