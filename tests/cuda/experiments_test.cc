// SPDX-License-Identifier: BSD-3-Clause
// benchmarks/gpu on the stand-in: every experiment runs and ends, reports what the stand-in is known to
// do, and leaves no process running, whichever process is killed.
#include "tests/cuda/processes.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace
{

using shmcoll::test::Folder;

struct Ran {
    int status = -1; // exit code
    std::string text;
    std::vector<std::string> lines;
};

// A run of the program over the stand-in, in a process group of its own.
class Group
{
  public:
    Group(const std::string &knobs, std::vector<std::string> words)
        : words_(std::move(words)), out_(folder.path + "/out")
    {
        pid = fork();
        if (pid != 0)
            return;
        setpgid(0, 0);
        setenv("FAKE_CUDA", knobs.c_str(), 1);
        std::vector<char *> argv;
        for (auto &word : words_)
            argv.push_back(word.data());
        argv.push_back(nullptr);
        if (freopen(out_.c_str(), "w", stdout) && dup2(1, 2) == 2)
            execv(GPU_EXPERIMENTS, argv.data());
        _exit(127);
    }

    Ran end()
    {
        int status = 0;
        Ran ran;
        waitpid(pid, &status, 0);
        ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        std::ifstream in(out_);
        for (std::string line; std::getline(in, line);) {
            ran.lines.push_back(line);
            ran.text += line + "\n";
        }
        return ran;
    }

    // Are all processes of the group gone within that time?
    bool gone(int ms) const
    {
        for (; ms > 0 && kill(-pid, 0) == 0; ms--)
            usleep(1000);
        return kill(-pid, 0) != 0;
    }

    Folder folder;
    pid_t pid = -1;

  private:
    std::vector<std::string> words_;
    std::string out_;
};

// How long an experiment waits for what may never come: short only where something does not come.
std::vector<std::string> command(const std::string &experiment, const std::string &ranks = "2",
                                 const std::string &patience_ms = "3000")
{
    return {GPU_EXPERIMENTS, "--driver",  FAKE_CUDA_LIBRARY, "--small", "--ranks", ranks,
            "--patience",    patience_ms, "--limit",         "30",      experiment};
}

Ran run(const std::string &experiment, const std::string &knobs = "",
        const std::string &ranks = "2", const std::string &patience_ms = "3000")
{
    Group one(knobs, command(experiment, ranks, patience_ms));
    Ran ran = one.end();
    EXPECT_TRUE(one.gone(1)) << "a process is left";
    EXPECT_EQ(ran.status, 0) << ran.text;
    return ran;
}

// The number of lines that hold all of these.
int count(const Ran &ran, const std::vector<std::string> &parts)
{
    int found = 0;
    for (const std::string &line : ran.lines) {
        bool all = true;
        for (const std::string &part : parts)
            all = all && line.find(part) != line.npos;
        found += all;
    }
    return found;
}

// Waits until the program has printed so many lines.
void await_lines(const Group &one, int wanted)
{
    for (int i = 0; i < 30000; i++) {
        std::ifstream in(one.folder.path + "/out");
        int lines = 0;
        for (std::string line; std::getline(in, line);)
            lines++;
        if (lines >= wanted)
            return;
        usleep(1000);
    }
}

TEST(GpuExperiments, InfoNamesTheGpu)
{
    const Ran ran = run("info");
    EXPECT_EQ(count(ran, {"gpu=\"Stand-in GPU\"", "driver=13000"}), 1) << ran.text;
}

TEST(GpuExperiments, SharesByBothKindsWithRightData)
{
    const Ran ran = run("share", "", "2,4");
    for (const char *ranks : {"ranks=2", "ranks=4"}) {
        EXPECT_EQ(count(ran, {ranks, "kind=\"file descriptor\"", "outcome=right"}), 1) << ran.text;
        EXPECT_EQ(count(ran, {ranks, "kind=\"legacy handle\"", "outcome=right"}), 1) << ran.text;
        EXPECT_EQ(count(ran, {ranks, "chosen=\"file descriptor\""}), 1) << ran.text;
    }
}

TEST(GpuExperiments, RefusalIsAResultWithItsReason)
{
    const Ran ran = run("share", "export=800");
    EXPECT_EQ(count(ran, {"kind=\"file descriptor\"", "outcome=refused", "NOT_PERMITTED"}), 1)
        << ran.text;
    EXPECT_EQ(count(ran, {"kind=\"legacy handle\"", "outcome=right"}), 1) << ran.text;
    EXPECT_EQ(count(ran, {"chosen=\"legacy handle\""}), 1) << ran.text;
}

// Copies onto words that are waited for are the experiment: in one process a race.
#ifndef __SANITIZE_THREAD__

// 3 words x 4 ways that reach all of them x 2 actors, and the CPU's store to host memory.
TEST(GpuExperiments, EverythingWakesTheStandIn)
{
    const Ran ran = run("release", "alias=1 delay_us=200");
    EXPECT_EQ(count(ran, {"outcome=wakes", " us="}), 26) << ran.text;
    EXPECT_EQ(count(ran, {"word=host", "release=\"cpu store\"", "outcome=wakes"}), 2) << ran.text;
    EXPECT_EQ(count(ran, {"release=\"kernel store\"", "not possible", "INVALID_IMAGE"}), 6);
    EXPECT_EQ(count(ran, {"release=\"cpu store\"", "not possible"}), 4) << ran.text;
    EXPECT_EQ(ran.lines.size(), 36u);
}

TEST(GpuExperiments, OnlyStreamWritesWakeWhereItIsSo)
{
    Folder folder;
    const Ran ran =
        run("release", "only_writes_wake=1 state=" + folder.path + "/state", "2", "500");
    EXPECT_EQ(count(ran, {"release=\"stream write\"", "outcome=wakes"}), 6) << ran.text;
    EXPECT_EQ(count(ran, {"outcome=wakes"}), 6) << ran.text;
    EXPECT_EQ(count(ran, {"release=copy", "only a later stream write wakes"}), 6) << ran.text;
    EXPECT_EQ(count(ran, {"release=\"copy from host\"", "only a later stream write"}), 6);
    EXPECT_EQ(count(ran, {"release=fill", "only a later stream write wakes"}), 6) << ran.text;
    EXPECT_EQ(count(ran, {"release=\"cpu store\"", "word=host", "only a later"}), 2) << ran.text;
}

#endif

TEST(GpuExperiments, TokensGoRoundWhereContextsTakeTurns)
{
    Folder folder;
    const Ran ran = run("handoff", "alone=" + folder.path + "/alone", "2,4");
    for (const char *ranks : {"ranks=2", "ranks=4"})
        for (const char *words : {"words=gpu", "words=host "})
            for (const char *busy : {"busy=no", "busy=\"two with fills\""})
                EXPECT_EQ(count(ran, {ranks, words, busy, "rounds=16", "hop_us="}), 1) << ran.text;
    EXPECT_EQ(count(ran, {"answered by a cpu", "rounds=16"}), 1) << ran.text;
}

// The CPU's store wakes no stream here: the token does not come back, and poison ends all. A wait
// that begins after the store ends at once, so how far the token came is left to the machine.
TEST(GpuExperiments, TokenThatIsLostFailsAndEnds)
{
    Folder folder;
    Group two("only_writes_wake=1 state=" + folder.path + "/state", command("handoff", "2", "200"));
    const Ran ran = two.end();
    EXPECT_EQ(ran.status, 1) << ran.text;
    EXPECT_EQ(count(ran, {"hop_us="}), 4) << ran.text;
    EXPECT_EQ(count(ran, {"failed=", "the token does not come back: ", " of 8"}), 1) << ran.text;
    EXPECT_TRUE(two.gone(1));
}

TEST(GpuExperiments, OperationsGoThroughHostMemory)
{
    const Ran ran = run("relay", "", "2,4");
    for (const char *ranks : {"ranks=2", "ranks=4"})
        for (const char *back : {"back_by=cuMemcpyAsync ", "back_by=cuMemcpy2DAsync ",
                                 "another stream", "back_by=nothing"})
            EXPECT_EQ(count(ran, {ranks, back, "back_us="}), 2) << ran.text; // one per size
}

TEST(GpuExperiments, CopiesAndRegistrationsEnd)
{
    const Ran copies = run("copies", "", "2,4");
    EXPECT_EQ(count(copies, {"at_once=one", "gb_s="}), 15) << copies.text;
    EXPECT_EQ(count(copies, {"ranks=4", "at_once=all", "gb_s="}), 5) << copies.text;
    const Ran registered = run("register", "alias=1", "2,4");
    EXPECT_EQ(count(registered, {"s_per_gib="}), 10) << registered.text;
    EXPECT_EQ(count(registered, {"ranks=4", "outcome=right"}), 1) << registered.text;
}

TEST(GpuExperiments, KilledProcessesAreOutlived)
{
    const Ran ran = run("kill");
    EXPECT_EQ(count(ran, {"exporter, file descriptor", "mapping=lives", "ended by poison"}), 1)
        << ran.text;
    EXPECT_EQ(count(ran, {"exporter, legacy handle", "mapping=lives", "ended by poison"}), 1);
    EXPECT_EQ(count(ran, {"killed=waiter", "went at once"}), 1) << ran.text;
}

// Poison is written until the wait ends; here some of it has no effect and comes after that end. The call
// that unmaps lasts until the next poison is due.
TEST(GpuExperiments, MemoryGoesBehindWhatIsOnItsWay)
{
    const Ran ran = run("kill", "slow_us=30000 unmap_us=25000");
    EXPECT_EQ(count(ran, {"exporter, file descriptor", "mapping=lives", "ended by poison"}), 1)
        << ran.text;
}

TEST(GpuExperiments, GraphsAreReplayedAndWaitAgain)
{
    EXPECT_EQ(count(run("graph"), {"outcome=replayed", "replay_us="}), 1);
}

TEST(GpuExperiments, ErrorsHaveNames)
{
    Group none("", {GPU_EXPERIMENTS, "--driver", "/no/libcuda.so", "info"});
    const Ran ran = none.end();
    EXPECT_EQ(ran.status, 1);
    EXPECT_EQ(count(ran, {"failed=\"rank 0: no NVIDIA driver on this machine"}), 1) << ran.text;
    const std::vector<std::vector<std::string>> bad = {{},
                                                       {"--ranks", "1", "info"},
                                                       {"--ranks", "2,", "info"},
                                                       {"--limit", "x", "info"},
                                                       {"--nothing", "info"},
                                                       {"nothing"}};
    for (std::vector<std::string> words : bad) {
        words.insert(words.begin(), GPU_EXPERIMENTS);
        EXPECT_EQ(Group("", words).end().status, 2);
    }
}

TEST(GpuExperiments, LinesAreJsonWhenAsked)
{
    auto words = command("info");
    words.insert(words.begin() + 1, "--json");
    const Ran ran = Group("", words).end();
    EXPECT_EQ(
        ran.text.rfind("{\"experiment\": \"info\", \"ranks\": 1, \"gpu\": \"Stand-in GPU\"", 0), 0u)
        << ran.text;
    EXPECT_EQ(ran.text.substr(ran.text.size() - 3), "\"}\n");
}

// ---- nothing is left running ----

// After four lines a stream waits for what never comes, for up to ten minutes.
constexpr int kLinesBefore = 4;
std::vector<std::string> stuck(const std::string &limit)
{
    return {GPU_EXPERIMENTS, "--driver", FAKE_CUDA_LIBRARY, "--patience", "60000",  "--limit",
            limit,           "--small",  "--ranks",         "2",          "handoff"};
}

TEST(GpuExperiments, LimitEndsAPendingWaitByPoison)
{
    Folder folder;
    Group one("only_writes_wake=1 state=" + folder.path + "/state", stuck("4"));
    const Ran ran = one.end();
    EXPECT_EQ(ran.status, 1);
    EXPECT_GE(count(ran, {"failed=", "the time of the experiment is over"}), 1) << ran.text;
    EXPECT_EQ(count(ran, {"CANNOT BE ENDED"}) + count(ran, {"had to be killed"}) +
                  count(ran, {"poisoned as everything was"}),
              0)
        << ran.text;
    EXPECT_TRUE(one.gone(1));
}

TEST(GpuExperiments, SigtermEndsAllInOrder)
{
    Folder folder;
    Group one("only_writes_wake=1 state=" + folder.path + "/state", stuck("60"));
    await_lines(one, kLinesBefore);
    usleep(500 * 1000); // most likely the stream waits now; it must end either way
    kill(-one.pid, SIGTERM);
    const Ran ran = one.end();
    EXPECT_EQ(ran.status, 1) << ran.text;
    EXPECT_GE(count(ran, {"failed=\"stopped from outside\""}), 1) << ran.text;
    EXPECT_EQ(count(ran, {"poisoned as everything was"}), 0) << ran.text;
    EXPECT_TRUE(one.gone(1));
}

TEST(GpuExperiments, RanksEndWhenTheirCoordinatorIsKilled)
{
    Folder folder;
    Group one("only_writes_wake=1 state=" + folder.path + "/state", stuck("60"));
    await_lines(one, kLinesBefore);
    usleep(500 * 1000); // most likely the stream waits now
    kill(one.pid, SIGKILL);
    EXPECT_EQ(one.end().status, -SIGKILL);
    EXPECT_TRUE(one.gone(5000)) << "a rank lives on";
}

} // namespace
