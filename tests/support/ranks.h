// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Runs one test body as N ranks, three ways:
//   kOneMapping  ranks are threads and share one mapping: a thread sanitizer sees every race
//   kOwnMapping  ranks are threads with a mapping each: a pointer in the segment breaks
//   kProcesses   ranks are forked processes: real death, real futexes
// A body uses EXPECT_* and ASSERT_*; a rank that fails fails the test. A hang is a failure: after
// the time limit the stacks of all ranks are printed and the ranks are killed.

extern "C" {
#include "shm/base/config.h"
#include "shm/comm/comm.h"
}

#include <functional>
#include <string>
#include <vector>

namespace shmcoll::test
{

enum class Mode { kOneMapping, kOwnMapping, kProcesses };

// All modes of this build: sanitizers that do not follow fork leave out kProcesses.
std::vector<Mode> all_modes();
// Those that one test goes through by itself. One mapping for all ranks shows only the thread sanitizer
// something new: without it the others suffice, and make test-long and make sanitizers run all.
std::vector<Mode> modes();
std::string mode_name(Mode mode);

// Every few calls of one thread its group's runner is biased towards it.
inline shc_knobs soon_biased()
{
    shc_knobs knobs = {};
    knobs.bias_pay = 4;
    return knobs;
}

// Until the process can end a bias: a thread prepares that when the first one is earned.
inline void await_fences()
{
    while (!shc_bias_has_fences())
        shc_os_sleep_ns(100 * 1000);
}

#define SKIP_WITHOUT_BIAS()                                 \
    if (!shc_config_get()->bias || !shc_os_fence_prepare()) \
    GTEST_SKIP() << "no bias here: SHMCOLL_BIAS=off, or no membarrier"

struct Options {
    shc_knobs knobs = soon_biased();
    uint64_t timeout_ns = 60ULL * 1000 * 1000 * 1000; // of the group's operations
    int limit_s = 60;                                 // of the whole run
    bool make_group = true;
    std::string tuning; // of the group; empty: the environment's
    // Rank r's process (kProcesses) or thread starts with this, before the group is made.
    std::function<void(int rank)> before;
};

struct Rank {
    int rank;
    int world;
    Mode mode;
    shc_comm *comm;  // made before the body, freed after it (make_group)
    shc_store store; // of the run, for bodies that make groups themselves
    shc_knobs knobs;
    uint64_t timeout_ns;
    std::string tuning = {}; // of the groups it makes

    // Makes another group over the same store; its keys carry `name`.
    shc_status make_group(shc_comm **out, const char *name = "test") const;
};

using Body = std::function<void(Rank &)>;

void run_ranks(Mode mode, int world, const Body &body, const Options &options = {});

// How many rounds a random test makes: under a sanitizer a quarter of `full`, and all of it in make
// sanitizers.
int rounds(int full);

// A descriptor of float32 and sum, without tensors.
shc_op op_of(shc_op_kind kind);

// The first line of the calling thread's error.
std::string error_text();

// Names that this library has left in /dev/shm. A name of a test that runs at the same time is gone in
// a moment: only what stays is left over.
std::vector<std::string> leftovers();

} // namespace shmcoll::test
