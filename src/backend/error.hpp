// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// The one place where a shc_status becomes an exception.
//
//   SHC_ERR_INVALID      ValueError
//   SHC_ERR_UNSUPPORTED  TypeError
//   SHC_ERR_INTERRUPTED  what the signal's Python handler raised
//   everything else      torch.distributed.DistBackendError

#include "shm/shmcoll.h"

#include <exception>
#include <string>

namespace shmcoll
{

[[noreturn]] void throwStatus(shc_status status, const std::string &text);

// Throws the calling thread's record if the call failed.
inline void check(shc_status status)
{
    if (status != SHC_OK) [[unlikely]]
        throwStatus(status, shc_error_text());
}

// What programs look for in the errors of gloo's monitored barrier, before our own text: rank 0 names the
// ranks that have not come (the first, or all), the others say that they have.
std::string inGloosWords(int rank, bool all, const std::string &text);

// The same error as an object, for a Work.
std::exception_ptr makeException(shc_status status, const std::string &text) noexcept;

} // namespace shmcoll
