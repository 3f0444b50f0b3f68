// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// c10d::Work over a shc_request.

#include "backend/abort_hooks.hpp"
#include "shm/shmcoll.h"

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace shmcoll
{

// A group of the core; freed with the last Backend or Work that refers to it.
using Group = std::shared_ptr<shc_comm>;

// What one asynchronous operation keeps alive. The library holds it until it releases the memory, the
// Work as long as the user holds the Work. Its tensors are dropped on callers' threads only.
struct Flight {
    std::vector<at::Tensor> tensors; // all tensors that the operation reads or writes
    std::vector<at::Tensor> outputs;
    std::function<void()> recordEnd;        // of the profiler; empty when there is none
    std::shared_ptr<AbortHooks> abortHooks; // of its group
    bool failsGroup = false; // its failure is one of the group, as that of no message is for sure
    // The last step of an operation that succeeded; empty if there is none. The thread that looks for
    // the result first takes it, and holds no lock then.
    std::function<void()> finish;

    std::mutex lock;       // guards what follows
    bool notified = false; // the library will call back when the operation ends
    bool ended = false;    // it has called, and its result here is final
    c10::intrusive_ptr<c10::ivalue::Future> future; // made when it is asked for

    std::mutex finishing; // guards what follows
    bool finished = false;
    void finishOnce();

    // For shc_submit: each request keeps a reference.
    static shc_request_hooks hooks(const std::shared_ptr<Flight> &flight);
};

class HostsSide;

class WorkShm : public c10d::Work
{
  public:
    // title and shown: for the profiler.
    WorkShm(Group group, int rank, c10d::OpType type, const char *title, at::TensorList shown,
            std::shared_ptr<Flight> flight);
    ~WorkShm() override;

    // Submits the operation, over several hosts if there is a `hosts`. pre: called once, before any other thread
    // knows the Work.
    void submit(const shc_op &op, HostsSide *hosts = nullptr);

    // A receive of a group over several hosts: the rank with a number of its group.
    void nameSources(std::function<int(int)> rankOf) { rankOf_ = std::move(rankOf); }

    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    std::vector<at::Tensor> result() override;
    int sourceRank() const override;
    void synchronize() override;
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    void abort() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    uint64_t getSequencenumber() const override { return sequence_; }

  private:
    bool isServed();
    std::string waitUnserved();
    void settle(c10::ivalue::Future &future, const std::string &why) const;

    Group group_;
    std::shared_ptr<Flight> flight_;
    shc_request *request_ = nullptr;
    uint64_t sequence_ = 0;
    std::function<int(int)> rankOf_; // empty: they are the same
};

// A Work that has ended when it is made, without a result.
c10::intrusive_ptr<c10d::Work> endedWork();

// In a forked child: the parent's are not its own, and the lock of their list may be held for ever.
void forgetParentsFutures();

// The process has said goodbye: futures that will not complete any more get an error.
void failOpenFutures();

} // namespace shmcoll
