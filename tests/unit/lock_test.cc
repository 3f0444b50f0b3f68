// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/calm_clock.h"

extern "C" {
#include "shm/os/lock.h"
}

#include <gtest/gtest.h>
#include <thread>
#include <vector>

namespace
{

TEST(Lock, IsFreeWhenZero)
{
    shc_lock lock = {};
    EXPECT_TRUE(shc_lock_try(&lock));
    EXPECT_FALSE(shc_lock_try(&lock));
    shc_lock_drop(&lock);
    EXPECT_TRUE(shc_lock_try(&lock));
}

// A waiting thread sleeps: the holder yields its CPU under the lock, so that the others find it taken.
TEST(Lock, HasOneHolder)
{
    const int kThreads = 8, kTurns = 300;
    shc_lock lock = {};
    int inside = 0, most = 0, turns = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++)
        threads.emplace_back([&] {
            for (int turn = 0; turn < kTurns; turn++) {
                shc_lock_take(&lock);
                most = std::max(most, ++inside);
                turns++;
                if (turn % 10 == 0)
                    std::this_thread::yield();
                inside--;
                shc_lock_drop(&lock);
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    EXPECT_EQ(most, 1);
    EXPECT_EQ(turns, kThreads * kTurns);
}

// The wait on the futex ends by itself after a second: a wake-up that is lost shows as time.
TEST(Lock, WakesWhoWaits)
{
    shc_lock lock = {};
    for (int round = 0; round < 5; round++) {
        shc_lock_take(&lock);
        std::thread waiter([&] {
            shc_lock_take(&lock);
            shc_lock_drop(&lock);
        });
        while (shc_a32_load_acquire(&lock.word) != SHC_LOCK_AWAITED)
            shc_os_thread_yield();
        shc_os_sleep_ns(2000 * 1000); // until it sleeps, most of the time
        const uint64_t dropped_ns = shmcoll::test::calm_clock_ns();
        shc_lock_drop(&lock);
        waiter.join();
        EXPECT_LT(shmcoll::test::calm_ns_since(dropped_ns), SHC_NS_PER_S / 2);
    }
}

} // namespace
