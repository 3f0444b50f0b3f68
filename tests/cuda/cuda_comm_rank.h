// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// One rank of a CUDA group as cuda_comm_rank's scenarios use it: a CPU group, a CUDA group over it on
// the stand-in, streams, and device memory.

extern "C" {
#include "cuda_ipc/cuda_comm.h"
}

#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

namespace shmcoll::test
{

using Bytes = std::vector<uint8_t>;

// key=value words of the command line.
struct Settings {
    explicit Settings(const std::string &text);
    std::string word(const std::string &key, const std::string &preset) const;
    int number(const std::string &key, int preset) const;
    std::map<std::string, std::string> words;
};

[[noreturn]] void die(const std::string &what);

// Prints a line of the report at once: a rank may be killed.
void report(const std::string &key, const std::string &value);

class Rank
{
  public:
    Rank(const std::string &folder, int rank, int world, const Settings &settings);
    ~Rank();
    Rank(const Rank &) = delete;
    Rank &operator=(const Rank &) = delete;

    // Makes the CPU group. Returns false, and prints the reason, if there is none.
    void join(const std::string &name = "group");
    shc_status make();
    void leave(); // both groups

    shc_cu_address allocate(size_t bytes);
    void put(shc_cu_address to, const Bytes &bytes);
    Bytes get(shc_cu_address from, size_t bytes);
    bool sync(size_t stream = 0); // true: the stream ended without an error of CUDA's

    int rank, world;
    Settings settings;
    std::string folder;
    shc_driver driver = {};
    shc_gpu gpu = {};
    std::vector<shc_cu_stream *> streams;
    shc_comm *core = nullptr;
    shc_cuda_comm *cuda = nullptr;

  private:
    std::vector<shc_cu_address> memory_;
};

// An operation whose tensors are one-dimensional pieces of device memory.
struct Call {
    shc_op op = {};
    std::vector<int64_t> in_sizes, out_sizes;
    std::vector<shc_tensor> in, out;
    // Called after the last change.
    const shc_op *ready();
};

// A piece of memory per count, one after the other, `gap` bytes apart.
void add_tensors(std::vector<shc_tensor> &list, std::vector<int64_t> &sizes, shc_cu_address at,
                 const std::vector<uint64_t> &counts, size_t elem_bytes, size_t gap = 0);

Call simple_call(shc_op_kind kind, shc_dtype dtype, shc_cu_address in, uint64_t in_count,
                 shc_cu_address out, uint64_t out_count);

void barrier_of_cpus(Rank &rank);

// Closes the group, and reports how long that took.
void close_timed(Rank &rank);

// Prints how a group that must have failed reports it: its status, its text, and that streams ended.
void report_failure(Rank &rank, shc_status st);

// This rank is alive, and does nothing until the group has failed.
void idle_until_failed(Rank &rank);

// Until that rank has printed this.
void await_report(const Rank &rank, int other, const std::string &text);

// From now on this rank's driver refuses waits after so many.
void refuse_waits_behind(Rank &rank, int waits);

// The scenarios; each prints what it saw.
void sweep(Rank &rank); // every operation against a plain reference (cuda_comm_sweep.cc)
void large(Rank &rank);
void chain(Rank &rank);   // operations that use one another's results, on several streams
void ahead(Rank &rank);   // more operations ahead than there are records
void groups(Rank &rank);  // two groups at once
void differ(Rank &rank);  // one rank makes another call
void endless(Rank &rank); // until the group fails
void pending(Rank &rank); // pending operations, and how they end
void refuse(Rank &rank);  // calls that are wrong on this rank alone
void limits(Rank &rank);  // sizes around the relay's limit (cuda_comm_sweep.cc)
void broken(Rank &rank);  // the driver breaks off in the middle
void halted(Rank &rank);  // a rank is slow to read what another one writes over

// Those that capture (cuda_graph_rank.cc).
void graph(Rank &rank);         // replays together with eager operations
void graph_refuse(Rank &rank);  // what cannot be captured
void graph_endless(Rank &rank); // replays until the group fails, and after that
void graph_differ(Rank &rank);  // one rank replays something else

// Messages (cuda_comm_mail.cc).
void mail_sweep(Rank &rank);   // all to all, sizes around the slot
void mail_ring(Rank &rank);    // sends first, on one stream
void mail_chain(Rank &rank);   // messages that pass on what came, during collectives
void mail_ahead(Rank &rank);   // more of them than there are records
void mail_differ(Rank &rank);  // the ends make different calls
void mail_endless(Rank &rank); // until the group fails
void mail_poison(Rank &rank);  // a wait that is ended, and a slow reader
void mail_leave(Rank &rank);   // a sender that has gone when its message is received

// Messages in batches (cuda_comm_batch.cc).
void batch_all(Rank &rank);     // all to all, together with single calls
void batch_many(Rank &rank);    // more on a channel than there are records
void batch_beside(Rank &rank);  // the same while another thread sends on it
void batch_differ(Rank &rank);  // one of many messages differs
void batch_endless(Rank &rank); // until the group fails
void batch_refuse(Rank &rank);  // one message is wrong on this rank alone
void batch_broken(Rank &rank);  // the driver breaks off in the middle
void batch_late(Rank &rank);    // what is reported of messages that wait

} // namespace shmcoll::test
