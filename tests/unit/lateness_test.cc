// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/base/lateness.h"
}

#include <cstdio>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace
{

constexpr uint64_t ms = SHC_NS_PER_MS, s = SHC_NS_PER_S, t0 = 1000 * s;

shc_lateness begun(uint64_t timeout_ns, uint64_t late_after_ns)
{
    shc_lateness lateness;
    shc_lateness_begin(&lateness, t0, timeout_ns, late_after_ns);
    return lateness;
}

TEST(Lateness, LinesAreDueAfterOnceTwiceFourTimesTheTime)
{
    shc_lateness lateness = begun(SHC_NO_DEADLINE, 5 * s);
    std::vector<uint64_t> due;
    for (uint64_t waited = 0; waited <= 100 * s; waited += 10 * ms)
        if (shc_lateness_look(&lateness, t0 + waited) == SHC_LATE)
            due.push_back(waited / s);
    EXPECT_EQ(due, (std::vector<uint64_t>{5, 10, 20, 40, 80}));
}

TEST(Lateness, ALookThatComesLateMovesNoLaterLine)
{
    shc_lateness lateness = begun(SHC_NO_DEADLINE, 5 * s);
    EXPECT_EQ(shc_lateness_look(&lateness, t0 + 7 * s), SHC_LATE);
    EXPECT_EQ(shc_lateness_look(&lateness, t0 + 10 * s - 1), SHC_IN_TIME);
    EXPECT_EQ(shc_lateness_look(&lateness, t0 + 10 * s), SHC_LATE);
}

TEST(Lateness, ALookThatComesVeryLateSaysOneLine)
{
    shc_lateness lateness = begun(SHC_NO_DEADLINE, 5 * s);
    EXPECT_EQ(shc_lateness_look(&lateness, t0 + 21 * s), SHC_LATE);
    EXPECT_EQ(shc_lateness_look(&lateness, t0 + 40 * s - 1), SHC_IN_TIME);
    EXPECT_EQ(shc_lateness_look(&lateness, t0 + 40 * s), SHC_LATE);
}

TEST(Lateness, TheDeadlineComesBeforeALine)
{
    shc_lateness lateness = begun(5 * s, 5 * s);
    EXPECT_EQ(shc_lateness_look(&lateness, t0 + 5 * s - 1), SHC_IN_TIME);
    EXPECT_EQ(shc_lateness_look(&lateness, t0 + 5 * s), SHC_TIME_OVER);
    EXPECT_EQ(shc_lateness_seconds(&lateness, t0 + 5 * s), 5.0);
}

TEST(Lateness, LostTimeMovesDeadlineAndLines)
{
    shc_lateness lateness = begun(6 * s, 5 * s);
    shc_lateness_add_lost(&lateness, t0 + 60 * s, 59 * s);
    EXPECT_EQ(shc_lateness_seconds(&lateness, t0 + 60 * s), 1.0);
    EXPECT_EQ(shc_lateness_look(&lateness, t0 + 64 * s - 1), SHC_IN_TIME);
    EXPECT_EQ(shc_lateness_look(&lateness, t0 + 64 * s), SHC_LATE);
    EXPECT_EQ(shc_lateness_look(&lateness, t0 + 65 * s), SHC_TIME_OVER);
}

TEST(Lateness, LostTimeMakesNoDeadline)
{
    shc_lateness lateness = begun(SHC_NO_DEADLINE, 5 * s);
    shc_lateness_add_lost(&lateness, t0 + 60 * s, 59 * s);
    EXPECT_EQ(lateness.deadline_ns, SHC_NO_DEADLINE);
}

TEST(Lateness, WhatBeganInLostTimeHasLostOnlyTheRest)
{
    shc_lateness lateness = begun(6 * s, 5 * s);
    shc_lateness_add_lost(&lateness, t0 + 2 * s, 59 * s);
    EXPECT_EQ(lateness.begun_ns, t0 + 2 * s);
    EXPECT_EQ(lateness.deadline_ns, t0 + 8 * s);
    shc_lateness_add_lost(&lateness, t0 + s, 59 * s);
    EXPECT_EQ(lateness.begun_ns, t0 + 2 * s) << "it began later";
}

TEST(ClockWatch, LosesNothingBetweenUsualLooks)
{
    shc_clock_watch watch = {t0, 0, 0};
    EXPECT_EQ(shc_clock_watch_lost(&watch, t0 + 10 * ms), 0u);
    EXPECT_EQ(shc_clock_watch_lost(&watch, t0 + 1020 * ms), 0u) << "a busy machine";
    EXPECT_EQ(shc_clock_watch_lost(&watch, t0 + 1021 * ms), 0u);
}

TEST(ClockWatch, LosesWhatLiesBetweenTwoLooksThatAreFarApart)
{
    shc_clock_watch watch = {t0, 0, 0};
    EXPECT_EQ(shc_clock_watch_lost(&watch, t0 + 60 * s), 60 * s - 10 * ms);
    EXPECT_EQ(shc_clock_watch_lost(&watch, t0 + 60 * s + 10 * ms), 0u);
}

TEST(ClockWatch, ForgivesAHundredTimesAtMost)
{
    shc_clock_watch watch = {t0, 0, 0};
    uint64_t now = t0;
    for (int i = 0; i < 100; i++)
        EXPECT_NE(shc_clock_watch_lost(&watch, now += 2 * s), 0u);
    EXPECT_EQ(shc_clock_watch_lost(&watch, now += 2 * s), 0u);
}

// A rank that is stopped now and then, for weeks.
TEST(ClockWatch, ForgivesAgainAfterAMinuteOfUsualLooks)
{
    shc_clock_watch watch = {t0, 0, 0};
    uint64_t now = t0;
    for (int stop = 0; stop < 250; stop++) {
        ASSERT_NE(shc_clock_watch_lost(&watch, now += 60 * s), 0u) << "stop " << stop;
        for (int look = 0; look < 61; look++)
            ASSERT_EQ(shc_clock_watch_lost(&watch, now += s), 0u);
    }
}

TEST(ClockWatch, ForgivesNoMoreARankThatIsAwayAfterLessThanAMinute)
{
    shc_clock_watch watch = {t0, 0, 0};
    uint64_t now = t0;
    for (int stop = 0; stop < 250; stop++) {
        EXPECT_EQ(shc_clock_watch_lost(&watch, now += 60 * s) != 0, stop < 100) << stop;
        for (int look = 0; look < 30; look++)
            EXPECT_EQ(shc_clock_watch_lost(&watch, now += s), 0u);
    }
}

TEST(Words, AreTheSameInAllFormats)
{
    char text[100];
    snprintf(text, sizeof text, "rank 0 " SHC_HAS_WAITED "; " SHC_TIMED_OUT "%.3f s", 1.25, 1.25);
    EXPECT_EQ(std::string(text), "rank 0 has waited 1.2 s; Timed out after 1.250 s");
}

} // namespace
