// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// The event record_param_comms of a profile: what tools that know NCCL's traces read of a collective.

#include "backend/call.hpp"

#if SHMCOLL_TORCH_AT_LEAST(2, 9)
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#endif

namespace shmcoll
{

// The group, as such an event has it.
struct CommsGroup {
    std::string name;
    std::string description;
    int rank;
    int size;
    const std::vector<uint64_t> &globalRanks; // empty: 0, 1, 2, ...
    int64_t sequence;                         // of the collective; 0 for a message
};

// NCCL's name of the operation, by which tools find it.
const char *commsName(const Call &call);

// The distance from one rank of the job to the next; 0: there is one rank, -1: distances differ.
int strideOf(const std::vector<uint64_t> &ranks);

inline int64_t elementsOf(at::TensorList list)
{
    int64_t elements = 0;
    for (const at::Tensor &tensor : list)
        elements += tensor.numel();
    return elements;
}

// Runs the body inside the event. Allocates memory even where no profiler is on, so it is called only if
// one is.
template <typename Body>
auto inCommsEvent(const CommsGroup &group, const Call &call, Body body)
{
#if SHMCOLL_TORCH_AT_LEAST(2, 9)
    const at::TensorList in = call.inputs.empty() ? call.outputs : call.inputs;
    const at::TensorList out =
        call.outputs.empty() && call.isMessage() ? call.inputs : call.outputs;
    const at::ScalarType dtype = in.empty() ? at::kByte : in.front().scalar_type();
    const int first = group.globalRanks.empty() ? 0 : static_cast<int>(group.globalRanks[0]);
#ifdef RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP
    RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP(
        std::make_tuple(group.sequence, call.isMessage()),
        std::make_tuple(group.name, group.description), in.vec(), out.vec(), group.rank,
        commsName(call), elementsOf(in), elementsOf(out), dtype, std::vector<int64_t>(),
        std::vector<int64_t>(), first, strideOf(group.globalRanks), group.size, call.asyncOp);
#else
    RECORD_PARAM_COMMS_DATA(std::make_tuple(group.sequence, call.isMessage()),
                            std::make_tuple(group.name, group.description), in.vec(), out.vec(),
                            group.rank, commsName(call), elementsOf(in), elementsOf(out), dtype,
                            std::vector<int64_t>(), std::vector<int64_t>(), first,
                            strideOf(group.globalRanks), group.size);
#endif
#else
    (void)group;
    (void)call;
#endif
    return body();
}

} // namespace shmcoll
