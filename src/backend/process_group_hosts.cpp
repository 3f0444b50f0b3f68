// SPDX-License-Identifier: BSD-3-Clause
// What a group does in another way if its ranks are on several hosts.
#include "backend/process_group_shm.hpp"
#include "backend/python.hpp"

namespace shmcoll
{

shc_status ProcessGroupShm::runNow(const shc_op &op)
{
    return hosts_ ? hosts_->run(op) : shc_run(group_.get(), &op);
}

// Over several hosts: in the group of this host's ranks.
ProcessGroupShm::WorkPtr ProcessGroupShm::startMessage(const Call &call)
{
    shc_op op = call.op;
    const Group island = HostsSide::islandFor(hosts_, op);
    auto flight = std::make_shared<Flight>();
    flight->outputs = call.outputs.vec();
    flight->tensors = call.tensors();
    auto work =
        c10::make_intrusive<WorkShm>(island, rank_, call.type, call.title, call.shown(), flight);
    work->submit(op);
    stayOutOfDyingPython();
    return work;
}

} // namespace shmcoll
