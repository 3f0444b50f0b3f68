// SPDX-License-Identifier: BSD-3-Clause
// GPUs that give wrong data, or never finish: how a group of real processes over the stand-in deals
// with them. The stand-in's faults are at P2p in fakedriver/fake.h.
#include "tests/cuda/living.h"

#include <csignal>
#include <cstdlib>
#include <unistd.h>

namespace shmcoll::test
{
namespace
{

constexpr char kTwoGpus[] = "devices=2 ", kOneGpu[] = "p2p_inside=1 ";
// The time-out of making the group: a check of the memory takes a quarter of it.
constexpr int kPatienceMs = kSlow ? 20000 : 8000;

std::string sweep(const std::string &more = "")
{
    return "scenario=sweep few=1 timeout_ms=" + std::to_string(kPatienceMs) + " " + more;
}

// All ranks give the same reason for their route; rank 0 alone logs it, once.
void expect_host(std::vector<Report> &reports, const std::string &pair, const std::string &how)
{
    for (Report &report : reports) {
        EXPECT_EQ(report["end"], "exited 0") << all_of(report);
        if (report["right"] != "yes") { // of a chain; a sweep counts
            EXPECT_EQ(report["wrong"], "0") << all_of(report);
            EXPECT_GT(atoi(report["cases"].c_str()), 100) << all_of(report);
        }
        EXPECT_EQ(report["route"], "host") << all_of(report);
        EXPECT_EQ(report["memory"], "none") << all_of(report);
        EXPECT_EQ(report["reason"], reports[0]["reason"]);
        EXPECT_EQ(report["lines_said"], &report == &reports[0] ? "1" : "") << all_of(report);
    }
    EXPECT_HAS(reports[0], "reason", "file descriptor: " + pair);
    EXPECT_HAS(reports[0], "reason", how);
    EXPECT_HAS(reports[0], "said", "CUDA group \"test\" goes through host memory");
    EXPECT_HAS(reports[0], "said", reports[0]["reason"]);
}

TEST(Probe, GoodPeersShareSlabsAndNothingIsSaid)
{
    for (const char *where : {kTwoGpus, kOneGpu, "devices=4 "})
        for (const char *knobs : {"", "export=800", "delay_us=200", "alone=@/gpu"}) {
            if (kSlow && (where != kTwoGpus || *knobs == 'e')) // a rank needs a second to start
                continue;
            auto reports = run(kSlow ? 2 : 4, sweep(), std::string(where) + knobs);
            for (Report &report : reports) {
                EXPECT_EQ(report["wrong"], "0") << all_of(report);
                EXPECT_EQ(report["route"], "slabs") << all_of(report);
                EXPECT_EQ(report["lines_said"], "") << all_of(report);
            }
        }
}

struct Fault {
    const char *name, *knobs, *settings, *how;
};

const Fault kWrong[] = {
    {"Copies", "p2p=lies", "", "by the copy engine, other bytes than rank"},
    {"Loads", "p2p=loads_lie", "", "by a kernel, other bytes than rank"},
    {"Stale", "p2p=stale", "", "look 2)"},
    {"FarAway", "p2p=wraps", "half=1048576 scenario=chain", "other bytes than rank"},
};

class Wrong : public testing::TestWithParam<Fault>
{
};

TEST_P(Wrong, DataOfPeersIsSeenAndTheGroupGoesThroughHostMemory)
{
    const Fault &fault = GetParam();
    for (size_t world : kSlow ? std::vector<size_t>{2} : std::vector<size_t>{2, 4})
        for (const char *where : {kTwoGpus, kOneGpu}) {
            auto reports = run(world, sweep(fault.settings), std::string(where) + fault.knobs);
            expect_host(reports, "rank 0 reads", fault.how);
            EXPECT_HAS(reports[0], "reason", "than rank 1 has");
            EXPECT_HAS(reports[0], "reason", "; legacy handle: rank 0 reads");
        }
}

TEST_P(Wrong, DataThatOneRankSeesIsEnoughForAll)
{
    const Fault &fault = GetParam();
    const std::string knobs = std::string(kOneGpu) + fault.knobs, how = sweep(fault.settings);
    auto reports = run_processes(CUDA_COMM_RANK, {{kOneGpu, how}, {kOneGpu, how}, {knobs, how}});
    expect_host(reports, "rank 2 reads", fault.how);
}

INSTANTIATE_TEST_SUITE_P(Of, Wrong, testing::ValuesIn(kWrong),
                         [](const auto &fault) { return fault.param.name; });

TEST(Probe, SlabsThatAreDemandedAndWrongAreAnError)
{
    auto reports = run(2, sweep("route=slabs"), std::string(kTwoGpus) + "p2p=lies");
    for (Report &report : reports) {
        EXPECT_EQ(report["made"], "unsupported") << all_of(report);
        EXPECT_HAS(report, "error", "rank 0 reads, by the copy engine, other bytes than rank 1");
    }
}

class Endless : public testing::TestWithParam<Fault>
{
};

// The fault is one rank's: all others must neither wait for it nor choose another route.
TEST_P(Endless, ReadingIsNotWaitedFor)
{
    const Fault &fault = GetParam();
    const std::string how = sweep("free=0");
    for (const char *where : {kTwoGpus, kOneGpu}) {
        const std::string knobs = std::string(where) + fault.knobs;
        auto reports = run_processes(CUDA_COMM_RANK, {{where, how}, {knobs, how}, {where, how}});
        expect_host(reports, "rank 1: reading rank 0's memory", fault.how);
        for (Report &report : reports) {
            EXPECT_GE(atoi(report["make_ms"].c_str()), kPatienceMs / 4 - 500);
            EXPECT_LT(atoi(report["make_ms"].c_str()), kPatienceMs * 3 / 4) << all_of(report);
            EXPECT_EQ(report["reason"].find("legacy"), std::string::npos) << all_of(report);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Of, Endless,
    testing::Values(Fault{"Copies", "p2p=hangs", "", "by the copy engine does not end"},
                    Fault{"Loads", "p2p=loads_hang", "", "by a kernel does not end"}),
    [](const auto &fault) { return fault.param.name; });

// ---- host memory, which every route needs ----

TEST(Probe, HostMemoryThatIsReadWrongIsAnErrorThatNamesThePair)
{
    for (const char *route : {"", "route=host"}) {
        auto reports = run_processes(
            CUDA_COMM_RANK, {{"", sweep(route)}, {"", sweep(route)}, {"host=lies", sweep(route)}});
        for (Report &report : reports) {
            EXPECT_EQ(report["end"], "exited 0") << all_of(report);
            EXPECT_EQ(report["made"], "system error") << all_of(report);
            EXPECT_EQ(report["error"], reports[0]["error"]);
            EXPECT_HAS(report, "error", "the GPUs do not use host memory right: rank 2 reads");
            EXPECT_HAS(report, "error", "other bytes than rank 0 has written");
        }
    }
}

TEST(Probe, HostMemoryThatIsReadForEverIsAnErrorInTime)
{
    const std::string how = sweep("route=host free=0");
    auto reports = run_processes(CUDA_COMM_RANK, {{"host=hangs", how}, {"", how}});
    for (Report &report : reports) {
        EXPECT_EQ(report["end"], "exited 0") << all_of(report);
        EXPECT_EQ(report["made"], "system error") << all_of(report);
        EXPECT_HAS(report, "error", "rank 0: reading rank 0's memory by the copy engine");
        EXPECT_LT(atoi(report["make_ms"].c_str()), kPatienceMs * 3 / 4) << all_of(report);
    }
}

// ---- ranks that end during the check ----

constexpr int kMidwayMs = kSlow ? 2500 : 1000;

// The check of rank 1 takes five seconds. Rank 1 dies before they are over, and no socket is closed by
// that: the others learn it from the CPU group, which they ask while they wait.
TEST(Probe, ARankThatDiesInItIsNamedAtOnce)
{
    const std::string how = "meet=0 timeout_ms=60000";
    auto reports = run_processes(CUDA_COMM_RANK, {{kOneGpu, how},
                                                  {std::string(kOneGpu) + "p2p=hangs",
                                                   how + " vanish_ms=" + std::to_string(kMidwayMs)},
                                                  {kOneGpu, how}});
    kill(static_cast<pid_t>(atoi(reports[1]["child"].c_str())), SIGKILL);
    EXPECT_EQ(reports[1]["end"], "killed 9") << all_of(reports[1]);
    EXPECT_EQ(reports[1]["made"], "") << all_of(reports[1]);
    for (size_t r : {0, 2}) {
        EXPECT_EQ(reports[r]["end"], "exited 0") << all_of(reports[r]);
        EXPECT_EQ(reports[r]["made"], "peer dead") << all_of(reports[r]);
        EXPECT_HAS(reports[r], "error", "rank 1");
        EXPECT_LT(ms_between(reports[1]["vanished_ns"], reports[r]["make_ended_ns"]), 2000)
            << all_of(reports[r]);
    }
}

TEST(Probe, ARankThatStopsInItIsNamedAtTheDeadline)
{
    Living living({{kOneGpu, "meet=0 timeout_ms=6000"},
                   {std::string(kOneGpu) + "p2p=hangs", "meet=0 timeout_ms=6000"}});
    ASSERT_TRUE(living.await("joined="));
    usleep(kMidwayMs * 1000 / 2);
    kill(living.pids[1], SIGSTOP);
    EXPECT_TRUE(living.await("leaked=", 0));
    kill(living.pids[1], SIGKILL);
    auto reports = living.end(20);
    EXPECT_EQ(reports[0]["made"], "timeout") << all_of(reports[0]);
    EXPECT_HAS(reports[0], "error", "rank 1");
    EXPECT_EQ(reports[1]["made"], "") << all_of(reports[1]);
}

} // namespace
} // namespace shmcoll::test
