// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// What the engines between hosts share.

#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shmcoll
{

// Memory that outlives the call of the engine.
at::Tensor bytesAt(const void *data, size_t count);

// gloo begins with a place in its source, and ends with a guess.
std::string withoutDecoration(std::string words);
std::string wordsOf(const std::exception &error);

// Ends all connections of a gloo whose hosts are connected: before a message that may be under way is dropped. gloo's
// thread would look for ever at bytes that come for memory which is gone, and the end of the backend waits for that thread.
void endConnections(c10d::Backend &backend);

} // namespace shmcoll
