// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// The thread of an engine in this process: it ends calls one after the other, as an engine's does.

extern "C" {
#include "hosts/hosts.h"
}

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace shmcoll::test
{

// The end of a call: what comes before it, and how it has ended (nullptr: well).
struct End {
    std::function<void()> first;
    shc_ticket *ticket;
    const char *error;
};

class Ends
{
  public:
    Ends();
    Ends(const Ends &) = delete;
    ~Ends(); // Ends all that was added.

    void add(const End &end);

  private:
    void work();

    std::mutex lock_;
    std::condition_variable moved_;
    std::deque<End> ends_;
    bool stopping_ = false;
    std::thread worker_;
};

} // namespace shmcoll::test
