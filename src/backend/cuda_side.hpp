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

// The one GPU that all tensors of the call are on. Throws if they are on several, or not contiguous.
c10::Device deviceOf(const Call &call);

// A stream that only this side uses; returned when the last reference to it ends.
using OwnStream = std::shared_ptr<const c10::Stream>;

// Messages that are enqueued together, all on one GPU.
struct Batch {
    struct Message {
        at::Tensor tensor;
        shc_op op; // except the tensor
    };
    std::vector<Message> messages;
    std::vector<c10::Stream> behind; // the streams that were current when they were called
};

class CudaSide
{
  public:
    // name and timeout: the group's.
    CudaSide(Group group, int rank, std::string name, std::chrono::milliseconds timeout)
        : group_(std::move(group)), rank_(rank), name_(std::move(name)), timeout_(timeout)
    {
    }

    // Has this process a GPU that torch knows? (The question starts the driver.)
    static bool isPossible();

    // Enqueues the operation after what the current stream has. A synchronous one also comes before
    // what that stream gets next (then there is no Work). The host does not wait for other ranks,
    // except in the first operation on a GPU, in which the ranks meet. Messages to one rank, or from
    // one, have a stream of their own, so they wait for no other message, as their callers may expect.
    c10::intrusive_ptr<c10d::Work> run(const Call &call);

    // Adds a message to a batch; nothing is enqueued. Refuses what run() would refuse.
    void collect(const Call &call, Batch &batch);

    // Enqueues the messages on one stream of the group's, interleaved so that they do not wait for
    // one another's turn. pre: there is one.
    c10::intrusive_ptr<c10d::Work> run(const Batch &batch);

    // Waits until the GPUs have done what was enqueued on their current streams, and all of the
    // group's own collectives.
    void settle(std::chrono::milliseconds timeout);

    // Lines of key=value, each with the prefix "cuda:<index>."; none before a GPU's first operation.
    std::string info();

    // How many collectives have been enqueued. Messages do not count, as with CPU tensors: ranks send
    // and receive different numbers of them, and torch's debug wrapper compares this over all ranks.
    uint64_t sequence() const { return sequence_; }

    // Waits until this rank's streams have passed all that was enqueued. Null, or why that will not
    // happen. A group that had failed or been closed before is not waited for; that is not news. Throws
    // if a signal's handler does: then the group is as it was before.
    std::exception_ptr finish();

    // Of the operations that are called from now on.
    void setTimeout(std::chrono::milliseconds timeout);

    // Needs no peer and no thread of this rank that is inside run().
    void abort(const char *reason);
    void close();

  private:
    // Asynchronous operations that follow one another.
    struct Lane {
        explicit Lane(OwnStream of) : own(std::move(of)), stream(*own) {}
        OwnStream own;
        c10::Stream stream;
        std::deque<std::shared_ptr<Stash>> stashes; // of those that may be under way, in order
        std::mutex order;                           // of those that may be pending, in order
    };
    struct Gpu {
        CudaGroup group;
        std::unique_ptr<Lane> collectives; // used with order_
        OwnStream forked;                  // of asynchronous operations that are captured
        // Of messages: by the operation and the peer. Grows only.
        std::map<std::pair<shc_op_kind, int>, Lane> ends;
        std::unique_ptr<Lane> batches; // made with the first
    };
    // hint: appended to the reason if there is no communicator.
    Gpu &gpuOf(c10::Device device, const char *hint = "");
    Gpu *find(c10::Device device);
    CudaGroup make(c10::Device device, const char *hint);
    std::vector<Gpu *> all();
    Gpu &gpuOfMessage(c10::Device device);
    Lane &laneOf(Gpu &gpu, const shc_op &op);
    Lane &laneOfBatches(Gpu &gpu);
    void checkMessage(const Call &call, c10::Device device);
    c10::intrusive_ptr<c10d::Work> transfer(const Call &call, c10::Device device);
    c10::intrusive_ptr<c10d::Work> enqueue(Gpu &gpu, Lane &lane, const Call &call, bool captured);
    static bool isCapturing(const Gpu *gpu, c10::Device device);
    static void dropPassed(const Gpu &gpu, Lane &lane);
    static void markRight(const Gpu &gpu, Lane &lane, std::mutex &order);
    void markRight(Gpu &gpu);

    Group group_;
    int rank_;
    std::string name_;
    std::mutex order_; // held while an operation is enqueued, or a communicator made: may take long
    std::atomic<uint64_t> sequence_{0};

    std::mutex lock_;                      // guards what follows; never held for long
    std::map<c10::DeviceIndex, Gpu> gpus_; // grows only; groups are constant
    std::chrono::milliseconds timeout_;
    bool closed_ = false;
};

} // namespace shmcoll
