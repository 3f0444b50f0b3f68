// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// One-sided access: each rank of a group maps the tensor of each other one (docs/guide/windows.md).

#include "backend/process_group_shm.hpp"

#include <torch/custom_class.h>

namespace shmcoll
{

class Window : public torch::CustomClassHolder
{
  public:
    using WorkPtr = ProcessGroupShm::WorkPtr;
    using Milliseconds = std::chrono::milliseconds;

    // Collective: the ranks of a group make their windows in the same order.
    explicit Window(c10::intrusive_ptr<ProcessGroupShm> group);

    // Collective. Moves the tensor into shared memory if it is not there, and maps those of all ranks. On all ranks
    // it succeeds, or on none. The group keeps an owned tensor until it is deregistered.
    void registerTensor(const at::Tensor &tensor, bool owning);

    // Collective: returns when no rank stores into the tensor by this window any more.
    void deregister();

    // Copies into the tensor of that rank, from that element on.
    void put(const at::Tensor &tensor, int64_t rank, int64_t offset);

    // The tensor of that rank, for the call of that name. It stays valid; docs/guide/windows.md says what is in it.
    at::Tensor map(int64_t rank, const char *what) const;

    // A message without elements, whose tag is the window's own: what this rank has put before is there when the
    // other one has waited for it.
    WorkPtr sendSignal(int64_t rank, Milliseconds timeout);
    WorkPtr waitSignal(int64_t rank, Milliseconds timeout);

  private:
    struct Said;
    bool hasTensor() const;
    void checkRank(int64_t rank, const char *what) const;
    void checkProcess(const char *what) const;
    std::vector<Said> exchange(const Said &own) const;
    std::vector<at::Tensor> mapAll(const std::vector<Said> &said) const;

    const c10::intrusive_ptr<ProcessGroupShm> group_;
    const int number_; // in the group
    const int forks_;  // before it was made

    mutable std::mutex lock_;        // guards what follows
    std::vector<at::Tensor> mapped_; // by rank; empty: there is no tensor
};

} // namespace shmcoll
