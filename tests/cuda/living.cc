// SPDX-License-Identifier: BSD-3-Clause
#include "tests/cuda/living.h"

extern "C" {
#include "shm/base/clock.h"
}

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sys/wait.h>
#include <unistd.h>

namespace shmcoll::test
{

std::vector<Report> run(size_t world, const std::string &settings, const std::string &knobs)
{
    return run_processes(CUDA_COMM_RANK, std::vector<RankOptions>(world, {knobs, settings}));
}

std::vector<std::string> shared_files()
{
    std::vector<std::string> names;
    for (auto &entry : std::filesystem::directory_iterator("/dev/shm"))
        if (entry.path().filename().string().find("shmcoll") != std::string::npos)
            names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

std::string leaks_of(Report &report)
{
    const bool shown = report["memory"] == "legacy handle" ||
                       report["reason"].find("; legacy handle") != std::string::npos;
    return shown ? "1" : "0";
}

void expect_key(std::vector<Report> &reports, const std::string &key, const std::string &value)
{
    for (Report &report : reports) {
        EXPECT_EQ(report["end"], "exited 0") << all_of(report);
        EXPECT_EQ(report[key], value) << all_of(report);
        EXPECT_EQ(report["leaked"], leaks_of(report)) << all_of(report);
    }
}

void expect_said_late(Report &report)
{
    const std::string &said = report["said"];
    const size_t at = said.find("has waited ");
    ASSERT_NE(at, std::string::npos) << all_of(report);
    char *end;
    EXPECT_GE(strtod(said.c_str() + at + strlen("has waited "), &end), 5.0) << said;
    const std::string whom(end);
    EXPECT_TRUE(whom.find(" s for rank ") == 0 || whom.find(" s for this rank's GPU: ") == 0)
        << said;
}

Living::Living(size_t world, const std::string &settings, const std::string &knobs)
    : Living(std::vector<RankOptions>(world, {knobs, settings}))
{
}

Living::Living(const std::vector<RankOptions> &ranks)
{
    for (size_t r = 0; r < ranks.size(); r++)
        pids.push_back(start_process(CUDA_COMM_RANK, folder.path, r, ranks.size(), ranks[r]));
}

bool Living::await(const std::string &line)
{
    for (size_t r = 0; r < pids.size(); r++)
        if (!await(line, r))
            return false;
    return true;
}

bool Living::await(const std::string &line, size_t r)
{
    for (int tries = 0; text_of(r).find(line) == std::string::npos; tries++) {
        if (tries > 30000)
            return false;
        usleep(1000);
    }
    return true;
}

std::string Living::text_of(size_t r)
{
    std::ifstream in(folder.path + "/out." + std::to_string(r));
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<Report> Living::end(int patience_s)
{
    const uint64_t deadline = shc_clock_ns() + static_cast<uint64_t>(patience_s) * SHC_NS_PER_S;
    std::vector<Report> reports;
    for (size_t r = 0; r < pids.size(); r++) {
        int status = 0;
        while (waitpid(pids[r], &status, WNOHANG) == 0) {
            if (shc_clock_ns() >= deadline)
                kill(pids[r], SIGKILL);
            usleep(1000);
        }
        reports.push_back(read_report(folder.path + "/out." + std::to_string(r), status));
    }
    return reports;
}

int ms_between(const std::string &from_ns, const std::string &to_ns)
{
    const uint64_t from = strtoull(from_ns.c_str(), nullptr, 10);
    const uint64_t to = strtoull(to_ns.c_str(), nullptr, 10);
    return to > from ? static_cast<int>((to - from) / SHC_NS_PER_MS) : 0;
}

int kills()
{
    const char *text = getenv("SHMCOLL_CUDA_KILLS");
    return text != nullptr ? atoi(text) : kSlow ? 6 : 12;
}

const std::vector<const char *> kKnobs = {
    "",           "delay_us=300", "only_writes_wake=1 state=@/writes", "alone=@/gpu",
    "export=800", "slow_us=100"};

namespace
{

void print_spread(const char *what, std::vector<int> &ms)
{
    std::sort(ms.begin(), ms.end());
    if (!ms.empty())
        printf("%s: median %d ms, 90%% %d ms, most %d ms of %zu\n", what, ms[ms.size() / 2],
               ms[ms.size() * 9 / 10], ms.back(), ms.size());
}

// The result of one kill: how the survivors ended.
void expect_survivors(std::vector<Report> &reports, size_t victim, uint64_t killed_ns,
                      std::vector<int> &ms)
{
    for (size_t r = 0; r < reports.size(); r++) {
        Report &report = reports[r];
        if (r == victim) {
            EXPECT_EQ(report["end"], "killed 9");
            continue;
        }
        EXPECT_EQ(report["end"], "exited 0") << all_of(report);
        EXPECT_EQ(report["status"], "peer dead") << all_of(report);
        EXPECT_EQ(report["wrong"], "0") << all_of(report);
        if (report["relay_bytes"] != "0" && report.count("mixed") != 0) {
            EXPECT_EQ(report["mixed"], "0") << all_of(report);
        }
        EXPECT_EQ(report["leaked"], leaks_of(report)) << all_of(report);
        ms.push_back(ms_between(std::to_string(killed_ns), report["ended_ns"]));
        EXPECT_LT(ms.back(), 5000) << all_of(report); // generous: the times are printed
    }
}

// All ranks but rank 1, which is stopped, have given up; then rank 1 is killed.
std::vector<Report> end_without_rank_1(Living &living)
{
    for (size_t r = 0; r < living.pids.size(); r++)
        if (r != 1)
            living.await("leaked=", r);
    kill(living.pids[1], SIGKILL);
    return living.end(20);
}

} // namespace

void kill_at_random(const std::string &scenario, const std::vector<const char *> &knobs,
                    const std::function<void(Report &)> &more)
{
    const auto before = shared_files();
    std::minstd_rand random(std::random_device{}());
    std::vector<int> ms;
    for (int i = 0; i < kills() && !testing::Test::HasFailure(); i++) {
        const size_t world = 2 + random() % 3, victim = random() % world;
        const std::string route = random() % 2 ? "auto" : "host",
                          how = knobs[static_cast<size_t>(i) % knobs.size()];
        const std::string path = kPaths[random() % 2];
        SCOPED_TRACE(route + path + " " + how + " victim " + std::to_string(victim));
        Living living(world, "scenario=" + scenario + " meet=0 route=" + route + path, how);
        ASSERT_TRUE(living.await("ready=")) << living.text_of(0);
        usleep(static_cast<useconds_t>(random() % 20000));
        const uint64_t killed_ns = shc_clock_ns();
        kill(living.pids[victim], SIGKILL);
        auto reports = living.end(20);
        expect_survivors(reports, victim, killed_ns, ms);
        for (size_t r = 0; r < world; r++)
            if (r != victim && more)
                more(reports[r]);
    }
    print_spread("from a death to idle streams", ms);
    EXPECT_EQ(shared_files(), before);
}

// (`later`: the checks while a group is made have a quarter of the time-out, which a busy machine needs.)
std::vector<Report> stop_rank_1(size_t world, const std::string &scenario)
{
    Living living(world, "scenario=" + scenario + " meet=0 later_timeout_ms=6500", "");
    EXPECT_TRUE(living.await("ready="));
    kill(living.pids[1], SIGSTOP);
    auto reports = end_without_rank_1(living);
    for (size_t r = 0; r < world; r++)
        if (r != 1) {
            EXPECT_EQ(reports[r]["end"], "exited 0") << all_of(reports[r]);
            EXPECT_EQ(reports[r]["status"], "timeout") << all_of(reports[r]);
            EXPECT_HAS(reports[r], "error", "waiting for rank ");
            EXPECT_HAS(reports[r], "error", " rank 1 (");
            expect_said_late(reports[r]);
            EXPECT_HAS(reports[r], "said", " rank 1 (");
        }
    return reports;
}

std::vector<Report> stop_all_ranks(size_t world, const std::string &scenario)
{
    Living living(world, "scenario=" + scenario + " meet=0 later_timeout_ms=2000", "");
    EXPECT_TRUE(living.await("ready="));
    kill(living.pids[1], SIGSTOP);
    usleep(200 * 1000); // the others wait for it
    for (pid_t pid : living.pids)
        kill(pid, SIGSTOP);
    usleep(6000 * 1000);
    for (size_t r = 0; r < world; r++)
        if (r != 1)
            kill(living.pids[r], SIGCONT);
    auto reports = end_without_rank_1(living);
    for (size_t r = 0; r < world; r++)
        if (r != 1) {
            EXPECT_EQ(reports[r]["status"], "timeout") << all_of(reports[r]);
            const char *after = "Timed out after ";
            EXPECT_HAS(reports[r], "error", after);
            const std::string &error = reports[r]["error"];
            const double seconds = atof(error.c_str() + error.find(after) + strlen(after));
            EXPECT_TRUE(seconds >= 2 && seconds < 6) << error; // a busy machine is late
        }
    return reports;
}

} // namespace shmcoll::test
