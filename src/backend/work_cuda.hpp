// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// c10d::Work of an operation on CUDA tensors: enqueued on a stream, and complete when the stream has
// passed it. It uses no symbol of torch's CUDA libraries: streams and events go through torch's virtual
// interface, so one build serves a torch with CUDA and one without.

#include "backend/call.hpp"
#include "cuda_ipc/cuda_ipc.h"

#include <atomic>
#include <c10/core/Event.h>
#include <mutex>

namespace shmcoll
{

// A group's ranks on one GPU each; freed with its last reference.
using CudaGroup = std::shared_ptr<shc_cuda_comm>;

// Throws the calling thread's record of libshmcoll_cuda if the call failed.
void checkCuda(shc_status status);

// The stream on which the calling thread enqueues its work for this GPU.
c10::Stream currentStream(c10::Device device);

// Waits until the event has passed, at most that long (0: no limit; the group's operations have
// deadlines of their own). Throws if the group fails, or a signal's handler throws.
void waitOnHost(const c10::Event &event, const CudaGroup &group, std::chrono::milliseconds timeout);

// Waits until this rank's streams have passed all that was enqueued; the operations have deadlines.
// SHC_OK, or why the group has failed, as shc_cuda_error_text() says it. Throws if a signal's handler
// does.
shc_status waitUntilIdle(const CudaGroup &group);

// Have all operations that this rank's streams have passed given their results?
bool groupIsRight(const CudaGroup &group);

// The tensors of an operation on which a stream works: the allocator would hand their memory to the
// caller's stream. Dropped when that stream has been made to wait, or when this one has passed.
struct Stash {
    Stash(c10::DeviceType type, bool inGraph) : end(type), captured(inGraph) {}
    void drop();
    // The stream has passed it. A captured one counts so at once: it runs only in a replay.
    bool passed() const { return captured || end.query(); }

    c10::Event end;      // of the operation
    const bool captured; // then the event is useful in the capture only, and must not be queried
    // It has ended, and the group had not failed by then. So its results are right, even if the group
    // fails later. Set once; never for a captured one.
    std::atomic<bool> right{false};
    std::mutex lock;
    std::vector<at::Tensor> tensors; // guarded by it
};

class WorkCuda : public c10d::Work
{
  public:
    // pre: the operation has been enqueued on the stream, whose device is the tensors'. The stash has
    // another owner, too: a Work may be dropped before its operation has ended.
    WorkCuda(CudaGroup group, int rank, const Call &call, c10::Stream stream,
             std::shared_ptr<Stash> stash, uint64_t sequence);

    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    std::vector<at::Tensor> result() override { return outputs_; }
    // The current stream waits, the host does not; with a time-out both do.
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    void synchronize() override { wait(); }
#if SHMCOLL_TORCH_AT_LEAST(2, 9)
    void blockCurrentStream() override
    {
        stash_->end.block(currentStream(stream_.device()));
    }
#endif
    void abort() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    uint64_t getSequencenumber() const override
    {
        return sequence_;
    }

  private:
    // Has it ended? SHC_OK, or why it has no results, as shc_cuda_error_text() says it.
    shc_status look(bool *ended) const;
    // The second part alone, as far as it is known without querying the event.
    shc_status failure() const;

    CudaGroup group_;
    c10::Stream stream_;
    std::shared_ptr<Stash> stash_;
    std::vector<at::Tensor> outputs_;
    uint64_t sequence_;
    std::mutex lock_;
    c10::intrusive_ptr<c10::ivalue::Future> future_; // guarded by it
};

} // namespace shmcoll
