// SPDX-License-Identifier: BSD-3-Clause
// Slabs between real processes: which kind holds, what falls back and why, who dies, what leaks.
#include <array>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <spawn.h>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern char **environ;

namespace shmcoll::test
{
namespace
{

// What one rank printed, by key; "end" is "exited 0", "killed 9", ...
using Report = std::map<std::string, std::string>;

struct RankOptions {
    std::string knobs = {};
    std::string how = "share";
};

class Folder
{
  public:
    Folder()
    {
        char name[] = "/tmp/share_test.XXXXXX";
        EXPECT_NE(mkdtemp(name), nullptr);
        path = name;
    }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string path;
};

pid_t start(const std::string &folder, size_t rank, size_t world, const RankOptions &options)
{
    std::vector<std::string> variables = {"FAKE_CUDA=" + options.knobs};
    for (char **v = environ; *v != nullptr; v++)
        if (strncmp(*v, "FAKE_CUDA=", 10) != 0)
            variables.push_back(*v);
    std::vector<char *> env;
    for (auto &v : variables)
        env.push_back(v.data());
    env.push_back(nullptr);
    std::string program = SHARE_RANK, in = folder, number = std::to_string(rank);
    std::string size = std::to_string(world), how = options.how;
    std::array<char *, 6> argv = {program.data(), in.data(),  number.data(),
                                  size.data(),    how.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const std::string out = folder + "/out." + number;
    posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT, 0600);
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, SHARE_RANK, &actions, nullptr, argv.data(), env.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

Report read_report(const std::string &path, int status)
{
    Report report;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
        const size_t equals = line.find('=');
        report[line.substr(0, equals)] = line.substr(equals + 1);
    }
    std::ostringstream end;
    if (WIFSIGNALED(status))
        end << "killed " << WTERMSIG(status);
    else
        end << "exited " << WEXITSTATUS(status);
    report["end"] = end.str();
    return report;
}

std::vector<Report> run(const std::vector<RankOptions> &ranks)
{
    Folder folder;
    std::vector<pid_t> pids;
    std::vector<Report> reports;
    for (size_t r = 0; r < ranks.size(); r++)
        pids.push_back(start(folder.path, r, ranks.size(), ranks[r]));
    for (size_t r = 0; r < ranks.size(); r++) {
        int status = 0;
        EXPECT_EQ(waitpid(pids[r], &status, 0), pids[r]);
        reports.push_back(read_report(folder.path + "/out." + std::to_string(r), status));
    }
    return reports;
}

std::string all_of(const Report &report)
{
    std::string text;
    for (auto &[key, value] : report)
        text += key + "=" + value + "\n";
    return text;
}

#define EXPECT_HAS(report, key, part)                      \
    EXPECT_NE((report)[key].find(part), std::string::npos) \
        << key << " lacks " << (part) << " in\n"           \
        << all_of(report)

// All ranks share by this kind, see everybody's bytes, and leave nothing open but a legacy slab,
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
        auto reports = run(std::vector<RankOptions>(world));
        expect_shared(reports, "file descriptor");
        for (Report &report : reports)
            EXPECT_EQ(report["fd"] + report["legacy"], "");
    }
}

// What each knob of one rank makes all ranks do, and say.
void expect_legacy_because(const std::string &knobs, const std::string &reason)
{
    auto reports = run({{}, {knobs}, {}});
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
    auto reports = run({{"export=800"}, {"open=205"}});
    expect_none(reports, "rank 0: cuMemExportToShareableHandle",
                "rank 1: cuIpcOpenMemHandle: CUDA_ERROR_MAP_FAILED");
}

TEST(Share, SaysWhoIsOutOfMemory)
{
    auto reports = run({{}, {"memory_mib=1"}});
    expect_none(reports, "rank 1: a slab of 4194304 bytes: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY",
                "rank 1: a slab of 3145728 bytes: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY");
    for (Report &report : reports)
        EXPECT_EQ(report["leaked"], &report == &reports[0] ? "1" : "0") << all_of(report);
}

TEST(Share, DoesNotCrossGpusWithoutPeers)
{
    auto reports = run({{"devices=2 p2p=0"}, {"devices=2 p2p=0"}});
    expect_none(reports, "may not use the memory: cuMemSetAccess: CUDA_ERROR_INVALID_DEVICE",
                "cuIpcOpenMemHandle: CUDA_ERROR_INVALID_DEVICE");
    auto peers = run({{"devices=2"}, {"devices=2"}});
    expect_shared(peers, "file descriptor");
}

TEST(Share, NamesTheRankThatDiedBeforeItsSlab)
{
    auto reports = run({{"", "soon"}, {"", "die-before"}, {"", "soon"}});
    EXPECT_EQ(reports[1]["end"], "killed 9");
    // Who waits for its connection does so until the end; who connects finds nobody, or got through
    // to its queue and then finds the end of it.
    EXPECT_HAS(reports[0], "failed", "no connection with rank 1 ");
    EXPECT_TRUE(reports[2]["failed"].find("rank 1") != std::string::npos ||
                reports[2]["status"].find("rank 1") != std::string::npos)
        << all_of(reports[2]);
}

TEST(Share, NamesTheRankThatDiedInTheRound)
{
    auto reports = run({{}, {"", "die-in-round"}, {}});
    EXPECT_EQ(reports[1]["end"], "killed 9");
    for (size_t r : {0, 2}) {
        EXPECT_EQ(reports[r]["end"], "exited 0") << all_of(reports[r]);
        EXPECT_HAS(reports[r], "status", "rank 1 closed its control socket");
        EXPECT_EQ(reports[r]["leaked"], "0") << all_of(reports[r]);
    }
}

// Imported memory is the importer's, too: a dead maker takes nothing away.
TEST(Share, ReadsWhatTheDeadHaveWritten)
{
    auto reports = run({{}, {"", "die-after"}, {}});
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
    auto reports = run(std::vector<RankOptions>(3, {knobs, "hand-over"}));
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

// What an unkillable process would be made of: a stream that waits for the dead.
TEST(HandOver, TheDeadLeaveNoStreamWaiting)
{
    Folder folder;
    const std::string state = " state=" + folder.path + "/writes";
    for (const std::string &knobs : {std::string(), "delay_us=300" + state,
                                     "only_writes_wake=1" + state, std::string("export=800")}) {
        auto reports = run({{knobs, "hand-over"}, {knobs, "die-handing"}, {knobs, "hand-over"}});
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
