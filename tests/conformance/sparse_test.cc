// SPDX-License-Identifier: BSD-3-Clause

// The sparse all_reduce: against a plain sum of what all ranks gave.
#include "tests/conformance/world.h"

#include <gtest/gtest.h>
#include <memory>

using namespace shmcoll::test;

namespace
{

// A tensor of rows x columns x `dense` values, of which the first two dimensions are indexed.
struct Sparse {
    int64_t sizes[3];
    std::vector<int64_t> indices; // two rows
    std::vector<float> values;
    int64_t index_sizes[2], value_sizes[2];
    shc_sparse tensor = {};

    Sparse(int64_t rows, int64_t columns, int64_t dense)
    {
        sizes[0] = rows;
        sizes[1] = columns;
        sizes[2] = dense;
    }
    void fill(const std::vector<std::pair<int64_t, int64_t>> &at, int rank)
    {
        for (auto &one : at)
            indices.push_back(one.first);
        for (auto &one : at)
            indices.push_back(one.second);
        const size_t dense = static_cast<size_t>(sizes[2]);
        for (size_t i = 0; i < at.size() * dense; i++)
            values.push_back(value_of(rank, i));
    }
    shc_sparse *view()
    {
        const int64_t count = static_cast<int64_t>(indices.size() / 2);
        index_sizes[0] = 2;
        index_sizes[1] = value_sizes[0] = count;
        value_sizes[1] = sizes[2];
        tensor.ndim = 3;
        tensor.sparse_ndim = 2;
        tensor.sizes = sizes;
        tensor.count = static_cast<uint64_t>(count);
        tensor.indices = {indices.data(), 2, index_sizes, nullptr};
        tensor.values = {values.data(), 2, value_sizes, nullptr};
        return &tensor;
    }
    ~Sparse()
    {
        free(tensor.sum_indices);
        free(tensor.sum_values);
    }
};

const int64_t kRows = 1000, kColumns = 70;

// Entries of a rank: unordered, some twice; every third rank has none.
std::vector<std::pair<int64_t, int64_t>> places(int rank, size_t count)
{
    std::vector<std::pair<int64_t, int64_t>> at;
    unsigned seed = 1000u * static_cast<unsigned>(rank) + static_cast<unsigned>(count);
    if (rank % 3 == 2)
        return at;
    for (size_t i = 0; i < count * static_cast<size_t>(rank + 1); i++)
        at.emplace_back(rand_r(&seed) % kRows, rand_r(&seed) % kColumns);
    return at;
}

// As the result has them: in ascending order, first all rows, then all columns.
struct Entries {
    std::vector<int64_t> indices;
    std::vector<float> values;
};

Entries expected(int world, size_t count, size_t dense, bool average)
{
    const size_t columns = static_cast<size_t>(kColumns);
    const size_t cells = static_cast<size_t>(kRows) * columns;
    std::vector<float> sums(cells * dense);
    std::vector<char> present(cells);
    for (int rank = 0; rank < world; rank++) {
        size_t i = 0;
        for (auto &at : places(rank, count)) {
            const size_t cell = static_cast<size_t>(at.first * kColumns + at.second);
            present[cell] = 1;
            for (size_t k = 0; k < dense; k++)
                sums[cell * dense + k] += value_of(rank, i++);
        }
    }
    Entries all;
    for (size_t cell = 0; cell < cells; cell++) {
        if (!present[cell])
            continue;
        all.indices.push_back(static_cast<int64_t>(cell / columns));
        for (size_t k = 0; k < dense; k++)
            all.values.push_back(average ? sums[cell * dense + k] / static_cast<float>(world)
                                         : sums[cell * dense + k]);
    }
    for (size_t cell = 0; cell < cells; cell++)
        if (present[cell])
            all.indices.push_back(static_cast<int64_t>(cell % columns));
    return all;
}

void sum_up(Rank &rank, size_t count, int64_t dense, shc_redop redop)
{
    Sparse mine(kRows, kColumns, dense);
    mine.fill(places(rank.rank, count), rank.rank);
    const std::vector<float> old = mine.values;
    shc_op op = op_of(SHC_ALL_REDUCE_SPARSE);
    op.redop = redop;
    op.sparse = mine.view();
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    EXPECT_EQ(mine.values, old) << "the input has changed";
    const Entries want = expected(rank.world, count, static_cast<size_t>(dense), redop == SHC_AVG);
    const shc_sparse &got = mine.tensor;
    ASSERT_EQ(2 * got.sum_count, want.indices.size()) << "count " << count;
    const auto *values = static_cast<const float *>(got.sum_values);
    const std::vector<int64_t> indices(got.sum_indices, got.sum_indices + want.indices.size());
    EXPECT_EQ(indices, want.indices) << "count " << count << " dense " << dense;
    EXPECT_EQ(std::vector<float>(values, values + want.values.size()), want.values)
        << "count " << count << " dense " << dense;
}

#ifdef __SANITIZE_THREAD__
const size_t kCounts[] = {0, 2, 300, 3000};
#else
const size_t kCounts[] = {0, 1, 2, 40, 300, 600, 4000};
#endif

void every_size(Rank &rank)
{
    for (size_t count : kCounts) {
        sum_up(rank, count, 1, SHC_SUM);
        sum_up(rank, count, 1, SHC_AVG);
        sum_up(rank, count / 4, 5, SHC_SUM);
        sum_up(rank, count, 0, SHC_SUM);
        if (::testing::Test::HasFailure())
            return;
    }
}

class SparseAllReduce : public ::testing::TestWithParam<Case>
{
};

TEST_P(SparseAllReduce, GivesTheSumOfAllEntriesAtEverySize)
{
    const Options options = options_of(GetParam());
    run_ranks(GetParam().mode, GetParam().world, every_size, options);
}

TEST_P(SparseAllReduce, TakesItsTurnAmongOtherOperations)
{
    const Options options = options_of(GetParam(), true);
    run_ranks(
        GetParam().mode, GetParam().world,
        [](Rank &rank) {
            unsigned seed = 31u + static_cast<unsigned>(rank.rank), shared_seed = 8u;
            for (int round = 0; round < 30 && !::testing::Test::HasFailure(); round++) {
                if (rand_r(&seed) % 6 == 0)
                    shc_os_sleep_ns(static_cast<uint64_t>(rand_r(&seed) % 300) * 1000);
                sum_up(rank, static_cast<size_t>(rand_r(&shared_seed)) % 800, 2, SHC_SUM);
                std::vector<float> more = input_of(rank.rank, 900);
                int64_t size;
                shc_tensor tensor = vector_of(more, &size);
                shc_op op = op_of(SHC_ALL_REDUCE);
                op.input = op.output = {&tensor, 1};
                ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
                EXPECT_TRUE(same(more, sum_of(rank.world, 900)));
            }
        },
        options);
}

// Queued after another operation that writes its values: it reads them when its turn comes.
TEST(SparseRequests, ReadTheirEntriesWhenTheyRun)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        Sparse mine(10, 10, 1);
        mine.fill({{1, 1}, {2, 2}}, 0);
        mine.values = {1.f, 2.f};
        int64_t size;
        shc_tensor tensor = vector_of(mine.values, &size);
        shc_op dense = op_of(SHC_ALL_REDUCE), sparse = op_of(SHC_ALL_REDUCE_SPARSE);
        dense.input = dense.output = {&tensor, 1};
        sparse.sparse = mine.view();
        shc_request *requests[2];
        ASSERT_EQ(shc_submit(rank.comm, &dense, nullptr, &requests[0]), SHC_OK) << error_text();
        ASSERT_EQ(shc_submit(rank.comm, &sparse, nullptr, &requests[1]), SHC_OK) << error_text();
        for (shc_request *request : requests) {
            EXPECT_EQ(shc_request_wait(request, 0), SHC_OK) << error_text();
            shc_request_release(request);
        }
        ASSERT_EQ(mine.tensor.sum_count, 2u);
        EXPECT_EQ(static_cast<float *>(mine.tensor.sum_values)[0], 4.f);
        EXPECT_EQ(static_cast<float *>(mine.tensor.sum_values)[1], 8.f);
    });
}

TEST(SparseTensors, OfDifferentSizesFailOnEveryRank)
{
    for (size_t count : {3u, 5000u}) {
        run_ranks(Mode::kOwnMapping, 3, [count](Rank &rank) {
            Sparse mine(kRows, kColumns + (rank.rank == 1), 2);
            mine.fill(places(rank.rank, count), rank.rank);
            shc_op op = op_of(SHC_ALL_REDUCE_SPARSE);
            op.sparse = mine.view();
            EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_MISMATCH);
            for (const char *text : {"float32[1000, 71, 2], 2 indexed", "[1000, 70, 2], 2 indexed"})
                EXPECT_NE(error_text().find(text), std::string::npos) << error_text();
            EXPECT_EQ(mine.tensor.sum_values, nullptr);
        });
    }
}

TEST(SparseTensors, MeetNoDenseOnes)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        Sparse mine(3, 4, 1);
        std::vector<float> values(12, 1.f);
        int64_t size;
        shc_tensor tensor = vector_of(values, &size);
        shc_op op = op_of(rank.rank == 0 ? SHC_ALL_REDUCE : SHC_ALL_REDUCE_SPARSE);
        op.input = op.output = {&tensor, 1};
        op.sparse = mine.view();
        EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_MISMATCH);
        for (const char *text : {"called all_reduce #1 (float32[12], sum)",
                                 "called sparse all_reduce #1 (float32[12 in all], sum)"})
            EXPECT_NE(error_text().find(text), std::string::npos) << error_text();
        EXPECT_TRUE(same(values, std::vector<float>(12, 1.f)));
    });
}

// Wrong on one rank alone: reported there, and nothing is published.
TEST(SparseTensors, ThatAreWrongAreRefused)
{
    run_ranks(Mode::kOneMapping, 2, [](Rank &rank) {
        auto refused = [&](shc_status status, const char *text,
                           const std::function<void(shc_op &, Sparse &)> &spoil) {
            Sparse mine(10, 10, 1);
            mine.fill({{1, 1}, {2, 2}}, 0);
            shc_op op = op_of(SHC_ALL_REDUCE_SPARSE);
            op.sparse = mine.view();
            spoil(op, mine);
            EXPECT_EQ(shc_run(rank.comm, &op), status) << text;
            EXPECT_NE(error_text().find(text), std::string::npos) << error_text();
        };
        refused(SHC_ERR_INVALID, "no tensor", [](shc_op &op, Sparse &) { op.sparse = nullptr; });
        refused(SHC_ERR_INVALID, "index 10 of entry 1 in dimension 0, whose size is 10",
                [](shc_op &, Sparse &s) { s.indices[1] = 10; });
        refused(SHC_ERR_INVALID, "index -1 of entry 0 in dimension 1",
                [](shc_op &, Sparse &s) { s.indices[2] = -1; });
        refused(SHC_ERR_INVALID, "3 entries, but 4 indices and 2 elements",
                [](shc_op &, Sparse &s) { s.tensor.count = 3; });
        refused(SHC_ERR_INVALID, "4 of 3 dimensions indexed",
                [](shc_op &, Sparse &s) { s.tensor.sparse_ndim = 4; });
        refused(SHC_ERR_INVALID, "size -5 in dimension 2",
                [](shc_op &, Sparse &s) { s.sizes[2] = -5; });
        refused(SHC_ERR_UNSUPPORTED, "more than 2^64 positions",
                [](shc_op &, Sparse &s) { s.sizes[0] = s.sizes[1] = int64_t{1} << 40; });
        refused(SHC_ERR_UNSUPPORTED, "max of a sparse tensor is not offered; possible: sum, avg",
                [](shc_op &op, Sparse &) { op.redop = SHC_MAX; });
        refused(SHC_ERR_UNSUPPORTED, "avg of bool does not exist", [](shc_op &op, Sparse &) {
            op.dtype = SHC_BOOL;
            op.redop = SHC_AVG;
        });
        sum_up(rank, 20, 1, SHC_SUM);
    });
}

INSTANTIATE_TEST_SUITE_P(All, SparseAllReduce, ::testing::ValuesIn(cases()), case_name);

} // namespace
