// SPDX-License-Identifier: BSD-3-Clause
// Captured operations between real processes over the stand-in: replays together with eager operations,
// ranks that replay something else, that die, stop, leave, abort.
#include "tests/cuda/living.h"

#include <cstdlib>
#include <cstring>

namespace shmcoll::test
{
namespace
{

const char *const kRoutes[] = {"route=slabs", "route=host"};
const std::vector<const char *> kGraphKnobs = {
    "",           "delay_us=300", "only_writes_wake=1 state=@/writes", "alone=@/gpu", "export=800",
    "slow_us=50", "shuffle=1"};

// ---- results ----

class Replays : public testing::TestWithParam<const char *>
{
  protected:
    static void expect_all_right(size_t world, const std::string &more, const std::string &knobs)
    {
        auto reports = run(world, std::string("scenario=graph ") + GetParam() + " " + more, knobs);
        expect_key(reports, "wrong", "0");
        for (Report &report : reports)
            EXPECT_GE(atoi(report["cases"].c_str()), 1) << all_of(report);
    }
};

TEST_P(Replays, GiveWhatEagerOperationsGive)
{
    for (size_t world : kSlow ? std::vector<size_t>{1, 3} : std::vector<size_t>{1, 2, 3, 4})
        expect_all_right(world, kSlow ? "turns=3" : "turns=12", "alias=1");
}

TEST_P(Replays, AreTheSameWhenStreamsAreLate)
{
    const char *const all[] = {"shuffle=1 delay_us=50", "slow_us=20", "delay_us=50",
                               "only_writes_wake=1 delay_us=20 state=@/writes", "alone=@/gpu"};
    for (size_t i = 0; i < (kSlow ? 1 : std::size(all)); i++)
        expect_all_right(3, kSlow ? "turns=2" : "turns=3", all[i]);
}

TEST_P(Replays, OfLargeSumsBySlices)
{
    const std::string more = " turns=4 half=1310720 large=340000";
    auto reports =
        run(4, std::string("scenario=graph ") + GetParam() + more, "devices=4"); // one each
    expect_key(reports, "wrong", "0");
    expect_key(reports, "slices", "yes");
}

INSTANTIATE_TEST_SUITE_P(Ways, Replays, testing::ValuesIn(kRoutes),
                         [](const auto &way) { return way.param + strlen("route="); });

TEST(Graph, SaysWhatCannotBeCaptured)
{
    auto reports = run(2, "scenario=graph_refuse");
    expect_key(reports, "outside", "no");
    expect_key(reports, "inside", "yes");
    expect_key(reports, "ended", "0"); // a refusal does not break the capture
    expect_key(reports, "goes_on", "yes");
    for (Report &report : reports) {
        EXPECT_HAS(report, "premul", "unsupported: all_reduce: premul_sum is not offered while");
        EXPECT_HAS(report, "message", "send: not offered while a CUDA graph is captured");
        EXPECT_HAS(report, "pairs", "unsupported: all_to_all: counts that differ");
        EXPECT_HAS(report, "good", "ok: ");
        EXPECT_HAS(report, "broken",
                   "invalid argument: the capture of this stream has been broken");
        EXPECT_HAS(report, "eager", "ok: ");
    }
}

// ---- ranks that replay something else ----

class Differing : public testing::TestWithParam<const char *>
{
};

TEST_P(Differing, FailsOnEveryRankAndChangesNothing)
{
    for (const char *route : kRoutes)
        for (const char *knobs : {"", "delay_us=300"}) {
            auto reports = run(
                3, std::string("scenario=graph_differ meet=0 field=") + GetParam() + " " + route,
                knobs);
            expect_key(reports, "changed", "no");
            expect_key(reports, "status", "mismatch");
            expect_key(reports, "ended", "yes");
            EXPECT_HAS(reports[0], "error", "ranks replay different operations: rank ");
            EXPECT_HAS(reports[0], "error", "captured all_reduce #1 (int32");
            EXPECT_HAS(reports[0], "error", "rank 2");
            if (std::string(GetParam()) == "twin") {
                EXPECT_HAS(reports[0], "error", "captured all_reduce #2 (int32");
            }
            if (std::string(GetParam()) == "rounds") {
                EXPECT_HAS(reports[0], "error", "captured broadcast #3 (int32");
            }
            for (Report &report : reports)
                EXPECT_EQ(report["error"], reports[0]["error"]);
        }
}

INSTANTIATE_TEST_SUITE_P(Of, Differing, testing::Values("twin", "rounds", "count", "redop"),
                         [](const auto &field) { return field.param; });

// ---- ranks that die, stop, leave, abort ----

TEST(GraphDeath, EndsAllReplaysAndIsNamedWhereverItComes)
{
    kill_at_random("graph_endless", kGraphKnobs, [](Report &report) {
        EXPECT_EQ(report["again"], "ended") << all_of(report);
        EXPECT_EQ(report["closed"], "ended") << all_of(report);
    });
}

TEST(GraphStopped, ARankIsNamedByWhoeverRunsOutOfTime)
{
    auto reports = stop_rank_1(3, "graph_endless");
    for (size_t r : {0, 2}) {
        EXPECT_HAS(reports[r], "error", "a replay of captured all_reduce #");
        EXPECT_EQ(reports[r]["again"], "ended") << all_of(reports[r]);
    }
}

TEST(GraphAbort, EndsAllRanksWithItsReason)
{
    for (const char *knobs : kGraphKnobs) {
        auto reports = run(3, "scenario=graph_endless meet=0 act=abort", knobs);
        expect_key(reports, "status", "aborted");
        expect_key(reports, "wrong", "0");
        expect_key(reports, "again", "ended");
        expect_key(reports, "closed", "ended");
        for (Report &report : reports)
            EXPECT_HAS(report, "error", "rank 2 aborted: enough");
    }
}

// Replays of the leaving rank after its close() may look like arrivals: then that is reported.
TEST(GraphClose, EndsLaterReplaysHereAndIsNamedByThoseWhoGoOn)
{
    for (const char *knobs : {"", "delay_us=300", "slow_us=50"}) {
        auto reports = run(3, "scenario=graph_endless meet=0 act=close", knobs);
        for (size_t r : {0, 1}) {
            EXPECT_EQ(reports[r]["status"], "peer left") << all_of(reports[r]);
            EXPECT_HAS(reports[r], "error", "rank 2 has left the group, and replays no more");
            EXPECT_EQ(reports[r]["wrong"], "0") << all_of(reports[r]);
            EXPECT_EQ(reports[r]["turns"], "6") << all_of(reports[r]);
        }
        EXPECT_EQ(reports[2]["end"], "exited 0") << all_of(reports[2]);
        EXPECT_EQ(reports[2]["closed"], "ended") << all_of(reports[2]);
        EXPECT_LT(atoi(reports[2]["close_ms"].c_str()), 2000);
    }
}

// A rank that leaves and replays nothing more is named at once, not at the time-out.
TEST(GraphClose, IsNamedWhileAReplayWaits)
{
    for (const char *knobs : {"", "delay_us=300"}) {
        auto reports = run(3, "scenario=graph_endless meet=0 act=leave", knobs);
        for (size_t r : {0, 1}) {
            EXPECT_EQ(reports[r]["status"], "peer left") << all_of(reports[r]);
            EXPECT_HAS(reports[r], "error", "rank 2 has left the group, and replays no more");
            EXPECT_EQ(reports[r]["wrong"], "0") << all_of(reports[r]);
            EXPECT_EQ(reports[r]["turns"], "6") << all_of(reports[r]);
            EXPECT_EQ(reports[r]["again"], "ended") << all_of(reports[r]);
        }
        EXPECT_EQ(reports[2]["closed"], "left") << all_of(reports[2]);
    }
}

TEST(GraphTimeout, NamesTheRankThatNeverComes)
{
    for (const char *key : {"timeout_ms=16000", "later_timeout_ms=4000"}) {
        auto reports = run(3, std::string("scenario=graph_endless meet=0 act=idle ") + key);
        for (size_t r : {0, 1}) {
            EXPECT_EQ(reports[r]["status"], "timeout") << all_of(reports[r]);
            EXPECT_HAS(reports[r], "error", "waiting for rank 2 (it replays nothing); in rank ");
        }
    }
}

TEST(GraphTimeout, DoesNotCountTheTimeInWhichRanksAreStopped)
{
    stop_all_ranks(3, "graph_endless");
}

} // namespace
} // namespace shmcoll::test
