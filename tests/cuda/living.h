// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Ranks of a CUDA group as processes of cuda_comm_rank: until they end, or until something happens to
// one.

#include "tests/cuda/processes.h"

extern "C" {
#include "shm/base/clock.h"
}

#include <csignal>

namespace shmcoll::test
{

inline std::vector<Report> run(size_t world, const std::string &settings,
                               const std::string &knobs = "")
{
    return run_processes(CUDA_COMM_RANK, std::vector<RankOptions>(world, {knobs, settings}));
}

// Under a sanitizer a rank starts for a second.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSlow = true;
#else
inline constexpr bool kSlow = false;
#endif

// Ranks that run until something happens to one.
class Living
{
  public:
    Living(size_t world, const std::string &settings, const std::string &knobs)
        : Living(std::vector<RankOptions>(world, {knobs, settings}))
    {
    }
    explicit Living(const std::vector<RankOptions> &ranks)
    {
        for (size_t r = 0; r < ranks.size(); r++)
            pids.push_back(start_process(CUDA_COMM_RANK, folder.path, r, ranks.size(), ranks[r]));
    }

    // False: one did not get so far.
    bool await(const std::string &line)
    {
        for (size_t r = 0; r < pids.size(); r++)
            if (!await(line, r))
                return false;
        return true;
    }
    bool await(const std::string &line, size_t r)
    {
        for (int tries = 0; text_of(r).find(line) == std::string::npos; tries++) {
            if (tries > 30000)
                return false;
            usleep(1000);
        }
        return true;
    }

    std::string text_of(size_t r)
    {
        std::ifstream in(folder.path + "/out." + std::to_string(r));
        return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    }

    // Whoever does not end is killed, and its end says so.
    std::vector<Report> end(int patience_s)
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

    Folder folder;
    std::vector<pid_t> pids;
};

inline int ms_between(const std::string &from_ns, const std::string &to_ns)
{
    const uint64_t from = strtoull(from_ns.c_str(), nullptr, 10);
    const uint64_t to = strtoull(to_ns.c_str(), nullptr, 10);
    return to > from ? static_cast<int>((to - from) / SHC_NS_PER_MS) : 0;
}

} // namespace shmcoll::test
