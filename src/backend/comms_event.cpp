// SPDX-License-Identifier: BSD-3-Clause
#include "backend/comms_event.hpp"

#include "backend/process_group_shm.hpp"

namespace shmcoll
{

const char *commsName(const Call &call)
{
    static const char *const names[SHC_OP_KIND_COUNT] = {
        "barrier",        "broadcast", "allreduce",      "all_gather", "reduce",
        "gather",         "scatter",   "reduce_scatter", "all_to_all", "all_gather",
        "reduce_scatter", "allreduce", "send",           "recv",
    };
    switch (call.type) {
    case c10d::OpType::ALLREDUCE_COALESCED:
        return "allreduce_coalesced";
    case c10d::OpType::_ALLGATHER_BASE:
        return "_allgather_base";
    case c10d::OpType::_REDUCE_SCATTER_BASE:
        return "_reduce_scatter_base";
    default:
        return names[call.op.kind];
    }
}

int strideOf(const std::vector<uint64_t> &ranks)
{
    if (ranks.empty())
        return 1;
    if (ranks.size() == 1)
        return 0;
    const auto stride = static_cast<int64_t>(ranks[1]) - static_cast<int64_t>(ranks[0]);
    for (size_t i = 2; i < ranks.size(); i++)
        if (static_cast<int64_t>(ranks[i]) - static_cast<int64_t>(ranks[i - 1]) != stride)
            return -1;
    return static_cast<int>(stride);
}

CommsGroup ProcessGroupShm::commsGroup(const Call &call)
{
    const auto sequence = static_cast<int64_t>(getSequenceNumberForGroup()) + 1;
    return {getGroupUid(),
            getGroupDesc(),
            rank_,
            size_,
            options_->global_ranks_in_group,
            call.isMessage() ? 0 : sequence};
}

shc_status ProcessGroupShm::runShown(at::RecordFunction &event, const Call &call)
{
    record(event, call);
    return inCommsEvent(commsGroup(call), call, [&] { return runNow(call.op); });
}

} // namespace shmcoll
