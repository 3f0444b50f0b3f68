// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Groups over several hosts: ranks are threads, hosts are labels, and what is between hosts is an engine in this
// process.
#include "tests/support/elements.h"
#include "tests/support/fabric.h"
#include "tests/support/mesh.h"
#include "tests/support/ranks.h"

#include <iosfwd>

namespace shmcoll::test
{

using elements::Bytes;
using Labels = std::vector<int32_t>;

struct Map {
    const char *name;
    Labels labels;
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const bool kSlow = true; // a sanitizer sees the same code with few maps
#else
const bool kSlow = false;
#endif
// Of the combinations of dtype and reduction, every so-manieth. What races does not depend on them.
#if defined(__SANITIZE_THREAD__)
const size_t kEach = 15, kEachChain = 12;
#elif defined(__SANITIZE_ADDRESS__)
const size_t kEach = 1, kEachChain = 4;
#else
const size_t kEach = 1, kEachChain = 1;
#endif

// Of 64 ranks on two CPUs a call takes milliseconds.
size_t each_of(size_t world);

// Hosts 0, 1, 2 ... of so many ranks each.
Labels many_hosts(int hosts, int ranks);

std::vector<Map> maps();
// And those where rails carry several ranks' blocks, and where a host has most of the ranks.
std::vector<Map> more_maps();

void PrintTo(const Map &map, std::ostream *out);

// The ranks of each host, in order.
std::vector<std::vector<size_t>> hosts_of(const Labels &labels);

int host_count(const Labels &labels);

struct HostsGroup {
    shc_hosts *hosts = nullptr;
    shc_hosts_place place = {};
    int rank = 0;
    char error[SHC_HOSTS_ERROR_BYTES] = "";
    shc_store store = {}; // the run's

    shc_status run(const shc_op &op);
    // The same, submitted, and with nothing that lives longer than the call.
    shc_status submit(const shc_op &op);
};

// Links on which chunks are as long as they can be, and short.
const uint64_t kFastLink = 10000000000u, kSlowLink = 50000000;

struct HostsOptions {
    HostsOptions();
    HostsOptions(const HostsOptions &);
    ~HostsOptions();

    int rails = 0;
    Mesh *mesh = nullptr; // for messages between hosts
    uint64_t late_ns = 0;
    bool by_rank = false, wide = false, in_file = false;
    // Of a rank's host; 0: measured. Otherwise what this engine takes on this machine would decide how long chunks are.
    std::function<uint64_t(int rank)> rate;                      // by default kFastLink
    std::function<shc_store(int rank, const shc_store &)> store; // in the place of the run's
    std::function<const shc_watch *(const HostsGroup &)> watch;  // a leader's
};

// Of the group "0" of all ranks.
shc_comm_config config_of(const Rank &rank);

HostsOptions with_rails(int rails);

void run_hosts(const Labels &labels, Network &network,
               const std::function<void(HostsGroup &)> &body, const HostsOptions &how = {});

// Runs numbers 0 to count - 1, until one fails for good: four over lines with messages, the next four over lines without,
// where more calls are long ones, and so on.
void run_cases(const Labels &labels, size_t count,
               const std::function<void(HostsGroup &, size_t number)> &run,
               const HostsOptions &how = {});

// Elements with gaps between them, or without.
struct Elements {
    Elements(const Bytes &values, size_t elem_bytes, bool strided);
    Elements(const Elements &) = delete;

    Bytes values() const;
    // The gaps and the end are as they were.
    bool is_tidy() const;

    size_t bytes, stride;
    int64_t size, step;
    Bytes memory;
    shc_tensor tensor = {};
};

const Labels kTwoOfTwo = {0, 0, 1, 1};

// A sum of so many floats.
struct Sum {
    explicit Sum(int64_t count, float value = 1);
    Sum(const Sum &) = delete;
    int64_t size;
    std::vector<float> x;
    shc_tensor tensor = {};
    shc_op op;
};

} // namespace shmcoll::test
