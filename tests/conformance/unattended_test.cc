// SPDX-License-Identifier: BSD-3-Clause

// Groups whose library threads could not be made: a thread that
// waits, polls, submits or closes does their work.
#include "tests/conformance/world.h"
#include "tests/support/messages.h"
#include "tests/support/no_threads.h"

#include <gtest/gtest.h>
#include <memory>

extern "C" {
#include "shm/comm/comm.h"
}

using namespace shmcoll::test;

namespace
{

const size_t kLarge = size_t{8} << 20; // bytes: goes in steps, which need both sides
const size_t kMany = SHC_ENGINE_RING_SLOTS + 100;

struct Sum {
    explicit Sum(size_t count = 100) : values(count, 1.f), tensor(vector_of(values, &size))
    {
        op.input = op.output = {&tensor, 1};
    }
    Sum(const Sum &) = delete;
    ~Sum()
    {
        if (request != nullptr)
            shc_request_release(request);
    }
    void submit(Rank &rank)
    {
        ASSERT_EQ(shc_submit(rank.comm, &op, nullptr, &request), SHC_OK) << error_text();
    }
    void wait(uint64_t timeout_ns = 0)
    {
        ASSERT_EQ(shc_request_wait(request, timeout_ns), SHC_OK) << error_text();
        EXPECT_EQ(values.back(), 2.f);
    }
    void run(Rank &rank)
    {
        ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
        EXPECT_EQ(values.back(), 2.f);
    }
    bool has_ended() const { return shc_a32_load_acquire(&request->done) != 0; }

    std::vector<float> values;
    int64_t size = 0;
    shc_tensor tensor;
    shc_op op = op_of(SHC_ALL_REDUCE);
    shc_request *request = nullptr;
};

void barrier(Rank &rank)
{
    const shc_op op = op_of(SHC_BARRIER);
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
}

void run_message(Rank &rank, shc_op_kind kind, int tag, size_t bytes)
{
    ByteMessage message(kind, 1 - rank.rank, tag, std::vector<unsigned char>(bytes, 7));
    ASSERT_EQ(shc_run(rank.comm, &message.op), SHC_OK) << error_text();
}

enum Who { kRank0, kBoth };

// Ranks are threads, and processes; one of them lacks threads, or both do.
class Unattended : public ::testing::TestWithParam<std::pair<Mode, Who>>
{
  protected:
    static void ranks(const Body &zero, const Body &one, const Options &options = {})
    {
        const auto [mode, who] = GetParam();
        run_ranks(
            mode, 2,
            [&, who = who](Rank &rank) {
                if (rank.rank == 0 || who == kBoth) {
                    ASSERT_TRUE(refuse_threads());
                }
                (rank.rank == 0 ? zero : one)(rank);
            },
            options);
    }
    static void ranks(const Body &both) { ranks(both, both); }
};

TEST_P(Unattended, OperationsAreRunByWhoWaits)
{
    ranks([](Rank &rank) {
        Sum sums[3];
        sums[0].submit(rank);
        sums[0].wait();
        sums[1].submit(rank);
        sums[1].wait(10 * SHC_NS_PER_S); // a time-out of its own
        sums[2].submit(rank);
        barrier(rank); // takes its turn after it
        EXPECT_TRUE(sums[2].has_ended());
        sums[2].wait();
    });
}

TEST_P(Unattended, OperationsAreRunByWhoPolls)
{
    ranks([](Rank &rank) {
        Sum sum;
        sum.submit(rank);
        shc_status status = SHC_ERR_INVALID;
        while (!shc_request_done(sum.request, &status))
            shc_os_sleep_ns(SHC_NS_PER_MS);
        EXPECT_EQ(status, SHC_OK);
        EXPECT_EQ(sum.values[0], 2.f);
    });
}

TEST_P(Unattended, OperationsAreRunByTheNextSubmission)
{
    ranks(
        [](Rank &rank) {
            Sum first, second;
            first.submit(rank);
            second.submit(rank);
            EXPECT_TRUE(first.has_ended());
            second.wait();
        },
        [](Rank &rank) {
            Sum first, second;
            first.run(rank);
            second.run(rank);
        });
}

TEST_P(Unattended, OperationsAreRunByTheClose)
{
    ranks(
        [](Rank &rank) {
            Sum sum;
            sum.submit(rank);
            shc_comm_close(rank.comm);
            shc_status status = SHC_ERR_INVALID;
            EXPECT_TRUE(shc_request_done(sum.request, &status));
            EXPECT_EQ(status, SHC_OK) << shc_request_error(sum.request);
            EXPECT_EQ(sum.values[0], 2.f);
        },
        [](Rank &rank) { Sum().run(rank); });
}

TEST_P(Unattended, ACloseDoesNotWaitForARankThatDoesNotCome)
{
    ranks(
        [](Rank &rank) {
            Sum sum;
            sum.submit(rank);
            const uint64_t begun_ns = shc_clock_ns();
            shc_comm_close(rank.comm);
            EXPECT_LT(shc_clock_ns() - begun_ns, 10 * SHC_NS_PER_S); // of a time-out of 60
            shc_status status = SHC_OK;
            EXPECT_TRUE(shc_request_done(sum.request, &status));
            EXPECT_EQ(status, SHC_ERR_CLOSED) << shc_request_error(sum.request);
        },
        [](Rank &rank) {
            ByteMessage never(SHC_RECV, 0, 1, std::vector<unsigned char>(4));
            EXPECT_EQ(shc_run(rank.comm, &never.op), SHC_ERR_PEER_LEFT) << error_text();
        });
}

TEST_P(Unattended, MoreThanTheRingHoldsIsSubmitted)
{
    ranks([](Rank &rank) {
        std::vector<std::unique_ptr<Sum>> sums;
        for (size_t i = 0; i < kMany; i++) {
            sums.push_back(std::make_unique<Sum>(2));
            sums.back()->submit(rank);
        }
        sums.back()->wait();
        EXPECT_TRUE(sums.front()->has_ended());
    });
}

TEST_P(Unattended, MessagesMoveWhileTheirRankWaitsForSomethingElse)
{
    ranks(
        [](Rank &rank) {
            ByteMessage message(SHC_SEND, 1, 1, std::vector<unsigned char>(kLarge, 7));
            message.start(rank);
            Sum sum;
            sum.submit(rank);
            sum.wait();
            EXPECT_TRUE(message.done());
        },
        [](Rank &rank) {
            run_message(rank, SHC_RECV, 1, kLarge);
            Sum sum;
            sum.run(rank);
        });
}

TEST_P(Unattended, MessagesMoveWhileTheyArePolled)
{
    ranks(
        [](Rank &rank) {
            ByteMessage message(SHC_SEND, 1, 1, std::vector<unsigned char>(kLarge, 7));
            message.start(rank);
            while (!message.done())
                shc_os_sleep_ns(SHC_NS_PER_MS);
        },
        [](Rank &rank) { run_message(rank, SHC_RECV, 1, kLarge); });
}

TEST_P(Unattended, AMessageMayComeBehindAnOperationThatIsQueued)
{
    ranks(
        [](Rank &rank) {
            Sum sum;
            sum.submit(rank);
            run_message(rank, SHC_RECV, 1, 8);
            sum.wait();
        },
        [](Rank &rank) {
            Sum sum;
            sum.run(rank);
            run_message(rank, SHC_SEND, 1, 8);
        });
}

TEST_P(Unattended, AMessageThatIsHereNeedsNoOperationThatIsQueued)
{
    ranks(
        [](Rank &rank) {
            barrier(rank);
            Sum sum;
            sum.submit(rank);
            run_message(rank, SHC_RECV, 1, 8);
            run_message(rank, SHC_SEND, 2, 8);
            sum.wait();
        },
        [](Rank &rank) {
            run_message(rank, SHC_SEND, 1, 8);
            barrier(rank);
            run_message(rank, SHC_RECV, 2, 8);
            Sum sum;
            sum.run(rank);
        });
}

TEST_P(Unattended, NobodyIsToldOfACallbackThatCannotCome)
{
    ranks([](Rank &rank) {
        Sum sum;
        sum.submit(rank);
        if (rank.rank == 0 || GetParam().second == kBoth) {
            EXPECT_FALSE(shc_request_notify(sum.request));
            EXPECT_NE(error_text().find("cannot start"), std::string::npos) << error_text();
        }
        sum.wait();
    });
}

std::vector<std::pair<Mode, Who>> params()
{
    std::vector<std::pair<Mode, Who>> all;
    for (Mode mode : all_modes())
        for (Who who : {kRank0, kBoth})
            all.emplace_back(mode, who);
    return all;
}

std::string name_of(const ::testing::TestParamInfo<std::pair<Mode, Who>> &param)
{
    return mode_name(param.param.first) + (param.param.second == kBoth ? "Both" : "One");
}

INSTANTIATE_TEST_SUITE_P(Ranks, Unattended, ::testing::ValuesIn(params()), name_of);

// A thread tells of the life of a process: without one no rank has a group, and each knows why.
TEST(WithoutAThread, NoRankGetsAGroup)
{
    Options options;
    options.make_group = false;
    for (Mode mode : modes()) {
        if (mode != Mode::kProcesses)
            continue; // else the other rank's thread serves both
        run_ranks(
            mode, 2,
            [](Rank &rank) {
                shc_comm *comm = nullptr;
                if (rank.rank == 1) {
                    ASSERT_TRUE(refuse_threads());
                }
                EXPECT_EQ(rank.make_group(&comm), SHC_ERR_SYSTEM) << error_text();
                EXPECT_NE(error_text().find("rank 1"), std::string::npos) << error_text();
                EXPECT_NE(error_text().find("ulimit -u"), std::string::npos) << error_text();
            },
            options);
    }
}

} // namespace
