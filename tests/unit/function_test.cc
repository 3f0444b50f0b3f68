// SPDX-License-Identifier: BSD-3-Clause
// SHC_CALL: a function takes its turn among the operations of a group of one rank.
#include "tests/support/ranks.h"

#include <atomic>
#include <cstring>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

using namespace shmcoll::test;

namespace
{

// A function, the operation that names it, and what it was told.
struct Call {
    explicit Call(std::function<shc_status(shc_turn *)> what) : body(std::move(what))
    {
        function = {run, this, nullptr};
        op.kind = SHC_CALL;
        op.function = &function;
    }
    Call(const Call &) = delete;

    static shc_status run(void *ctx, shc_turn *turn)
    {
        auto *call = static_cast<Call *>(ctx);
        call->told.timeout_ns = turn->timeout_ns;
        call->told.interruptible = turn->interruptible;
        return call->body(turn);
    }

    std::function<shc_status(shc_turn *)> body;
    shc_function function = {};
    shc_op op = {};
    shc_turn told = {};
};

void alone(const std::function<void(shc_comm *)> &body)
{
    run_ranks(Mode::kOneMapping, 1, [&](Rank &rank) { body(rank.comm); });
}

// Waits as a function does, until the group is of no use.
shc_status wait_for_the_end(shc_comm *comm)
{
    shc_status st = SHC_OK;
    while ((st = shc_comm_error(comm)) == SHC_OK)
        shc_os_sleep_ns(SHC_NS_PER_MS);
    return st;
}

TEST(Function, TakesItsTurnInTheOrderOfSubmission)
{
    alone([](shc_comm *comm) {
        std::vector<int> order; // one at a time, so no lock
        std::vector<std::unique_ptr<Call>> calls;
        std::vector<shc_request *> requests(50);
        for (int i = 0; i < 50; i++) {
            calls.push_back(std::make_unique<Call>([&order, i](shc_turn *) {
                order.push_back(i);
                return SHC_OK;
            }));
            ASSERT_EQ(shc_submit(comm, &calls.back()->op, nullptr, &requests[i]), SHC_OK);
        }
        Call last([&order](shc_turn *) {
            order.push_back(50);
            return SHC_OK;
        });
        const shc_op barrier = op_of(SHC_BARRIER);
        ASSERT_EQ(shc_run(comm, &barrier), SHC_OK) << error_text();
        ASSERT_EQ(shc_run(comm, &last.op), SHC_OK) << error_text();
        for (shc_request *request : requests) {
            EXPECT_EQ(shc_request_wait(request, 0), SHC_OK);
            shc_request_release(request);
        }
        ASSERT_EQ(order.size(), 51u);
        for (int i = 0; i <= 50; i++)
            EXPECT_EQ(order[static_cast<size_t>(i)], i);
        EXPECT_EQ(shc_comm_sequence(comm), 52u);
    });
}

// shc_run() keeps the last call, and must not run the function of the one before.
TEST(Function, IsTheOneThatTheCallNames)
{
    alone([](shc_comm *comm) {
        int ran[2] = {};
        Call a([&ran](shc_turn *) { return ran[0]++, SHC_OK; });
        Call b([&ran](shc_turn *) { return ran[1]++, SHC_OK; });
        for (int i = 0; i < 3; i++) {
            ASSERT_EQ(shc_run(comm, &a.op), SHC_OK);
            ASSERT_EQ(shc_run(comm, &b.op), SHC_OK);
        }
        EXPECT_EQ(ran[0], 3);
        EXPECT_EQ(ran[1], 3);
    });
}

TEST(Function, IsToldItsTimeAndWhetherItMayAsk)
{
    alone([](shc_comm *comm) {
        Call call([](shc_turn *) { return SHC_OK; });
        shc_comm_set_timeout(comm, 5 * SHC_NS_PER_S);
        ASSERT_EQ(shc_run(comm, &call.op), SHC_OK);
        EXPECT_EQ(call.told.timeout_ns, 5 * SHC_NS_PER_S);
        EXPECT_TRUE(call.told.interruptible);
        call.op.timeout_ns = 7 * SHC_NS_PER_S;
        shc_request *request;
        ASSERT_EQ(shc_submit(comm, &call.op, nullptr, &request), SHC_OK);
        shc_status status;
        while (!shc_request_done(request, &status)) // by a thread of the library
            shc_os_sleep_ns(SHC_NS_PER_MS);
        shc_request_release(request);
        EXPECT_EQ(status, SHC_OK);
        EXPECT_EQ(call.told.timeout_ns, 7 * SHC_NS_PER_S);
        EXPECT_FALSE(call.told.interruptible);
    });
}

TEST(Function, ThatFailsFailsTheGroupWithItsText)
{
    alone([](shc_comm *comm) {
        Call good([](shc_turn *) { return SHC_OK; });
        Call bad([](shc_turn *turn) {
            snprintf(turn->error, sizeof turn->error, "host 1 does not answer");
            return SHC_ERR_PEER_DEAD;
        });
        ASSERT_EQ(shc_run(comm, &good.op), SHC_OK);
        EXPECT_EQ(shc_run(comm, &bad.op), SHC_ERR_PEER_DEAD);
        EXPECT_EQ(error_text(), "host 1 does not answer");
        EXPECT_EQ(shc_run(comm, &good.op), SHC_ERR_PEER_DEAD);
        EXPECT_NE(error_text().find("host 1 does not answer"), std::string::npos) << error_text();
        EXPECT_EQ(shc_comm_error(comm), SHC_ERR_PEER_DEAD);
    });
}

TEST(Function, WithoutATextOfItsOwnHasItsThreads)
{
    alone([](shc_comm *comm) {
        Call bad([comm](shc_turn *) {
            shc_op wild = op_of(SHC_BARRIER);
            wild.kind = static_cast<shc_op_kind>(77);
            return shc_check(comm, &wild);
        });
        EXPECT_EQ(shc_run(comm, &bad.op), SHC_ERR_INVALID);
        EXPECT_EQ(error_text(), "operation 77 does not exist");
    });
}

TEST(Function, ThatWaitsEndsWhenTheGroupIsClosedOrAborted)
{
    for (const bool abort : {false, true})
        alone([abort](shc_comm *comm) {
            std::atomic<bool> begun{false};
            Call waiting([&](shc_turn *) {
                begun = true;
                return wait_for_the_end(comm);
            });
            shc_request *request;
            ASSERT_EQ(shc_submit(comm, &waiting.op, nullptr, &request), SHC_OK);
            while (!begun)
                shc_os_sleep_ns(SHC_NS_PER_MS);
            if (abort)
                shc_comm_abort(comm, "enough");
            else
                shc_comm_close(comm);
            shc_status status = SHC_OK;
            while (!shc_request_done(request, &status))
                shc_os_sleep_ns(SHC_NS_PER_MS);
            EXPECT_EQ(status, abort ? SHC_ERR_ABORTED : SHC_ERR_CLOSED);
            const std::string why = shc_request_error(request);
            EXPECT_NE(why.find(abort ? "enough" : "is closed"), std::string::npos) << why;
            shc_request_release(request);
        });
}

TEST(Function, NeedsAGroupOfOneRankAndAFunction)
{
    run_ranks(Mode::kOneMapping, 2, [](Rank &rank) {
        Call call([](shc_turn *) { return SHC_OK; });
        EXPECT_EQ(shc_run(rank.comm, &call.op), SHC_ERR_UNSUPPORTED);
        EXPECT_EQ(error_text(), "call: a function needs a group of one rank, not of 2");
        const shc_op barrier = op_of(SHC_BARRIER); // the group goes on
        EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
    });
    alone([](shc_comm *comm) {
        shc_op none = op_of(SHC_CALL);
        EXPECT_EQ(shc_run(comm, &none), SHC_ERR_INVALID);
        const shc_function empty = {};
        none.function = &empty;
        EXPECT_EQ(shc_check(comm, &none), SHC_ERR_INVALID);
        EXPECT_EQ(error_text(), "call: no function");
    });
}

} // namespace
