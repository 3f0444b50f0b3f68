// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/proto/wait.h"
}

#include <gtest/gtest.h>
#include <memory>

namespace
{

// Every group asks: a measurement each time took a tenth of the time to make a group.
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

// A pass over messages that takes its time, and makes progress every second time.
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
    const bool busy = shc_a64_load_relaxed(&seat->cpu_sharing.busy_ns) != 0;
    EXPECT_TRUE(!busy || passes.longest_gap_ns >= 500 * us) << "others did not take that long";
}

} // namespace
