// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// One operation, between the method that describes it and the side (CPU or CUDA) that runs it.

#include "shm/shmcoll.h"

#include <ATen/core/Tensor.h>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/version.h>

// A method that a version's Backend does not have cannot be overridden.
#define SHMCOLL_TORCH_AT_LEAST(major, minor) \
    (TORCH_VERSION_MAJOR > (major) ||        \
     (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace shmcoll
{

// Refers to what its maker keeps on the stack.
struct Call {
    const shc_op &op;
    at::TensorList outputs; // its outputs, which Work::result() gives
    at::TensorList inputs;  // its other inputs
    bool asyncOp;
    c10d::OpType type;
    const char *title;                 // for the profiler, like the next one
    at::TensorList given = {};         // the user's tensors, if they are not one of the lists
    std::function<void()> finish = {}; // see Flight
    int count = 1;                     // op is the first of that many in a row, all messages

    // What a profile shows as inputs: an operation in place reads what it writes.
    at::TensorList shown() const
    {
        if (!given.empty())
            return given;
        return inputs.empty() ? outputs : inputs;
    }

    bool isMessage() const { return op.kind == SHC_SEND || op.kind == SHC_RECV; }

    // All its tensors are on the CPU, or all on GPUs: TensorViews has checked that a list does not mix
    // them.
    bool isOnGpu() const
    {
        return (!outputs.empty() && !outputs.front().is_cpu()) ||
               (!inputs.empty() && !inputs.front().is_cpu());
    }

    // Everything it reads or writes.
    std::vector<at::Tensor> tensors() const
    {
        std::vector<at::Tensor> all = outputs.vec();
        all.insert(all.end(), inputs.begin(), inputs.end());
        return all;
    }
};

// Only then may a null Work be returned: no caller will look for it.
inline bool isInline(bool asyncOp)
{
    return !asyncOp && !c10d::allow_inflight_collective_as_graph_input();
}

} // namespace shmcoll
