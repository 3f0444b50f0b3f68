// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/base/clock.h"
#include "shm/comm/store_thread.h"
}

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <gtest/gtest.h>
#include <pthread.h>
#include <thread>

namespace
{

std::atomic<int> yields{0};
std::atomic<long> yield_ns{0};

void sleep_ns(long ns)
{
    const timespec time = {ns / 1000000000, ns % 1000000000};
    nanosleep(&time, nullptr);
}

} // namespace

// In the place of the C library's: as next to programs that compute, to which a yield gives the CPU.
extern "C" int sched_yield()
{
    yields++;
    if (yield_ns > 0)
        sleep_ns(yield_ns);
    return 0;
}

namespace
{

// A store that answers when it is told to.
class SlowStore
{
  public:
    SlowStore()
    {
        store_.ctx = this;
        store_.check = [](void *ctx, const char *const *, size_t) {
            while (!static_cast<SlowStore *>(ctx)->answers_)
                sleep_ns(1000000);
            return ENOENT;
        };
        store_.retain = [](void *) {};
        store_.release = [](void *ctx) { static_cast<SlowStore *>(ctx)->released_ = true; };
        thread_ = shc_store_thread_start(&store_);
        call_ = shc_store_thread_next(thread_);
        call_->kind = SHC_STORE_CHECK;
        shc_store_thread_ask(thread_);
    }

    ~SlowStore()
    {
        answers_ = true;
        shc_store_thread_end(thread_);
        while (!released_)
            sleep_ns(1000000);
    }

    void answer() { answers_ = true; }
    bool await(uint64_t timeout_ns) { return shc_store_thread_await(thread_, timeout_ns); }
    int error() const { return call_->error; }

  private:
    shc_store store_{};
    std::atomic<bool> answers_{false}, released_{false};
    shc_store_thread *thread_;
    shc_store_call *call_;
};

TEST(StoreThread, GivesTheAnswer)
{
    SlowStore store;
    store.answer();
    while (!store.await(10 * SHC_NS_PER_S)) {
    }
    EXPECT_EQ(store.error(), ENOENT);
}

TEST(StoreThread, YieldsOnceWhereAYieldTakesLong)
{
    SlowStore store;
    sleep_ns(50000000); // its thread is in the call
    yield_ns = 1000000;
    yields = 0;
    EXPECT_FALSE(store.await(20 * SHC_NS_PER_MS));
    const int seen = yields;
    yield_ns = 0;
    EXPECT_GE(seen, 1);
    EXPECT_LE(seen, 3) << "a wake-up for no reason may begin again";
}

TEST(StoreThread, ASignalEndsTheWait)
{
    struct sigaction action = {}, before;
    action.sa_handler = [](int) {};
    ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
    SlowStore store;
    std::atomic<bool> over{false};
    const pthread_t self = pthread_self();
    std::thread other([&] {
        while (!over) { // the first may come before the wait
            sleep_ns(10000000);
            pthread_kill(self, SIGUSR1);
        }
    });
    EXPECT_FALSE(store.await(1000 * SHC_NS_PER_S)); // the limit of a test is shorter
    over = true;
    other.join();
    sigaction(SIGUSR1, &before, nullptr);
}

} // namespace
