// SPDX-License-Identifier: BSD-3-Clause
// Slabs between real processes: which kind works, what falls back and why, ranks that die, leaks.
#include "tests/cuda/processes.h"

namespace shmcoll::test
{
namespace
{

// All ranks share by this kind, see all ranks' bytes, and leave nothing open except a legacy slab,
// which must live as long as its process.
void expect_shared(std::vector<Report> &reports, const std::string &kind)
{
    for (Report &report : reports) {
        EXPECT_EQ(report["end"], "exited 0") << all_of(report);
        EXPECT_EQ(report["kind"], kind) << all_of(report);
        EXPECT_EQ(report["right"], std::to_string(reports.size())) << all_of(report);
        EXPECT_EQ(report["leaked"], kind == "legacy handle" ? "1" : "0") << all_of(report);
        EXPECT_EQ(report["strangers"], "0") << all_of(report);
    }
}

TEST(Share, GoesByFileDescriptors)
{
    for (size_t world : {1, 2, 3, 6}) {
        auto reports = run_processes(SHARE_RANK, std::vector<RankOptions>(world));
        expect_shared(reports, "file descriptor");
        for (Report &report : reports)
            EXPECT_EQ(report["fd"] + report["legacy"], "");
    }
}

// The effect of each knob of one rank on all ranks, and their messages.
void expect_legacy_because(const std::string &knobs, const std::string &reason)
{
    auto reports = run_processes(SHARE_RANK, {{}, {knobs}, {}});
    expect_shared(reports, "legacy handle");
    for (Report &report : reports)
        EXPECT_EQ(report["fd"], reports[0]["fd"]);
    EXPECT_HAS(reports[0], "fd", "rank 1: ");
    EXPECT_HAS(reports[0], "fd", reason);
}

TEST(Share, FallsBackTogetherWhenOneRankMayNotExport)
{
    expect_legacy_because("export=800",
                          "cuMemExportToShareableHandle: CUDA_ERROR_NOT_PERMITTED (800)");
}

TEST(Share, FallsBackTogetherWhenOneRankMayNotImport)
{
    expect_legacy_because("import=801",
                          "cuMemImportFromShareableHandle: CUDA_ERROR_NOT_SUPPORTED (801)");
}

TEST(Share, FallsBackTogetherWhenOneDriverLacksAFunction)
{
    expect_legacy_because("hide=cuMemMap", "exports no memory as a file descriptor");
    expect_legacy_because("vmm=0", "exports no memory as a file descriptor");
}

void expect_none(std::vector<Report> &reports, const std::string &fd, const std::string &legacy)
{
    for (Report &report : reports) {
        EXPECT_EQ(report["end"], "exited 0") << all_of(report);
        EXPECT_EQ(report["kind"], "none") << all_of(report);
        EXPECT_HAS(report, "fd", fd);
        EXPECT_HAS(report, "legacy", legacy);
    }
}

TEST(Share, GoesOnWithoutWhenNoKindHolds)
{
    auto reports = run_processes(SHARE_RANK, {{"export=800"}, {"open=205"}});
    expect_none(reports, "rank 0: cuMemExportToShareableHandle",
                "rank 1: cuIpcOpenMemHandle: CUDA_ERROR_MAP_FAILED");
}

TEST(Share, SaysWhoIsOutOfMemory)
{
    auto reports = run_processes(SHARE_RANK, {{}, {"memory_mib=1"}});
    expect_none(reports, "rank 1: a slab of 4194304 bytes: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY",
                "rank 1: a slab of 3145728 bytes: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY");
    for (Report &report : reports)
        EXPECT_EQ(report["leaked"], &report == &reports[0] ? "1" : "0") << all_of(report);
}

TEST(Share, DoesNotCrossGpusWithoutPeers)
{
    auto reports = run_processes(SHARE_RANK, {{"devices=2 p2p=0"}, {"devices=2 p2p=0"}});
    expect_none(reports, "may not use the memory: cuMemSetAccess: CUDA_ERROR_INVALID_DEVICE",
                "cuIpcOpenMemHandle: CUDA_ERROR_INVALID_DEVICE");
    auto peers = run_processes(SHARE_RANK, {{"devices=2"}, {"devices=2"}});
    expect_shared(peers, "file descriptor");
}

TEST(Share, NamesTheRankThatDiedBeforeItsSlab)
{
    auto reports = run_processes(SHARE_RANK, {{"", "soon"}, {"", "die-before"}, {"", "soon"}});
    EXPECT_EQ(reports[1]["end"], "killed 9");
    // A rank that waits for its connection waits until the end. A rank that connects finds no listener, or
    // reached its queue and then finds it closed.
    EXPECT_HAS(reports[0], "failed", "no connection with rank 1 ");
    EXPECT_TRUE(reports[2]["failed"].find("rank 1") != std::string::npos ||
                reports[2]["status"].find("rank 1") != std::string::npos)
        << all_of(reports[2]);
}

// No rank uses it: the memory after its end is not theirs.
TEST(Share, RefusesASlabThatIsShorterThanTheOthers)
{
    auto reports = run_processes(SHARE_RANK, {{}, {"", "short"}, {}});
    for (Report &report : reports) {
        EXPECT_EQ(report["end"], "exited 0") << all_of(report);
        EXPECT_EQ(report["kind"], "none") << all_of(report);
        EXPECT_HAS(report, "fd", "rank 1's slab has 2097152 bytes, not 3145728");
        EXPECT_HAS(report, "legacy", "rank 1's slab has ");
    }
}

TEST(Share, NamesTheRankThatDiedInTheRound)
{
    auto reports = run_processes(SHARE_RANK, {{}, {"", "die-in-round"}, {}});
    EXPECT_EQ(reports[1]["end"], "killed 9");
    for (size_t r : {0, 2}) {
        EXPECT_EQ(reports[r]["end"], "exited 0") << all_of(reports[r]);
        EXPECT_HAS(reports[r], "status", "rank 1 closed its control socket");
        EXPECT_EQ(reports[r]["leaked"], "0") << all_of(reports[r]);
    }
}

// Imported memory also belongs to the importer: its maker's death takes nothing away.
TEST(Share, ReadsWhatTheDeadHaveWritten)
{
    auto reports = run_processes(SHARE_RANK, {{}, {"", "die-after"}, {}});
    EXPECT_EQ(reports[1]["end"], "killed 9");
    for (size_t r : {0, 2}) {
        EXPECT_EQ(reports[r]["end"], "exited 0") << all_of(reports[r]);
        EXPECT_EQ(reports[r]["right"], "3") << all_of(reports[r]);
        EXPECT_EQ(reports[r]["leaked"], "0") << all_of(reports[r]);
    }
}

// ---- streams of different processes ----

void expect_all_rounds(const std::string &knobs)
{
    auto reports = run_processes(SHARE_RANK, std::vector<RankOptions>(3, {knobs, "hand-over"}));
    for (Report &report : reports)
        EXPECT_EQ(report["rounds"], "20") << knobs << "\n" << all_of(report);
}

TEST(HandOver, StreamsOfAllRanksWaitForOneAnother)
{
    for (const char *knobs : {"", "delay_us=500", "export=800"})
        expect_all_rounds(knobs);
}

TEST(HandOver, WorksWhereOnlyStreamWritesWake)
{
    Folder folder;
    expect_all_rounds("only_writes_wake=1 delay_us=200 state=" + folder.path + "/writes");
}

// This would make an unkillable process: a stream that waits for a dead one.
TEST(HandOver, TheDeadLeaveNoStreamWaiting)
{
    Folder folder;
    const std::string state = " state=" + folder.path + "/writes";
    for (const std::string &knobs : {std::string(), "delay_us=300" + state,
                                     "only_writes_wake=1" + state, std::string("export=800")}) {
        auto reports = run_processes(
            SHARE_RANK, {{knobs, "hand-over"}, {knobs, "die-handing"}, {knobs, "hand-over"}});
        EXPECT_EQ(reports[1]["end"], "killed 9");
        for (size_t r : {0, 2}) {
            EXPECT_EQ(reports[r]["end"], "exited 0") << knobs << "\n" << all_of(reports[r]);
            EXPECT_EQ(reports[r]["before"], "waiting") << knobs << "\n" << all_of(reports[r]);
            EXPECT_EQ(reports[r]["refused"], "1") << knobs << "\n" << all_of(reports[r]);
        }
    }
}

} // namespace
} // namespace shmcoll::test
