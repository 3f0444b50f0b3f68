// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/ends.h"

namespace shmcoll::test
{

Ends::Ends() : worker_([this] { work(); }) {}

Ends::~Ends()
{
    {
        std::lock_guard<std::mutex> guard(lock_);
        stopping_ = true;
    }
    moved_.notify_all();
    worker_.join();
}

void Ends::add(const End &end)
{
    {
        std::lock_guard<std::mutex> guard(lock_);
        ends_.push_back(end);
    }
    moved_.notify_all();
}

void Ends::work()
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

} // namespace shmcoll::test
