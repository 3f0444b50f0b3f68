// SPDX-License-Identifier: BSD-3-Clause

// Reduction threads, forced: every operation at sizes that are done
// in parts has the very bytes that it has without them, and parts were done. Ranks that differ in their
// number of threads agree.
#include "tests/conformance/world.h"

#include <cstring>
#include <gtest/gtest.h>
#include <numeric>
#include <utility>

using namespace shmcoll::test;

namespace
{

const int kThreads = 3;

enum class Layout {
    kFlat,     // one contiguous piece
    kApart,    // blocks with gaps between them: each is done in parts
    kStrided,  // no two elements are neighbours: nothing is
    kLastKind, // (their number)
};

// Values whose sum depends on the order, different for every rank and index; those of an index
// repeat.
const size_t kRoughPeriod = 4099;

float rough(int rank, size_t i)
{
    const uint32_t hash = static_cast<uint32_t>(i * 2654435761u + static_cast<size_t>(rank) * 97u);
    return static_cast<float>(hash % 100003) * (hash & 64 ? 1e-3f : 1e3f) - 5e4f;
}

// Tensors in one piece of memory, one for each block.
struct Blocks {
    std::vector<float> memory;
    std::vector<int64_t> sizes;
    std::vector<shc_tensor> list;

    Blocks(const std::vector<size_t> &blocks, Layout layout) : sizes(blocks.size())
    {
        static const int64_t two = 2;
        const bool strided = layout == Layout::kStrided;
        const size_t gap = layout == Layout::kApart ? 3 : 0, step = strided ? 2 : 1;
        size_t all = 0;
        for (size_t block : blocks)
            all += block * step + gap;
        memory.resize(all, -1.f); // at once: new memory is expensive under a sanitizer
        size_t at = 0;
        for (size_t i = 0; i < blocks.size(); i++) {
            sizes[i] = static_cast<int64_t>(blocks[i]);
            list.push_back({memory.data() + at, 1, &sizes[i], strided ? &two : nullptr});
            at += blocks[i] * step + gap;
        }
    }
    void fill(int rank)
    {
        shmcoll::test::fill(memory, kRoughPeriod, [rank](size_t i) { return rough(rank, i); });
    }
    shc_tensors view() { return {list.data(), static_cast<uint32_t>(list.size())}; }
};

// Which blocks a rank gives and gets. No blocks: nothing.
struct Shape {
    shc_op_kind kind;
    shc_redop redop;
    bool in_place;
    std::vector<size_t> gives, gets;
};

size_t uneven(int rank, size_t count)
{
    return count + static_cast<size_t>(rank) * 12345;
}

std::vector<Shape> shapes(const Rank &rank, int root, size_t count)
{
    const size_t world = static_cast<size_t>(rank.world);
    const std::vector<size_t> one = {count}, all(world, count);
    const std::vector<size_t> if_root = rank.rank == root ? all : std::vector<size_t>();
    const std::vector<size_t> at_root = rank.rank == root ? one : std::vector<size_t>();
    std::vector<size_t> various, sent, got;
    for (int r = 0; r < rank.world; r++) {
        various.push_back(uneven(r, count));
        sent.push_back(uneven(rank.rank + 2 * r, count));
        got.push_back(uneven(r + 2 * rank.rank, count));
    }
    const std::vector<size_t> mine = {uneven(rank.rank, count)};
    return {
        {SHC_ALL_REDUCE, SHC_SUM, true, one, one},
        {SHC_ALL_REDUCE, SHC_AVG, false, one, one},
        {SHC_ALL_REDUCE, SHC_PREMUL_SUM, false, one, one},
        {SHC_BROADCAST, SHC_SUM, true, one, one},
        {SHC_REDUCE, SHC_SUM, false, one, at_root},
        {SHC_GATHER, SHC_SUM, false, one, if_root},
        {SHC_SCATTER, SHC_SUM, false, if_root, one},
        {SHC_ALL_GATHER, SHC_SUM, false, one, all},
        {SHC_REDUCE_SCATTER, SHC_SUM, false, all, one},
        {SHC_ALL_TO_ALL, SHC_SUM, false, sent, got},
        {SHC_ALL_GATHER_UNEVEN, SHC_SUM, false, mine, various},
        {SHC_REDUCE_SCATTER_UNEVEN, SHC_SUM, false, various, mine},
    };
}

// The content of the memory of inputs and outputs after the operation, gaps included.
struct Result {
    std::vector<float> in, out;
};

Result result_of(shc_comm *comm, const Rank &rank, const Shape &shape, int root, Layout layout)
{
    Blocks in(shape.gives, layout),
        out(shape.in_place ? std::vector<size_t>() : shape.gets, layout);
    in.fill(rank.rank);
    shc_op op = op_of(shape.kind);
    op.redop = shape.redop;
    op.premul = 1.0 / (rank.rank + 3);
    op.root = root;
    op.input = in.view();
    op.output = shape.in_place ? op.input : out.view();
    EXPECT_EQ(shc_run(comm, &op), SHC_OK) << error_text();
    return {std::move(in.memory), std::move(out.memory)};
}

bool same_bytes(const std::vector<float> &a, const std::vector<float> &b)
{
    return a.size() == b.size() &&
           (a.empty() || memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
}

bool same_bytes(const Result &a, const Result &b)
{
    return same_bytes(a.in, b.in) && same_bytes(a.out, b.out);
}

// Of the smaller one a quarter is still done in parts: a slice of one of four ranks.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
const size_t kCounts[] = {70001};
#else
const size_t kCounts[] = {70001, 300007};
#endif

// rank.comm has no threads; the other group does.
void every_operation(Rank &rank, shc_comm *pooled)
{
    const bool parts = pooled->arena.geometry.cell_bytes >= 2 * SHC_PART_BYTES;
    for (size_t count : kCounts) {
        const int root = static_cast<int>(count) % rank.world;
        for (const Shape &shape : shapes(rank, root, count)) {
            for (int l = 0; l < static_cast<int>(Layout::kLastKind); l++) {
                const Layout layout = static_cast<Layout>(l);
                const uint64_t before = shc_pool_jobs(pooled->budget.pool);
                const Result with = result_of(pooled, rank, shape, root, layout);
                const uint64_t jobs = shc_pool_jobs(pooled->budget.pool) - before;
                const Result without = result_of(rank.comm, rank, shape, root, layout);
                ASSERT_TRUE(same_bytes(with, without))
                    << "operation " << shape.kind << ", layout " << l << ", count " << count;
                // Ranks that are threads share the pool: one that finds it busy works without it.
                if (rank.mode == Mode::kProcesses && parts && layout != Layout::kStrided) {
                    ASSERT_GT(jobs, 0u)
                        << "operation " << shape.kind << ", layout " << l << ", count " << count;
                }
            }
        }
    }
}

class Pools : public ::testing::TestWithParam<Case>
{
};

TEST_P(Pools, ChangeNoByte)
{
    run_ranks(
        GetParam().mode, GetParam().world,
        [](Rank &rank) {
            shc_comm *pooled;
            rank.knobs.threads = kThreads;
            ASSERT_EQ(rank.make_group(&pooled, "pooled"), SHC_OK) << error_text();
            EXPECT_EQ(rank.comm->budget.pool, nullptr);
            EXPECT_EQ(rank.comm->budget.agreed, 0);
            EXPECT_EQ(shc_pool_size(pooled->budget.pool), kThreads);
            EXPECT_EQ(pooled->budget.agreed, kThreads);
            every_operation(rank, pooled);
            shc_comm_free(pooled);
        },
        options_of(GetParam()));
}

// Turns are as long on all ranks, whatever each of them has: otherwise cells of two lengths would meet.
TEST(PoolsOfTwoSizes, AgreeOnTheSmaller)
{
    for (int least : {0, 1}) {
        run_ranks(Mode::kProcesses, 3, [least](Rank &rank) {
            shc_comm *pooled;
            const int threads = rank.rank == 0 ? least : least + 1 + rank.rank;
            rank.knobs.threads = threads;
            ASSERT_EQ(rank.make_group(&pooled, "pooled"), SHC_OK) << error_text();
            EXPECT_EQ(shc_pool_size(pooled->budget.pool), threads);
            EXPECT_EQ(pooled->budget.agreed, least);
            for (const Shape &shape : shapes(rank, 0, 100003))
                EXPECT_TRUE(same_bytes(result_of(pooled, rank, shape, 0, Layout::kFlat),
                                       result_of(rank.comm, rank, shape, 0, Layout::kFlat)))
                    << "operation " << shape.kind;
            shc_comm_free(pooled);
        });
    }
}

// The CPUs are counted by the first group; a smaller one after it does not count them again.
TEST(AutomaticPools, AreCountedOnce)
{
    run_ranks(Mode::kProcesses, 2, [](Rank &rank) {
        shc_comm *first, *second;
        rank.knobs.threads = SHC_THREADS_AUTO;
        ASSERT_EQ(rank.make_group(&first, "first"), SHC_OK) << error_text();
        const int threads = shc_pool_size(first->budget.pool);
        EXPECT_EQ(std::string(first->budget.from).find("auto: "), 0u) << first->budget.from;
        EXPECT_NE(std::string(first->budget.from).find(" cores for this rank"), std::string::npos);
        EXPECT_LE(first->budget.agreed, threads);
        EXPECT_LE(threads, SHC_SELECT_MOST_THREADS);
        rank.knobs.threads = threads == 0 ? SHC_THREADS_AUTO : threads + 5;
        ASSERT_EQ(rank.make_group(&second, "second"), SHC_OK) << error_text();
        EXPECT_EQ(shc_pool_size(second->budget.pool), threads);
        if (threads == 0) {
            EXPECT_STREQ(second->budget.from, "auto: counted by another group");
        }
        shc_comm_free(second);
        shc_comm_free(first);
    });
}

std::vector<Case> worlds()
{
#ifdef __SANITIZE_THREAD__
    const int most = 3;
#else
    const int most = 4;
#endif
    std::vector<Case> some;
    for (const Case &c : cases())
        if (c.world >= 2 && c.world <= (c.arena ? most : 2)) // small slots are done in one part
            some.push_back(c);
    return some;
}

INSTANTIATE_TEST_SUITE_P(All, Pools, ::testing::ValuesIn(worlds()), case_name);

} // namespace
