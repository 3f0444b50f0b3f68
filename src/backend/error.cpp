// SPDX-License-Identifier: BSD-3-Clause
#include "backend/error.hpp"

#include "backend/python.hpp"

extern "C" {
#include "shm/base/utf8.h"
}

#include <c10/util/Exception.h>
#include <regex>

namespace shmcoll
{

void throwStatus(shc_status status, const std::string &said)
{
    std::string text = said; // Python takes UTF-8 alone
    shc_utf8_mend(text.data());
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

std::string inGloosWords(int rank, bool all, const std::string &text)
{
    static const std::regex &named = *new std::regex("rank ([0-9]+) \\(");
    if (rank != 0)
        return c10::str("Rank ", rank,
                        " successfully reached monitoredBarrier, but received errors while "
                        "waiting for send/recv from rank 0: ",
                        text);
    std::vector<std::string> missing;
    const size_t list = text.find(" waiting for ");
    if (list != std::string::npos)
        for (std::sregex_iterator
                 it(text.begin() + static_cast<ptrdiff_t>(list), text.end(), named),
             end;
             it != end && (all || missing.empty()); ++it)
            missing.push_back((*it)[1]);
    if (missing.empty())
        return text;
    return c10::str(missing.size() > 1 ? "Ranks " : "Rank ", c10::Join(", ", missing),
                    " failed to pass monitoredBarrier: ", text);
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
