// SPDX-License-Identifier: BSD-3-Clause
#include "backend/coalescing.hpp"

#include <ATen/core/ivalue.h>

namespace shmcoll
{

// ---- sections ----

namespace
{

// A number that no other thread has had. The system's thread numbers are used again, and a section that
// an ended thread has left open belongs to no thread.
uint64_t thisThread()
{
    static std::atomic<uint64_t> last{0};
    thread_local const uint64_t mine = ++last;
    return mine;
}

} // namespace

void Sections::begin()
{
    std::unique_ptr<Section>
        left; // after the lock is released: a tensor may run Python when it ends
    std::lock_guard<std::mutex> guard(lock_);
    std::unique_ptr<Section> &mine = sections_[thisThread()];
    left = std::exchange(mine, std::make_unique<Section>());
    open_ = static_cast<int>(sections_.size());
}

Section *Sections::find()
{
    std::lock_guard<std::mutex> guard(lock_);
    auto found = sections_.find(thisThread());
    return found == sections_.end() ? nullptr : found->second.get();
}

std::unique_ptr<Section> Sections::end()
{
    std::lock_guard<std::mutex> guard(lock_);
    auto found = sections_.find(thisThread());
    if (found == sections_.end())
        return nullptr;
    std::unique_ptr<Section> mine = std::move(found->second);
    sections_.erase(found);
    open_ = static_cast<int>(sections_.size());
    return mine;
}

// ---- several works as one ----

bool WorkAll::isCompleted()
{
    for (const auto &work : works_)
        if (!work->isCompleted())
            return false;
    return true;
}

bool WorkAll::isSuccess() const
{
    for (const auto &work : works_)
        if (!work->isSuccess())
            return false;
    return true;
}

std::exception_ptr WorkAll::exception() const
{
    for (const auto &work : works_)
        if (std::exception_ptr error = work->exception())
            return error;
    return nullptr;
}

std::vector<at::Tensor> WorkAll::result()
{
    std::vector<at::Tensor> all;
    for (const auto &work : works_)
        for (at::Tensor &tensor : work->result())
            all.push_back(std::move(tensor));
    return all;
}

bool WorkAll::wait(std::chrono::milliseconds timeout)
{
    using Clock = std::chrono::steady_clock;
    using std::chrono::milliseconds;
    const Clock::time_point begun = Clock::now();
    for (const auto &work : works_) {
        milliseconds left = timeout; // never 0: that would mean no limit
        if (timeout != kNoTimeout)
            left -= std::chrono::duration_cast<milliseconds>(Clock::now() - begun);
        work->wait(timeout == kNoTimeout ? timeout : std::max(left, milliseconds(1)));
    }
    return true;
}

#if SHMCOLL_TORCH_AT_LEAST(2, 9)
void WorkAll::blockCurrentStream()
{
    for (const auto &work : works_)
        work->blockCurrentStream();
}
#endif

namespace
{

// Futures; when the last one completes, it completes another one.
struct Countdown {
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> parts;
    c10::intrusive_ptr<c10::ivalue::Future> whole;
    std::atomic<size_t> left;

    void finish()
    {
        std::vector<at::Tensor> all;
        for (const auto &part : parts) {
            if (part->hasError()) {
                whole->setErrorIfNeeded(part->exception_ptr());
                return;
            }
            // The part is complete; this makes the current streams wait for its own. Future::wait() is
            // inline, and would need a C++ library newer than torch's.
            c10d::Work::create_from_future(part)->wait();
            for (at::Tensor &tensor : part->value().toTensorVector())
                all.push_back(std::move(tensor));
        }
        whole->markCompleted(c10::IValue(std::move(all)));
    }
};

} // namespace

c10::intrusive_ptr<c10::ivalue::Future> WorkAll::getFuture()
{
    std::lock_guard<std::mutex> guard(lock_);
    if (future_)
        return future_;
    auto countdown = std::make_shared<Countdown>();
    std::vector<c10::Device> devices;
    for (const auto &work : works_) {
        countdown->parts.push_back(work->getFuture());
        for (c10::Device device : countdown->parts.back()->devices())
            if (std::find(devices.begin(), devices.end(), device) == devices.end())
                devices.push_back(device);
    }
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::move(devices));
    countdown->whole = future_;
    countdown->left = works_.size();
    for (const auto &part : countdown->parts)
        part->addCallback(
            [countdown](c10::ivalue::Future &) {
                if (--countdown->left == 0)
                    countdown->finish();
            },
            /*uses_future=*/false);
    return future_;
}

} // namespace shmcoll
