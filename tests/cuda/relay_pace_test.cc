// SPDX-License-Identifier: BSD-3-Clause
// When operations go by the relay, and when by kernels: it depends on what ranks have reported of those
// that are over.
#include <gtest/gtest.h>
#include <memory>

extern "C" {
#include "cuda_ipc/cuda_comm.h"
}

namespace
{

// As much of a group as the choice needs; every operation that is relayed has the pace of `now`.
struct Group {
    Group() : comm(static_cast<shc_cuda_comm *>(calloc(1, sizeof(shc_cuda_comm))), free)
    {
        comm->relay.limit = 1;
    }

    // The number of the next operations that are relayed.
    int relayed_of(int operations, shc_pace now)
    {
        int count = 0;
        for (int i = 0; i < operations; i++) {
            const bool fast = shc_relay_is_fast(comm.get(), ++sequence);
            count += fast;
            shc_a32_store_relaxed(&comm->relay.paces[sequence % SHC_PACES],
                                  fast ? now : SHC_PACE_UNKNOWN);
        }
        return count;
    }

    uint64_t backoffs() { return shc_a64_load_relaxed(&comm->relay.backoffs); }

    std::unique_ptr<shc_cuda_comm, void (*)(void *)> comm;
    uint64_t sequence = 0;
};

constexpr int kRecords = SHC_RECORDS, kTrial = 8, kBackoff = 1024;

TEST(RelayPace, FastOnesAreRelayed)
{
    Group group;
    EXPECT_EQ(group.relayed_of(5000, SHC_PACE_FAST), 5000);
    EXPECT_EQ(group.relayed_of(5000, SHC_PACE_UNKNOWN), 5000);
    EXPECT_EQ(group.backoffs(), 0U);
}

TEST(RelayPace, SomeSlowOnesAmongFastOnesChangeNothing)
{
    Group group;
    for (int i = 0; i < 500; i++) {
        EXPECT_EQ(group.relayed_of(4, SHC_PACE_FAST), 4);
        EXPECT_EQ(group.relayed_of(3, SHC_PACE_SLOW), 3);
    }
    EXPECT_EQ(group.backoffs(), 0U);
}

TEST(RelayPace, SlowOnesAreFollowedByKernelsForLongerAndLonger)
{
    Group group;
    // Judged 64 numbers later, the eighth ends it.
    EXPECT_EQ(group.relayed_of(kRecords + 7, SHC_PACE_SLOW), kRecords + 7);
    for (int backoff = kBackoff, times = 1; times < 9; times++) {
        EXPECT_EQ(group.relayed_of(1, SHC_PACE_SLOW), 0);
        EXPECT_EQ(group.backoffs(), static_cast<uint64_t>(times));
        EXPECT_EQ(group.relayed_of(backoff - 1, SHC_PACE_SLOW), 0);
        EXPECT_EQ(group.relayed_of(kTrial, SHC_PACE_SLOW), kTrial);
        // The fourth slow one of the trial is enough.
        EXPECT_EQ(group.relayed_of(kRecords - kTrial + 3, SHC_PACE_SLOW), 0);
        backoff = std::min(2 * backoff, 1 << 16);
    }
}

TEST(RelayPace, AFastTrialEndsABackoffAndForgetsItsLength)
{
    Group group;
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(group.relayed_of(kRecords + 7, SHC_PACE_SLOW), kRecords + 7);
        EXPECT_EQ(group.relayed_of(kBackoff, SHC_PACE_FAST), 0);
        EXPECT_EQ(group.relayed_of(kTrial, SHC_PACE_FAST), kTrial);
        EXPECT_EQ(group.relayed_of(kRecords, SHC_PACE_FAST), 0);
        EXPECT_EQ(group.relayed_of(1000, SHC_PACE_FAST), 1000);
    }
    EXPECT_EQ(group.backoffs(), 2U);
}

TEST(RelayPace, WithoutARelayNothingIsRelayed)
{
    Group group;
    group.comm->relay.limit = 0;
    EXPECT_EQ(group.relayed_of(100, SHC_PACE_FAST), 0);
}

} // namespace
