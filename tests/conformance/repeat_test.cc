// SPDX-License-Identifier: BSD-3-Clause

// A synchronous call that is repeated is not checked again as a
// whole. Every way in which the next one may differ must be noticed, and its errors reported, whatever came
// before.
#include "tests/conformance/world.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <gtest/gtest.h>

using namespace shmcoll::test;

namespace
{

const size_t kCount = 12;

// The call before every other: small, in place or not, of float32, contiguous, one dimension.
struct Usual {
    explicit Usual(Rank &r, bool in_place = false, size_t count = kCount)
        : rank(r), in(input_of(r.rank, count)), out(in_place ? 0 : count, -1.f),
          size(static_cast<int64_t>(count)), from{in.data(), 1, &size, nullptr},
          to{in_place ? in.data() : out.data(), 1, &size, nullptr}, twice{},
          op(op_of(SHC_ALL_REDUCE))
    {
        op.input = {&from, 1};
        op.output = {in_place ? &from : &to, 1};
    }

    shc_status run() { return shc_run(rank.comm, &op); }

    void is_right()
    {
        const size_t count = in.size();
        const bool in_place = out.empty();
        ASSERT_EQ(run(), SHC_OK) << error_text();
        EXPECT_EQ(in_place ? in : out, sum_of(rank.world, count));
        if (in_place)
            return;
        EXPECT_EQ(in, input_of(rank.rank, count)) << "the input has changed";
    }

    Rank &rank;
    std::vector<float> in, out;
    int64_t size;
    shc_tensor from, to, twice[2];
    shc_op op;
};

void usual(Rank &rank)
{
    Usual(rank).is_right();
}

void run_all(const Body &body)
{
    for (Mode mode : modes())
        for (int world : {1, 2, 3})
            run_ranks(mode, world, body);
}

TEST(Repeated, MemoryMayLieElsewhereAndInPlaceOrNot)
{
    run_all([](Rank &rank) {
        for (int turn = 0; turn < 6; turn++) {
            usual(rank);
            Usual(rank, turn % 2 == 0).is_right();
            Usual(rank, true).is_right();
        }
    });
}

TEST(Repeated, SizesMayChange)
{
    run_all([](Rank &rank) {
        for (size_t count : {12, 12, 11, 12, 3000, 3000, 12, 100000, 12})
            Usual(rank, false, count).is_right();
        Usual nothing(rank, false, 0);
        nothing.is_right();
        usual(rank);
    });
}

TEST(Repeated, OtherDimensionsOfAsManyElementsAreTheSameCall)
{
    run_all([](Rank &rank) {
        usual(rank);
        const int64_t sizes[] = {3, 1, 4}, strides[] = {4, 77, 1};
        Usual other(rank);
        other.from = {other.in.data(), 3, sizes, strides};
        other.is_right();
    });
}

// Every second element, after a call on as many adjacent ones.
TEST(Repeated, AGapInMemoryIsSeen)
{
    run_all([](Rank &rank) {
        usual(rank);
        const int64_t stride = 2;
        std::vector<float> in(2 * kCount, -7.f), out(2 * kCount, -7.f);
        for (size_t i = 0; i < kCount; i++)
            in[2 * i] = value_of(rank.rank, i);
        Usual spread(rank);
        spread.from = {in.data(), 1, &spread.size, &stride};
        spread.to = {out.data(), 1, &spread.size, &stride};
        ASSERT_EQ(spread.run(), SHC_OK) << error_text();
        for (size_t i = 0; i < kCount; i++) {
            EXPECT_EQ(out[2 * i], sum_of(rank.world, kCount)[i]);
            EXPECT_EQ(out[2 * i + 1], -7.f) << "written between the elements";
        }
        usual(rank);
    });
}

TEST(Repeated, DtypeAndReductionAreSeen)
{
    run_all([](Rank &rank) {
        usual(rank);
        std::vector<int32_t> values(kCount, rank.rank + 1);
        Usual other(rank);
        other.from.data = other.to.data = values.data();
        other.op.dtype = SHC_INT32;
        ASSERT_EQ(other.run(), SHC_OK) << error_text();
        EXPECT_EQ(values, std::vector<int32_t>(kCount, rank.world * (rank.world + 1) / 2));

        usual(rank);
        Usual most(rank);
        most.op.redop = SHC_MAX;
        ASSERT_EQ(most.run(), SHC_OK) << error_text();
        for (size_t i = 0; i < kCount; i++) {
            float want = value_of(0, i);
            for (int r = 1; r < rank.world; r++)
                want = std::max(want, value_of(r, i));
            EXPECT_EQ(most.out[i], want);
        }
        usual(rank);
    });
}

TEST(Repeated, EveryCallHasItsOwnFactor)
{
    run_all([](Rank &rank) {
        for (double factor : {2.0, 2.0, 3.0, 0.5}) {
            Usual scaled(rank);
            scaled.op.redop = SHC_PREMUL_SUM;
            scaled.op.premul = factor;
            ASSERT_EQ(scaled.run(), SHC_OK) << error_text();
            for (size_t i = 0; i < kCount; i++)
                EXPECT_EQ(scaled.out[i],
                          sum_of(rank.world, kCount)[i] * static_cast<float>(factor));
        }
    });
}

// In place, on the one side that a rank has.
TEST(Repeated, NothingAndThenSomethingIsSeen)
{
    run_all([](Rank &rank) {
        for (size_t count : {size_t{0}, kCount, size_t{0}, kCount}) {
            Usual call(rank, true, count);
            call.op.kind = SHC_BROADCAST;
            ASSERT_EQ(call.run(), SHC_OK) << error_text();
            EXPECT_EQ(call.in, input_of(0, count));
        }
    });
}

TEST(Repeated, NoTensorAndThenOneIsSeen)
{
    run_all([](Rank &rank) {
        for (int turn = 0; turn < 3; turn++) {
            Usual none(rank);
            none.op.input.count = none.op.output.count = 0;
            EXPECT_EQ(none.run(), SHC_OK) << error_text();
            usual(rank);
        }
    });
}

TEST(Repeated, EveryRootIsSeen)
{
    run_all([](Rank &rank) {
        for (int turn = 0; turn < 3 * rank.world; turn++) {
            const int root = turn / 2 % rank.world;
            Usual from_root(rank);
            from_root.op.kind = SHC_BROADCAST;
            from_root.op.root = root;
            ASSERT_EQ(from_root.run(), SHC_OK) << error_text();
            EXPECT_EQ(rank.rank == root ? from_root.in : from_root.out, input_of(root, kCount));
            EXPECT_EQ(from_root.out[0], rank.rank == root ? -1.f : value_of(root, 0));
        }
    });
}

// Each is this rank's own mistake, found before anything is published: the group goes on.
TEST(Repeated, AMistakeBehindAGoodCallIsFound)
{
    run_all([](Rank &rank) {
        const auto refused = [&rank](const char *what, const std::function<void(Usual &)> &spoil) {
            usual(rank);
            Usual wrong(rank);
            spoil(wrong);
            EXPECT_EQ(wrong.run(), SHC_ERR_INVALID) << what;
            EXPECT_EQ(wrong.out, std::vector<float>(kCount, -1.f)) << what;
        };
        static const int64_t zero = 0, huge = INT64_MAX, negative = -12, fewer = 11;
        refused("no data", [](Usual &call) { call.from.data = nullptr; });
        refused("no data to write", [](Usual &call) { call.to.data = nullptr; });
        refused("no list", [](Usual &call) { call.op.input.list = nullptr; });
        refused("no sizes", [](Usual &call) { call.from.sizes = nullptr; });
        refused("expanded", [](Usual &call) { call.to.strides = &zero; });
        refused("negative", [](Usual &call) { call.to.sizes = &negative; });
        refused("huge", [](Usual &call) { call.from.sizes = &huge; });
        refused("less room", [](Usual &call) { call.to.sizes = &fewer; });
        refused("dimensions", [](Usual &call) { call.from.ndim = SHC_BUF_MAX_DIMS + 1; });
        refused("dimensions", [](Usual &call) { call.from.ndim = -1; });
        refused("twice", [](Usual &call) {
            call.twice[0] = call.twice[1] = call.from;
            call.op.input = {call.twice, 1};
            call.op.output = {call.twice, 2};
        });
        usual(rank);
    });
}

// A list with a tensor for each rank, and then one tensor of as many bytes.
TEST(Repeated, AListIsNotOneTensor)
{
    run_all([](Rank &rank) {
        const auto world = static_cast<uint32_t>(rank.world);
        std::vector<float> in(kCount * world, 1.f), out(kCount * world, -1.f);
        const int64_t one = kCount, all = one * rank.world;
        std::vector<shc_tensor> from, to;
        for (size_t r = 0; r < world; r++) {
            from.push_back({in.data() + r * kCount, 1, &one, nullptr});
            to.push_back({out.data() + r * kCount, 1, &one, nullptr});
        }
        shc_op op = op_of(SHC_ALL_TO_ALL);
        op.input = {from.data(), world};
        op.output = {to.data(), world};
        ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
        EXPECT_EQ(out, in);
        from[0].sizes = to[0].sizes = &all;
        op.input.count = op.output.count = 1;
        EXPECT_EQ(shc_run(rank.comm, &op), rank.world == 1 ? SHC_OK : SHC_ERR_INVALID);
        usual(rank);
    });
}

// Lists of tensors, as many and of as many bytes in all as before, but cut differently.
TEST(Repeated, AListMayBeCutDifferently)
{
    run_all([](Rank &rank) {
        const auto world = static_cast<size_t>(rank.world);
        // Alive, so that none lies where one lay.
        std::vector<std::vector<shc_tensor>> given(4), taken(4);
        for (size_t turn = 0; turn < 4; turn++) {
            std::vector<shc_tensor> &from = given[turn], &to = taken[turn];
            // What rank a sends to rank b: 1 to world elements, other ones in every turn.
            const auto count = [&](size_t a, size_t b) { return (a + b + turn) % world + 1; };
            const size_t me = static_cast<size_t>(rank.rank), gap = turn % 2;
            std::vector<std::vector<float>> in(world), out(world), want(world);
            std::vector<int64_t> in_size(world), out_size(world);
            std::vector<float> memory(world * (world + 1), -1.f);
            float *next = memory.data();
            for (size_t r = 0; r < world; r++) {
                in[r].assign(count(me, r), static_cast<float>(10 * me + r));
                want[r].assign(count(r, me), static_cast<float>(10 * r + me));
                from.push_back(vector_of(in[r], &in_size[r]));
                out_size[r] = static_cast<int64_t>(count(r, me));
                to.push_back({next, 1, &out_size[r], nullptr});
                next += count(r, me) + gap; // one piece, or not
            }
            shc_op op = op_of(SHC_ALL_TO_ALL);
            op.input = {from.data(), static_cast<uint32_t>(world)};
            op.output = {to.data(), static_cast<uint32_t>(world)};
            ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
            for (size_t r = 0; r < world; r++) {
                const auto *got = static_cast<const float *>(to[r].data);
                EXPECT_EQ(std::vector<float>(got, got + want[r].size()), want[r])
                    << "turn " << turn;
                EXPECT_TRUE(!gap || got[want[r].size()] == -1.f) << "written between the tensors";
            }
            from.assign(world, {}); // no rank may look at them again
            to.assign(world, {});
        }
    });
}

TEST(Repeated, AListMayGrow)
{
    run_all([](Rank &rank) {
        const auto world = static_cast<size_t>(rank.world);
        for (int64_t each : {2, 2, 3, 500, 2}) {
            const auto count = static_cast<size_t>(each);
            std::vector<float> in(count * world, static_cast<float>(each)), out(in.size(), -1.f);
            std::vector<shc_tensor> from, to;
            for (size_t r = 0; r < world; r++) {
                from.push_back({in.data() + r * count, 1, &each, nullptr});
                to.push_back({out.data() + r * count, 1, &each, nullptr});
            }
            shc_op op = op_of(SHC_ALL_TO_ALL);
            op.input = {from.data(), static_cast<uint32_t>(world)};
            op.output = {to.data(), static_cast<uint32_t>(world)};
            ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
            EXPECT_EQ(out, in);
        }
    });
}

// An all_gather writes more than it reads, except with one rank.
TEST(Repeated, TheInputIsNoRoomForMore)
{
    run_all([](Rank &rank) {
        std::vector<float> in = input_of(rank.rank, kCount);
        std::vector<float> out(kCount * static_cast<size_t>(rank.world), -1.f);
        int64_t in_size, out_size;
        shc_tensor from = vector_of(in, &in_size), to = vector_of(out, &out_size);
        shc_op op = op_of(SHC_ALL_GATHER);
        op.input = {&from, 1};
        op.output = {&to, 1};
        ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
        op.output = op.input;
        EXPECT_EQ(shc_run(rank.comm, &op), rank.world == 1 ? SHC_OK : SHC_ERR_INVALID);
        EXPECT_EQ(in, input_of(rank.rank, kCount));
        usual(rank);
    });
}

// For an uneven list the sizes count, not only the number of bytes in all.
TEST(Repeated, AnUnevenListIsCheckedEachTime)
{
    run_all([](Rank &rank) {
        const auto world = static_cast<uint32_t>(rank.world);
        const auto me = static_cast<size_t>(rank.rank);
        std::vector<float> in(3, static_cast<float>(rank.rank)), out(6 * world, -1.f);
        int64_t size;
        shc_tensor from = vector_of(in, &size);
        std::vector<int64_t> sizes(world, 3);
        std::vector<shc_tensor> to;
        for (size_t r = 0; r < world; r++)
            to.push_back({out.data() + 6 * r, 1, &sizes[r], nullptr});
        shc_op op = op_of(SHC_ALL_GATHER_UNEVEN);
        op.input = {&from, 1};
        op.output = {to.data(), world};
        ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
        if (world == 1)
            return;
        sizes[me]--; // as many in all, but not what this rank gives
        sizes[(me + 1) % world]++;
        EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_INVALID) << error_text();
    });
}

// A sparse tensor has one value at `index`; its descriptor also has an input, which means nothing.
void sparse_at(Rank &rank, shc_sparse &sparse, int64_t index)
{
    const int64_t length = 8, one = 1, entry[] = {1, 1};
    std::vector<int64_t> indices = {index};
    std::vector<float> values = {1.f};
    shc_tensor ignored = {values.data(), 1, &one, nullptr};
    sparse.ndim = sparse.sparse_ndim = 1;
    sparse.sizes = &length;
    sparse.count = 1;
    sparse.indices = {indices.data(), 2, entry, nullptr};
    sparse.values = {values.data(), 1, &one, nullptr};
    shc_op op = op_of(SHC_ALL_REDUCE_SPARSE);
    op.sparse = &sparse;
    op.input = {&ignored, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    ASSERT_EQ(sparse.sum_count, 1u);
    EXPECT_EQ(sparse.sum_indices[0], index);
    std::free(sparse.sum_indices);
    std::free(sparse.sum_values);
}

TEST(Repeated, ASparseTensorIsLookedAtEachTime)
{
    run_all([](Rank &rank) {
        shc_sparse first = {}, second = {};
        sparse_at(rank, first, 3);
        sparse_at(rank, second, 5);
    });
}

TEST(Repeated, AWrongRankIsSeenByAll)
{
    Options options;
    options.timeout_ns = 5ULL * 1000 * 1000 * 1000;
    for (Mode mode : modes())
        run_ranks(
            mode, 2,
            [](Rank &rank) {
                usual(rank);
                usual(rank);
                Usual differs(rank, false, rank.rank == 0 ? kCount : kCount - 1);
                EXPECT_EQ(differs.run(), SHC_ERR_MISMATCH) << error_text();
            },
            options);
}

// Is this rank's word for steps so old that it reads as one of the next operation? No rank is in that one yet.
bool seems_ahead(const Rank &rank, int peer)
{
    const shc_progress_shm *progress = shc_seat_progress(&rank.comm->seat, peer);
    return shc_wait_has_reached(&progress->reached, shc_progress_value(rank.comm->epoch + 1, 1));
}

// An operation with steps, which a rank may publish before the others have met.
void with_steps(Rank &rank)
{
    Usual(rank, false, 100000).is_right();
}

// Calls without steps, as many as 50 hours have at most. All but four of each 2^30 are left out: those in which
// ranks do what they do once in so many, and as many more as lines have turns.
TEST(Repeated, ShortCallsForDaysMakeNoRankSeemAhead)
{
    const uint64_t half = UINT64_C(1) << (63 - SHC_STEP_BITS), turn = SHC_PROGRESS_RENEWED_EPOCHS;
    run_all([=](Rank &rank) {
        with_steps(rank);
        while (rank.comm->epoch % 4 != 3)
            usual(rank);
        for (uint64_t epoch = turn; epoch < half + half / 2; epoch += turn) {
            rank.comm->epoch = epoch - 1;
            for (int call = 0; call < 4; call++)
                usual(rank);
            for (int peer = 0; peer < rank.world; peer++)
                ASSERT_FALSE(seems_ahead(rank, peer)) << "rank " << peer << " in epoch " << epoch;
        }
        usual(rank);
        with_steps(rank);
    });
}

} // namespace
