// SPDX-License-Identifier: BSD-3-Clause

// A lock that is biased towards a thread.
// tests/models/weak_biased_lock.cc covers its memory orders, runner_test.cc when a bias is earned.
#include "tests/support/calm_clock.h"
#include "tests/support/steps.h"

extern "C" {
#include "shm/os/biased_lock.h"
}

#include <algorithm>
#include <atomic>
#include <csignal>
#include <gtest/gtest.h>
#include <thread>

using namespace shmcoll::test;

namespace
{

const uint64_t kMe = 8, kOther = 16; // numbers of threads

class BiasedLock : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        if (!shc_os_fence_prepare())
            GTEST_SKIP() << "no membarrier here: no bias";
        shc_biased_lock_init(&lock, 3);
    }
    // Like a call that counts.
    void take(uint64_t me)
    {
        shc_biased_lock_take(&lock, me);
        if (!lock.by_bias && shc_bias_count(&lock.bias, me))
            shc_bias_give(&lock.bias, me);
    }
    void drop(uint64_t me) { shc_biased_lock_drop(&lock, me); }
    void earn(uint64_t me)
    {
        while (shc_a64_load_acquire(&lock.bias.whose) != me) {
            take(me);
            drop(me);
        }
    }
    uint32_t word() const { return shc_a32_load_acquire(&lock.lock.word); }
    // Until another thread says that it waits.
    void await_waiter() const
    {
        while (word() != SHC_LOCK_AWAITED)
            shc_os_thread_yield();
        shc_os_sleep_ns(2 * SHC_NS_PER_MS); // until it sleeps, most of the time
    }
    shc_biased_lock lock = {};
};

TEST_F(BiasedLock, IsTakenWithoutItsWordBehindManyCalls)
{
    for (int i = 0; i < 3; i++) {
        take(kMe);
        EXPECT_FALSE(lock.by_bias) << i;
        EXPECT_EQ(word(), SHC_LOCK_HELD);
        drop(kMe);
    }
    for (int i = 0; i < 3; i++) {
        take(kMe);
        EXPECT_TRUE(lock.by_bias) << i;
        EXPECT_EQ(word(), SHC_LOCK_FREE);
        EXPECT_FALSE(shc_biased_lock_is_awaited(&lock));
        drop(kMe);
        EXPECT_FALSE(lock.by_bias);
    }
}

// Calls that do not count do no harm if the same thread makes them, but end the row if another thread does.
TEST_F(BiasedLock, IsNotBiasedWhereCallsAreNotInARow)
{
    for (int i = 0; i < 6; i++) {
        take(kMe);
        EXPECT_FALSE(lock.by_bias) << i;
        drop(kMe);
        shc_biased_lock_take(&lock, i % 2 == 0 ? kMe : kOther);
        drop(i % 2 == 0 ? kMe : kOther);
    }
    for (int i = 0; i < 3; i++) {
        take(kMe);
        EXPECT_FALSE(lock.by_bias) << i;
        drop(kMe);
        shc_biased_lock_take(&lock, kMe);
        drop(kMe);
    }
    take(kMe);
    EXPECT_TRUE(lock.by_bias);
}

TEST_F(BiasedLock, IsAnotherOnesBehindItsHolder)
{
    earn(kMe);
    take(kMe);
    ASSERT_TRUE(lock.by_bias);
    std::atomic<bool> taken{false};
    std::thread other([&] {
        shc_biased_lock_take(&lock, kOther);
        taken = true;
        drop(kOther);
    });
    await_waiter();
    EXPECT_FALSE(taken);
    EXPECT_TRUE(shc_biased_lock_is_awaited(&lock));
    // The wait ends by itself after a second: a wake-up that is lost shows as time.
    const uint64_t dropped_ns = shmcoll::test::calm_clock_ns();
    EXPECT_TRUE(shc_biased_lock_drop(&lock, kMe));
    other.join();
    EXPECT_LT(shmcoll::test::calm_ns_since(dropped_ns), SHC_NS_PER_S / 2);
    EXPECT_EQ(word(), SHC_LOCK_FREE);
    EXPECT_EQ(lock.bias.pay, 6u); // twice as many have to come
    take(kMe);
    EXPECT_FALSE(lock.by_bias);
}

TEST_F(BiasedLock, IsAnotherOnesAtOnceWhereItIsFree)
{
    earn(kMe);
    EXPECT_TRUE(shc_biased_lock_take_within(&lock, kOther, 0));
    EXPECT_FALSE(lock.by_bias);
    EXPECT_EQ(word(), SHC_LOCK_HELD);
    EXPECT_FALSE(shc_biased_lock_take_within(&lock, kMe, SHC_NS_PER_MS));
    drop(kOther);
    EXPECT_TRUE(shc_biased_lock_take_within(&lock, kMe, 0));
    drop(kMe);
}

// A thread that gives up leaves the word to the holder, which releases it.
TEST_F(BiasedLock, IsGivenUp)
{
    earn(kMe);
    take(kMe);
    ASSERT_TRUE(lock.by_bias);
    EXPECT_FALSE(shc_biased_lock_take_within(&lock, kOther, SHC_NS_PER_MS));
    EXPECT_NE(word(), SHC_LOCK_FREE);
    EXPECT_FALSE(shc_biased_lock_take_within(&lock, kOther, SHC_NS_PER_MS));
    drop(kMe);
    EXPECT_EQ(word(), SHC_LOCK_FREE);
    EXPECT_TRUE(shc_biased_lock_take_within(&lock, kOther, 0));
    drop(kOther);
}

// One thread takes it again and again, others now and then. The test also checks that it was taken by bias,
// and that threads waited for it.
TEST_F(BiasedLock, HasOneHolder)
{
    const int kTurns = 300, kOthers = 2;
    int inside = 0, most = 0, turns = 0, homes = 0, biased = 0;
    std::atomic<int> over{0};
    auto one = [&](uint64_t me) {
        take(me);
        most = std::max(most, ++inside);
        turns++;
        biased += lock.by_bias;
        if (!lock.by_bias)
            lock.bias.pay = 3; // else biases would end soon
        if (turns % 50 == 0)
            std::this_thread::yield();
        inside--;
        drop(me);
    };
    earn(kMe); // else another thread may be the first to earn a bias
    std::vector<std::thread> others;
    for (int i = 0; i < kOthers; i++)
        others.emplace_back([&, i] {
            for (int turn = 0; turn < kTurns; turn++) {
                one(kOther + static_cast<uint64_t>(i));
                shc_os_sleep_ns(20 * 1000);
            }
            over++;
        });
    for (; over < kOthers; homes++)
        one(kMe);
    for (std::thread &other : others)
        other.join();
    EXPECT_EQ(most, 1);
    EXPECT_EQ(turns, homes + kOthers * kTurns);
    EXPECT_GT(biased, 0);
    EXPECT_EQ(word(), SHC_LOCK_FREE);
    EXPECT_FALSE(lock.bias.left);
}

#ifdef SHMCOLL_SINGLE_STEPS
// A signal handler that wants the lock after one instruction of its own thread's turn.
struct Handler {
    static shc_biased_lock *lock;
    static int step, at;               // the handler runs after that one
    static std::atomic<bool> critical; // the turn holds the lock
    static bool held, came;            // the handler had it then, too; it came

    static void want(int)
    {
        if (step++ != at)
            return;
        came = true;
        if (!shc_biased_lock_take_within(lock, kMe, 0))
            return;
        held = critical;
        shc_biased_lock_drop(lock, kMe);
    }
};
shc_biased_lock *Handler::lock;
int Handler::step, Handler::at;
std::atomic<bool> Handler::critical;
bool Handler::held, Handler::came;

// It does not get in, and the lock is free after the turn, whether the turn was by bias or not.
TEST_F(BiasedLock, IsNotHadTwiceByAHandler)
{
    struct sigaction action = {}, before;
    action.sa_handler = Handler::want;
    ASSERT_EQ(sigaction(SIGTRAP, &action, &before), 0);
    for (bool biased : {false, true}) {
        int inside = 0; // steps of the turn during which it held the lock
        for (Handler::at = 0, Handler::came = true; Handler::came; Handler::at++) {
            lock = {};
            shc_biased_lock_init(&lock, 1);
            Handler::lock = &lock;
            if (biased)
                earn(kMe);
            Handler::step = 0;
            Handler::came = Handler::held = false;
            begin_steps();
            shc_biased_lock_take(&lock, kMe);
            Handler::critical = true;
            const int begun = Handler::step;
            const bool by_bias = lock.by_bias;
            const int ended = Handler::step;
            Handler::critical = false;
            shc_biased_lock_drop(&lock, kMe);
            end_steps();
            inside += Handler::at >= begun && Handler::at < ended;
            // A handler that runs in the middle of a biased turn's beginning has ended the bias.
            EXPECT_TRUE(by_bias == biased || (biased && Handler::at < begun)) << Handler::at;
            EXPECT_FALSE(Handler::held) << Handler::at;
            EXPECT_TRUE(shc_biased_lock_take_within(&lock, kOther, 0)) << Handler::at;
            shc_biased_lock_drop(&lock, kOther);
        }
        EXPECT_GT(Handler::at, 20);
        EXPECT_GT(inside, 0);
    }
    sigaction(SIGTRAP, &before, nullptr);
}
#endif

} // namespace
