// SPDX-License-Identifier: BSD-3-Clause

// Callbacks while operations wait for other ranks: neither the
// callbacks nor the threads that wait for them get stuck because of something that only a later call of
// this rank sets free.
#include "tests/conformance/world.h"
#include "tests/support/calm_clock.h"
#include "tests/support/messages.h"

#include <atomic>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <thread>

extern "C" {
#include "shm/comm/comm.h"
#include "shm/proto/call.h"
}

using namespace shmcoll::test;

namespace
{

// A request with a callback.
struct Called {
    std::atomic<int> times{0};
    std::function<void()> body;
    shc_request *request = nullptr;

    shc_status submit(shc_comm *comm, const shc_op &op)
    {
        const shc_request_hooks hooks = {this,
                                         [](void *ctx, shc_status, const char *) {
                                             auto *self = static_cast<Called *>(ctx);
                                             if (self->body)
                                                 self->body();
                                             self->times++;
                                         },
                                         nullptr};
        return shc_submit(comm, &op, &hooks, &request);
    }
    void wait()
    {
        EXPECT_EQ(shc_request_wait(request, 0), SHC_OK) << error_text();
        shc_request_release(request);
        request = nullptr;
    }
};

struct Received : Called {
    ByteMessage message;

    Received(int peer, int tag) : message(SHC_RECV, peer, tag, std::vector<unsigned char>(8)) {}
    void start(Rank &rank) { ASSERT_EQ(submit(rank.comm, message.op), SHC_OK) << error_text(); }
};

void exchange(Rank &rank, shc_op_kind kind, int tag)
{
    ByteMessage message(kind, 1 - rank.rank, tag, std::vector<unsigned char>(8));
    ASSERT_EQ(shc_run(rank.comm, &message.op), SHC_OK) << error_text();
}

void send(Rank &rank, int tag)
{
    exchange(rank, SHC_SEND, tag);
}

void receive(Rank &rank, int tag)
{
    exchange(rank, SHC_RECV, tag);
}

void barrier(Rank &rank)
{
    const shc_op op = op_of(SHC_BARRIER);
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
}

// An engine thread is inside it, and stays there until the other rank comes.
void begin_barrier(Rank &rank, Called &blocked)
{
    shc_call call;
    const uint64_t before = shc_call_latest(&rank.comm->seat, rank.rank, &call);
    ASSERT_EQ(blocked.submit(rank.comm, op_of(SHC_BARRIER)), SHC_OK) << error_text();
    while (shc_call_latest(&rank.comm->seat, rank.rank, &call) == before)
        shc_os_sleep_ns(SHC_NS_PER_MS);
}

void both_ranks(const Body &zero, const Body &one)
{
    Options options;
    options.timeout_ns = 60 * SHC_NS_PER_S;
    for (Mode mode : modes())
        run_ranks(
            mode, 2, [&](Rank &rank) { (rank.rank == 0 ? zero : one)(rank); }, options);
}

// Of rank 0: a message with a callback, without which rank 1 does not come to the operation.
void ask_and_release(Rank &rank)
{
    Received answer(1, 2);
    answer.start(rank);
    ASSERT_TRUE(shc_request_notify(answer.request));
    send(rank, 1);
    answer.wait();
    EXPECT_EQ(answer.times, 1);
    send(rank, 3);
}

// Of rank 1.
void answer_and_enter(Rank &rank)
{
    receive(rank, 1);
    send(rank, 2);
    receive(rank, 3);
    barrier(rank);
}

// An operation after it may need this thread's next call first.
TEST(Callbacks, AWaitForOneRunsNothingBehindItsOperation)
{
    const int rounds = 60;
    both_ranks(
        [](Rank &rank) {
            for (int round = 0; round < rounds && !testing::Test::HasFailure(); round++) {
                Called first, second;
                first.body = [round] { shc_os_sleep_ns(round % 5 * 200 * SHC_NS_PER_US); };
                ASSERT_EQ(first.submit(rank.comm, op_of(SHC_BARRIER)), SHC_OK) << error_text();
                const bool comes = shc_request_notify(first.request);
                ASSERT_EQ(second.submit(rank.comm, op_of(SHC_BARRIER)), SHC_OK) << error_text();
                first.wait();
                EXPECT_EQ(first.times, comes);
                send(rank, round);
                second.wait();
            }
        },
        [](Rank &rank) {
            for (int round = 0; round < rounds && !testing::Test::HasFailure(); round++) {
                barrier(rank);
                receive(rank, round);
                barrier(rank);
            }
        });
}

TEST(Callbacks, OfMessagesComeBesideAnOperationThatBlocks)
{
    both_ranks(
        [](Rank &rank) {
            Called blocked;
            begin_barrier(rank, blocked);
            ask_and_release(rank);
            blocked.wait();
        },
        answer_and_enter);
}

TEST(Callbacks, OfMessagesMayWaitForOneAnotherThere)
{
    both_ranks(
        [](Rank &rank) {
            Called blocked;
            begin_barrier(rank, blocked);
            Received outer(1, 2), inner(1, 3);
            outer.body = [&] { inner.wait(); };
            outer.start(rank);
            inner.start(rank);
            ASSERT_TRUE(shc_request_notify(outer.request));
            ASSERT_TRUE(shc_request_notify(inner.request));
            send(rank, 1);
            outer.wait();
            EXPECT_EQ(inner.times, 1);
            send(rank, 4);
            blocked.wait();
        },
        [](Rank &rank) {
            receive(rank, 1);
            send(rank, 2);
            send(rank, 3);
            receive(rank, 4);
            barrier(rank);
        });
}

// The one engine thread polls while an operation is queued: it wakes for the callback, not for the
// operation.
TEST(Callbacks, OfAMessageEndAPoll)
{
    both_ranks(
        [](Rank &rank) {
            shc_engine *engine = &rank.comm->engine;
            shc_a64_store_relaxed(&engine->poll_ns, 1000 * SHC_NS_PER_S);
            shc_a32_store_relaxed(&engine->soon, SHC_POLL_AFTER);
            Called queued;
            ASSERT_EQ(queued.submit(rank.comm, op_of(SHC_BARRIER)), SHC_OK) << error_text();
            while (shc_a32_load_acquire(&engine->polling) == 0)
                shc_os_sleep_ns(SHC_NS_PER_MS);
            ask_and_release(rank);
            queued.wait();
        },
        answer_and_enter);
}

// The thread that could call it is about to begin the operation.
TEST(Callbacks, OfAMessageComeWheneverAnOperationBegins)
{
    const int rounds = 300;
    both_ranks(
        [](Rank &rank) {
            for (int round = 0; round < rounds && !testing::Test::HasFailure(); round++) {
                Received answer(1, round);
                answer.start(rank);
                const bool comes = shc_request_notify(answer.request);
                Called blocked;
                ASSERT_EQ(blocked.submit(rank.comm, op_of(SHC_BARRIER)), SHC_OK) << error_text();
                answer.wait();
                EXPECT_EQ(answer.times, comes);
                send(rank, round);
                blocked.wait();
            }
        },
        [](Rank &rank) {
            std::mt19937 random(11);
            for (int round = 0; round < rounds && !testing::Test::HasFailure(); round++) {
                shc_os_sleep_ns(random() % 100 * SHC_NS_PER_US);
                send(rank, round);
                receive(rank, round);
                barrier(rank);
            }
        });
}

// As if no further thread could be made.
struct NoThreads {
    shc_engine *engine;

    explicit NoThreads(Rank &rank) : engine(&rank.comm->engine) { set(0); }
    ~NoThreads() { set(SHC_ENGINE_MAX_THREADS); }
    void set(int most)
    {
        pthread_mutex_lock(&engine->lock);
        engine->most_threads = most;
        pthread_mutex_unlock(&engine->lock);
    }
};

TEST(Callbacks, AreRefusedWhereNoThreadCanBeHad)
{
    both_ranks(
        [](Rank &rank) {
            Received answer(1, 2);
            answer.start(rank);
            {
                NoThreads none(rank);
                EXPECT_FALSE(shc_request_notify(answer.request));
                EXPECT_NE(error_text().find("cannot start an engine thread"), std::string::npos)
                    << error_text();
            }
            send(rank, 1);
            answer.wait();
            EXPECT_EQ(answer.times, 0);
        },
        [](Rank &rank) {
            receive(rank, 1);
            send(rank, 2);
        });
}

TEST(Callbacks, ComeBehindTheOperationWhereNoFurtherThreadCanBeHad)
{
    both_ranks(
        [](Rank &rank) {
            Called blocked;
            begin_barrier(rank, blocked);
            Received answer(1, 2);
            answer.start(rank);
            ASSERT_TRUE(shc_request_notify(answer.request));
            {
                NoThreads none(rank);
                send(rank, 1);
                EXPECT_EQ(shc_request_wait(answer.request, 50 * SHC_NS_PER_MS), SHC_ERR_TIMEOUT);
                EXPECT_NE(error_text().find("its callback to return"), std::string::npos)
                    << error_text();
                EXPECT_TRUE(answer.message.bytes == std::vector<unsigned char>(8));
                EXPECT_EQ(answer.times, 0);
            }
            send(rank, 3);
            answer.wait();
            EXPECT_EQ(answer.times, 1);
            blocked.wait();
        },
        answer_and_enter);
}

int threads_of(Rank &rank)
{
    shc_engine *engine = &rank.comm->engine;
    pthread_mutex_lock(&engine->lock);
    const int count = engine->thread_count;
    pthread_mutex_unlock(&engine->lock);
    return count;
}

// Each comes once; most wait for the threads that are there.
TEST(Callbacks, OfManyMessagesMakeFewThreads)
{
    const int messages = 200;
    both_ranks(
        [](Rank &rank) {
            Called blocked;
            begin_barrier(rank, blocked);
            std::vector<std::unique_ptr<Received>> all;
            for (int i = 0; i < messages; i++) {
                all.push_back(std::make_unique<Received>(1, i));
                all.back()->body = [] { shc_os_sleep_ns(2 * SHC_NS_PER_MS); };
                all.back()->start(rank);
                ASSERT_TRUE(shc_request_notify(all.back()->request)) << error_text();
            }
            send(rank, messages);
            for (const auto &one : all) {
                one->wait();
                EXPECT_EQ(one->times, 1);
            }
            EXPECT_LT(threads_of(rank), 40);
            send(rank, messages + 1);
            blocked.wait();
        },
        [](Rank &rank) {
            receive(rank, messages);
            for (int i = 0; i < messages; i++)
                send(rank, i);
            receive(rank, messages + 1);
            barrier(rank);
        });
}

// If no thread could be made before, the next one that is needed is made.
TEST(Callbacks, OfAnOperationThatACallbackRunsComesWhenAThreadCanBeHadAgain)
{
    both_ranks(
        [](Rank &rank) {
            Called first, second;
            std::atomic<bool> had{false};
            first.body = [&] {
                while (!had)
                    shc_os_sleep_ns(SHC_NS_PER_MS);
                second.wait();
            };
            auto none = std::make_unique<NoThreads>(rank);
            none->set(1);
            ASSERT_EQ(first.submit(rank.comm, op_of(SHC_BARRIER)), SHC_OK) << error_text();
            ASSERT_EQ(second.submit(rank.comm, op_of(SHC_BARRIER)), SHC_OK) << error_text();
            ASSERT_TRUE(shc_request_notify(first.request));
            ASSERT_TRUE(shc_request_notify(second.request));
            send(rank, 1);
            shc_os_sleep_ns(20 * SHC_NS_PER_MS); // the first one's is in it
            none.reset();
            had = true;
            first.wait();
            EXPECT_EQ(second.times, 1);
        },
        [](Rank &rank) {
            receive(rank, 1);
            barrier(rank);
            barrier(rank);
        });
}

// Both take the same time.
TEST(Callbacks, AreWithinTheTimeOfAWait)
{
    run_ranks(all_modes().front(), 2, [](Rank &rank) {
        if (rank.rank == 1) {
            receive(rank, 1);
            shc_os_sleep_ns(500 * SHC_NS_PER_MS);
            send(rank, 2);
            return;
        }
        std::atomic<bool> over{false};
        Received answer(1, 2);
        answer.body = [&over] {
            while (!over)
                shc_os_sleep_ns(SHC_NS_PER_MS);
        };
        answer.start(rank);
        ASSERT_TRUE(shc_request_notify(answer.request));
        send(rank, 1);
        const uint64_t begun_ns = calm_clock_ns();
        EXPECT_EQ(shc_request_wait(answer.request, SHC_NS_PER_S), SHC_ERR_TIMEOUT);
        EXPECT_LT(calm_ns_since(begun_ns), 1400 * SHC_NS_PER_MS);
        EXPECT_NE(error_text().find("its callback to return"), std::string::npos) << error_text();
        over = true;
        answer.wait();
    });
}

// The next thread that has the lock ends what is pending, and its callbacks come.
TEST(Callbacks, ComeAlsoWhereTheLockOfMessagesIsKeptWhileTheGroupIsClosed)
{
    for (Mode mode : modes()) {
        if (mode == Mode::kProcesses)
            continue;
        std::atomic<bool> over{false};
        run_ranks(mode, 2, [&over](Rank &rank) {
            while (rank.rank == 1 && !over) // it does not leave before: that would end it, too
                shc_os_sleep_ns(SHC_NS_PER_MS);
            if (rank.rank == 1)
                return;
            Received answer(1, 2);
            answer.start(rank);
            ASSERT_TRUE(shc_request_notify(answer.request));
            std::atomic<int> step{0};
            std::thread liveness([&] {
                shc_p2p_lock(&rank.comm->p2p);
                for (step = 1; step == 1;)
                    shc_os_sleep_ns(SHC_NS_PER_MS);
                shc_p2p_unlock(&rank.comm->p2p);
            });
            while (step == 0)
                shc_os_sleep_ns(SHC_NS_PER_MS);
            shc_comm_close(rank.comm); // in vain for a second
            EXPECT_EQ(answer.times, 0);
            step = 2;
            EXPECT_EQ(shc_request_wait(answer.request, 10 * SHC_NS_PER_S), SHC_ERR_CLOSED)
                << error_text();
            EXPECT_EQ(answer.times, 1);
            liveness.join();
            shc_request_release(answer.request);
            over = true;
        });
    }
}

} // namespace
