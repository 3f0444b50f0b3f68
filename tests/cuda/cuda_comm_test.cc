// SPDX-License-Identifier: BSD-3-Clause
// CUDA collectives between real processes over the stand-in: results on every route, calls that
// differ, ranks that die, stop, leave, abort.
#include "tests/cuda/living.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <random>
#include <unistd.h>

namespace shmcoll::test
{
namespace
{

// ---- results ----

class Results : public testing::TestWithParam<Way>
{
  protected:
    static void expect_all_right(size_t world, const std::string &settings,
                                 const std::string &knobs)
    {
        const Way &way = GetParam();
        auto reports =
            run(world, "scenario=sweep " + settings + " " + way.settings, knobs + " " + way.knobs);
        expect_key(reports, "wrong", "0");
        expect_key(reports, "memory", way.memory);
        for (Report &report : reports)
            EXPECT_GT(atoi(report["cases"].c_str()), 100) << all_of(report);
    }
};

TEST_P(Results, OfEveryOperationAreTheReferences)
{
    const std::string sizes = kSlow ? "few=1" : "";
    for (size_t world : kSlow ? std::vector<size_t>{1, 3} : std::vector<size_t>{1, 2, 3, 5})
        expect_all_right(world, sizes, "");
    if (!kSlow)
        expect_all_right(8, "few=1", "");
}

TEST_P(Results, AreTheSameWhenStreamsAreLate)
{
    expect_all_right(3, "few=1", "delay_us=300");
    expect_all_right(2, "few=1", "slow_us=100");
    expect_all_right(3, "few=1", "delay_us=50 alias=1");
}

TEST_P(Results, AreTheSameWhereOnlyStreamWritesWake)
{
    expect_all_right(3, "few=1", "only_writes_wake=1 delay_us=100 state=@/writes");
}

TEST_P(Results, AreTheSameWhereContextsTakeTurns)
{
    expect_all_right(3, "few=1", "alone=@/gpu");
}

#ifdef __SANITIZE_THREAD__
const std::vector<std::pair<int, int>> kLarge = {{5, 640 << 10}}; // 8 ranks run the same code
#else
const std::vector<std::pair<int, int>> kLarge = {{5, 640 << 10}, {8, 192 << 10}};
#endif

TEST_P(Results, OfLargeSumsAreTheReferences)
{
    for (auto [world, half] : kLarge) {
        const std::string how = "scenario=large half=" + std::to_string(half) + " ";
        for (auto [devices, rounds] : {std::pair(world, "6"), std::pair(1, "3")}) {
            auto reports = run(world, how + GetParam().settings,
                               "devices=" + std::to_string(devices) + " " + GetParam().knobs);
            expect_key(reports, "wrong", "0");
            expect_key(reports, "cases", "1");
            expect_key(reports, "rounds", rounds);
        }
    }
}

// Each operation needs the result of the one before, on another stream; more of them than there are
// records.
TEST_P(Results, GoFromOperationToOperationOverStreams)
{
    for (const char *knobs : {"", "delay_us=200", "slow_us=30"}) {
        auto reports = run(3, std::string("scenario=chain ") + GetParam().settings,
                           std::string(knobs) + " " + GetParam().knobs);
        expect_key(reports, "right", "yes");
    }
}

TEST_P(Results, OfTwoGroupsAreTheirOwn)
{
    auto reports = run(3, std::string("scenario=groups ") + GetParam().settings,
                       std::string("delay_us=100 ") + GetParam().knobs);
    for (Report &report : reports)
        EXPECT_EQ(report["right"], "yes") << all_of(report);
}

INSTANTIATE_TEST_SUITE_P(Ways, Results, testing::ValuesIn(kWays),
                         [](const auto &way) { return way.param.name; });
INSTANTIATE_TEST_SUITE_P(Relays, Results, testing::ValuesIn(kRelays),
                         [](const auto &way) { return way.param.name; });

TEST(CudaComm, CrossesGpusThatArePeers)
{
    auto reports = run(3, "scenario=sweep few=1 route=slabs", "devices=3");
    expect_key(reports, "wrong", "0");
}

// Contexts that share a GPU take turns at kernels.
TEST(Relay, TakesNoTurn)
{
    for (auto [relay, turns] : {std::pair("0", false), std::pair("65536", true)}) {
        auto reports = run(3, std::string("scenario=turns relay=") + relay);
        expect_key(reports, "right", "yes");
        for (Report &report : reports)
            EXPECT_EQ(report["turns"] == "0", turns) << all_of(report);
    }
}

// All blocks are checked, also those that no other rank sees.
TEST(Relay, HasRoomForWhatARankKeepsForItself)
{
    for (const char *own : {"0", "20000", "300000", "2000000"}) {
        auto reports = run(3, std::string("scenario=selfish relay=65536 own=") + own);
        expect_key(reports, "right", "yes");
    }
}

// A rank whose stream is after a shut gate has bytes that are no operation's result.
TEST(Relay, GivesNothingBehindAShutGate)
{
    for (int i = 0; i < 6; i++) {
        auto reports = run(3, "scenario=shut_gate meet=0 relay=4096");
        expect_key(reports, "changed", "no");
        expect_key(reports, "status", "mismatch");
    }
}

// All ranks change at the same operation, whichever rank is slow; otherwise their records would differ. A
// thread that looks too late says nothing, so on a busy machine it takes more operations.
TEST(Relay, BacksOffOnAllRanksAtOnceWhereItIsSlow)
{
    for (const std::vector<const char *> &knobs :
         {std::vector<const char *>{"slow_us=2000", "slow_us=2000"},
          std::vector<const char *>{"", "slow_us=2000", ""}}) {
        bool backed_off = false;
        for (int operations = 160; operations <= 160 * 64 && !backed_off; operations *= 4) {
            std::vector<RankOptions> ranks;
            for (const char *knob : knobs)
                ranks.push_back({knob, "scenario=many relay=65536 half=131072 operations=" +
                                           std::to_string(operations)});
            auto reports = run_processes(CUDA_COMM_RANK, ranks);
            expect_key(reports, "status", "ok");
            expect_key(reports, "wrong", "0");
            expect_key(reports, "relayed", reports[0]["relayed"]);
            expect_key(reports, "relay_backoffs", reports[0]["relay_backoffs"]);
            backed_off = atoi(reports[0]["relay_backoffs"].c_str()) > 0;
        }
        EXPECT_TRUE(backed_off) << knobs.size() << " ranks";
    }
}

TEST(Relay, IsOffWhereACpusStoreEndsNoWait)
{
    auto reports = run(3, "scenario=make relay=65536", "only_writes_wake=1 state=@/writes");
    expect_key(reports, "relay_bytes", "0");
    for (Report &report : reports)
        EXPECT_HAS(report, "relay_reason", "a CPU's store does not end a stream's wait");
    reports = run(3, "scenario=make relay=65536");
    expect_key(reports, "relay_bytes", "65536");
    // One rank without it is enough.
    reports = run_processes(CUDA_COMM_RANK,
                            {{"state=@/writes", "scenario=make relay=65536"},
                             {"only_writes_wake=1 state=@/writes", "scenario=make relay=65536"}});
    expect_key(reports, "relay_bytes", "0");
    for (Report &report : reports)
        EXPECT_HAS(report, "relay_reason", "rank 1: a CPU's store does not end");
    reports = run(3, "scenario=make");
    expect_key(reports, "relay_reason", "asked for");
}

// Users see a choice in the table of ways, and a change of the choice changes this test.
TEST(Relay, IsTakenUpToASizeThatTheGroupTells)
{
    auto reports = run(3, "scenario=make relay=65536 half=0", "mps=1");
    expect_key(reports, "mps", "yes");
    expect_key(reports, "path.all_reduce.8", "relay, 1 round");
    expect_key(reports, "path.all_reduce.65536", "relay, 2 rounds");
    expect_key(reports, "path.all_reduce.262144", "kernels, 1 round");
    expect_key(reports, "path.all_reduce.67108864", "kernels, 2 rounds");
    const std::pair<std::vector<RankOptions>, std::pair<const char *, const char *>> groups[] = {
        {{{}, {}}, {"524288", ""}},
        {{{}, {}, {}}, {"1048576", ""}},
        {{{}, {}, {"first_uuid=1"}}, {"524288", ""}},
        {{{}, {"first_uuid=1"}}, {"0", "no two ranks share a GPU"}},
        {{{}}, {"0", "there is one rank"}},
    };
    for (auto [ranks, want] : groups) {
        for (RankOptions &rank : ranks)
            rank.how = "scenario=make relay=auto";
        auto chosen = run_processes(CUDA_COMM_RANK, ranks);
        expect_key(chosen, "mps", "no");
        expect_key(chosen, "relay_bytes", want.first);
        expect_key(chosen, "relay_reason", want.second);
    }
    auto served = run(2, "scenario=make relay=auto", "mps=1");
    expect_key(served, "relay_bytes", "0");
    expect_key(served, "relay_reason", "by an MPS server kernels take no turns");
    auto differ = run_processes(
        CUDA_COMM_RANK, {{"", "scenario=make relay=auto"}, {"", "scenario=make relay=4096"}});
    for (Report &report : differ)
        EXPECT_HAS(report, "error", "rank 0 asks for relay_bytes 0, rank 1 for 4096");
}

// Sums in two rounds, several handed over at once, and between them sums too large to be relayed.
TEST(Relay, SumsInTwoFollowOneAnother)
{
    auto reports = run(3, "scenario=chain turns=20 count=5000 relay=65536");
    expect_key(reports, "right", "yes");
}

// An operation that cannot be enqueued ends at once. Otherwise the stream, and a thread that closes the
// group, would wait for ever.
TEST(Relay, ThatTheDriverBreaksOffEndsAllItsOperations)
{
    auto reports = run(3, "scenario=broken meet=0 relay=65536");
    for (Report &report : reports) {
        EXPECT_EQ(report["end"], "exited 0") << all_of(report);
        EXPECT_HAS(report, "error", "cuStreamWaitValue64");
        EXPECT_EQ(report["last"], "old") << all_of(report);
        EXPECT_EQ(report["leaked"], "0") << all_of(report);
        EXPECT_LT(atoi(report["close_ms"].c_str()), 1500);
    }
}

// All ranks agree on what goes this way, and its cells are large enough for that.
TEST(Relay, TakesWhatItsCellsHold)
{
    for (size_t world : kSlow ? std::vector<size_t>{3} : std::vector<size_t>{2, 3, 5}) {
        auto reports = run(world, "scenario=limits relay=65536");
        expect_key(reports, "wrong", "0");
        expect_key(reports, "strayed", "0");
    }
}

// ---- making a group ----

// By UUID: the ordinals depend on CUDA_VISIBLE_DEVICES.
TEST(CudaComm, TellsWhichRanksShareAGpu)
{
    const std::string second = "first_uuid=1";
    const std::pair<std::vector<RankOptions>, std::pair<const char *, const char *>> cases[] = {
        {{{}, {}, {}, {}}, {"1", "0-3"}},
        {{{"devices=2"}, {"devices=2"}, {"devices=2"}, {"devices=2"}}, {"2", "0,2; 1,3"}},
        {{{}, {}, {second}, {second}}, {"2", "0-1; 2-3"}},
        {{{"devices=2"}, {"devices=2"}, {second}, {}, {}}, {"2", "0,3-4; 1-2"}},
        {{{second}}, {"1", "0"}},
    };
    for (auto [ranks, want] : cases) {
        for (RankOptions &rank : ranks)
            rank.how = "scenario=make";
        auto reports = run_processes(CUDA_COMM_RANK, ranks);
        expect_key(reports, "gpus", want.first);
        expect_key(reports, "gpu_ranks", want.second);
        expect_key(reports, "route", "slabs");
    }
}

// Each round costs a turn of every context; a rank keeps six halves on the GPU.
TEST(CudaComm, RanksOfOneGpuHaveLongRoundsAsFarAsThereIsRoom)
{
    const std::string small = "memory_mib=10000", second = "first_uuid=1",
                      refused = "export=800 open=205 memory_mib=10000", host = "route=host half=0";
    const std::pair<std::vector<RankOptions>, const char *> cases[] = {
        {{{}, {}}, "33554432"},
        {{{small}, {small}}, "8388608"},
        {{{}, {small}, {}, {}}, "4194304"},
        {{{"memory_mib=600"}, {"memory_mib=600"}}, "4194304"},
        {{{}, {second}}, "4194304"},
        {{{}, {}, {second}}, "33554432"},
        {{{small}}, "4194304"},
        {{{refused}, {refused}}, "4194304"},
        {{{"", host}, {"", host}}, "4194304"},
    };
    for (auto [ranks, want] : cases) {
        for (RankOptions &rank : ranks)
            rank.how += " half=0 scenario=make";
        auto reports = run_processes(CUDA_COMM_RANK, ranks);
        expect_key(reports, "half_bytes", want);
    }
}

TEST(CudaComm, GoesThroughHostMemoryWhereNoSlabIsShared)
{
    auto reports = run(2, "scenario=sweep few=1", "export=800 open=205");
    expect_key(reports, "wrong", "0");
    expect_key(reports, "route", "host");
    EXPECT_HAS(reports[0], "reason", "CUDA_ERROR_NOT_PERMITTED");
    EXPECT_HAS(reports[0], "reason", "CUDA_ERROR_MAP_FAILED");
}

TEST(CudaComm, IsMadeByAllRanksOrNone)
{
    const std::pair<RankOptions, const char *> cases[] = {
        {{"", "route=host"}, "for route 0 and halves of 4096 bytes, rank 1 for route 2"},
        {{"", "half=8192"}, "halves of 4096 bytes, rank 1 for route 0 and 8192"},
        {{"", "half=0"}, "halves of 4096 bytes, rank 1 for route 0 and 0 bytes"},
        {{"", "relay=65536"}, "rank 0 asks for relay_bytes 18446744073709551615, rank 1 for 65536"},
        {{"", "relay=1073741825"}, "rank 1: relay_bytes 1073741825: at most 1073741824"},
        {{"", "half=100"}, "rank 1: half_bytes 100: a multiple of 128"},
        {{"", "device=7"}, "rank 1: there is no GPU 7"},
        {{"without=shc_gate", ""}, "rank 1: the kernel shc_gate does not load"},
        {{"load=209", ""}, "rank 1: the kernels do not load on Stand-in GPU"},
    };
    for (auto &[odd, reason] : cases) {
        auto reports = run_processes(CUDA_COMM_RANK, {{"", ""}, odd, {"", ""}});
        for (Report &report : reports) {
            EXPECT_EQ(report["end"], "exited 0") << all_of(report);
            EXPECT_NE(report["made"], "ok") << all_of(report);
            EXPECT_HAS(report, "error", reason);
            EXPECT_EQ(report["error"], reports[0]["error"]);
            EXPECT_EQ(report["leaked"], "0") << all_of(report);
        }
    }
}

TEST(CudaComm, SlabsThatAreDemandedAndNotThereAreAnError)
{
    auto reports = run_processes(CUDA_COMM_RANK,
                                 {{"", "route=slabs"}, {"export=800 open=205", "route=slabs"}});
    for (Report &report : reports) {
        EXPECT_EQ(report["made"], "unsupported") << all_of(report);
        EXPECT_HAS(report, "error", "the ranks' GPUs share no memory: file descriptor: rank 1");
    }
}

// A rank that is ahead must not write over what a slow rank's GPU has still to read.
TEST(CudaComm, RecordsOutlastTheSlowestRank)
{
    auto reports = run_processes(
        CUDA_COMM_RANK,
        {{"", "scenario=ahead"}, {"slow_us=1000", "scenario=ahead"}, {"", "scenario=ahead"}});
    expect_key(reports, "right", "yes");
    const std::string relayed = "scenario=ahead relay=65536";
    reports =
        run_processes(CUDA_COMM_RANK, {{"", relayed}, {"slow_us=1000", relayed}, {"", relayed}});
    expect_key(reports, "right", "yes");
}

TEST(CudaComm, RefusesWhatOneRankCanSeeIsWrongAndGoesOn)
{
    auto reports = run(2, "scenario=refuse", "devices=2");
    expect_key(reports, "refused", "15");
    expect_key(reports, "goes_on", "yes");
    EXPECT_HAS(reports[1], "host_in", "input tensor 0 (at ");
    EXPECT_HAS(reports[1], "host_out", "output tensor 0 (at ");
    EXPECT_HAS(reports[1], "far", "input tensor 0 is on GPU 0, the group on GPU 1 (");
}

// ---- calls that differ ----

class Mismatch : public testing::TestWithParam<const char *>
{
};

TEST_P(Mismatch, FailsOnEveryRankAndChangesNothing)
{
    const std::string settings = std::string("scenario=differ meet=0 field=") + GetParam();
    for (const char *more : {"", " route=host", " relay=65536", " relay=65536 in_place=1",
                             " relay=8192"}) // with the last one only some of these ranks relay
        for (const char *knobs : kSlow ? std::vector<const char *>{"delay_us=300"}
                                       : std::vector<const char *>{"", "delay_us=300"}) {
            auto reports = run(3, settings + more, knobs);
            expect_key(reports, "changed", "no");
            expect_key(reports, "status", "mismatch");
            EXPECT_HAS(reports[0], "error", "#4");
            EXPECT_HAS(reports[0], "error", "rank 2");
            if (std::string(GetParam()) != "pairs") { // the rank that finds it compares with rank 0
                EXPECT_HAS(reports[0], "error", "rank 0 called");
            }
            for (Report &report : reports)
                EXPECT_EQ(report["error"], reports[0]["error"]);
        }
}

INSTANTIATE_TEST_SUITE_P(Of, Mismatch,
                         testing::Values("kind", "dtype", "redop", "count", "rounds", "root", "tag",
                                         "elem", "counts", "pairs", "partly"),
                         [](const auto &field) { return field.param; });

// ---- ranks that die, stop, leave, abort ----

TEST(Death, EndsAllStreamsAndIsNamedWhereverItComes)
{
    kill_at_random("endless", kKnobs);
}

// While the group is being made: no group, or one that fails; no rank waits for the deadline.
TEST(Death, WhileAGroupIsMadeIsSeenByAll)
{
    const auto before = shared_files();
    std::minstd_rand random(std::random_device{}());
    for (int i = 0; i < std::max(6, kills() / 4) && !testing::Test::HasFailure(); i++) {
        const size_t world = 2 + random() % 3, victim = random() % world;
        Living living(world, "scenario=endless meet=0", kKnobs[static_cast<size_t>(i) % 6]);
        ASSERT_TRUE(living.await("joined="));
        usleep(static_cast<useconds_t>(random() % 8000));
        kill(living.pids[victim], SIGKILL);
        auto reports = living.end(20);
        for (size_t r = 0; r < world; r++)
            if (r != victim) {
                EXPECT_EQ(reports[r]["end"], "exited 0") << all_of(reports[r]);
                EXPECT_TRUE(reports[r]["made"] != "ok" || reports[r]["status"] == "peer dead")
                    << all_of(reports[r]);
            }
    }
    EXPECT_EQ(shared_files(), before);
}

TEST(Stopped, ARankIsNamedByWhoeverRunsOutOfTime)
{
    for (const char *path : kPaths) {
        auto reports = stop_rank_1(3, std::string("endless") + path);
        for (size_t r : {0, 2}) {
            EXPECT_HAS(reports[r], "error", "all_reduce #");
            EXPECT_EQ(reports[r]["leaked"], "0") << all_of(reports[r]);
        }
    }
}

// The same as if the rank were stopped there, but not by chance.
TEST(Stopped, ARankThatReadsBehindAFailureBringsNothingBack)
{
    for (const char *bytes : {"32768", "49152"}) { // by one round, and by two
        auto reports = run(3, std::string("scenario=halted meet=0 relay=65536 bytes=") + bytes);
        expect_key(reports, "status", "aborted");
        EXPECT_EQ(reports[0]["result"], "right") << all_of(reports[0]);
        EXPECT_EQ(reports[1]["result"], "old") << all_of(reports[1]);
    }
}

TEST(Abort, EndsAllRanksWithItsReason)
{
    for (const char *knobs : kKnobs)
        for (const char *path : kPaths) {
            auto reports = run(3, std::string("scenario=endless meet=0 act=abort") + path, knobs);
            expect_key(reports, "status", "aborted");
            expect_key(reports, "wrong", "0");
            for (Report &report : reports)
                EXPECT_HAS(report, "error", "rank 2 aborted: enough");
        }
}

TEST(Close, NeedsNoPeerAndIsNamedByThoseWhoGoOn)
{
    for (const char *knobs : {"", "delay_us=300"})
        for (const char *path : kPaths) {
            auto reports = run(3, std::string("scenario=endless meet=0 act=close") + path, knobs);
            for (size_t r : {0, 1}) {
                EXPECT_EQ(reports[r]["status"], "peer left") << all_of(reports[r]);
                EXPECT_HAS(reports[r], "error", "rank 2 has left the group after operation #15");
                EXPECT_EQ(reports[r]["wrong"], "0") << all_of(reports[r]);
            }
            EXPECT_EQ(reports[2]["end"], "exited 0") << all_of(reports[2]);
            EXPECT_LT(atoi(reports[2]["close_ms"].c_str()), 5000);
        }
}

TEST(Pending, IsTrueUntilAllRanksHaveComeAndNothingBehindThat)
{
    auto reports = run(3, "scenario=pending");
    expect_key(reports, "before", "ok");
    expect_key(reports, "last", "ok");
    EXPECT_EQ(reports[2]["after"], "closed") << all_of(reports[2]);
    // What happens to other ranks after an operation is no failure of that operation.
    auto bereaved = run(3, "scenario=pending meet=0 act=die_behind relay=65536");
    for (auto *seen : {&reports, &bereaved})
        for (size_t r : {0, 1}) {
            EXPECT_EQ((*seen)[r]["first"], "ok, pending") << all_of((*seen)[r]);
            EXPECT_EQ((*seen)[r]["after"], "ok") << all_of((*seen)[r]);
        }
}

TEST(Pending, SaysWhoDoesNotCome)
{
    const std::pair<const char *, std::pair<const char *, const char *>> ends[] = {
        {"die", {"peer dead", "rank 2"}},
        {"leave", {"peer left", "rank 2 has left the group after operation #0"}},
    };
    for (auto [act, want] : ends) {
        auto reports = run(3, std::string("scenario=pending meet=0 relay=65536 act=") + act);
        for (size_t r : {0, 1}) {
            EXPECT_EQ(reports[r]["first"], "ok, pending") << all_of(reports[r]);
            EXPECT_EQ(reports[r]["last"].substr(0, 9), want.first) << all_of(reports[r]);
            EXPECT_HAS(reports[r], "error", want.second);
            if (act == std::string("leave")) {
                EXPECT_EQ(
                    reports[r]["shown"],
                    "all_reduce #1 (int8[8], sum) waits for rank 2 (it has made no call yet): 4")
                    << all_of(reports[r]);
            }
        }
    }
}

// A launcher reports the first rank that ends: so that rank has ended before the others are told.
TEST(Pending, EndsNobodyBeforeTheRankThatEnds)
{
    auto reports = run(3, "scenario=pending meet=0 act=end");
    for (size_t r : {0, 1}) {
        EXPECT_HAS(reports[r], "error", "rank 2 has left the group after operation #0");
        EXPECT_GT(std::stoull(reports[r]["told_ns"]), std::stoull(reports[2]["ends_ns"]))
            << all_of(reports[r]);
    }
}

TEST(Timeout, NamesTheRankThatNeverComes)
{
    for (const char *how :
         {"timeout_ms=16000", "later_timeout_ms=4000", "later_timeout_ms=4000 relay=65536"}) {
        auto reports = run(3, std::string("scenario=endless meet=0 act=idle ") + how);
        for (size_t r : {0, 1}) {
            EXPECT_EQ(reports[r]["status"], "timeout") << all_of(reports[r]);
            EXPECT_HAS(reports[r], "error", "waiting for rank 2 (its last call is #15); in rank ");
        }
    }
}

TEST(Timeout, DoesNotCountTheTimeInWhichRanksAreStopped)
{
    stop_all_ranks(3, "endless");
}

TEST(Timeout, DoesNotCountTheTimeInWhichACpuThatWaitsIsStopped)
{
    const std::map<std::string, std::string> texts = {
        {"room", " s waiting for the operation 64 before this one; in rank 0: barrier #65"},
        {"counts", " s waiting for all ranks to call all_to_all; in rank 0: all_to_all #2 ("},
        {"mail", " s waiting for the message 64 before this one; in rank 0: send #65 to rank 1 ("},
    };
    for (const auto &[act, text] : texts) {
        auto reports = stop_all_ranks(2, "cpu_waits act=" + act);
        EXPECT_HAS(reports[0], "error", text);
    }
}

} // namespace
} // namespace shmcoll::test
