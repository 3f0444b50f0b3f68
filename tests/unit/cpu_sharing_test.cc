// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/proto/cpu_sharing.h"
}

#include <gtest/gtest.h>
#include <initializer_list>

namespace
{

constexpr uint64_t us = 1000, ms = 1000 * us;

// When yields that take `turn` each, again and again from `now` on, ask for a look.
uint64_t next_look(shc_cpu_sharing *sharing, uint64_t now, uint64_t turn)
{
    for (int yields = 0; yields < 1000 * 1000; yields++, now += turn)
        if (shc_cpu_sharing_note_yield(sharing, now, turn))
            return now;
    return UINT64_MAX;
}

TEST(CpuSharing, ThreeYieldsInARowThatSomebodyTakesAskForALook)
{
    shc_cpu_sharing sharing = {};
    EXPECT_FALSE(shc_cpu_sharing_note_yield(&sharing, 1000 * ms, 5 * us));
    EXPECT_FALSE(shc_cpu_sharing_note_yield(&sharing, 1001 * ms, 5 * us));
    EXPECT_TRUE(shc_cpu_sharing_note_yield(&sharing, 1002 * ms, 5 * us));
    shc_cpu_sharing_note_look(&sharing, 1002 * ms, 0, false);
    EXPECT_FALSE(shc_cpu_sharing_note_yield(&sharing, 2000 * ms, 5 * us))
        << "they count from the look on";
}

TEST(CpuSharing, AYieldThatNobodyTakesBeginsAnew)
{
    shc_cpu_sharing sharing = {};
    for (int again = 0; again < 5; again++) {
        EXPECT_FALSE(shc_cpu_sharing_note_yield(&sharing, 1000 * ms, 5 * us));
        EXPECT_FALSE(shc_cpu_sharing_note_yield(&sharing, 1000 * ms, 5 * us));
        EXPECT_FALSE(shc_cpu_sharing_note_yield(&sharing, 1000 * ms, 1 * us));
    }
}

// Pauses between looks, of which each takes `took` and ends in a migration or not.
void expect_pauses(std::initializer_list<uint64_t> pauses, uint64_t took, bool migrated)
{
    shc_cpu_sharing sharing = {};
    uint64_t last = next_look(&sharing, 1000 * ms, 10 * us);
    for (uint64_t pause : pauses) {
        shc_cpu_sharing_note_look(&sharing, last, took, migrated);
        const uint64_t look = next_look(&sharing, last + 10 * us, 10 * us);
        EXPECT_GE(look - last, pause);
        EXPECT_LE(look - last, pause + 30 * us);
        last = look;
    }
    const uint32_t moves = migrated ? static_cast<uint32_t>(pauses.size()) : 0;
    EXPECT_EQ(shc_a32_load_relaxed(&sharing.migrations), moves);
}

TEST(CpuSharing, LooksThatChangeNothingBecomeRare)
{
    expect_pauses({4 * ms, 8 * ms, 16 * ms, 32 * ms, 32 * ms, 32 * ms}, 20 * us, false);
}

TEST(CpuSharing, LooksThatEndInAMigrationDoNot)
{
    expect_pauses({4 * ms, 4 * ms, 4 * ms}, 20 * us, true);
}

TEST(CpuSharing, LooksTakeATwentiethOfTheTimeAtMost)
{
    expect_pauses({40 * ms, 40 * ms}, 2 * ms, true);
    expect_pauses({60 * ms, 60 * ms}, 3 * ms, false);
    expect_pauses({1000 * ms, 1000 * ms}, 700 * ms, false);
}

TEST(CpuSharing, WaitsSleepForAWhileAfterAYieldThatIsKept)
{
    shc_cpu_sharing sharing = {};
    EXPECT_FALSE(shc_cpu_sharing_note_yield(&sharing, 1000 * ms, 499 * us));
    EXPECT_FALSE(shc_cpu_sharing_wants_sleep(&sharing, 1000 * ms));
    EXPECT_TRUE(shc_cpu_sharing_note_yield(&sharing, 1000 * ms, 500 * us))
        << "is that another rank?";
    shc_cpu_sharing_note_look(&sharing, 1000 * ms, 20 * us, false);
    EXPECT_TRUE(shc_cpu_sharing_wants_sleep(&sharing, 1000 * ms));
    EXPECT_FALSE(shc_cpu_sharing_note_yield(&sharing, 1010 * ms, 1 * us));
    EXPECT_TRUE(shc_cpu_sharing_wants_sleep(&sharing, 1029 * ms));
    EXPECT_FALSE(shc_cpu_sharing_wants_sleep(&sharing, 1030 * ms));
}

TEST(CpuSharing, WaitsYieldAgainAfterAMigration)
{
    shc_cpu_sharing sharing = {};
    shc_cpu_sharing_note_yield(&sharing, 1000 * ms, 500 * us);
    shc_cpu_sharing_note_look(&sharing, 1000 * ms, 20 * us, true);
    EXPECT_FALSE(shc_cpu_sharing_wants_sleep(&sharing, 1001 * ms));
}

// A yield of that length at that time, and how many waits sleep after it.
uint32_t sleeps_after(shc_cpu_sharing *sharing, uint64_t now_ns, uint64_t took_ns)
{
    shc_cpu_sharing_note_yield(sharing, now_ns, took_ns);
    uint32_t count = 0;
    while (count < 100000 && shc_cpu_sharing_wants_sleep(sharing, now_ns + 31 * ms))
        count++;
    return count;
}

// The 30 ms may pass while the group waits for nothing.
TEST(CpuSharing, MoreAndMoreWaitsSleepWhileYieldsAreKept)
{
    shc_cpu_sharing sharing = {};
    sharing.room = true;
    EXPECT_EQ(sleeps_after(&sharing, 1000 * ms, 500 * us), 0u) << "once may be chance";
    for (uint32_t expected : {1024u, 4096u, 16384u, 16384u}) {
        shc_cpu_sharing_note_yield(&sharing, 2000 * ms, 1 * us);
        EXPECT_EQ(sleeps_after(&sharing, 2000 * ms, 3 * ms), expected);
    }
}

TEST(CpuSharing, ManyYieldsThatAreNotKeptBeginAnew)
{
    shc_cpu_sharing sharing = {};
    sharing.room = true;
    for (int kept = 0; kept < 3; kept++)
        sleeps_after(&sharing, 1000 * ms, 3 * ms);
    for (int yield = 0; yield < 2048; yield++)
        shc_cpu_sharing_note_yield(&sharing, 2000 * ms, 1 * us);
    EXPECT_EQ(sleeps_after(&sharing, 2001 * ms, 3 * ms), 0u);
    EXPECT_EQ(sleeps_after(&sharing, 2002 * ms, 3 * ms), 1024u);
}

// There the thread may be a rank that reduces something long.
TEST(CpuSharing, CountsNoWaitsWithMoreRanksThanCpus)
{
    shc_cpu_sharing sharing = {};
    for (int kept = 0; kept < 4; kept++)
        EXPECT_EQ(sleeps_after(&sharing, 1000 * ms, 3 * ms), 0u);
}

TEST(CpuSharing, AMigrationEndsTheCountOfWaitsThatSleep)
{
    shc_cpu_sharing sharing = {};
    sharing.room = true;
    shc_cpu_sharing_note_yield(&sharing, 1000 * ms, 3 * ms);
    shc_cpu_sharing_note_yield(&sharing, 1000 * ms, 3 * ms);
    shc_cpu_sharing_note_look(&sharing, 1000 * ms, 20 * us, true);
    EXPECT_FALSE(shc_cpu_sharing_wants_sleep(&sharing, 1000 * ms));
}

} // namespace
