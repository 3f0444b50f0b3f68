// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// What torch calls coalescing: calls between startCoalescing() and endCoalescing(), as
// batch_isend_irecv makes them. Messages of CUDA tensors are collected, and enqueued at the end as one
// batch. Everything else begins when it is called. The end has one Work for all of them.

#include "backend/cuda_side.hpp"

#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <optional>

namespace shmcoll
{

// The calls of one thread since its start.
struct Section {
    std::vector<c10::intrusive_ptr<c10d::Work>> works; // of the operations that have begun
    Batch batch;
    // The error of the first message that was refused: no later one begins, and the end raises it. An
    // exception between start and end would leave torch with a group whose collectives do nothing (its
    // _coalescing_manager records the section, and does not clean up).
    std::exception_ptr error;
};

// Sections of a group: one for each thread that has one open.
class Sections
{
  public:
    // Begins a new one, also if this thread has left one open.
    void begin();

    // The calling thread's; null: there is none.
    Section *current() { return open_ == 0 ? nullptr : find(); }

    // Removes and returns the calling thread's; null: there is none.
    std::unique_ptr<Section> end();

  private:
    Section *find();

    std::atomic<int> open_{0}; // most calls only look here
    std::mutex lock_;          // guards what follows; a section is used by its thread alone
    std::map<uint64_t, std::unique_ptr<Section>> sections_; // by thisThread()
};

// Ends the thread's section if an exception leaves this scope: in a collective of the section, or in
// one that torch calls after the last call. Then endCoalescing() is not called.
class SectionGuard
{
  public:
    explicit SectionGuard(Sections &sections) : sections_(sections) {}
    ~SectionGuard()
    {
        if (std::uncaught_exceptions() > before_)
            sections_.end();
    }
    SectionGuard(const SectionGuard &) = delete;
    SectionGuard &operator=(const SectionGuard &) = delete;

  private:
    Sections &sections_;
    const int before_ = std::uncaught_exceptions();
};

// Several works as one. Its tensors and its future are those of all of them, in order.
class WorkAll : public c10d::Work
{
  public:
    // pre: there is one, at least.
    WorkAll(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
        : Work(rank, c10d::OpType::COALESCED), works_(std::move(works))
    {
    }

    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override; // the first
    std::vector<at::Tensor> result() override;
    // One after the other, all within this time; raises the first error.
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    void synchronize() override { wait(); }
#if SHMCOLL_TORCH_AT_LEAST(2, 9)
    void blockCurrentStream() override;
#endif
    void abort() override
    {
        works_.front()->abort();
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    uint64_t getSequencenumber() const override
    {
        return works_.back()->getSequencenumber();
    }

  private:
    std::vector<c10::intrusive_ptr<c10d::Work>> works_;
    std::mutex lock_;
    c10::intrusive_ptr<c10::ivalue::Future> future_; // guarded by it
};

} // namespace shmcoll
