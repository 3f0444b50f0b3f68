// SPDX-License-Identifier: BSD-3-Clause

// Which thread runs a group's operations: the word, and the bias.
// tests/models/bias.pml covers all their orders.
extern "C" {
#include "shm/comm/runner.h"
}

#include <algorithm>
#include <atomic>
#include <gtest/gtest.h>
#include <thread>

namespace
{

const uint64_t kMe = 8, kOther = 16; // numbers of threads

class Runner : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        if (!shc_os_fence_prepare())
            GTEST_SKIP() << "no membarrier here: no bias";
        shc_bias_init(&runner.bias, 3);
    }
    uint32_t word() const { return shc_a32_load_acquire(&runner.word); }
    uint64_t bias() const { return shc_a64_load_acquire(&runner.bias.whose); }

    enum How { kNot, kByWord, kByBias };

    // Like shc_engine_enter().
    How enter(uint64_t me)
    {
        bool paid = false, ring = false;
        if (shc_runner_enter_biased(&runner, me, &ring))
            return kByBias;
        EXPECT_FALSE(ring);
        if (!shc_runner_enter(&runner, me, &paid))
            return kNot;
        if (paid)
            shc_bias_give(&runner.bias, me);
        return kByWord;
    }
    // Like shc_engine_leave(). True: the bell must be rung.
    bool leave(uint64_t me, How how)
    {
        return how == kByBias ? shc_runner_leave_biased(&runner, me) : shc_runner_drop(&runner);
    }
    void call(uint64_t me, int times, How how)
    {
        for (int i = 0; i < times; i++) {
            ASSERT_EQ(enter(me), how) << i;
            EXPECT_FALSE(leave(me, how));
        }
    }
    shc_runner runner = {};
};

TEST_F(Runner, IsTakenFromWhatTheWordIs)
{
    EXPECT_FALSE(shc_runner_take(&runner, SHC_RUNNER_QUEUED, kMe));
    ASSERT_TRUE(shc_runner_take(&runner, 0, kMe));
    EXPECT_FALSE(shc_runner_take(&runner, 0, kOther));
    shc_runner_note_queued(&runner);
    EXPECT_FALSE(shc_runner_is_queued(&runner));
    EXPECT_TRUE(shc_runner_drop(&runner));
    EXPECT_TRUE(shc_runner_is_queued(&runner));
    EXPECT_EQ(enter(kMe), kNot); // queued operations come first
    ASSERT_TRUE(shc_runner_take(&runner, SHC_RUNNER_QUEUED, kMe));
    shc_runner_note_empty(&runner);
    EXPECT_FALSE(shc_runner_drop(&runner));
    EXPECT_EQ(word(), 0u);
}

TEST_F(Runner, IsBiasedBehindManyCallsInARow)
{
    call(kMe, 3, kByWord);
    EXPECT_EQ(bias(), kMe);
    call(kMe, 3, kByBias);
    EXPECT_EQ(enter(kMe), kByBias);
    EXPECT_EQ(word(), 0u);
    leave(kMe, kByBias);
}

TEST_F(Runner, IsNotBiasedWhereCallsAreNotInARow)
{
    for (int i = 0; i < 10; i++) {
        call(kMe, 2, kByWord);
        if (i % 2 == 0) {
            call(kOther, 1, kByWord);
        } else {
            shc_runner_note_queued(&runner);
            ASSERT_TRUE(shc_runner_take(&runner, SHC_RUNNER_QUEUED, kMe));
            shc_runner_note_empty(&runner);
            shc_runner_drop(&runner);
        }
    }
}

// Independent of other threads: their stores could be mixed with those of the first one.
TEST_F(Runner, IsBiasedTowardsOneThreadOnly)
{
    call(kMe, 3, kByWord);
    call(kOther, 20, kByWord);
    call(kMe, 6, kByWord);
    call(kMe, 1, kByBias);
}

TEST_F(Runner, HasNoBiasBehindWhoTookItOtherwise)
{
    call(kMe, 3, kByWord);
    ASSERT_TRUE(shc_runner_take(&runner, 0, kOther));
    EXPECT_EQ(enter(kMe), kNot);
    EXPECT_FALSE(shc_runner_drop(&runner));
    call(kMe, 6, kByWord); // twice as many have to come
    call(kMe, 1, kByBias);
}

TEST_F(Runner, IsLeftToWhoIsInside)
{
    call(kMe, 3, kByWord);
    ASSERT_EQ(enter(kMe), kByBias);
    EXPECT_FALSE(shc_runner_take(&runner, 0, kOther));
    EXPECT_EQ(word(), SHC_RUNNER_HELD);
    EXPECT_FALSE(leave(kMe, kByBias));
    EXPECT_EQ(word(), 0u);
    call(kOther, 1, kByWord);
}

TEST_F(Runner, SaysThatSomethingIsQueuedWhereItWasLeft)
{
    call(kMe, 3, kByWord);
    ASSERT_EQ(enter(kMe), kByBias);
    shc_runner_note_queued(&runner);
    EXPECT_TRUE(shc_runner_is_queued(&runner)); // a bias does not show in the word
    EXPECT_FALSE(shc_runner_take(&runner, SHC_RUNNER_QUEUED, kOther));
    EXPECT_FALSE(shc_runner_is_queued(&runner));
    EXPECT_TRUE(leave(kMe, kByBias));
    EXPECT_TRUE(shc_runner_take(&runner, SHC_RUNNER_QUEUED, kOther));
}

TEST_F(Runner, DoesNotOvertakeWhatIsQueued)
{
    call(kMe, 3, kByWord);
    shc_runner_note_queued(&runner);
    EXPECT_EQ(enter(kMe), kNot);
    EXPECT_EQ(word(), SHC_RUNNER_QUEUED);
    ASSERT_TRUE(shc_runner_take(&runner, SHC_RUNNER_QUEUED, kMe)); // one's own bias costs no fence
    EXPECT_EQ(bias(), 0u);
    EXPECT_EQ(runner.bias.pay, 3u);
}

// One thread calls again and again, another one now and then. The test also checks that some of the calls
// were by bias.
TEST_F(Runner, HasOneHolder)
{
    const int kCalls = 300;
    int inside = 0, most = 0, calls = 0, homes = 0, biased = 0;
    std::atomic<bool> over{false};
    auto one = [&](uint64_t me) {
        How how;
        while ((how = enter(me)) == kNot)
            std::this_thread::yield();
        most = std::max(most, ++inside);
        calls++;
        inside--;
        if (how == kByWord)
            runner.bias.pay = 3; // else biases would end soon
        leave(me, how);
        return how;
    };
    call(kMe, 3, kByWord); // else the other thread may be the first to earn a bias
    std::thread home([&] {
        for (; !over; homes++)
            biased += one(kMe) == kByBias;
    });
    for (int i = 0; i < kCalls; i++) {
        one(kOther);
        shc_os_sleep_ns(20 * 1000);
    }
    over = true;
    home.join();
    EXPECT_EQ(most, 1);
    EXPECT_EQ(calls, homes + kCalls);
    EXPECT_GT(biased, 0);
    EXPECT_EQ(word(), 0u);
    EXPECT_FALSE(runner.bias.left);
}

} // namespace
