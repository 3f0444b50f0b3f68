// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/proto/wait.h"
}

#include <gtest/gtest.h>
#include <initializer_list>
#include <memory>

namespace
{

// Every group asks: a measurement each time took a tenth of what it costs to make one.
TEST(SpinsFor, MeasuresTheMachineOnce)
{
    const uint64_t ns = 1000 * 1000 * 1000;
    const uint32_t first = shc_wait_spins_for(ns);
    EXPECT_GT(first, 0u);
    for (int again = 0; again < 20; again++)
        EXPECT_EQ(shc_wait_spins_for(ns), first);
}

TEST(SpinsFor, GrowsWithTheTime)
{
    EXPECT_EQ(shc_wait_spins_for(0), 0u);
    const uint32_t one = shc_wait_spins_for(1000 * 1000);
    const uint32_t three = shc_wait_spins_for(3 * 1000 * 1000);
    EXPECT_GE(three, 3 * one);
    EXPECT_LE(three, 3 * one + 2);
}

constexpr uint64_t us = 1000, ms = 1000 * us;

// When a company that yields for `turn` again and again from `now` on asks for a look.
uint64_t next_look(shc_company *company, uint64_t now, uint64_t turn)
{
    for (int yields = 0; yields < 1000 * 1000; yields++, now += turn)
        if (shc_company_note(company, now, turn))
            return now;
    return UINT64_MAX;
}

TEST(Company, ThreeYieldsInARowThatSomebodyTakesAskForALook)
{
    shc_company company = {};
    EXPECT_FALSE(shc_company_note(&company, 1000 * ms, 5 * us));
    EXPECT_FALSE(shc_company_note(&company, 1001 * ms, 5 * us));
    EXPECT_TRUE(shc_company_note(&company, 1002 * ms, 5 * us));
    shc_company_looked(&company, 1002 * ms, 0, false);
    EXPECT_FALSE(shc_company_note(&company, 2000 * ms, 5 * us)) << "they count from the look on";
}

TEST(Company, AYieldThatNobodyTakesBeginsAnew)
{
    shc_company company = {};
    for (int again = 0; again < 5; again++) {
        EXPECT_FALSE(shc_company_note(&company, 1000 * ms, 5 * us));
        EXPECT_FALSE(shc_company_note(&company, 1000 * ms, 5 * us));
        EXPECT_FALSE(shc_company_note(&company, 1000 * ms, 1 * us));
    }
}

// Pauses between looks, of which each takes `took` and has parted the two or not.
void expect_pauses(std::initializer_list<uint64_t> pauses, uint64_t took, bool parted)
{
    shc_company company = {};
    uint64_t last = next_look(&company, 1000 * ms, 10 * us);
    for (uint64_t pause : pauses) {
        shc_company_looked(&company, last, took, parted);
        const uint64_t look = next_look(&company, last + 10 * us, 10 * us);
        EXPECT_GE(look - last, pause);
        EXPECT_LE(look - last, pause + 30 * us);
        last = look;
    }
    const uint32_t moves = parted ? static_cast<uint32_t>(pauses.size()) : 0;
    EXPECT_EQ(shc_a32_load_relaxed(&company.parted), moves);
}

TEST(Company, LooksThatChangeNothingBecomeRare)
{
    expect_pauses({4 * ms, 8 * ms, 16 * ms, 32 * ms, 32 * ms, 32 * ms}, 20 * us, false);
}

TEST(Company, LooksThatPartedTheTwoDoNot)
{
    expect_pauses({4 * ms, 4 * ms, 4 * ms}, 20 * us, true);
}

TEST(Company, LooksTakeATwentiethOfTheTimeAtMost)
{
    expect_pauses({40 * ms, 40 * ms}, 2 * ms, true);
    expect_pauses({60 * ms, 60 * ms}, 3 * ms, false);
    expect_pauses({1000 * ms, 1000 * ms}, 700 * ms, false);
}

TEST(Company, IsBusyForAWhileBehindAYieldThatSomebodyKeeps)
{
    shc_company company = {};
    EXPECT_FALSE(shc_company_note(&company, 1000 * ms, 499 * us));
    EXPECT_FALSE(shc_company_is_busy(&company, 1000 * ms));
    EXPECT_TRUE(shc_company_note(&company, 1000 * ms, 500 * us)) << "is that another rank?";
    shc_company_looked(&company, 1000 * ms, 20 * us, false);
    EXPECT_TRUE(shc_company_is_busy(&company, 1000 * ms));
    EXPECT_FALSE(shc_company_note(&company, 1010 * ms, 1 * us));
    EXPECT_TRUE(shc_company_is_busy(&company, 1029 * ms));
    EXPECT_FALSE(shc_company_is_busy(&company, 1030 * ms));
}

TEST(Company, IsNotBusyOnAnotherCpu)
{
    shc_company company = {};
    shc_company_note(&company, 1000 * ms, 500 * us);
    shc_company_looked(&company, 1000 * ms, 20 * us, true);
    EXPECT_FALSE(shc_company_is_busy(&company, 1001 * ms));
}

// A yield of that length at that time; and how many waits would sleep from then on.
uint32_t sleeps_after(shc_company *company, uint64_t now_ns, uint64_t took_ns)
{
    shc_company_note(company, now_ns, took_ns);
    uint32_t count = 0;
    while (count < 100000 && shc_company_is_busy(company, now_ns + 31 * ms)) {
        shc_company_slept(company);
        count++;
    }
    return count;
}

// The 30 ms may pass while the group waits for nothing.
TEST(Company, IsBusyForMoreAndMoreWaitsWhileYieldsAreKept)
{
    shc_company company = {};
    company.room = true;
    EXPECT_EQ(sleeps_after(&company, 1000 * ms, 500 * us), 0u) << "once may be chance";
    for (uint32_t expected : {1024u, 4096u, 16384u, 16384u}) {
        shc_company_note(&company, 2000 * ms, 1 * us);
        EXPECT_EQ(sleeps_after(&company, 2000 * ms, 3 * ms), expected);
    }
}

TEST(Company, IsCalmAfterManyYieldsThatNobodyKept)
{
    shc_company company = {};
    company.room = true;
    for (int kept = 0; kept < 3; kept++)
        sleeps_after(&company, 1000 * ms, 3 * ms);
    for (int yield = 0; yield < 2048; yield++)
        shc_company_note(&company, 2000 * ms, 1 * us);
    EXPECT_EQ(sleeps_after(&company, 2001 * ms, 3 * ms), 0u);
    EXPECT_EQ(sleeps_after(&company, 2002 * ms, 3 * ms), 1024u);
}

// There it may be a rank that reduces something long.
TEST(Company, CountsNoWaitsWithMoreRanksThanCpus)
{
    shc_company company = {};
    for (int kept = 0; kept < 4; kept++)
        EXPECT_EQ(sleeps_after(&company, 1000 * ms, 3 * ms), 0u);
}

// Nor does it matter how many waits were to sleep.
TEST(Company, YieldsAtOnceOnAnotherCpu)
{
    shc_company company = {};
    company.room = true;
    shc_company_note(&company, 1000 * ms, 3 * ms);
    shc_company_note(&company, 1000 * ms, 3 * ms);
    shc_company_looked(&company, 1000 * ms, 20 * us, true);
    EXPECT_FALSE(shc_company_is_busy(&company, 1000 * ms));
}

// A pass over messages that takes its time, and moves something on each second time.
struct slow_passes {
    uint64_t moves;
    int count;
    uint64_t ended_ns, longest_gap_ns; // between two passes: there are the yields
};

bool pass_slowly(void *arg)
{
    auto *passes = static_cast<slow_passes *>(arg);
    const uint64_t begun_ns = shc_clock_ns();
    if (passes->count > 0 && begun_ns - passes->ended_ns > passes->longest_gap_ns)
        passes->longest_gap_ns = begun_ns - passes->ended_ns;
    while (shc_clock_ns() < begun_ns + ms)
        continue;
    passes->moves += passes->count % 2 == 0;
    passes->ended_ns = shc_clock_ns();
    return ++passes->count == 12;
}

TEST(WaitFor, DoesNotTakeItsOwnPassesForSomebodyElse)
{
    auto seat = std::make_unique<shc_seat>();
    shc_bell_shm bell = {};
    shc_wait wait;
    shc_wait_init(&wait, seat.get(), SHC_NO_DEADLINE);
    wait.patience = {};
    wait.patience.spins = 1;
    wait.patience.yields = 100;
    slow_passes passes = {};
    shc_target target = {};
    target.ready = pass_slowly;
    target.arg = &passes;
    target.bell = &bell;
    target.peer = -1;
    target.moves = &passes.moves;
    ASSERT_EQ(shc_wait_for(&wait, &target), SHC_OK);
    ASSERT_EQ(passes.count, 12);
    const bool busy = shc_a64_load_relaxed(&seat->company.busy_ns) != 0;
    EXPECT_TRUE(!busy || passes.longest_gap_ns >= 500 * us) << "others did not take that long";
}

} // namespace
