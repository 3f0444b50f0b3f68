// SPDX-License-Identifier: BSD-3-Clause
#include "tests/cuda/processes.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <spawn.h>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

namespace shmcoll::test
{

Folder::Folder()
{
    char name[] = "/tmp/cuda_test.XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    path = name;
}

Folder::~Folder()
{
    std::filesystem::remove_all(path);
}

pid_t start_process(const char *path, const std::string &folder, size_t rank, size_t world,
                    const RankOptions &options)
{
    std::string knobs = options.knobs;
    for (size_t at; (at = knobs.find('@')) != std::string::npos;)
        knobs.replace(at, 1, folder);
    std::vector<std::string> variables = {"FAKE_CUDA=" + knobs};
    for (char **v = environ; *v != nullptr; v++)
        if (strncmp(*v, "FAKE_CUDA=", 10) != 0)
            variables.push_back(*v);
    std::vector<char *> env;
    for (auto &v : variables)
        env.push_back(v.data());
    env.push_back(nullptr);
    std::string program = path, in = folder, number = std::to_string(rank);
    std::string size = std::to_string(world), how = options.how;
    std::array<char *, 6> argv = {program.data(), in.data(),  number.data(),
                                  size.data(),    how.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const std::string out = folder + "/out." + number;
    posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT, 0600);
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, path, &actions, nullptr, argv.data(), env.data()), 0);
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

std::vector<Report> run_processes(const char *path, const std::vector<RankOptions> &ranks)
{
    Folder folder;
    std::vector<pid_t> pids;
    std::vector<Report> reports;
    for (size_t r = 0; r < ranks.size(); r++)
        pids.push_back(start_process(path, folder.path, r, ranks.size(), ranks[r]));
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

} // namespace shmcoll::test
