// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// A libcuda for tests on machines without a GPU: real processes, real file descriptors, real
// threads; a GPU of host memory. It does what CUDA's documentation says of the functions in
// cuda_abi.h, errors included. What it cannot show is listed in docs/internals/cuda/testing.md.
//
// Faults and the shape of the machine come as text, "key=value ...": from the variable FAKE_CUDA
// when cuInit finds it set, or from fake_configure(), which starts from the defaults again.

#include "cuda_ipc/cuda_abi.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

struct shc_cu_context {
    int device = 0;
    int users = 0;
};

// A capture under way: work of its streams goes here (captures.cc).
struct FakeCapture;
// How much of each stream's captured work comes before something.
using FakeClock = std::map<shc_cu_stream *, uint64_t>;

// A thread of its own does its work in order.
struct shc_cu_stream {
    int device = 0;
    unsigned number = 0; // in order of creation
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> queue;
    uint64_t submitted = 0, finished = 0;
    bool closing = false, ended = false;
    std::thread thread;
    std::shared_ptr<FakeCapture> capture; // guarded by the lock of captures.cc
};

// Queued work keeps the state: an event may be destroyed while streams still have to reach it.
struct FakeEvent {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0;
    std::shared_ptr<FakeCapture> capture; // where it was recorded last; guarded as a stream's
    FakeClock behind;                     // and the work before it there
};

struct shc_cu_event {
    std::shared_ptr<FakeEvent> state = std::make_shared<FakeEvent>();
};

// The CPU twin of a kernel. `sizes` are those of its parameters, which a launch copies.
struct FakeKernel {
    const char *name;
    void (*run)(void **parameters, unsigned grid, unsigned block);
    int count;
    const size_t *sizes;
};

extern "C" void fake_configure(const char *text);
extern "C" void fake_add_kernel(const FakeKernel *kernel);
extern "C" int fake_module_count();
extern "C" int
fake_turn_count(); // of this process: kernels, and what else waits for a context's turn

namespace fake
{

// What happens when this GPU reads memory that is not its own. The first two also decide what may be
// mapped; lies, wraps, stale and hangs apply to copies, the last two to loads of kernels.
//   lies   one byte of a copy is another      wraps  the second half of a region shows its first
//   stale  what was read once is read again   hangs  it never ends
enum class P2p { kNone, kWorks, kLies, kWraps, kStale, kHangs, kLoadsLie, kLoadsHang };

struct Knobs {
    int version = 13000;
    int devices = 1;
    int first_uuid = 0;        // this process's device 0 has this number in its UUID
    int init = SHC_CU_SUCCESS; // what cuInit returns
    int mode = SHC_CU_MODE_DEFAULT;
    int context = SHC_CU_SUCCESS; // what cuDevicePrimaryCtxRetain returns
    P2p p2p = P2p::kWorks;
    bool p2p_inside = false; // p2p's fault is there between processes on one GPU, too
    P2p host = P2p::kWorks;  // the fault of copies from host memory that was registered
    bool vmm = true;         // virtual memory management
    bool words = true;       // streams write and await 64-bit words, as the attribute tells it
    bool fds = true;         // memory as file descriptors, as the attribute tells it
    bool mps = false;        // there is an MPS server, as the attribute tells it
    int export_result = SHC_CU_SUCCESS;
    int import_result = SHC_CU_SUCCESS;
    int open_result = SHC_CU_SUCCESS; // of legacy handles
    int load_result = SHC_CU_SUCCESS; // of modules
    bool lazy = false;                // a kernel that was not loaded before is not launched
    size_t memory_mib = 1 << 20;
    int delay_us = 0;              // a stream's write or wait is late by up to this
    int queues = 0;                // hardware queues that streams take in turn; 0: one each
    int call_us = 0;               // a call that enqueues a wait takes this long
    int slow_us = 0;               // every piece of a stream's work takes this long
    int unmap_us = 0;              // a call that unmaps memory returns this much later
    bool alias = false;            // a GPU sees host memory at another address
    bool only_writes_wake = false; // only a stream write makes a waiting stream look again
    bool shuffle = false;          // a graph's branches are mixed anew with each launch
    std::string state;             // file that all processes share: for only_writes_wake
    std::string alone;             // file whose lock is the GPU: contexts take turns at kernels
    int kernel_ms = 5000;          // a kernel that runs longer waits for another one: abort
    std::string image;             // file: a module is this, to the last byte
    std::string without;           // a kernel that modules do not have
    std::set<std::string> hidden;  // functions that this driver does not have
};

const Knobs &knobs();
void read_environment(); // FAKE_CUDA, unless fake_configure has been called

// The current context's device, or -1.
int current_device();
bool device_exists(int device);

// Is this address range memory that work of this device may touch? Addresses that are no GPU's are
// host memory, and anybody's.
bool may_touch(shc_cu_address address, size_t bytes, int device);
bool is_device_visible(shc_cu_address address, size_t bytes);
bool is_gpu_memory(shc_cu_address address); // or host memory, registered or not
// What goes wrong when this device reads or writes there; *base and *bytes: the region, if any.
P2p fault_at(shc_cu_address address, int device, shc_cu_address *base, size_t *bytes);

// ---- peers.cc ----

// A copy that is allowed, with the fault of either end. Its first step may take for ever.
void await_peers(shc_cu_address to, shc_cu_address from, int device);
void copy_between(shc_cu_address to, shc_cu_address from, size_t bytes, int device);

// A kernel's parameters with every address of a peer's memory replaced by what loads there give.
class PeerLoads
{
  public:
    PeerLoads(std::vector<std::vector<char>> &parameters, int device);

  private:
    std::vector<std::vector<char>> held_;
};

void synchronize_all_streams();
int submit(shc_cu_stream *stream, const std::function<void()> &work);
int submit_anywhere(shc_cu_stream *stream, const std::function<void()> &work); // no context needed

// While a stream is captured nothing is executed. True: *result is the call's result, and the call is done.
bool captured_work(shc_cu_stream *stream, const std::function<void()> &work, int *result);
bool captured_record(FakeEvent &event, shc_cu_stream *stream, int *result);
bool captured_wait(const FakeEvent &event, shc_cu_stream *stream, int *result);
bool captured_event(const FakeEvent &event);
// The result of a call that open captures forbid, which it breaks; SHC_CU_SUCCESS: go on.
int forbidden(shc_cu_stream *stream = nullptr);
// After an illegal access a context is of no use: every later call says so.
void break_context();
int sticky_error();

#define FAKE_DECLARE(name, version, need, parameters) int name parameters;
SHC_DRIVER_CALLS(FAKE_DECLARE)
#undef FAKE_DECLARE

} // namespace fake
