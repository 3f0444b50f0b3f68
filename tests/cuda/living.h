// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Ranks of a CUDA group as processes of cuda_comm_rank: until they end, or until something happens to
// one.

#include "tests/cuda/processes.h"

#include <functional>

namespace shmcoll::test
{

std::vector<Report> run(size_t world, const std::string &settings, const std::string &knobs = "");

// How data goes from rank to rank.
struct Way {
    const char *name, *settings, *knobs, *memory;
};

inline constexpr Way kWays[] = {
    {"Fd", " route=slabs", "", "file descriptor"},
    {"Legacy", " route=slabs", "export=800 ", "legacy handle"},
    {"Host", " route=host", "alias=1 ", "none"},
};

// The same without kernels, with either route.
inline constexpr Way kRelays[] = {
    {"Relay", " route=slabs relay=65536", "", "file descriptor"},
    {"RelayHost", " route=host relay=65536", "alias=1 ", "none"},
};

// Failures are tried with operations by kernels, and by the relay.
inline const char *const kPaths[] = {"", " relay=65536"};

// Under a sanitizer a rank needs a second to start.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSlow = true;
#else
inline constexpr bool kSlow = false;
#endif

// The files of this library in /dev/shm.
std::vector<std::string> shared_files();

// A legacy slab that was exported lives as long as its process, also if that kind was not chosen.
std::string leaks_of(Report &report);

void expect_key(std::vector<Report> &reports, const std::string &key, const std::string &value);

// The rank was told of a wait of 5 seconds. On a busy machine that comes later, and the line says so. By then
// the other rank may have done its part.
void expect_said_late(Report &report);

// Ranks that run until something happens to one.
class Living
{
  public:
    Living(size_t world, const std::string &settings, const std::string &knobs);
    explicit Living(const std::vector<RankOptions> &ranks);

    // Returns false if a rank did not get so far.
    bool await(const std::string &line);
    bool await(const std::string &line, size_t r);

    std::string text_of(size_t r);

    // A rank that does not end is killed, and its "end" says so.
    std::vector<Report> end(int patience_s);

    Folder folder;
    std::vector<pid_t> pids;
};

int ms_between(const std::string &from_ns, const std::string &to_ns);

int kills();

// The parameters of a test of kills.
extern const std::vector<const char *> kKnobs;

// Kills a rank of an endless scenario at a random moment, again and again (the long form:
// SHMCOLL_CUDA_KILLS=500). more: further checks of the survivors.
void kill_at_random(const std::string &scenario, const std::vector<const char *> &knobs,
                    const std::function<void(Report &)> &more = nullptr);

// Stops rank 1 of an endless scenario until all others have given up. Rank 1 may have told one of them that it is
// there, and not the next one: then the first one waits for both in the next operation, and says so.
std::vector<Report> stop_rank_1(size_t world, const std::string &scenario);

// Stops all ranks for longer than their time-out, and rank 1 for good: the others wait as long as if they had not been
// stopped.
std::vector<Report> stop_all_ranks(size_t world, const std::string &scenario);

} // namespace shmcoll::test
