// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Ranks as processes of another program, and what they print.

#include <gtest/gtest.h>
#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

namespace shmcoll::test
{

// What one rank printed, by key; "end" is "exited 0", "killed 9", ...
using Report = std::map<std::string, std::string>;

struct RankOptions {
    std::string knobs = {}; // "@" stands for the ranks' folder
    std::string how = "share";
};

// A folder of its own under /tmp.
class Folder
{
  public:
    Folder();
    ~Folder();
    std::string path;
};

// program <folder> <rank> <world> <how>, with the stand-in's knobs in FAKE_CUDA.
pid_t start_process(const char *path, const std::string &folder, size_t rank, size_t world,
                    const RankOptions &options);

Report read_report(const std::string &path, int status);

std::vector<Report> run_processes(const char *path, const std::vector<RankOptions> &ranks);

std::string all_of(const Report &report);

#define EXPECT_HAS(report, key, part)                      \
    EXPECT_NE((report)[key].find(part), std::string::npos) \
        << key << " lacks " << (part) << " in\n"           \
        << all_of(report)

} // namespace shmcoll::test
