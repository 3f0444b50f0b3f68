// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/proto/wait.h"
}

#include <gtest/gtest.h>

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

// The first look that a company asks for from `now` on, when each yield ends `turn` behind the last one.
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

TEST(Company, LooksThatChangeNothingBecomeRare)
{
    shc_company company = {};
    uint64_t last = next_look(&company, 1000 * ms, 10 * us);
    for (uint64_t pause : {4, 8, 16, 32, 32, 32}) {
        const uint64_t look = next_look(&company, last + 10 * us, 10 * us);
        EXPECT_GE(look - last, pause * ms);
        EXPECT_LE(look - last, pause * ms + 20 * us);
        last = look;
    }
}

TEST(Company, IsBusyForAWhileBehindAYieldThatSomebodyKeeps)
{
    shc_company company = {};
    shc_company_note(&company, 1000 * ms, 499 * us);
    EXPECT_FALSE(shc_company_is_busy(&company, 1000 * ms));
    shc_company_note(&company, 1000 * ms, 500 * us);
    EXPECT_TRUE(shc_company_is_busy(&company, 1000 * ms));
    shc_company_note(&company, 1010 * ms, 1 * us);
    EXPECT_TRUE(shc_company_is_busy(&company, 1029 * ms));
    EXPECT_FALSE(shc_company_is_busy(&company, 1030 * ms));
}

TEST(Company, ALookThatPartedTheTwoDoesNot)
{
    shc_company company = {};
    uint64_t last = next_look(&company, 1000 * ms, 10 * us);
    for (int again = 0; again < 5; again++) {
        shc_company_parted(&company);
        const uint64_t look = next_look(&company, last + 10 * us, 10 * us);
        EXPECT_GE(look - last, 4 * ms);
        EXPECT_LE(look - last, 4 * ms + 20 * us);
        last = look;
    }
    EXPECT_EQ(shc_a32_load_relaxed(&company.parted), 5u);
}

} // namespace
