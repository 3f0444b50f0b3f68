// SPDX-License-Identifier: BSD-3-Clause
// What a group does in another way if its ranks are on several hosts.
#include "backend/process_group_shm.hpp"

namespace shmcoll
{

shc_status ProcessGroupShm::runNow(const shc_op &op)
{
    return hosts_ ? hosts_->run(op) : shc_run(group_.get(), &op);
}

// In the group of this host's ranks, which knows those of other hosts, too.
ProcessGroupShm::WorkPtr ProcessGroupShm::startMessage(const Call &call)
{
    shc_op op = call.op;
    const Group island = HostsSide::islandFor(hosts_, op);
    WorkPtr work = submit(island, op, call, nullptr);
    if (op.kind == SHC_RECV)
        static_cast<WorkShm *>(work.get())->nameSources([side = hosts_](int number) {
            return side->peerOf(number);
        });
    return work;
}

} // namespace shmcoll
