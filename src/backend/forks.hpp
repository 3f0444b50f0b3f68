// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// What a forked child needs to know of its parent's objects: that they are not its own.

#include <atomic>

namespace shmcoll
{

inline std::atomic<int> forks{0}; // of which this process is the last child

} // namespace shmcoll
