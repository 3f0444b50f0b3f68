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

} // namespace shmcoll
