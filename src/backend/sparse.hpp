// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// A COO tensor as the core takes it, and the way back. The core's result has memory of its own. The
// last step of the operation makes it the tensor's entries; the thread that looks for the result first
// takes that step.

#include "backend/convert.hpp"

namespace shmcoll
{

class SparseTensor
{
  public:
    explicit SparseTensor(const at::Tensor &tensor);
    ~SparseTensor();
    SparseTensor(const SparseTensor &) = delete;
    SparseTensor &operator=(const SparseTensor &) = delete;

    shc_sparse *view() { return &view_; }

    // pre: the operation has succeeded. Once; the tensor is coalesced then.
    void storeSum();

  private:
    at::Tensor tensor_;
    // Held beyond storeSum(), which may run on a thread that must not drop the last reference.
    at::Tensor indices_, values_;
    std::vector<int64_t> sizes_;
    shc_sparse view_{};
};

} // namespace shmcoll
