// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Waits for messages of gloo, by the thread that wants them. gloo's own wait ends the connection if it times out, but it
// can be called off and begin again. So a thread calls it off every now and then. It sleeps at once, and each wake-up
// takes as long as a message. So a wait looks for the message first, and yields meanwhile.

#include "backend/arrival.hpp"
#include "backend/condition.hpp"

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace shmcoll
{

// One thread at a time waits.
class MessageWaits
{
  public:
    static constexpr char kClosing[] = "the group is being closed";

    // Throws std::system_error: there is no thread.
    static std::shared_ptr<MessageWaits> make();
    MessageWaits(const MessageWaits &) = delete;
    MessageWaits &operator=(const MessageWaits &) = delete;

    // Throws the message's error. False: the wait was called off, after 10 to 20 ms or by stop().
    // arrival: of a receive; looked at in its first wait alone. nullptr: the wait sleeps at once.
    bool await(c10d::Work &work, Arrival *arrival = nullptr);

    // For good: the thread ends, too.
    void stop();
    bool isStopped();

  private:
    MessageWaits() = default;
    void run();
    void poll(const Arrival &arrival);
    bool tick(uint64_t &seen);

    Condition lock_; // guards what follows
    c10d::Work *awaited_ = nullptr;
    uint64_t count_ = 0; // of waits, since the thread slept
    bool stopped_ = false;

    // Of the thread that waits:
    unsigned unpolled_ = 0; // so many waits to come sleep at once
    unsigned spell_ = 0;    // as many did after the last slow yield
};

} // namespace shmcoll
