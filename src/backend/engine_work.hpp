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

// Before a message of gloo that may be under way is dropped: ends all connections, unless the message has come. gloo's
// thread would look for ever at bytes that come for memory which is gone, and the end of the backend waits for that thread.
void timeOut(c10d::Work &message);

// The same without a message. pre: the hosts are connected, or this would wait for that.
void endConnections(c10d::Backend &backend);

} // namespace shmcoll
