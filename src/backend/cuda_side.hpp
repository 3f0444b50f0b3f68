// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// The CUDA tensors of a group: a communicator of libshmcoll_cuda for each GPU that this rank uses
// in it, made when the first tensor comes, and the streams its operations run on.

#include "backend/work_cuda.hpp"
#include "backend/work_shm.hpp"

#include <atomic>
#include <deque>
#include <map>

namespace shmcoll
{

class CudaSide
{
  public:
    // name and timeout: the group's.
    CudaSide(Group group, int rank, std::string name, std::chrono::milliseconds timeout)
        : group_(std::move(group)), rank_(rank), name_(std::move(name)), timeout_(timeout)
    {
    }

    // Enqueues the operation: behind what the current stream has, and, where that is synchronous,
    // before what it gets next (then there is no Work). The host does not wait for other ranks, but
    // for the first operation on a GPU, in which the ranks meet.
    c10::intrusive_ptr<c10d::Work> run(const Call &call);

    // Waits until the GPUs have done what was enqueued on their current streams.
    void settle(std::chrono::milliseconds timeout);

    // How many operations have been enqueued.
    uint64_t sequence() const { return sequence_; }

    // Needs no peer and none of this rank's threads that are inside run().
    void abort(const char *reason);
    void close();

  private:
    struct Gpu {
        CudaGroup group;
        c10::Stream stream;                         // of asynchronous operations
        c10::Stream forked;                         // of those that are captured
        std::deque<std::shared_ptr<Stash>> stashes; // of those that may be under way, in order
    };
    Gpu &gpuOf(c10::Device device);
    Gpu *find(c10::Device device);
    CudaGroup make(c10::Device device) const;
    std::vector<Gpu *> all();
    static bool isCapturing(const Gpu *gpu, c10::Device device);
    static void dropPassed(Gpu &gpu);

    Group group_;
    int rank_;
    std::string name_;
    std::chrono::milliseconds timeout_;
    std::mutex order_; // held while an operation is enqueued, or a communicator made: may take long
    std::atomic<uint64_t> sequence_{0};

    std::mutex lock_;                      // guards what follows; never held for long
    std::map<c10::DeviceIndex, Gpu> gpus_; // grows only; what it holds belongs to order_
    bool closed_ = false;
};

} // namespace shmcoll
