// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// A c10d backend as the engine between hosts.

#include "backend/line_messages.hpp"
#include "backend/posted_exchange.hpp"
#include "hosts/hosts.h"

#include <atomic>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shmcoll
{

// Moves messages. torch's Work of a message tells nobody when it ends, so each call under way has a thread that waits
// for it.
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

// Moves bytes for all. Its calls cannot be ended, and a backend that is dropped with one under way waits for the other hosts. So such a
// backend is kept until its calls have ended.
class Engine
{
  public:
    enum class Use { kLine, kRail };
    Engine(c10::intrusive_ptr<c10d::Backend> backend, Use use);
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    // Lets go of it, and of those before it whose calls have ended since. It stays itself if a call is under way. pre: no further call.
    static void release(Engine *engine);

    // In a forked child: keeps none of the parent's, and lets go of none.
    static void forgetParents();

    // Lives as long as the engine.
    shc_fabric view();

    // So far, and what it was given to send in them; 0 of no engine.
    static uint64_t calls(const Engine *engine) { return engine ? engine->calls_.load() : 0; }
    static uint64_t bytes(const Engine *engine) { return engine ? engine->bytes_.load() : 0; }

  private:
    struct Kept;
    static Kept *kept_;
    ~Engine();
    static void addLine(shc_fabric &view);
    void count(uint64_t bytes);
    std::function<void(const char *)> counted(uint64_t bytes, shc_ticket *ticket);
    template <class Start>
    int begin(uint64_t bytes, shc_ticket *ticket, Start start);

    c10::intrusive_ptr<c10d::Backend> backend_;
    std::unique_ptr<P2pEngine>
        monitor_; // the same backend; none if its receives do not end with their connection
    std::shared_ptr<MessageWaits> waits_;    // these three: of a line of gloo alone
    std::unique_ptr<PostedExchange> posted_; // the same backend
    std::unique_ptr<LineMessages> messages_; // the same backend
    std::atomic<int> underWay_{0};
    std::atomic<uint64_t> calls_{0}, bytes_{0};
};

} // namespace shmcoll
