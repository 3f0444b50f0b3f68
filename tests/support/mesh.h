// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// An engine for messages between the ranks of one process (struct shc_p2p_fabric): sends and receives of two ranks
// meet by their slot, on which each has one call at a time. They end in a thread of the engine. It can be told to fail.

extern "C" {
#include "hosts/hosts.h"
}

#include <functional>
#include <memory>
#include <vector>

namespace shmcoll::test
{

class Mesh
{
  public:
    // `spoils`: changes the bytes of a message, as a rank that lies would.
    using Spoiler = std::function<void(int from, int to, uint32_t slot, std::vector<char> &bytes)>;

    explicit Mesh(Spoiler spoils = nullptr);
    Mesh(const Mesh &) = delete;
    ~Mesh();

    shc_p2p_fabric fabric(int rank);

    // The rank's process is gone: all calls with it fail, now and later.
    void cut(int rank);

  private:
    class Slots;
    const std::unique_ptr<Slots> slots_;
};

} // namespace shmcoll::test
