// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Single messages between the leaders of hosts, which the caller's thread awaits.

#include "backend/message_waits.hpp"
#include "hosts/hosts.h"

#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace shmcoll
{

// A message's tag has its size: hosts that disagree wait for one another, and no engine gets another size than it
// expects. pre: the hosts are connected. Before the end of this: endConnections(), if wasUsed().
class LineMessages
{
  public:
    using Done = std::function<void(const char *error)>; // nullptr: well

    LineMessages(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<MessageWaits> waits);
    ~LineMessages();
    LineMessages(const LineMessages &) = delete;
    LineMessages &operator=(const LineMessages &) = delete;

    // Begin a message to that host, or from it. The ticket's hooks carry it on, and `done` comes once.
    void send(const void *data, size_t bytes, int host, shc_ticket *ticket, Done done);
    void receive(void *data, size_t bytes, int host, shc_ticket *ticket, Done done);

    bool wasUsed() const { return wasUsed_; }

  private:
    struct Message;
    template <class Start>
    void begin(std::unique_ptr<Message> message, Start start, shc_ticket *ticket);
    static void carryOn(Message *message);
    static void abandon(Message *message);
    static void end(std::unique_ptr<Message> message, const char *error);

    c10::intrusive_ptr<c10d::Backend> backend_;
    std::shared_ptr<MessageWaits> waits_;
    std::vector<std::unique_ptr<Message>> abandoned_; // the engine may still touch their memory
    bool wasUsed_ = false;
};

} // namespace shmcoll
