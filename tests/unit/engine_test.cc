// SPDX-License-Identifier: BSD-3-Clause
// Asynchronous operations: order, waiting, callbacks, ends.
#include "tests/support/ranks.h"
#include "tests/support/steps.h"

extern "C" {
#include "shm/base/config.h"
#include "shm/comm/request.h"
}

#include <atomic>
#include <csignal>
#include <gtest/gtest.h>
#include <memory>
#include <thread>

using namespace shmcoll::test;

namespace
{

// One vector, and the descriptor of an all_reduce of it in place.
struct Sum {
    explicit Sum(size_t count, float value) : values(count, value)
    {
        size = static_cast<int64_t>(count);
        tensor = {values.data(), 1, &size, nullptr};
        op.kind = SHC_ALL_REDUCE;
        op.dtype = SHC_FLOAT32;
        op.redop = SHC_SUM;
        op.input = op.output = {&tensor, 1};
    }
    Sum(const Sum &) = delete;
    std::vector<float> values;
    int64_t size = 0;
    shc_tensor tensor = {};
    shc_op op = {};
    shc_request *request = nullptr;
};

shc_op barrier_op()
{
    shc_op op = {};
    op.kind = SHC_BARRIER;
    return op;
}

class Engine : public ::testing::TestWithParam<Mode>
{
};

TEST_P(Engine, ManyInFlightWaitedInAnyOrder)
{
    run_ranks(GetParam(), 3, [](Rank &rank) {
        std::vector<std::unique_ptr<Sum>> sums;
        for (size_t i = 0; i < 60; i++) {
            sums.push_back(std::make_unique<Sum>(1 + i * i * 40, static_cast<float>(i)));
            ASSERT_EQ(shc_submit(rank.comm, &sums[i]->op, nullptr, &sums[i]->request), SHC_OK);
        }
        for (size_t turn = 0; turn < 60; turn++) {
            size_t i = (turn * 7 + static_cast<size_t>(rank.rank) * 11) % 60;
            ASSERT_EQ(shc_request_wait(sums[i]->request, 0), SHC_OK) << error_text();
            EXPECT_EQ(sums[i]->values.back(), static_cast<float>(i) * 3) << i;
            shc_request_release(sums[i]->request);
        }
    });
}

TEST_P(Engine, ProceedsWithoutAWaiter)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        Sum sum(1000, 2.f);
        ASSERT_EQ(shc_submit(rank.comm, &sum.op, nullptr, &sum.request), SHC_OK);
        shc_status status = SHC_ERR_ABORTED;
        for (int i = 0; i < 5000 && !shc_request_done(sum.request, &status); i++)
            shc_os_sleep_ns(SHC_NS_PER_MS);
        EXPECT_EQ(status, SHC_OK);
        EXPECT_EQ(sum.values[0], 4.f);
        shc_request_release(sum.request);
    });
}

bool polls(const Rank &rank)
{
    return shc_a32_load_acquire(&rank.comm->engine.polling) > 0;
}

bool may_poll(const Rank &rank)
{
    return shc_a32_load_relaxed(&rank.comm->engine.soon) >= SHC_POLL_AFTER;
}

void wait_at_once(Rank &rank)
{
    Sum sum(2, 1.f);
    ASSERT_EQ(shc_submit(rank.comm, &sum.op, nullptr, &sum.request), SHC_OK) << error_text();
    ASSERT_EQ(shc_request_wait(sum.request, 0), SHC_OK) << error_text();
    EXPECT_EQ(sum.values[1], static_cast<float>(rank.world));
    shc_request_release(sum.request);
}

// Until requests have been waited for at once often enough on all ranks, and their engines poll, whatever
// else the machine does meanwhile.
void let_it_poll(Rank &rank, bool and_see_it = false)
{
    for (int i = 0; i < 100000; i++) {
        wait_at_once(rank);
        Sum all(1, may_poll(rank) && (polls(rank) || !and_see_it) ? 1.f : 0.f);
        ASSERT_EQ(shc_run(rank.comm, &all.op), SHC_OK) << error_text();
        if (all.values[0] == static_cast<float>(rank.world))
            return;
    }
    FAIL() << "the engine does not get to poll";
}

// One sleep would last for hours: a thread that waits for the end of one waits too long.
void let_it_poll_for_hours(Rank &rank)
{
    shc_a64_store_relaxed(&rank.comm->engine.poll_ns, 10000 * SHC_NS_PER_S);
    let_it_poll(rank, true);
}

const shc_request_hooks counting(std::atomic<int> *completed)
{
    const auto complete = [](void *ctx, shc_status, const char *) {
        ++*static_cast<std::atomic<int> *>(ctx);
    };
    return {completed, complete, nullptr};
}

enum class Need { kPolled, kTimed, kCallback, kCount };

// A thread that needs a result, and does not run it itself, wakes an engine that polls.
TEST_P(Engine, PollsNoLongerForWhatIsUrgent)
{
    for (int need = 0; need < static_cast<int>(Need::kCount); need++)
        run_ranks(GetParam(), 2, [need](Rank &rank) {
            std::atomic<int> completed{0};
            const shc_request_hooks hooks = counting(&completed);
            Sum sum(2, 1.f);
            shc_status status = SHC_ERR_SYSTEM;
            shc_op barrier = barrier_op();
            let_it_poll_for_hours(rank);
            ASSERT_EQ(shc_submit(rank.comm, &sum.op, &hooks, &sum.request), SHC_OK);
            switch (static_cast<Need>(need)) {
            case Need::kPolled:
                while (!shc_request_done(sum.request, &status))
                    shc_os_thread_yield();
                break;
            case Need::kTimed:
                EXPECT_EQ(shc_request_wait(sum.request, 60 * SHC_NS_PER_S), SHC_OK) << error_text();
                break;
            default: // a callback
                if (shc_request_notify(sum.request)) {
                    while (completed == 0)
                        shc_os_thread_yield();
                }
            }
            EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
            EXPECT_EQ(sum.values[1], 2.f);
            shc_request_release(sum.request);
        });
}

// An urgent one, while the engine sleeps on its doorbell, and would poll when woken.
TEST_P(Engine, DoesNotPollWhileSomethingIsUrgent)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        shc_status status = SHC_ERR_SYSTEM;
        let_it_poll(rank);
        while (polls(rank) || shc_a32_load_relaxed(&rank.comm->engine.work.flag) == 0)
            shc_os_sleep_ns(SHC_NS_PER_MS);
        shc_a64_store_relaxed(&rank.comm->engine.poll_ns, 10000 * SHC_NS_PER_S);
        Sum sum(2, 1.f);
        ASSERT_EQ(shc_submit(rank.comm, &sum.op, nullptr, &sum.request), SHC_OK);
        while (!shc_request_done(sum.request, &status))
            shc_os_thread_yield();
        EXPECT_EQ(sum.values[1], 2.f);
        shc_request_release(sum.request);
    });
}

// A request that no thread waits for is run all the same, and as many must come again before it polls again.
TEST_P(Engine, PollsNoLongerWhereSomethingIsNotWaitedFor)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        let_it_poll(rank, true);
        Sum sum(2, 1.f);
        ASSERT_EQ(shc_submit(rank.comm, &sum.op, nullptr, &sum.request), SHC_OK);
        while (shc_a32_load_acquire(&sum.request->done) == 0)
            shc_os_thread_yield();
        shc_request_release(sum.request);
        EXPECT_EQ(shc_a32_load_relaxed(&rank.comm->engine.soon), 0u);
    });
}

// Requests that keep coming, and are waited for only at the end, are run meanwhile.
TEST_P(Engine, RunsWhatComesWhileItPolls)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        let_it_poll(rank);
        std::vector<std::unique_ptr<Sum>> sums;
        for (int i = 0; i < 60; i++) {
            sums.push_back(std::make_unique<Sum>(2, 1.f));
            ASSERT_EQ(shc_submit(rank.comm, &sums.back()->op, nullptr, &sums.back()->request),
                      SHC_OK);
            shc_os_sleep_ns(200 * SHC_NS_PER_US);
        }
        // Nobody asks for it, which would wake the engine. On a busy machine it takes its time.
        for (int i = 0; i < 5000 && !shc_request_has_ended(sums[0]->request); i++)
            shc_os_sleep_ns(2 * SHC_NS_PER_MS);
        EXPECT_TRUE(shc_request_has_ended(sums[0]->request));
        for (auto &sum : sums) {
            EXPECT_EQ(shc_request_wait(sum->request, 0), SHC_OK) << error_text();
            shc_request_release(sum->request);
        }
    });
}

// It polls only as long as requests come, and returns to its doorbell.
TEST_P(Engine, SleepsOnItsDoorbellWhenNothingComes)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        let_it_poll(rank, true);
        while (polls(rank) || shc_a32_load_relaxed(&rank.comm->engine.work.flag) == 0)
            shc_os_sleep_ns(SHC_NS_PER_MS);
        wait_at_once(rank); // a new request wakes it
    });
}

TEST_P(Engine, ASynchronousCallTakesItsTurnBehindWhatIsQueued)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        for (int round = 0; round < 100; round++) {
            Sum first(1, 1.f), second(1, 10.f), third(1, 100.f);
            ASSERT_EQ(shc_submit(rank.comm, &first.op, nullptr, &first.request), SHC_OK);
            ASSERT_EQ(shc_run(rank.comm, &second.op), SHC_OK) << error_text();
            ASSERT_EQ(shc_submit(rank.comm, &third.op, nullptr, &third.request), SHC_OK);
            ASSERT_EQ(shc_request_wait(first.request, 0), SHC_OK) << error_text();
            ASSERT_EQ(shc_request_wait(third.request, 0), SHC_OK) << error_text();
            EXPECT_EQ(first.values[0] + second.values[0] + third.values[0], 222.f);
            shc_request_release(first.request);
            shc_request_release(third.request);
        }
    });
}

// One rank makes a call synchronously that another makes asynchronously.
TEST_P(Engine, RanksMayDifferInHowTheyWait)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        for (int round = 0; round < 50; round++) {
            Sum sum(10, 1.f);
            if (rank.rank == round % 2) {
                ASSERT_EQ(shc_run(rank.comm, &sum.op), SHC_OK) << error_text();
            } else {
                ASSERT_EQ(shc_submit(rank.comm, &sum.op, nullptr, &sum.request), SHC_OK);
                ASSERT_EQ(shc_request_wait(sum.request, 0), SHC_OK) << error_text();
                shc_request_release(sum.request);
            }
            EXPECT_EQ(sum.values[9], 2.f);
        }
    });
}

TEST_P(Engine, ATimedWaitLeavesTheOperationInFlight)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        Sum sum(5, 1.f), word(1, 1.f);
        shc_op message = word.op;
        message.kind = rank.rank == 0 ? SHC_SEND : SHC_RECV;
        message.peer = 1 - rank.rank;
        if (rank.rank == 1) { // it comes when the wait has timed out
            ASSERT_EQ(shc_run(rank.comm, &message), SHC_OK) << error_text();
        }
        ASSERT_EQ(shc_submit(rank.comm, &sum.op, nullptr, &sum.request), SHC_OK);
        if (rank.rank == 0) {
            EXPECT_EQ(shc_request_wait(sum.request, 20 * SHC_NS_PER_MS), SHC_ERR_TIMEOUT);
            EXPECT_NE(error_text().find("Timed out"), std::string::npos) << error_text();
            ASSERT_EQ(shc_run(rank.comm, &message), SHC_OK) << error_text();
        }
        EXPECT_EQ(shc_request_wait(sum.request, 0), SHC_OK) << error_text();
        EXPECT_EQ(sum.values[4], 2.f);
        shc_request_release(sum.request);
    });
}

struct Watcher {
    std::atomic<int> completed{0}, retired{0};
    std::atomic<bool> retired_by_caller{true};
    std::thread::id caller = std::this_thread::get_id();
    std::function<void()> in_complete;

    shc_request_hooks hooks()
    {
        return {this,
                [](void *ctx, shc_status, const char *) {
                    auto *self = static_cast<Watcher *>(ctx);
                    if (self->in_complete)
                        self->in_complete();
                    self->completed++;
                },
                [](void *ctx) {
                    auto *self = static_cast<Watcher *>(ctx);
                    if (std::this_thread::get_id() != self->caller)
                        self->retired_by_caller = false;
                    self->retired++;
                }};
    }
};

TEST_P(Engine, CompleteComesOnceBeforeTheWaitReturnsAndRetireOnACallersThread)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        Watcher watcher;
        int asked = 0;
        for (int round = 0; round < 50; round++) {
            Sum sum(100, 1.f);
            shc_request_hooks hooks = watcher.hooks();
            ASSERT_EQ(shc_submit(rank.comm, &sum.op, &hooks, &sum.request), SHC_OK);
            asked += shc_request_notify(sum.request);
            ASSERT_EQ(shc_request_wait(sum.request, 0), SHC_OK) << error_text();
            EXPECT_EQ(watcher.completed, asked);
            shc_request_release(sum.request);
        }
        shc_comm_close(rank.comm);
        shc_comm_free(rank.comm);
        rank.comm = nullptr;
        EXPECT_EQ(watcher.retired, 50);
        EXPECT_TRUE(watcher.retired_by_caller);
    });
}

// As PowerSGD does: the callback of one operation waits for another of the same group.
TEST_P(Engine, ACallbackMaySubmitToItsOwnGroupAndWait)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        for (int round = 0; round < 20; round++) {
            Watcher watcher;
            Sum outer(10, 1.f), inner(10, 5.f), nested(3, 7.f);
            Watcher nested_watcher;
            nested_watcher.in_complete = [&] {
                EXPECT_EQ(shc_run(rank.comm, &nested.op), SHC_OK) << error_text();
            };
            watcher.in_complete = [&] {
                shc_request_hooks hooks = nested_watcher.hooks();
                EXPECT_EQ(shc_submit(rank.comm, &inner.op, &hooks, &inner.request), SHC_OK);
                bool notified = shc_request_notify(inner.request);
                EXPECT_EQ(shc_request_wait(inner.request, 0), SHC_OK) << error_text();
                if (!notified)
                    nested_watcher.in_complete();
            };
            shc_request_hooks hooks = watcher.hooks();
            // Keep the operation open until the callback is asked for.
            if (rank.rank == 0)
                shc_os_sleep_ns(2 * SHC_NS_PER_MS);
            ASSERT_EQ(shc_submit(rank.comm, &outer.op, &hooks, &outer.request), SHC_OK);
            if (!shc_request_notify(outer.request))
                watcher.in_complete();
            ASSERT_EQ(shc_request_wait(outer.request, 0), SHC_OK) << error_text();
            EXPECT_EQ(inner.values[0], 10.f);
            EXPECT_EQ(nested.values[0], 14.f);
            shc_request_release(outer.request);
            shc_request_release(inner.request);
        }
    });
}

TEST_P(Engine, ACallbackMayWaitForTheOperationItCompletes)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        Watcher watcher;
        Sum sum(10, 1.f);
        watcher.in_complete = [&] {
            EXPECT_EQ(shc_request_wait(sum.request, 5 * SHC_NS_PER_S), SHC_OK) << error_text();
        };
        shc_request_hooks hooks = watcher.hooks();
        if (rank.rank == 0) // the other one's operation stays open until its callback is asked for
            shc_os_sleep_ns(5 * SHC_NS_PER_MS);
        ASSERT_EQ(shc_submit(rank.comm, &sum.op, &hooks, &sum.request), SHC_OK);
        if (!shc_request_notify(sum.request))
            watcher.in_complete();
        ASSERT_EQ(shc_request_wait(sum.request, 0), SHC_OK) << error_text();
        shc_request_release(sum.request);
    });
}

struct Flood {
    Rank *rank = nullptr;
    shc_op op = barrier_op();
    std::vector<shc_request *> requests;
    shc_status status = SHC_OK;

    // What a signal handler may do that runs while its thread is inside a call.
    static bool submit_too_many(void *ctx)
    {
        auto *self = static_cast<Flood *>(ctx);
        while (self->status == SHC_OK && self->requests.size() < 2 * SHC_ENGINE_RING_SLOTS) {
            shc_request *request = nullptr;
            self->status = shc_submit(self->rank->comm, &self->op, nullptr, &request);
            if (self->status == SHC_OK)
                self->requests.push_back(request);
        }
        return false;
    }
};

TEST_P(Engine, AThreadInsideACallIsToldThatTheQueueIsFull)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        Flood flood;
        flood.rank = &rank;
        Sum sum(10, 1.f);
        if (rank.rank == 0) {
            rank.comm->seat.interrupted_ctx = &flood;
            rank.comm->seat.interrupted = Flood::submit_too_many;
        } else { // long enough for rank 0 to ask
            shc_os_sleep_ns(200 * SHC_NS_PER_MS);
        }
        ASSERT_EQ(shc_run(rank.comm, &sum.op), SHC_OK) << error_text();
        rank.comm->seat.interrupted = nullptr;
        if (rank.rank == 0) {
            EXPECT_EQ(flood.status, SHC_ERR_INVALID);
            EXPECT_EQ(flood.requests.size(), SHC_ENGINE_RING_SLOTS);
        } else {
            for (size_t i = 0; i < SHC_ENGINE_RING_SLOTS; i++)
                ASSERT_EQ(shc_run(rank.comm, &flood.op), SHC_OK) << error_text();
        }
        for (shc_request *request : flood.requests) {
            EXPECT_EQ(shc_request_wait(request, 0), SHC_OK) << error_text();
            shc_request_release(request);
        }
    });
}

TEST_P(Engine, AThousandDroppedRequestsAllRun)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        std::vector<std::unique_ptr<Sum>> sums;
        for (size_t i = 0; i < 1500; i++) {
            sums.push_back(std::make_unique<Sum>(4, 1.f));
            ASSERT_EQ(shc_submit(rank.comm, &sums[i]->op, nullptr, &sums[i]->request), SHC_OK);
            shc_request_release(sums[i]->request);
        }
        shc_op barrier = barrier_op();
        ASSERT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
        for (const auto &sum : sums)
            ASSERT_EQ(sum->values[3], 2.f);
    });
}

TEST_P(Engine, ClosingEndsWhatIsInFlightWithClosed)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        if (rank.rank == 1) {
            shc_os_sleep_ns(100 * SHC_NS_PER_MS);
            return; // never calls
        }
        Sum one(5, 1.f), two(5, 1.f);
        ASSERT_EQ(shc_submit(rank.comm, &one.op, nullptr, &one.request), SHC_OK);
        ASSERT_EQ(shc_submit(rank.comm, &two.op, nullptr, &two.request), SHC_OK);
        std::thread closer([&] {
            shc_os_sleep_ns(20 * SHC_NS_PER_MS);
            shc_comm_close(rank.comm);
        });
        shc_status first = shc_request_wait(one.request, 0);
        EXPECT_TRUE(first == SHC_ERR_CLOSED || first == SHC_ERR_PEER_LEFT)
            << shc_status_name(first);
        EXPECT_NE(shc_request_wait(two.request, 0), SHC_OK);
        closer.join();
        shc_request_release(one.request);
        shc_request_release(two.request);
        shc_op barrier = barrier_op();
        EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_ERR_CLOSED);
        shc_request *request;
        EXPECT_EQ(shc_submit(rank.comm, &barrier, nullptr, &request), SHC_ERR_CLOSED);
    });
}

// An operation that is running when the group closes, but ends long before closing gives it up after a
// second.
#ifdef __SANITIZE_THREAD__
constexpr size_t kLong = 1u << 15;
#else
constexpr size_t kLong = 1u << 20;
#endif

TEST(EngineThreads, ClosingJoinsThreadsThatItsOwnLastTurnsHaveStarted)
{
    const shc_request_hooks hooks = {nullptr, [](void *, shc_status, const char *) {}, nullptr};
    for (int round = 0; round < 100; round++) {
        run_ranks(Mode::kOneMapping, 1, [&](Rank &rank) {
            std::vector<std::unique_ptr<Sum>> sums;
            for (size_t i = 0; i < 30; i++) {
                sums.push_back(std::make_unique<Sum>(i == 0 ? kLong : 4, 1.f));
                ASSERT_EQ(shc_submit(rank.comm, &sums[i]->op, &hooks, &sums[i]->request), SHC_OK);
                shc_request_notify(sums[i]->request);
            }
            shc_os_sleep_ns(static_cast<uint64_t>(round % 5) * 100 * SHC_NS_PER_US);
            shc_comm_close(rank.comm);
            EXPECT_EQ(rank.comm->engine.able, 0) << "a thread is left";
            for (auto &sum : sums)
                shc_request_release(sum->request);
        });
    }
}

TEST_P(Engine, SeveralThreadsMayCallOneGroup)
{
    run_ranks(GetParam(), 2, [](Rank &rank) {
        // Every thread makes the same calls, so any order of the threads fits any other.
        std::vector<std::thread> threads;
        for (int t = 0; t < 3; t++)
            threads.emplace_back([&] {
                for (int i = 0; i < 100; i++) {
                    Sum sum(7, 1.f);
                    ASSERT_EQ(shc_run(rank.comm, &sum.op), SHC_OK) << error_text();
                    ASSERT_EQ(sum.values[6], 2.f);
                }
            });
        for (std::thread &thread : threads)
            thread.join();
    });
}

bool is_biased(const Rank &rank)
{
    return shc_a64_load_acquire(&rank.comm->engine.runner.bias.whose) != 0;
}

void expect_sum(const Rank &rank)
{
    Sum sum(7, 1.f);
    ASSERT_EQ(shc_run(rank.comm, &sum.op), SHC_OK) << error_text();
    ASSERT_EQ(sum.values[6], static_cast<float>(rank.world));
}

TEST_P(Engine, AThreadThatCallsManyTimesIsBiasedUntilAnotherOneComes)
{
    SKIP_WITHOUT_BIAS();
    run_ranks(GetParam(), 2, [](Rank &rank) {
        await_fences();
        const uint32_t pay = rank.comm->engine.runner.bias.pay;
        auto calls = [&](uint32_t count) {
            for (uint32_t i = 0; i < count; i++) {
                EXPECT_FALSE(is_biased(rank)) << i;
                expect_sum(rank);
            }
            EXPECT_TRUE(is_biased(rank));
        };
        calls(pay);
        expect_sum(rank);
        std::thread([&] { expect_sum(rank); }).join();
        calls(2 * pay);
        // Queued operations come first, and then a waiting thread runs this one.
        Sum queued(7, 2.f);
        ASSERT_EQ(shc_submit(rank.comm, &queued.op, nullptr, &queued.request), SHC_OK);
        expect_sum(rank);
        ASSERT_EQ(shc_request_wait(queued.request, 0), SHC_OK) << error_text();
        EXPECT_EQ(queued.values[6], 4.f);
        shc_request_release(queued.request);
        EXPECT_FALSE(is_biased(rank));
    });
}

// All make the same calls, so any order of the threads fits any other.
TEST_P(Engine, ABiasedThreadAndOthersTakeTurns)
{
    SKIP_WITHOUT_BIAS();
    run_ranks(GetParam(), 2, [](Rank &rank) {
        await_fences();
        const uint32_t pay = rank.comm->engine.runner.bias.pay;
        // First, because only the first thread that earns a bias ever gets one.
        for (uint32_t i = 0; i < pay; i++)
            expect_sum(rank);
        ASSERT_TRUE(is_biased(rank));
        std::thread other([&] {
            for (int i = 0; i < 40; i++) {
                Sum sum(7, 1.f);
                ASSERT_EQ(shc_submit(rank.comm, &sum.op, nullptr, &sum.request), SHC_OK);
                shc_os_sleep_ns(i * 10 * 1000);
                ASSERT_EQ(shc_request_wait(sum.request, 0), SHC_OK) << error_text();
                EXPECT_EQ(sum.values[6], 2.f);
                shc_request_release(sum.request);
                expect_sum(rank);
            }
        });
        for (int i = 0; i < 4000; i++)
            expect_sum(rank);
        other.join();
        // (This thread may have run all that the other one wanted.)
        std::thread([&rank] { expect_sum(rank); }).join();
        EXPECT_GT(rank.comm->engine.runner.bias.pay, pay); // some have ended
    });
}

// A close is another such thread, also while the biased thread is inside.
TEST_P(Engine, ClosingEndsABias)
{
    SKIP_WITHOUT_BIAS();
    run_ranks(GetParam(), 2, [](Rank &rank) {
        await_fences();
        while (!is_biased(rank))
            expect_sum(rank);
        if (rank.rank == 1) {
            shc_os_sleep_ns(100 * SHC_NS_PER_MS);
            return; // never calls again
        }
        std::thread closer([&] {
            while (shc_a32_load_acquire(&rank.comm->engine.runner.bias.inside) == 0)
                shc_os_thread_yield();
            shc_os_sleep_ns(5 * SHC_NS_PER_MS);
            shc_comm_close(rank.comm);
        });
        Sum sum(7, 1.f);
        EXPECT_EQ(shc_run(rank.comm, &sum.op), SHC_ERR_CLOSED) << error_text();
        closer.join();
        EXPECT_FALSE(is_biased(rank));
        EXPECT_EQ(shc_a32_load_acquire(&rank.comm->engine.runner.bias.inside), 0u);
    });
}

// A handler's call inside a call gets an error; it must not wait for the call that it interrupts.
struct Nested {
    shc_comm *comm;
    Sum sum{7, 1.f};
    shc_status status = SHC_OK;
    std::string error;

    static bool call(void *ctx)
    {
        Nested *nested = static_cast<Nested *>(ctx);
        if (nested->status == SHC_OK) {
            nested->status = shc_run(nested->comm, &nested->sum.op);
            nested->error = error_text();
        }
        return false;
    }
};

TEST_P(Engine, ACallFromInsideACallIsRefused)
{
    SKIP_WITHOUT_BIAS();
    run_ranks(GetParam(), 2, [](Rank &rank) {
        await_fences();
        for (bool biased : {false, true}) {
            Nested nested;
            nested.comm = rank.comm;
            while (biased && !is_biased(rank))
                expect_sum(rank);
            if (rank.rank == 0) {
                rank.comm->seat.interrupted_ctx = &nested;
                rank.comm->seat.interrupted = Nested::call;
            } else { // long enough for rank 0 to ask
                shc_os_sleep_ns(200 * SHC_NS_PER_MS);
            }
            expect_sum(rank);
            rank.comm->seat.interrupted = nullptr;
            EXPECT_EQ(is_biased(rank), biased);
            if (rank.rank == 0) {
                EXPECT_EQ(nested.status, SHC_ERR_INVALID);
                EXPECT_NE(nested.error.find("from inside another call"), std::string::npos)
                    << nested.error;
            }
        }
    });
}

#ifdef SHMCOLL_SINGLE_STEPS
// What a signal handler sees after each single instruction of a call.
struct Steps {
    static shc_engine *engine;
    static std::atomic<int> held, unseen;

    static void see(int)
    {
        const shc_runner &runner = engine->runner;
        if (shc_a32_load_relaxed(&runner.bias.inside) == 0 &&
            shc_a32_load_relaxed(&runner.word) == 0)
            return;
        held++;
        unseen += !shc_engine_is_inside(engine);
    }
};
shc_engine *Steps::engine;
std::atomic<int> Steps::held, Steps::unseen;

// If a thread holds anything, it finds itself inside, whichever path it entered by.
TEST(EngineThreads, FindThemselvesInsideBehindEveryInstruction)
{
    SKIP_WITHOUT_BIAS();
    await_fences();
    shc_engine engine = {};
    ASSERT_EQ(shc_engine_init(&engine), SHC_OK);
    engine.runner.bias.pay = 2;
    Steps::engine = &engine;
    struct sigaction action = {}, before;
    action.sa_handler = Steps::see;
    ASSERT_EQ(sigaction(SIGTRAP, &action, &before), 0);
    shc_inside inside;
    for (int i = 0; i < 6; i++) {
        Steps::held = 0;
        begin_steps();
        const bool entered = shc_engine_enter(&engine, &inside);
        if (entered)
            shc_engine_leave(&inside);
        end_steps();
        EXPECT_TRUE(entered);
        EXPECT_EQ(inside.by_bias, i >= 2);
        EXPECT_GT(Steps::held, 5);
    }
    begin_steps();
    const bool taken = shc_engine_take(&engine, &inside, 0);
    if (taken)
        shc_engine_leave(&inside);
    end_steps();
    EXPECT_TRUE(taken);
    sigaction(SIGTRAP, &before, nullptr);
    EXPECT_EQ(Steps::unseen, 0);
    EXPECT_FALSE(shc_engine_is_inside(&engine));
    shc_engine_fini(&engine);
}
#endif

// A handler inside a call on one group may call another group, and a handler in there the first one again.
TEST(EngineThreads, FindThemselvesInsideBelowOtherCalls)
{
    shc_engine one = {}, two = {};
    ASSERT_EQ(shc_engine_init(&one), SHC_OK);
    ASSERT_EQ(shc_engine_init(&two), SHC_OK);
    shc_inside in_one, in_two, other;
    ASSERT_TRUE(shc_engine_enter(&one, &in_one));
    EXPECT_FALSE(shc_engine_is_inside(&two));
    ASSERT_TRUE(shc_engine_enter(&two, &in_two));
    EXPECT_TRUE(shc_engine_is_inside(&one));
    EXPECT_FALSE(shc_engine_enter(&one, &other));
    EXPECT_FALSE(shc_engine_take(&one, &other, 0));
    std::thread([&] {
        EXPECT_FALSE(shc_engine_is_inside(&one));
        EXPECT_FALSE(shc_engine_enter(&one, &other));
        EXPECT_FALSE(shc_engine_is_inside(&one));
    }).join();
    shc_engine_leave(&in_two);
    EXPECT_FALSE(shc_engine_is_inside(&two));
    EXPECT_TRUE(shc_engine_is_inside(&one));
    shc_engine_leave(&in_one);
    EXPECT_FALSE(shc_engine_is_inside(&one));
    EXPECT_TRUE(shc_engine_take(&one, &other, 0));
    shc_engine_leave(&other);
    shc_engine_fini(&one);
    shc_engine_fini(&two);
}

std::string name_of(const ::testing::TestParamInfo<Mode> &info)
{
    return mode_name(info.param);
}

INSTANTIATE_TEST_SUITE_P(All, Engine, ::testing::ValuesIn(all_modes()), name_of);

} // namespace
