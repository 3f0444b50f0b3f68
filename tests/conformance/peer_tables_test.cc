// SPDX-License-Identifier: BSD-3-Clause

// What a peer says of sizes, one lie at a time, each told at the
// moment at which it did harm once: tables rewritten after a rank has filled its own, numbers of entries
// whose sum overflows, positions outside of the tensor.
#include "tests/support/guarded.h"
#include "tests/support/ranks.h"

#include <atomic>
#include <cstring>
#include <gtest/gtest.h>
#include <thread>

extern "C" {
#include "shm/proto/member.h"
}

using namespace shmcoll::test;

namespace
{

const int kWorld = 3, kLiar = 2;

Options brief()
{
    Options options;
    options.timeout_ns = 5 * SHC_NS_PER_S;
    return options;
}

// Until all others have entered the operation that comes next: they have filled what they fill.
void await_others(const Rank &rank)
{
    for (int other = 0; other < kLiar; other++) {
        const shc_seat *seat = &rank.comm->seat;
        while (!shc_wait_has_reached(&shc_seat_call(seat, other, 1)->epoch, 1))
            std::this_thread::yield();
    }
}

void store(Rank &rank, int whose, const std::vector<uint64_t> &words, size_t offset = 0)
{
    char *slot = shc_seat_small_slot(&rank.comm->seat, whose, 1) + offset;
    for (uint64_t word : words) {
        memcpy(slot, &word, sizeof word);
        slot += sizeof word;
    }
}

// Enters the operation, the group's first one, with nothing said but what the liar has stored.
void enter(Rank &rank, const shc_op &op)
{
    shc_task task;
    ASSERT_EQ(shc_task_prepare(&task, rank.comm, &op), SHC_OK) << error_text();
    task.wait.epoch = 1;
    shc_task_enter(&task);
}

void expect_failure(shc_status status, shc_status wanted, const char *words)
{
    EXPECT_EQ(status, wanted) << error_text();
    EXPECT_NE(error_text().find(words), std::string::npos) << error_text();
}

// ---- lists of uneven sizes ----

struct Uneven {
    GuardedList list, own;
    shc_op op;

    Uneven(shc_op_kind kind, int rank, const std::vector<size_t> &sizes) : op(op_of(kind))
    {
        const bool gathers = kind == SHC_ALL_GATHER_UNEVEN;
        for (size_t size : sizes)
            list.add(size, 4, -1);
        own.add(sizes[static_cast<size_t>(rank)], 4, gathers ? 1 : -1);
        op.input = gathers ? own.view() : list.view();
        op.output = gathers ? list.view() : own.view();
    }
};

void expect_own_sizes(shc_op_kind kind)
{
    for (Mode mode : modes())
        run_ranks(
            mode, kWorld,
            [kind](Rank &rank) {
                const bool lies = rank.rank == kLiar;
                Uneven uneven(kind, rank.rank, {lies ? 64u : 8u, 16, 24});
                if (lies) {
                    await_others(rank);
                    for (int whose = 0; whose < kWorld; whose++)
                        store(rank, whose, {256, 64, 96});
                    enter(rank, uneven.op);
                    while (!shc_group_failed(&rank.comm->seat))
                        std::this_thread::yield();
                    return;
                }
                expect_failure(shc_run(rank.comm, &uneven.op), SHC_ERR_MISMATCH, "sizes differ");
                uneven.list.expect_zones();
                uneven.own.expect_zones();
            },
            brief());
}

TEST(PeerTables, OfAnUnevenAllGatherAreNotBelievedWhereThisRankKnows)
{
    expect_own_sizes(SHC_ALL_GATHER_UNEVEN);
}

TEST(PeerTables, OfAnUnevenReduceScatterAreNotBelievedWhereThisRankKnows)
{
    expect_own_sizes(SHC_REDUCE_SCATTER_UNEVEN);
}

// ---- all_to_all ----

// A block to itself concerns no other rank, except that it decides where the others' blocks lie.
TEST(PeerTables, OfAnAllToAllWhoseSumOverflowsAreDamage)
{
    for (Mode mode : modes())
        run_ranks(
            mode, kWorld,
            [](Rank &rank) {
                GuardedList in, out;
                for (int r = 0; r < kWorld; r++) {
                    in.add(2, 4, rank.rank);
                    out.add(2, 4, -1);
                }
                shc_op op = op_of(SHC_ALL_TO_ALL);
                op.input = in.view();
                op.output = out.view();
                if (rank.rank != kLiar) {
                    expect_failure(shc_run(rank.comm, &op), SHC_ERR_ABORTED, "memory is damaged");
                    out.expect_zones();
                    return;
                }
                const uint64_t huge = UINT64_MAX - 7, table[] = {8, 8, huge, 8, 8, huge};
                memcpy(shc_call_payload(&rank.comm->seat, kLiar, 1), table, sizeof table);
                enter(rank, op);
                while (!shc_group_failed(&rank.comm->seat))
                    std::this_thread::yield();
            },
            brief());
}

// ---- sparse ----

const size_t kShapeBytes = 528; // what a rank says of its tensor, before its entries
const int64_t kPositions = 10;

// Of ten places those, of one value each.
struct Sparse {
    std::vector<int64_t> places;
    std::vector<float> values;
    int64_t sizes[1] = {kPositions}, index_sizes[2], value_sizes[1];
    shc_sparse tensor = {};
    shc_op op = op_of(SHC_ALL_REDUCE_SPARSE);

    explicit Sparse(std::vector<int64_t> at) : places(std::move(at)), values(places.size(), 1.f)
    {
        const int64_t count = static_cast<int64_t>(places.size());
        index_sizes[0] = 1;
        index_sizes[1] = value_sizes[0] = count;
        tensor.ndim = tensor.sparse_ndim = 1;
        tensor.sizes = sizes;
        tensor.count = places.size();
        tensor.indices = {places.data(), 2, index_sizes, nullptr};
        tensor.values = {values.data(), 1, value_sizes, nullptr};
        op.sparse = &tensor;
    }
    ~Sparse()
    {
        free(tensor.sum_indices);
        free(tensor.sum_values);
    }
};

// The liar says that it has that many entries, with these first positions, and all say `others`, if that is
// not 0.
void expect_damage(uint64_t count, const std::vector<uint64_t> &positions, uint64_t others = 0)
{
    for (Mode mode : modes())
        run_ranks(
            mode, kWorld,
            [&](Rank &rank) {
                Sparse sparse({1, 3});
                if (rank.rank != kLiar) {
                    expect_failure(shc_run(rank.comm, &sparse.op), SHC_ERR_ABORTED, "is damaged");
                    return;
                }
                await_others(rank);
                std::vector<uint64_t> shape(kShapeBytes / 8);
                shape[0] = count;
                shape[1] = 1 | 1ULL << 32; // dimensions, and how many of them are indexed
                shape[2] = static_cast<uint64_t>(kPositions);
                store(rank, kLiar, shape);
                store(rank, kLiar, positions, kShapeBytes);
                for (int whose = 0; others != 0 && whose < kLiar; whose++)
                    store(rank, whose, {others});
                enter(rank, sparse.op);
                while (!shc_group_failed(&rank.comm->seat))
                    std::this_thread::yield();
            },
            brief());
}

TEST(PeerTables, OfMoreEntriesThanPositionsAreDamage)
{
    expect_damage(kPositions + 1, {});
    expect_damage(1ULL << 63, {}, 1ULL << 63); // of any two ranks, the sum is 0
}

TEST(PeerTables, OfPositionsThatNoTensorHasAreDamage)
{
    expect_damage(2, {3, 1});
    expect_damage(2, {3, 3});
    expect_damage(2, {1, kPositions});
}

// So that the lie is what is found.
TEST(PeerTables, ThatAreTrueAreBelieved)
{
    for (Mode mode : modes())
        run_ranks(
            mode, kWorld,
            [](Rank &rank) {
                Sparse sparse({1, 3});
                if (rank.rank != kLiar) {
                    ASSERT_EQ(shc_run(rank.comm, &sparse.op), SHC_OK) << error_text();
                    EXPECT_EQ(sparse.tensor.sum_count, 3u);
                    return;
                }
                std::vector<uint64_t> shape(kShapeBytes / 8);
                shape[0] = 2;
                shape[1] = 1 | 1ULL << 32;
                shape[2] = static_cast<uint64_t>(kPositions);
                store(rank, kLiar, shape);
                store(rank, kLiar, {3, 9, 0}, kShapeBytes);
                enter(rank, sparse.op);
            },
            brief());
}

// ---- words ----

TEST(PeerWords, OfAReasonAreCutAndPrinted)
{
    Options options = brief();
    run_ranks(
        Mode::kOwnMapping, 2,
        [](Rank &rank) {
            shc_op op = op_of(SHC_BARRIER);
            if (rank.rank == 1) {
                shc_reason_shm *reason = shc_seat_reason(&rank.comm->seat, 1);
                memset(reason, 0xff, sizeof *reason); // no text, no status
                reason->ended = 1u << 31;             // no rank, as an int not even its number
                memcpy(reason->text, "so \xc3\xbc \x01", 7);
                shc_a32_cas_acq_rel(&shc_seat_abort(&rank.comm->seat)->finder, 0, 2);
                return;
            }
            EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_ABORTED);
            const std::string text = error_text();
            EXPECT_NE(text.find("so \xc3\xbc ?????"), std::string::npos) << text;
            EXPECT_EQ(text.find('\xff'), std::string::npos);
        },
        options);
}

TEST(PeerWords, OfNoStateAreAsGoodAsAlive)
{
    std::atomic<bool> over{false};
    run_ranks(
        Mode::kOwnMapping, 2,
        [&](Rank &rank) {
            while (rank.rank == 1 && !over)
                std::this_thread::yield();
            if (rank.rank == 1)
                return;
            shc_member_shm *member = shc_seat_member(&rank.comm->seat, 1);
            shc_a32_store_relaxed(&member->state, 77);
            EXPECT_EQ(shc_member_look(&rank.comm->seat, 1), SHC_MEMBER_ALIVE);
            shc_a32_or_acq_rel(&member->life, SHC_OS_OWNER_DIED);
            EXPECT_EQ(shc_member_look(&rank.comm->seat, 1), SHC_MEMBER_DEAD);
            over = true;
        },
        brief());
}

} // namespace
