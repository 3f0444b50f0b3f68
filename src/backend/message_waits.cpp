// SPDX-License-Identifier: BSD-3-Clause
#include "backend/message_waits.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace shmcoll
{

namespace
{

// A wait returns after one or two of these, and the thread sleeps after so many without a wait.
constexpr std::chrono::milliseconds kTick{10};
constexpr int kIdleTicks = 100;

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPolling{1};     // a message that is not late comes sooner
constexpr std::chrono::microseconds kSlowYield{500}; // a thread that computes has had the CPU
constexpr unsigned kLeastSpell = 64;
constexpr unsigned kMostSpell = 16384;

} // namespace

std::shared_ptr<MessageWaits> MessageWaits::make()
{
    const std::shared_ptr<MessageWaits> made(new MessageWaits);
    std::thread([made] { made->run(); }).detach();
    return made;
}

// Yields until the message comes. Next to a thread that computes a yield takes that thread's whole time slice. So after a
// slow one many waits sleep at once, and more of them if the next yield is slow again.
void MessageWaits::poll(const Arrival &arrival)
{
    if (unpolled_ > 0) {
        unpolled_--;
        return;
    }
    const Clock::time_point begun = Clock::now();
    for (Clock::time_point last = begun; arrival.isAwaited() && last - begun < kPolling;) {
        std::this_thread::yield();
        const Clock::time_point now = Clock::now();
        if (now - last > kSlowYield) {
            spell_ = std::clamp(4 * spell_, kLeastSpell, kMostSpell);
            unpolled_ = spell_;
            return;
        }
        last = now;
    }
    spell_ /= 2;
}

bool MessageWaits::await(c10d::Work &work, Arrival *arrival)
{
    if (arrival != nullptr) {
        poll(*arrival);
        arrival->forget();
    }
    struct Listed {
        Listed(MessageWaits &of, c10d::Work &work) : waits(of)
        {
            const Condition::Guard own(waits.lock_);
            waits.awaited_ = &work;
            goesOn = !waits.stopped_;
            if (waits.count_++ == 0)
                waits.lock_.wake();
        }
        ~Listed()
        {
            const Condition::Guard own(waits.lock_);
            waits.awaited_ = nullptr;
        }
        MessageWaits &waits;
        bool goesOn;
    };
    const Listed listed(*this, work);
    return listed.goesOn && work.wait();
}

// Under the lock: calls off a wait that is older than a tick. True: there was one, or there has been one since.
bool MessageWaits::tick(uint64_t &seen)
{
    const bool isOld = count_ == seen;
    if (awaited_ != nullptr && isOld)
        awaited_->abort();
    seen = count_;
    return awaited_ != nullptr || !isOld;
}

void MessageWaits::run()
{
    const Condition::Guard own(lock_);
    uint64_t seen = 0;
    int idle = 0;
    while (!stopped_) {
        if (idle == kIdleTicks) {
            count_ = seen = 0;
            idle = 0;
            lock_.wait([this] { return stopped_ || count_ > 0; });
        }
        lock_.waitFor(kTick, [this] { return stopped_; });
        idle = tick(seen) ? 0 : idle + 1;
    }
}

void MessageWaits::stop()
{
    const Condition::Guard own(lock_);
    stopped_ = true;
    if (awaited_ != nullptr)
        awaited_->abort();
    lock_.wake();
}

bool MessageWaits::isStopped()
{
    const Condition::Guard own(lock_);
    return stopped_;
}

} // namespace shmcoll
