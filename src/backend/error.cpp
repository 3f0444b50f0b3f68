// SPDX-License-Identifier: BSD-3-Clause
#include "backend/error.hpp"

#include "backend/python.hpp"

#include <c10/util/Exception.h>

namespace shmcoll
{

void throwStatus(shc_status status, const std::string &text)
{
    switch (status) {
    case SHC_ERR_INVALID:
        TORCH_CHECK_VALUE(false, "shmcoll: ", text);
    case SHC_ERR_UNSUPPORTED:
        TORCH_CHECK_TYPE(false, "shmcoll: ", text);
    case SHC_ERR_INTERRUPTED:
        throwPendingPythonError();
        [[fallthrough]]; // interrupted by something other than Python
    default:
        TORCH_CHECK_WITH(DistBackendError, false, "shmcoll: ", text);
    }
    throw std::logic_error("unreachable");
}

std::exception_ptr makeException(shc_status status, const std::string &text) noexcept
{
    try {
        throwStatus(status == SHC_ERR_INTERRUPTED ? SHC_ERR_ABORTED : status, text);
    } catch (...) {
        return std::current_exception();
    }
}

} // namespace shmcoll
