// SPDX-License-Identifier: BSD-3-Clause
// CUDA messages between real processes over the stand-in: contents on every route, ends that differ,
// ranks that die, stop, leave, abort while a message is under way.
#include "tests/cuda/living.h"

#include <cstdlib>
#include <cstring>

namespace shmcoll::test
{
namespace
{

class Messages : public testing::TestWithParam<Way>
{
  protected:
    static void expect_right(size_t world, const std::string &settings, const std::string &knobs)
    {
        SCOPED_TRACE(std::to_string(world) + " ranks, " + knobs);
        auto reports = run(world, settings + GetParam().settings, GetParam().knobs + knobs);
        expect_key(reports, settings.find("sweep") != std::string::npos ? "wrong" : "right",
                   settings.find("sweep") != std::string::npos ? "0" : "yes");
    }
};

TEST_P(Messages, OfEverySizeArriveWhole)
{
    for (size_t world : kSlow ? std::vector<size_t>{1, 3} : std::vector<size_t>{1, 2, 3, 4})
        expect_right(world, "scenario=mail_sweep", "");
}

TEST_P(Messages, ArriveWholeWhenStreamsAreLate)
{
    expect_right(2, "scenario=mail_sweep", "slow_us=100 delay_us=300");
    if (kSlow)
        return;
    expect_right(3, "scenario=mail_sweep", "delay_us=300");
    expect_right(3, "scenario=mail_sweep", "only_writes_wake=1 delay_us=100 state=@/writes");
    expect_right(3, "scenario=mail_sweep", "alone=@/gpu");
}

TEST_P(Messages, ThatTwoSlotsHoldNeedNoReceiver)
{
    for (size_t world : {2, 3, 4})
        expect_right(world, "scenario=mail_ring", "delay_us=100");
}

TEST_P(Messages, PassCollectivesAndOneAnother)
{
    expect_right(2, "scenario=mail_chain", "");
    expect_right(4, "scenario=mail_chain", "delay_us=50");
}

TEST_P(Messages, KeepTheirOrderOverStreamsAndRecords)
{
    expect_right(2, "scenario=mail_ahead", "delay_us=100");
    expect_right(3, "scenario=mail_ahead", "");
    auto reports =
        run_processes(CUDA_COMM_RANK,
                      {{GetParam().knobs, std::string("scenario=mail_ahead") + GetParam().settings},
                       {std::string("slow_us=300 ") + GetParam().knobs,
                        std::string("scenario=mail_ahead") + GetParam().settings}});
    expect_key(reports, "right", "yes");
}

INSTANTIATE_TEST_SUITE_P(Ways, Messages, testing::ValuesIn(kWays),
                         [](const auto &way) { return way.param.name; });
INSTANTIATE_TEST_SUITE_P(Relays, Messages, testing::ValuesIn(kRelays),
                         [](const auto &way) { return way.param.name; });

TEST(Mail, CrossesGpusThatArePeers)
{
    auto reports = run(3, "scenario=mail_sweep route=slabs", "devices=3");
    expect_key(reports, "wrong", "0");
}

// ---- ends that differ ----

class Ends : public testing::TestWithParam<const char *>
{
};

TEST_P(Ends, ThatDifferFailAllRanksAndChangeNothing)
{
    // With the last one only the shorter of two ends is relayed.
    for (const char *more : {"", " route=host", " relay=65536", " relay=1024"})
        for (const char *knobs : {"", "delay_us=300"}) {
            auto reports = run(
                3, std::string("scenario=mail_differ meet=0 field=") + GetParam() + more, knobs);
            expect_key(reports, "changed", "no");
            expect_key(reports, "status", "mismatch");
            EXPECT_HAS(reports[0], "error", "rank 0 called send #4 to rank 2 (");
            EXPECT_HAS(reports[0], "error", "but rank 2 called recv #4 from rank 0 (");
            for (Report &report : reports)
                EXPECT_EQ(report["error"], reports[0]["error"]);
        }
}

INSTANTIATE_TEST_SUITE_P(Of, Ends,
                         testing::Values("tag", "dtype", "count", "pieces", "elem", "type"),
                         [](const auto &field) { return field.param; });

TEST(Mail, SaysHowTheEndsDiffer)
{
    auto reports = run(2, "scenario=mail_differ meet=0 field=tag");
    EXPECT_HAS(reports[0], "error",
               "rank 0 called send #4 to rank 1 (int64[48], tag 5), but rank 1 called recv #4 from "
               "rank 0 (int64[48], tag 9)");
}

// ---- ranks that die, stop, leave, abort ----

TEST(MailDeath, EndsAllStreamsAndIsNamedWhereverItComes)
{
    kill_at_random("mail_endless", kKnobs);
}

TEST(MailStopped, ARankIsNamedByWhoeverRunsOutOfTime)
{
    for (const char *path : kPaths) {
        auto reports = stop_rank_1(2, std::string("mail_endless") + path);
        EXPECT_HAS(reports[0], "error", "; in rank 0: ");
        EXPECT_EQ(reports[0]["leaked"], "0") << all_of(reports[0]);
    }
}

TEST(MailTimeout, NamesTheRankThatNeverComesAndItsLastCall)
{
    for (const char *how :
         {"timeout_ms=16000", "later_timeout_ms=4000", "later_timeout_ms=4000 relay=65536"}) {
        auto reports = run(2, std::string("scenario=mail_endless meet=0 act=idle ") + how);
        EXPECT_EQ(reports[0]["status"], "timeout") << all_of(reports[0]);
        // By the relay the fifth message fits, and this rank's receive is late.
        EXPECT_HAS(reports[0], "error",
                   strstr(how, "relay")
                       ? "waiting for rank 1 (its last send to this rank is #4); in rank 0: recv #5"
                       : "waiting for rank 1 (its last recv from this rank is #4); in rank 0: send "
                         "#5 to rank 1 (uint8[");
    }
}

TEST(MailTimeout, DoesNotCountTheTimeInWhichRanksAreStopped)
{
    stop_all_ranks(2, "mail_endless");
}

TEST(MailAbort, EndsAllRanksWithItsReason)
{
    for (const char *knobs : kKnobs)
        for (const char *path : kPaths) {
            auto reports =
                run(3, std::string("scenario=mail_endless meet=0 act=abort") + path, knobs);
            expect_key(reports, "status", "aborted");
            expect_key(reports, "wrong", "0");
            for (Report &report : reports)
                EXPECT_HAS(report, "error", "rank 2 aborted: enough");
        }
}

// A stream of rank 1 takes 40 ms for a step: after taking a piece it waits, looks at its gate, copies.
TEST(MailAbort, HarmsNothingThatASlowRankStillReads)
{
    for (const char *route : {" route=auto", " route=host"}) {
        const std::string how = std::string("scenario=mail_poison meet=0 after_us=90000") + route;
        auto reports =
            run_processes(CUDA_COMM_RANK, {{"", how}, {"slow_us=40000", how}, {"", how}});
        expect_key(reports, "ended", "yes");
        expect_key(reports, "torn", "0");
        EXPECT_GE(atoi(reports[1]["whole"].c_str()), 1) << all_of(reports[1]);
        printf("%s pieces were whole\n", reports[1]["whole"].c_str());
    }
}

TEST(MailClose, NeedsNoPeerAndIsNamedByThoseWhoGoOn)
{
    for (const char *how : {"", "delay_us=300", "relay"}) {
        const bool relay = how == std::string("relay");
        auto reports = run(2, std::string("scenario=mail_endless meet=0 act=close") + kPaths[relay],
                           relay ? "" : how);
        EXPECT_EQ(reports[0]["status"], "peer left") << all_of(reports[0]);
        EXPECT_HAS(reports[0], "error", "rank 1 has left the group, after its ");
        EXPECT_EQ(reports[0]["wrong"], "0") << all_of(reports[0]);
        EXPECT_EQ(reports[1]["end"], "exited 0") << all_of(reports[1]);
        EXPECT_LT(atoi(reports[1]["close_ms"].c_str()), 1500);
    }
}

// A rank whose own message is in flight waits two seconds. Then the group fails, and its stream ends.
TEST(MailClose, WithAMessageUnderWayFailsTheGroup)
{
    auto reports = run(2, "scenario=mail_endless meet=0 act=half");
    EXPECT_EQ(reports[0]["status"], "peer left") << all_of(reports[0]);
    EXPECT_HAS(reports[0], "error", "rank 1 closed the group while operations were under way");
    EXPECT_EQ(reports[1]["end"], "exited 0") << all_of(reports[1]);
    EXPECT_NE(reports[1]["closed_ns"], "") << all_of(reports[1]);
}

TEST(MailClose, LeavesWhatWasSent)
{
    for (const char *then : {"recv", "send"})
        for (const char *how : {"auto", "host", "legacy", "auto relay=65536"}) {
            SCOPED_TRACE(how);
            const bool legacy = how == std::string("legacy");
            auto reports = run(3,
                               std::string("scenario=mail_leave meet=0 then=") + then +
                                   " route=" + (legacy ? "slabs" : how),
                               legacy ? "export=800" : "");
            expect_key(reports, "right", "yes");
            // A legacy slab ends with its process: its receivers have two seconds.
            EXPECT_EQ(atoi(reports[2]["close_ms"].c_str()) >= 2000, legacy) << all_of(reports[2]);
            for (size_t r : {0, 1}) {
                EXPECT_EQ(reports[r]["status"], "peer left") << all_of(reports[r]);
                EXPECT_HAS(reports[r], "error",
                           std::string(then) == "recv"
                               ? "rank 2 has left the group, after its send #2 to rank 0; recv #3 "
                                 "from rank 2 ("
                               : "rank 2 has left the group, after its recv #0 from rank 0; send "
                                 "#1 to rank 2 (");
            }
        }
}

} // namespace
} // namespace shmcoll::test
