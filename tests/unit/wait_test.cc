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

} // namespace
