// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// A c10d backend as the engine between hosts.

#include "hosts/hosts.h"

#include <atomic>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shmcoll
{

// Its calls cannot be ended, and a backend that is dropped with one under way waits for the other hosts. So such a
// backend is never dropped.
class Engine
{
  public:
    explicit Engine(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    // Lets go of it, or leaves it to the process if a call is under way. pre: no further call.
    static void release(Engine *engine);

    // Lives as long as the engine.
    shc_fabric view();

  private:
    ~Engine() = default;
    template <class Start>
    int begin(shc_ticket *ticket, Start start);

    c10::intrusive_ptr<c10d::Backend> backend_;
    std::atomic<int> underWay_{0};
};

// The same for messages. torch's Work of a message tells nobody when it ends, so each call under way has a thread that
// waits for it.
class P2pEngine
{
  public:
    explicit P2pEngine(c10::intrusive_ptr<c10d::Backend> backend);
    ~P2pEngine(); // leaves the backend to those of its threads that are still in a call
    P2pEngine(const P2pEngine &) = delete;
    P2pEngine &operator=(const P2pEngine &) = delete;

    // Lives as long as the engine.
    shc_p2p_fabric view();

  private:
    struct Shared;
    std::shared_ptr<Shared> shared_;
};

} // namespace shmcoll
