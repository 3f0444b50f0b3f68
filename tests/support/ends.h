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
    Ends() : worker_([this] { work(); }) {}
    Ends(const Ends &) = delete;

    // Ends all that was added.
    ~Ends()
    {
        {
            std::lock_guard<std::mutex> guard(lock_);
            stopping_ = true;
        }
        moved_.notify_all();
        worker_.join();
    }

    void add(const End &end)
    {
        {
            std::lock_guard<std::mutex> guard(lock_);
            ends_.push_back(end);
        }
        moved_.notify_all();
    }

  private:
    void work()
    {
        std::unique_lock<std::mutex> guard(lock_);
        while (!stopping_ || !ends_.empty()) {
            if (ends_.empty()) {
                moved_.wait(guard);
                continue;
            }
            const End end = ends_.front();
            ends_.pop_front();
            guard.unlock();
            if (end.first)
                end.first();
            shc_ticket_done(end.ticket, end.error);
            guard.lock();
        }
    }

    std::mutex lock_;
    std::condition_variable moved_;
    std::deque<End> ends_;
    bool stopping_ = false;
    std::thread worker_;
};

} // namespace shmcoll::test
