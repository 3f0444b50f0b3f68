// SPDX-License-Identifier: BSD-3-Clause
// Broadcast slot slots lie over exchange cells: what one operation stores must be read before the next one,
// of the other kind, stores there. And an arena that has become too short is replaced by a longer one while
// others may still read the old one. docs/internals/protocol.md, STAGE-52.
#include "tests/conformance/world.h"

#include <gtest/gtest.h>

using namespace shmcoll::test;

namespace
{

// The root has given all of it, into its slots, long before the others have read any: without "stream"
// it does not wait for them.
const size_t kCount = (4 * 64 << 10) / sizeof(float);

void broadcast_and_sum(Rank &rank, int round)
{
    int64_t size;
    std::vector<float> values(kCount, static_cast<float>(rank.rank + round));
    shc_tensor tensor = vector_of(values, &size);
    shc_op op = op_of(SHC_BROADCAST);
    op.root = round % rank.world;
    op.input = op.output = {&tensor, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    ASSERT_EQ(values, std::vector<float>(kCount, static_cast<float>(op.root + round))) << round;
    std::vector<float> others(kCount, -1.f);
    tensor = vector_of(others, &size);
    op.kind = SHC_ALL_REDUCE;
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    ASSERT_EQ(others, std::vector<float>(kCount, -static_cast<float>(rank.world))) << round;
}

TEST(SharedArena, NothingIsStoredOverABcastSlotThatIsStillRead)
{
    Options options;
    options.tuning = "staging.non_temporal_from=never";
    for (Mode mode : modes())
        for (int world : {2, 3, 4})
            run_ranks(
                mode, world,
                [](Rank &rank) {
                    for (int round = 0, end = rounds(30); round < end; round++)
                        broadcast_and_sum(rank, round);
                },
                options);
}

// ---- an arena that grows ----

// Operations that want nothing long, long cells, long slots; and (splits, uneven) sizes known only after
// the meeting.
enum Step { kShort, kCells, kBcastSlots, kSplits, kUneven, kSteps };

const size_t kShortCount = 5000, kLongCount = 40000;

void sum(const Rank &rank, size_t count, float value)
{
    int64_t size;
    std::vector<float> values(count, value + static_cast<float>(rank.rank));
    shc_tensor tensor = vector_of(values, &size);
    shc_op op = op_of(SHC_ALL_REDUCE);
    op.input = op.output = {&tensor, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    const float world = static_cast<float>(rank.world);
    ASSERT_EQ(values, std::vector<float>(count, value * world + world * (world - 1) / 2));
}

void spread(const Rank &rank, float value)
{
    int64_t size;
    std::vector<float> values(kLongCount, rank.rank == 1 ? value : -1.f);
    shc_tensor tensor = vector_of(values, &size);
    shc_op op = op_of(SHC_BROADCAST);
    op.root = 1;
    op.input = op.output = {&tensor, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    ASSERT_EQ(values, std::vector<float>(kLongCount, value));
}

// Every rank gives each other one, or all of them, a list of vectors of its own length.
void lists(const Rank &rank, shc_op_kind kind, float value)
{
    const size_t world = static_cast<size_t>(rank.world);
    const auto count_of = [](int r) { return r == 0 ? kLongCount : kShortCount; };
    std::vector<std::vector<float>> in, out;
    std::vector<shc_tensor> from(world), to(world);
    std::vector<int64_t> sizes(2 * world);
    const bool splits = kind == SHC_ALL_TO_ALL;
    for (size_t r = 0; r < world; r++) {
        in.emplace_back(count_of(rank.rank), value + static_cast<float>(rank.rank));
        out.emplace_back(count_of(static_cast<int>(r)), -1.f);
    }
    for (size_t r = 0; r < world; r++) {
        from[r] = vector_of(in[r], &sizes[r]);
        to[r] = vector_of(out[r], &sizes[world + r]);
    }
    shc_op op = op_of(kind);
    op.input = {from.data(), static_cast<uint32_t>(splits ? world : 1)};
    op.output = {to.data(), static_cast<uint32_t>(world)};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    for (int r = 0; r < rank.world; r++)
        ASSERT_EQ(out[static_cast<size_t>(r)],
                  std::vector<float>(count_of(r), value + static_cast<float>(r)));
}

void take_step(const Rank &rank, Step step, float value)
{
    switch (step) {
    case kShort:
        return sum(rank, kShortCount, value);
    case kCells:
        return sum(rank, kLongCount, value);
    case kBcastSlots:
        return spread(rank, value);
    case kSplits:
        return lists(rank, SHC_ALL_TO_ALL, value);
    default:
        return lists(rank, SHC_ALL_GATHER_UNEVEN, value);
    }
}

// Up to three steps in a group of its own, the last one twice; a late rank finds the others further on.
void grow(const Rank &rank, int steps)
{
    Rank other = rank;
    ASSERT_EQ(rank.make_group(&other.comm, ("grows " + std::to_string(steps)).c_str()), SHC_OK);
    for (int round = 0, left = steps; round < 4; round++) {
        if ((steps + round) % rank.world == rank.rank)
            shc_os_sleep_ns(200 * SHC_NS_PER_US);
        take_step(other, static_cast<Step>(left % kSteps), static_cast<float>(steps + round));
        left = round < 2 ? left / kSteps : left;
    }
    shc_comm_free(other.comm);
}

TEST(GrowingArena, GivesTheRightResultsInEveryOrder)
{
    for (Mode mode : modes())
        for (int world : {2, 3, 5})
            run_ranks(mode, world, [](Rank &rank) {
                const int all = kSteps * kSteps * kSteps; // of the orders of three steps
                const int stride = rank.world == 2 ? all / rounds(all) : 7;
                for (int steps = 0; steps < all; steps += stride)
                    grow(rank, steps);
            });
}

TEST(GrowingArena, IsAsLongAsTheOperationsWere)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        const shc_arena &arena = rank.comm->arena;
        const auto cells = [&arena] { return arena.geometry.cell_bytes; };
        const auto slots = [&arena] { return arena.geometry.bcast_slot_bytes; };
        sum(rank, 8, 1.f);
        EXPECT_FALSE(arena.tried);
        sum(rank, kShortCount, 1.f);
        EXPECT_EQ(cells(), size_t{32} << 10);
        EXPECT_LE(arena.segment.bytes, size_t{256} << 10);
        lists(rank, SHC_ALL_TO_ALL, 1.f); // known too late for itself
        EXPECT_EQ(cells(), size_t{32} << 10);
        lists(rank, SHC_ALL_TO_ALL, 2.f);
        EXPECT_EQ(cells(), size_t{128} << 10);
        EXPECT_EQ(slots(), size_t{8} << 10);
        spread(rank, 3.f);
        EXPECT_EQ(cells(), size_t{128} << 10);
        EXPECT_EQ(slots(), size_t{64} << 10);
        const char *base = arena.segment.base;
        for (int step = 0; step < kSteps; step++)
            take_step(rank, static_cast<Step>(step), 4.f);
        EXPECT_EQ(arena.segment.base, base) << "nothing wanted another one";
    });
}

} // namespace
