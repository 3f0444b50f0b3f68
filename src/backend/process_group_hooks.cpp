// SPDX-License-Identifier: BSD-3-Clause
// When a group calls its abort hooks.
#include "backend/process_group_shm.hpp"

namespace shmcoll
{

std::string ProcessGroupShm::tellHooks(shc_status status)
{
    return hooks_->tell(status, [this] { return getError() != c10d::ErrorType::SUCCESS; });
}

std::shared_ptr<Flight> ProcessGroupShm::flightOf(const Call &call) const
{
    auto flight = std::make_shared<Flight>();
    flight->outputs = call.outputs.vec();
    flight->finish = call.finish;
    flight->tensors = call.tensors();
    flight->abortHooks = hooks_;
    flight->failsGroup = !call.isMessage();
    return flight;
}

} // namespace shmcoll
