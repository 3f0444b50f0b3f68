// SPDX-License-Identifier: BSD-3-Clause
// Batches of CUDA messages between real processes over the stand-in.
#include "tests/cuda/living.h"

#include <cstdlib>

namespace shmcoll::test
{
namespace
{

// A batch that blocks itself is stuck until then.
const std::string kSoon = " timeout_ms=100000";

class Batches : public testing::TestWithParam<Way>
{
  protected:
    static void expect_right(size_t world, const std::string &settings, const std::string &key,
                             const std::string &knobs)
    {
        SCOPED_TRACE(std::to_string(world) + " ranks, " + settings + ", " + knobs);
        auto reports = run(world, settings + kSoon + GetParam().settings, GetParam().knobs + knobs);
        expect_key(reports, key, key == "wrong" ? "0" : "yes");
    }
};

TEST_P(Batches, OfAllRanksToAllNeedOneStreamEach)
{
    for (size_t world : kSlow ? std::vector<size_t>{3} : std::vector<size_t>{1, 2, 3, 4})
        expect_right(world, "scenario=batch_all", "wrong", "");
    for (const char *knobs : {"delay_us=300", "only_writes_wake=1 delay_us=100 state=@/writes"})
        expect_right(3, "scenario=batch_all", "wrong", knobs);
}

// Single calls are stuck there (below).
TEST_P(Batches, NeedOneHardwareQueue)
{
    for (const char *knobs : {"queues=1", "queues=2 delay_us=100"})
        expect_right(kSlow ? 3 : 4, "scenario=batch_all", "wrong", knobs);
}

TEST_P(Batches, MeetSingleCallsThatHaveStreamsOfTheirOwn)
{
    for (size_t world : {2, 3})
        expect_right(world, "scenario=batch_all single=1", "wrong", "delay_us=100");
}

TEST_P(Batches, HaveMoreMessagesOfAChannelThanRecords)
{
    for (size_t world : {1, 2, 3})
        expect_right(world, "scenario=batch_many", "right", "");
}

TEST_P(Batches, LetOtherThreadsSendWhileTheyWaitForRecords)
{
    expect_right(2, "scenario=batch_beside", "right", "");
}

INSTANTIATE_TEST_SUITE_P(Ways, Batches, testing::ValuesIn(kWays),
                         [](const auto &way) { return way.param.name; });
INSTANTIATE_TEST_SUITE_P(Relays, Batches, testing::ValuesIn(kRelays),
                         [](const auto &way) { return way.param.name; });

// The use of batches: receives come before the sends that other ranks wait for.
TEST(SingleCalls, StandWhereTheirStreamsShareHardwareQueues)
{
    auto reports = run(4, "scenario=mail_sweep meet=0 later_timeout_ms=2000", "queues=2");
    for (Report &report : reports) {
        EXPECT_EQ(report["end"], "exited 0") << all_of(report);
        EXPECT_HAS(report, "what", "Timed out after ");
        EXPECT_NE(report["wrong"], "0") << all_of(report);
    }
}

TEST(Batch, IsRefusedWholeForOneBadMessage)
{
    auto reports = run(2, "scenario=batch_refuse");
    expect_key(reports, "enqueued", "no");
    expect_key(reports, "goes_on", "yes");
    for (Report &report : reports) {
        EXPECT_HAS(report, "nobody", "recv: the peer 2 is not a rank (0 to 1)");
        EXPECT_HAS(report, "any", "name the sender");
        EXPECT_HAS(report, "host", "is no GPU's memory");
        EXPECT_HAS(report, "collective", "broadcast: a batch takes send and recv alone");
        EXPECT_HAS(report, "captured", "send: not offered while a CUDA graph is captured");
        EXPECT_EQ(report["graph"], "0") << "the capture did not go on";
    }
}

TEST(Batch, ThatDiffersInOneMessageFailsAllRanks)
{
    for (const char *knobs : {"", "delay_us=300"}) {
        auto reports = run(3, "scenario=batch_differ meet=0", knobs);
        expect_key(reports, "changed", "no");
        expect_key(reports, "status", "mismatch");
        for (Report &report : reports) {
            EXPECT_HAS(report, "error", "rank 0 called send #2 to rank 2 (uint8[");
            EXPECT_HAS(report, "error", "but rank 2 called recv #2 from rank 0 (uint8[");
            EXPECT_HAS(report, "error", "tag 9)");
        }
    }
}

// Every message that was published has ended. Otherwise the watcher would poison for ever.
TEST(Batch, ThatTheDriverBreaksOffEndsAllItsMessages)
{
    for (int waits : {0, 5, 12}) {
        auto reports = run(2, "scenario=batch_broken meet=0 waits=" + std::to_string(waits));
        for (Report &report : reports) {
            EXPECT_EQ(report["end"], "exited 0") << all_of(report);
            EXPECT_HAS(report, "error", "cuStreamWaitValue64");
            EXPECT_EQ(report["done"], report["messages"]) << all_of(report);
            EXPECT_LT(atoi(report["close_ms"].c_str()), 1500);
        }
        EXPECT_EQ(reports[1]["messages"], "8") << all_of(reports[1]);
    }
}

TEST(BatchDeath, EndsTheStreamAndIsNamedWhereverItComes)
{
    kill_at_random("batch_endless", kKnobs);
}

TEST(BatchLate, SaysThatManyStreamsHoldOneAnotherUp)
{
    auto reports = run(7, "scenario=batch_late");
    expect_key(reports, "right", "yes");
    expect_said_late(reports[0]);
    // With it the senders go on, so that later lines may come when fewer wait.
    EXPECT_HAS(reports[0], "said_first", "CUDA_DEVICE_MAX_CONNECTIONS=32");
}

TEST(BatchLate, SaysNothingOfStreamsWhereThereIsOne)
{
    auto reports = run(7, "scenario=batch_late batched=1");
    expect_key(reports, "right", "yes");
    expect_said_late(reports[0]);
    EXPECT_EQ(reports[0]["said"].find("streams"), std::string::npos) << reports[0]["said"];
}

} // namespace
} // namespace shmcoll::test
