// SPDX-License-Identifier: BSD-3-Clause
// The uneven forms of all_gather and reduce_scatter: worlds, sizes, layouts, mismatches.
#include "tests/conformance/world.h"

#include <cstring>
#include <gtest/gtest.h>

using namespace shmcoll::test;

namespace
{

// How many elements belong to a rank: some have none, one has most.
size_t size_of(int rank, int world, size_t count)
{
    switch ((rank + static_cast<int>(count)) % 4) {
    case 0:
        return 0;
    case 1:
        return count;
    case 2:
        return count / 3 + 1;
    default:
        return rank == world - 1 ? 3 * count + 1 : 1;
    }
}

struct Lists {
    std::vector<std::vector<float>> tensors;
    std::vector<int64_t> sizes;
    std::vector<shc_tensor> list;

    explicit Lists(std::vector<std::vector<float>> values)
        : tensors(std::move(values)), sizes(tensors.size())
    {
        for (size_t i = 0; i < tensors.size(); i++)
            list.push_back(vector_of(tensors[i], &sizes[i]));
    }
    shc_tensors view() { return {list.data(), static_cast<uint32_t>(list.size())}; }
};

// aliased: the input is the rank's own tensor of the list.
void gather(Rank &rank, size_t count, bool aliased)
{
    std::vector<std::vector<float>> room;
    for (int r = 0; r < rank.world; r++)
        room.emplace_back(size_of(r, rank.world, count), -1.f);
    const size_t me = static_cast<size_t>(rank.rank);
    std::vector<float> in = input_of(rank.rank, room[me].size());
    Lists out(room);
    int64_t size;
    shc_tensor from = vector_of(in, &size);
    if (aliased) {
        std::copy(in.begin(), in.end(), out.tensors[me].begin());
        from.data = out.tensors[me].data();
    }
    shc_op op = op_of(SHC_ALL_GATHER_UNEVEN);
    op.input = {&from, 1};
    op.output = out.view();
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    for (int r = 0; r < rank.world; r++)
        EXPECT_TRUE(
            same(out.tensors[static_cast<size_t>(r)], input_of(r, size_of(r, rank.world, count))))
            << "count " << count << " rank " << r;
}

void reduce_scatter(Rank &rank, size_t count, shc_redop redop)
{
    std::vector<std::vector<float>> values;
    size_t total = 0, before = 0;
    for (int r = 0; r < rank.world; r++)
        total += size_of(r, rank.world, count);
    std::vector<float> whole = input_of(rank.rank, total), sum = sum_of(rank.world, total);
    if (redop == SHC_PREMUL_SUM) {
        sum = repeated(total, kPeriod, [&](size_t i) {
            float scaled = 0.f;
            for (int r = 0; r < rank.world; r++)
                scaled += value_of(r, i) * static_cast<float>(r + 2);
            return scaled;
        });
    }
    std::vector<float> want;
    for (int r = 0; r < rank.world; r++) {
        auto begin = static_cast<std::ptrdiff_t>(before);
        auto end = begin + static_cast<std::ptrdiff_t>(size_of(r, rank.world, count));
        values.emplace_back(whole.begin() + begin, whole.begin() + end);
        if (r == rank.rank)
            want.assign(sum.begin() + begin, sum.begin() + end);
        before = static_cast<size_t>(end);
    }
    Lists in(values);
    std::vector<float> out(want.size(), -1.f);
    int64_t size;
    shc_tensor to = vector_of(out, &size);
    shc_op op = op_of(SHC_REDUCE_SCATTER_UNEVEN);
    op.redop = redop;
    op.premul = rank.rank + 2;
    op.input = in.view();
    op.output = {&to, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    EXPECT_TRUE(same(out, want)) << "count " << count;
    for (size_t r = 0; r < values.size(); r++)
        EXPECT_TRUE(same(in.tensors[r], values[r])) << "the input has changed, count " << count;
}

// Around every bound: after the table in the small slot, one chunk, many.
#ifdef __SANITIZE_THREAD__
const size_t kCounts[] = {0, 3, 600, 2031, 20000};
#else
const size_t kCounts[] = {0, 1, 2, 3, 50, 600, 1000, 2030, 2031, 2048, 9000, 20000, 70001, 300007};
#endif

void every_form(Rank &rank)
{
    for (size_t count : kCounts) {
        gather(rank, count, false);
        gather(rank, count, true);
        reduce_scatter(rank, count, SHC_SUM);
        reduce_scatter(rank, count, SHC_PREMUL_SUM);
        // The next use of the small slots must not meet what was read late.
        std::vector<float> more = input_of(rank.rank, 500);
        int64_t size;
        shc_tensor tensor = vector_of(more, &size);
        shc_op op = op_of(SHC_ALL_REDUCE);
        op.input = op.output = {&tensor, 1};
        ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
        EXPECT_TRUE(same(more, sum_of(rank.world, 500)));
        if (::testing::Test::HasFailure())
            return;
    }
}

class Uneven : public ::testing::TestWithParam<Case>
{
};

TEST_P(Uneven, ListsGiveTheRightResultAtEverySize)
{
    const Options options = options_of(GetParam());
    run_ranks(GetParam().mode, GetParam().world, every_form, options);
}

TEST_P(Uneven, ListsGiveTheRightResultWhenCountersWrap)
{
    const Options options = options_of(GetParam(), true);
    run_ranks(GetParam().mode, GetParam().world, every_form, options);
}

TEST_P(Uneven, ListsGiveTheRightResultWhenRanksAreLateAtRandom)
{
    const Options options = options_of(GetParam());
    run_ranks(
        GetParam().mode, GetParam().world,
        [](Rank &rank) {
            unsigned seed = 777u + static_cast<unsigned>(rank.rank), shared_seed = 4u;
            for (int round = 0; round < 100 && !::testing::Test::HasFailure(); round++) {
                if (rand_r(&seed) % 6 == 0)
                    shc_os_sleep_ns(static_cast<uint64_t>(rand_r(&seed) % 300) * 1000);
                size_t count = kCounts[static_cast<size_t>(rand_r(&shared_seed)) %
                                       (sizeof kCounts / sizeof kCounts[0] - 2)];
                if (rand_r(&shared_seed) % 2 == 0)
                    gather(rank, count, round % 2 == 0);
                else
                    reduce_scatter(rank, count, SHC_SUM);
            }
        },
        options);
}

TEST(UnevenArenas, OfAnySizeChangeNoResult)
{
    for (size_t limit_kib : {64u, 300u}) {
        Options options;
        options.knobs.arena_limit = limit_kib << 10;
        run_ranks(Mode::kOneMapping, 3, every_form, options);
    }
}

// Rank 2 has other sizes: all ranks are told the same, nothing is written.
TEST(UnevenLists, ThatDifferFailOnEveryRank)
{
    for (size_t count : {10u, 100000u}) {
        for (bool gathers : {true, false}) {
            run_ranks(Mode::kOwnMapping, 3, [count, gathers](Rank &rank) {
                std::vector<size_t> sizes = {count, 1, count / 2};
                const std::vector<size_t> agreed = sizes;
                if (rank.rank == 2)
                    sizes[1] = 2;
                std::vector<std::vector<float>> values;
                for (size_t size : sizes)
                    values.emplace_back(size, -1.f);
                Lists list(values);
                std::vector<float> one(agreed[static_cast<size_t>(rank.rank)], -1.f);
                const std::vector<float> old = one;
                int64_t size;
                shc_tensor other = vector_of(one, &size);
                shc_op op = op_of(gathers ? SHC_ALL_GATHER_UNEVEN : SHC_REDUCE_SCATTER_UNEVEN);
                op.input = gathers ? shc_tensors{&other, 1} : list.view();
                op.output = gathers ? list.view() : shc_tensors{&other, 1};
                EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_MISMATCH);
                std::string expected =
                    gathers ? "rank 1 gives 1 elements, but rank 2 has room for 2"
                            : "the output of rank 1 has 1 elements, but rank 2 gives it 2";
                EXPECT_NE(error_text().find(expected), std::string::npos) << error_text();
                EXPECT_EQ(list.tensors, values);
                EXPECT_EQ(one, old);
            });
        }
    }
}

// An even list on one rank, an uneven one on another.
TEST(UnevenLists, AreNotTheEvenOnesCall)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        const bool even = rank.rank == 0;
        std::vector<float> one(3, 1.f);
        Lists list({std::vector<float>(even ? 3 : 4, -1.f), std::vector<float>(3, -1.f)});
        int64_t size;
        shc_tensor from = vector_of(one, &size);
        shc_op op = op_of(even ? SHC_ALL_GATHER : SHC_ALL_GATHER_UNEVEN);
        op.input = {&from, 1};
        op.output = list.view();
        EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_MISMATCH);
        for (const char *text :
             {"all_gather #1 (float32[3])", "uneven all_gather #1 (float32[7 in all])"})
            EXPECT_NE(error_text().find(text), std::string::npos) << error_text();
        EXPECT_TRUE(same(list.tensors[1], std::vector<float>(3, -1.f)));
    });
}

// Wrong on one rank alone: reported there, and nothing is published.
TEST(UnevenLists, ThatDoNotFitTheOtherSideAreRefused)
{
    run_ranks(Mode::kOneMapping, 2, [](Rank &rank) {
        std::vector<float> one(5, 1.f);
        Lists list({std::vector<float>(4, -1.f), std::vector<float>(3, -1.f)});
        int64_t size;
        shc_tensor from = vector_of(one, &size);
        shc_op op = op_of(SHC_ALL_GATHER_UNEVEN);
        op.input = {&from, 1};
        op.output = list.view();
        EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_INVALID);
        EXPECT_NE(error_text().find("this rank's, has " + std::to_string(4 - rank.rank) +
                                    " elements, but there are 5 on the other side"),
                  std::string::npos)
            << error_text();
        op.output.count = 1;
        EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_INVALID);
        EXPECT_NE(error_text().find("a list of 1 tensors for 2 ranks"), std::string::npos);
        gather(rank, 100, false);
    });
}

TEST(UnevenLists, MoveOpaqueElementsWhole)
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
                const int64_t sizes[2] = {30001, 7}, two = 2;
                std::vector<Element> in(2 * 30001), first(30001), second(7);
                for (size_t i = 0; i < in.size(); i++)
                    memset(in[i].bytes, static_cast<int>(i % 100) + 100 * rank.rank, 12);
                shc_tensor from = {in.data(), 1, &sizes[rank.rank], &two};
                shc_tensor to[2] = {{first.data(), 1, &sizes[0], nullptr},
                                    {second.data(), 1, &sizes[1], nullptr}};
                shc_op op = op_of(SHC_ALL_GATHER_UNEVEN);
                op.dtype = SHC_OPAQUE;
                op.elem_bytes = sizeof(Element);
                op.input = {&from, 1};
                op.output = {to, 2};
                ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
                for (size_t i = 0; i < first.size(); i++)
                    for (char byte : first[i].bytes)
                        ASSERT_EQ(static_cast<unsigned char>(byte), 2 * i % 100) << i;
                for (size_t i = 0; i < second.size(); i++)
                    for (char byte : second[i].bytes)
                        ASSERT_EQ(static_cast<unsigned char>(byte), 2 * i % 100 + 100) << i;
            },
            options);
    }
}

INSTANTIATE_TEST_SUITE_P(All, Uneven, ::testing::ValuesIn(cases()), case_name);

} // namespace
