// SPDX-License-Identifier: BSD-3-Clause
#include "backend/engine_work.hpp"

#include <ATen/ops/from_blob.h>
#include <chrono>
#include <limits>

namespace shmcoll
{

at::Tensor bytesAt(const void *data, size_t count)
{
    return at::from_blob(const_cast<void *>(data), {static_cast<int64_t>(count)},
                         at::TensorOptions(at::kByte));
}

std::string withoutDecoration(std::string words)
{
    if (words.rfind("[", 0) == 0)
        words.erase(0, words.find("] ") == std::string::npos ? 0 : words.find("] ") + 2);
    return words.substr(0, words.find(". This is typically"));
}

std::string wordsOf(const std::exception &error)
{
    const auto *torchs = dynamic_cast<const c10::Error *>(&error);
    return withoutDecoration(torchs != nullptr ? torchs->what_without_backtrace() : error.what());
}

// A message that times out ends all connections.
void timeOut(c10d::Work &message)
{
    try {
        message.wait(std::chrono::milliseconds(1));
    } catch (...) { // it has timed out, or its connection has ended before
    }
}

void endConnections(c10d::Backend &backend)
{
    char nothing = 0;
    for (int host = 0; host < backend.getSize(); host++) {
        if (host == backend.getRank())
            continue;
        try { // nobody sends one with this tag
            std::vector<at::Tensor> tensors{bytesAt(&nothing, sizeof nothing)};
            timeOut(*backend.recv(tensors, host, std::numeric_limits<int>::max()));
        } catch (...) { // this connection has ended before
        }
    }
}

} // namespace shmcoll
