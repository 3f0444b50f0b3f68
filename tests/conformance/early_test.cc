// SPDX-License-Identifier: BSD-3-Clause

// A giver stores its first chunk before its call line, and more of
// them while it waits for the others, but only where no rank may still be reading what lay there. The
// result is right in any case.
#include "tests/conformance/world.h"

extern "C" {
#include "shm/proto/arena.h"
#include "shm/proto/call.h"
}

#include <cstring>
#include <functional>
#include <gtest/gtest.h>

using namespace shmcoll::test;

namespace
{

const size_t kCount = 300000; // of floats to each rank: some chunks, fewer than there are slots

enum class Early { kBegins, kWaits };

uint64_t newest_epoch(const Rank &rank, int of)
{
    shc_call call;
    return shc_call_latest(&rank.comm->seat, of, &call);
}

const size_t kSlot = 65536; // bytes: of a long message a chunk

// The first value of the root's next chunk of that number, in its future place.
float next_place(const Rank &rank, int root, size_t chunk = 0)
{
    const shc_arena &arena = rank.comm->arena;
    float value;
    memcpy(&value,
           shc_arena_bcast_slots(&arena, root) + shc_arena_places_end(&arena.in_bcast_slots) +
               chunk * kSlot,
           sizeof value);
    return value;
}

// The first value in the first place of the last operation.
float last_place(const Rank &rank)
{
    const shc_arena &arena = rank.comm->arena;
    const shc_arena_places &last = arena.in_bcast_slots;
    float value;
    memcpy(&value, shc_arena_bcast_slots(&arena, last.owner) + last.first, sizeof value);
    return value;
}

// Before this rank calls anything: the root is in the next call, and the value is in its place, or it is not.
void watch_place(const Rank &rank, int root, const std::function<float()> &place, float value,
                 Early early)
{
    const uint64_t begun_ns = shc_clock_ns(), mine = newest_epoch(rank, rank.rank);
    const uint64_t limit_ns = 10 * SHC_NS_PER_S;
    while (newest_epoch(rank, root) == mine && shc_clock_ns() - begun_ns < limit_ns)
        shc_os_sleep_ns(SHC_NS_PER_MS);
    ASSERT_NE(newest_epoch(rank, root), mine) << "the root is late";
    if (early == Early::kWaits)
        shc_os_sleep_ns(20 * SHC_NS_PER_MS);
    while (early == Early::kBegins && place() != value && shc_clock_ns() - begun_ns < limit_ns)
        shc_os_sleep_ns(SHC_NS_PER_MS);
    EXPECT_EQ(place() == value, early == Early::kBegins) << "value " << value;
}

void watch_root(const Rank &rank, int root, float value, Early early)
{
    watch_place(
        rank, root, [&rank, root] { return next_place(rank, root); }, value, early);
}

// `value` first; no chunk is like another.
std::vector<float> values_from(float value, size_t count)
{
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++)
        values[i] = value + 100.f * static_cast<float>(i / 1000);
    return values;
}

// Every rank's share begins with `value`.
void scatter(const Rank &rank, int root, float value, size_t count = kCount)
{
    const std::vector<float> expected = values_from(value, count);
    std::vector<float> in, out(count, -1.f);
    for (int r = 0; r < rank.world; r++)
        in.insert(in.end(), expected.begin(), expected.end());
    int64_t in_size, out_size;
    shc_tensor from = vector_of(in, &in_size), to = vector_of(out, &out_size);
    shc_op op = op_of(SHC_SCATTER);
    op.root = root;
    if (rank.rank == root)
        op.input = {&from, 1};
    op.output = {&to, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    EXPECT_TRUE(same(out, expected));
}

void scatter_to_late_rank(const Rank &rank, int root, float value, Early early)
{
    if (rank.rank == (root + 1) % rank.world)
        watch_root(rank, root, value, early);
    scatter(rank, root, value);
}

void broadcast(const Rank &rank, int root, float value, size_t count = kCount)
{
    const std::vector<float> expected = values_from(value, count);
    std::vector<float> values = rank.rank == root ? expected : std::vector<float>(count, -1.f);
    int64_t size;
    shc_tensor tensor = vector_of(values, &size);
    shc_op op = op_of(SHC_BROADCAST);
    op.root = root;
    op.input = op.output = {&tensor, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    EXPECT_TRUE(same(values, expected));
}

// To the root, or (-1) to all.
void gather(const Rank &rank, int root, float value, size_t count)
{
    std::vector<float> in = values_from(value, count), out(count * static_cast<size_t>(rank.world)),
                       expected;
    for (int r = 0; r < rank.world; r++)
        expected.insert(expected.end(), in.begin(), in.end());
    int64_t in_size, out_size;
    shc_tensor from = vector_of(in, &in_size), to = vector_of(out, &out_size);
    shc_op op = op_of(root < 0 ? SHC_ALL_GATHER : SHC_GATHER);
    op.root = root < 0 ? 0 : root;
    op.input = {&from, 1};
    if (root < 0 || rank.rank == root)
        op.output = {&to, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    if (root < 0 || rank.rank == root) {
        EXPECT_TRUE(same(out, expected));
    }
}

void reduce(const Rank &rank, int root, float value, size_t count)
{
    const std::vector<float> mine = values_from(value, count);
    std::vector<float> values = mine, expected;
    for (float one : mine)
        expected.push_back(one * static_cast<float>(rank.world));
    int64_t size;
    shc_tensor tensor = vector_of(values, &size);
    shc_op op = op_of(SHC_REDUCE);
    op.root = root;
    op.input = {&tensor, 1};
    if (rank.rank == root)
        op.output = {&tensor, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    EXPECT_TRUE(same(values, rank.rank == root ? expected : mine));
}

void all_reduce(const Rank &rank, size_t count)
{
    std::vector<float> values(count, 1.f);
    int64_t size;
    shc_tensor tensor = vector_of(values, &size);
    shc_op op = op_of(SHC_ALL_REDUCE);
    op.input = op.output = {&tensor, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
}

void barrier(const Rank &rank)
{
    shc_op op = op_of(SHC_BARRIER);
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
}

// Through separate mappings: some look at memory while others store to it, which a sanitizer would report.
void run(int world, const std::string &tuning, const Body &body, Mode mode = Mode::kOwnMapping)
{
    Options options;
    options.tuning = tuning;
    run_ranks(mode, world, body, options);
}

void run_two(const std::string &tuning, const Body &body)
{
    run(2, tuning, body);
}

TEST(EarlyRoots, BeginBehindTheSlotsOfTheOperationBefore)
{
    run_two("staging.non_temporal_from=never", [](Rank &rank) { // 19 chunks, 24 slots
        scatter(rank, 0, 1.f);                                  // makes the arena
        scatter_to_late_rank(rank, 0, 2.f, Early::kBegins);
        scatter_to_late_rank(rank, 1, 3.f, Early::kBegins);
        broadcast(rank, 1, 4.f);
        scatter_to_late_rank(rank, 1, 5.f, Early::kBegins);
    });
}

TEST(EarlyRoots, BeginInFullSlotsOnceTheOthersHaveReadWhatTheyStoredBefore)
{
    run_two("staging.non_temporal_from=never,broadcast_depth=16",
            [](Rank &rank) { // all of which are used each time
                scatter(rank, 0, 1.f);
                scatter_to_late_rank(rank, 0, 2.f, Early::kWaits);
                barrier(rank);
                scatter_to_late_rank(rank, 0, 3.f, Early::kBegins);
                scatter_to_late_rank(rank, 1, 4.f, Early::kBegins);
                scatter_to_late_rank(rank, 0, 5.f, Early::kBegins);
            });
}

TEST(EarlyRoots, DoNotBeginWhereExchangeCellsMayStillBeRead)
{
    for (size_t count : {kCount, size_t{4000}}) { // in chunks, and in a direct exchange
        run_two("staging.non_temporal_from=never", [count](Rank &rank) {
            scatter(rank, 1, 1.f);
            all_reduce(rank, count); // its results, 2, may lie where the slots are
            scatter_to_late_rank(rank, 0, 3.f, Early::kWaits);
            barrier(rank);
            scatter_to_late_rank(rank, 0, 4.f, Early::kBegins);
        });
    }
}

// During a trial stores are timed until all have been read.
TEST(EarlyRoots, StoreOneChunkWhileTheyTryAWayOfStoring)
{
    for (const char *tuning : {"staging.non_temporal_from=32k", "staging.non_temporal_from=never"})
        run_two(tuning, [tuning](Rank &rank) {
            scatter(rank, 1, 1.f);
            barrier(rank);
            const float second = 2.f + 100.f * static_cast<float>(kSlot / sizeof(float) / 1000);
            if (rank.rank == 1) {
                watch_root(rank, 0, 2.f, Early::kBegins);
                shc_os_sleep_ns(20 * SHC_NS_PER_MS);
                EXPECT_EQ(next_place(rank, 0, 1) == second,
                          std::string(tuning) == "staging.non_temporal_from=never");
            }
            scatter(rank, 0, 2.f);
        });
}

TEST(EarlyRoots, BeginWithWhatIsShort)
{
    run_two("staging.non_temporal_from=never,small=0,handoff=0", [](Rank &rank) {
        scatter(rank, 0, 1.f);
        std::vector<float> in(2000, 2.f), out(1000, -1.f);
        int64_t in_size, out_size;
        shc_tensor from = vector_of(in, &in_size), to = vector_of(out, &out_size);
        shc_op op = op_of(SHC_SCATTER);
        if (rank.rank == 0)
            op.input = {&from, 1};
        else
            watch_root(rank, 0, 2.f, Early::kBegins);
        op.output = {&to, 1};
        ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
        EXPECT_TRUE(same(out, std::vector<float>(1000, 2.f)));
    });
}

// One of the others is late; the third comes before the root or after it.
TEST(EarlyRoots, BeginAmongThreeRanks)
{
    run(3, "staging.non_temporal_from=never", [](Rank &rank) { // 37 chunks, 16 slots
        scatter(rank, 0, 1.f);
        scatter_to_late_rank(rank, 0, 2.f, Early::kWaits);
        barrier(rank);
        for (int round = 0; round < 4; round++)
            scatter_to_late_rank(rank, round % 3, static_cast<float>(3 + round), Early::kBegins);
    });
}

// Chunks that were stored early do not disturb a rank that makes another call.
TEST(EarlyRoots, ChangeNoOutputWhereCallsDiffer)
{
    for (bool other_op : {false, true}) {
        run_two("staging.non_temporal_from=never", [other_op](Rank &rank) {
            scatter(rank, 1, 1.f);
            barrier(rank);
            const size_t count = rank.rank == 0 ? kCount : kCount - 1;
            std::vector<float> in(2 * count, 2.f), out(2 * count, -1.f);
            int64_t in_size, out_size = static_cast<int64_t>(other_op ? 2 * count : count);
            shc_tensor from = vector_of(in, &in_size), to = {out.data(), 1, &out_size, nullptr};
            shc_op op = op_of(SHC_SCATTER);
            if (rank.rank == 0) {
                out_size = static_cast<int64_t>(kCount);
                op.input = {&from, 1};
            } else {
                watch_root(rank, 0, 2.f, Early::kBegins);
                if (other_op) {
                    op = op_of(SHC_ALL_REDUCE);
                    op.input = {&from, 1};
                }
            }
            op.output = {&to, 1};
            EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_MISMATCH);
            EXPECT_NE(error_text().find("scatter"), std::string::npos) << error_text();
            EXPECT_TRUE(same(out, std::vector<float>(2 * count, -1.f)));
            EXPECT_TRUE(same(in, std::vector<float>(2 * count, 2.f)));
        });
    }
}

// 256 KiB, which change hands where two ranks give in turns.
const size_t kHanded = 65536;

// The other rank comes when the value is in the place of the last operation.
void broadcast_there(const Rank &rank, int root, float value, Early early)
{
    if (rank.rank != root)
        watch_place(
            rank, root, [&rank] { return last_place(rank); }, value, early);
    broadcast(rank, root, value, kHanded);
}

TEST(EarlyRoots, WhoGiveInTurnsFillTheSlotsThatTheyHaveRead)
{
    run_two("", [](Rank &rank) {
        const shc_arena_places &last = rank.comm->arena.in_bcast_slots;
        for (int root : {0, 1}) {
            barrier(rank);
            broadcast(rank, root, 1.f, kHanded);
            broadcast(rank, root, 2.f, kHanded); // again at once: in slots of its own
            EXPECT_EQ(last.owner, root);
            const size_t first = last.first;
            for (int round = 0; round < 4; round++) {
                broadcast_there(rank, (root + 1 + round) % 2, static_cast<float>(3 + round),
                                Early::kBegins);
                EXPECT_EQ(last.owner, root);
                EXPECT_EQ(last.first, first);
            }
            reduce(rank, 1 - root, 1.f, kHanded); // its root gave last, and gets now
            EXPECT_EQ(last.owner, root);
            gather(rank, root, 1.f, kHanded);
            EXPECT_EQ(last.owner, root);
        }
    });
}

TEST(EarlyRoots, WhoGiveInTurnsWaitWhereExchangeCellsMayStillBeRead)
{
    run_two("", [](Rank &rank) {
        broadcast(rank, 0, 1.f, kHanded);
        for (int root : {1, 0}) {
            all_reduce(rank, kCount); // makes another arena the first time
            broadcast(rank, 1 - root, 2.f, kHanded);
            all_reduce(rank, kCount);
            broadcast_there(rank, root, 3.f, Early::kWaits);
            EXPECT_EQ(rank.comm->arena.in_bcast_slots.owner, 1 - root);
        }
    });
}

TEST(EarlyRoots, WhoGiveMuchInTurnsUseTheirOwnSlots)
{
    run_two("", [](Rank &rank) {
        for (int round = 0; round < 4; round++) {
            broadcast(rank, round % 2, 1.f); // 1.2 MB
            EXPECT_EQ(rank.comm->arena.in_bcast_slots.owner, round % 2);
        }
    });
}

// Both take themselves for the root, and store to one hand-off slot, or to the same broadcast slots: neither
// takes anything.
class EarlyRootsOfTwo : public ::testing::TestWithParam<size_t>
{
};

TEST_P(EarlyRootsOfTwo, ChangeNoOutput)
{
    const size_t count = GetParam();
    run_two("", [count](Rank &rank) {
        const float mine = static_cast<float>(7 + rank.rank);
        for (int round = 0; round < 3; round++)
            broadcast(rank, round % 2, static_cast<float>(round), count);
        std::vector<float> values(count, mine);
        int64_t size;
        shc_tensor tensor = vector_of(values, &size);
        shc_op op = op_of(SHC_BROADCAST);
        op.root = rank.rank;
        op.input = op.output = {&tensor, 1};
        EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_MISMATCH);
        EXPECT_NE(error_text().find("root"), std::string::npos) << error_text();
        EXPECT_TRUE(same(values, std::vector<float>(count, mine)));
    });
}

INSTANTIATE_TEST_SUITE_P(EarlyRoots, EarlyRootsOfTwo, ::testing::Values(1024, 4096, kHanded));

// As many chunks as there are slots, fewer and more, with slots that do not halve evenly, from roots that
// take turns and may be late; the counts make pieces of all sizes.
void call_this_and_that(Rank &rank)
{
    unsigned seed = 77u + static_cast<unsigned>(rank.rank), shared = 5u;
    for (int round = 0, end = rounds(40); round < end && !::testing::Test::HasFailure(); round++) {
        if (rand_r(&seed) % 2 == 0)
            shc_os_sleep_ns(static_cast<uint64_t>(rand_r(&seed) % 1000) * 1000);
        const int what = rand_r(&shared) % 12, root = rand_r(&shared) % rank.world;
        const size_t counts[] = {2049, 3000, 5000, 12000, 40000, kCount};
        const size_t count = counts[rand_r(&shared) % 6];
        const float value = static_cast<float>(round);
        if (what == 0)
            all_reduce(rank, count);
        else if (what == 1)
            barrier(rank);
        else if (what < 5)
            broadcast(rank, root, value, count);
        else if (what < 7)
            gather(rank, root, value, count);
        else if (what < 9)
            reduce(rank, root, value, count);
        else if (what == 9)
            gather(rank, -1, value, count);
        else
            scatter(rank, root, value, count);
    }
}

// Two ranks' short ones, too.
const char *const kChunks = "staging.non_temporal_from=never,handoff=0";

TEST(EarlyRoots, GiveTheRightResultWhateverTheyHaveBegun)
{
    for (Mode mode : modes())
        for (const auto &[world, tuning] : std::initializer_list<std::pair<int, const char *>>{
                 {2, "staging.non_temporal_from=never"},
                 {2, "staging.non_temporal_from=never,broadcast_depth=2"},
                 {2, "broadcast_slot=16k"},
                 {2, "staging.non_temporal_from=never,broadcast_slot=6272,broadcast_depth=3"},
                 {2, kChunks},
                 {3, "staging.non_temporal_from=never,broadcast_depth=2"},
                 {3, "broadcast_slot=16k"},
                 {3, "staging.non_temporal_from=never,broadcast_slot=6272,broadcast_depth=3"}})
            run(world, tuning, call_this_and_that, mode);
    run(5, "staging.non_temporal_from=never", call_this_and_that, all_modes().front());
}

const char *const kSpread =
    "staging.non_temporal_from=never,reduce.two_phase_from=0,reduce.scatter_gather_from=0";

TEST(EarlyRoots, DoNotBeginWhereCellsOfASpreadReduceMayStillBeRead)
{
    run(4, kSpread, [](Rank &rank) {
        scatter(rank, 1, 1.f);
        for (int root : {0, 3}) {
            reduce(rank, root, 1.f, kCount);
            scatter_to_late_rank(rank, 0, 2.f, Early::kWaits);
        }
        barrier(rank);
        scatter_to_late_rank(rank, 0, 3.f, Early::kBegins);
    });
}

// A reduce-scatter with gather hands cells over in another order than an all_reduce, and broadcast slots
// share memory with them.
TEST(EarlyRoots, GiveTheRightResultBesideReducesThatAreSpread)
{
    for (Mode mode : modes())
        for (const auto &[world, more] : std::initializer_list<std::pair<int, const char *>>{
                 {4, ",chunk=16k,depth=2"}, {4, ",depth=4"}, {5, ""}})
            run(world, std::string(kSpread) + more, call_this_and_that, mode);
}

} // namespace
