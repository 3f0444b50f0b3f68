// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// From torch's types to the core's, and the checks that need to know a tensor. Everything that differs
// between versions of torch is here and in the #if of process_group_shm.hpp.

#include "shm/shmcoll.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace shmcoll
{

// Tensors as the core takes them: refers to the tensors' own sizes and strides, which must outlive
// it. Room for one without an allocation: that is what most calls have.
class TensorViews
{
  public:
    TensorViews() = default;
    // Checks that each tensor is dense and within its storage, and that all are on the CPU or all on
    // GPUs. `op` names the call in messages.
    TensorViews(at::TensorList tensors, const char *op) { add(tensors, op); }
    void add(at::TensorList tensors, const char *op);
    shc_tensors view() const;

  private:
    void addOne(const at::Tensor &tensor, const char *op);
    shc_tensor first_{};
    std::vector<shc_tensor> rest_; // all of them, when there are several
    uint32_t count_ = 0;
    bool onCpu_ = true;
};

// Fills dtype, elem_bytes, dtype_tag.
void setDtype(shc_op &op, at::ScalarType dtype);

// Fills redop and premul. Call it after setDtype(): a type that can only be moved is a TypeError.
void setReduceOp(shc_op &op, const c10d::ReduceOp &reduceOp);

// The only negative value with a meaning is c10d::kUnsetTimeout, -1 ms.
inline void checkTimeout(std::chrono::milliseconds timeout)
{
    TORCH_CHECK_VALUE(timeout >= c10d::kUnsetTimeout, "shmcoll: a time-out of ", timeout.count(),
                      " ms is negative; give a positive one (of a group, 0 is no limit)");
}

inline constexpr std::chrono::milliseconds kForEver = std::chrono::hours(24 * 365 * 100);

// The milliseconds of an options struct; unset means the group's.
inline uint64_t timeoutNs(std::chrono::milliseconds timeout)
{
    return timeout.count() > 0
               ? static_cast<uint64_t>(std::min(timeout, kForEver).count()) * 1000000u
               : 0;
}

// An operation of which only kind and time-out are known.
inline shc_op describe(shc_op_kind kind, std::chrono::milliseconds timeout)
{
    shc_op op{};
    op.kind = kind;
    checkTimeout(timeout);
    op.timeout_ns = timeoutNs(timeout);
    return op;
}

// A group's own: here c10d::kNoTimeout is no limit, and unset is the core's default.
inline uint64_t groupTimeoutNs(std::chrono::milliseconds timeout)
{
    checkTimeout(timeout);
    return timeoutNs(timeout.count() == 0 ? kForEver : timeout);
}

// For several operations in one call: a ValueError if two dense outputs share memory. (For the outputs
// of one operation the core checks that, whatever their strides.)
void checkOutputsApart(at::TensorList outputs, const char *op);

// All tensors of one call: same dtype, or an error that names both.
at::ScalarType commonDtype(at::TensorList tensors, const char *op);

} // namespace shmcoll
