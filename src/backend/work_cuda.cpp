// SPDX-License-Identifier: BSD-3-Clause
#include "backend/work_cuda.hpp"

#include "backend/error.hpp"
#include "backend/python.hpp"

#include <c10/core/StreamGuard.h>
#include <thread>

namespace shmcoll
{

namespace
{

// How often a waiting host looks, at first and after a while.
constexpr std::chrono::microseconds kFirstNap{20}, kLongestNap{1000};
// How often it checks for signals.
constexpr std::chrono::milliseconds kBetweenSignals{10};

using Clock = std::chrono::steady_clock;

// What a waiting host does between two looks.
class Naps
{
  public:
    // Throws if a signal's handler does.
    void take()
    {
        const Clock::time_point now = Clock::now();
        if (now - asked_ >= kBetweenSignals) {
            asked_ = now;
            if (pythonInterrupted(nullptr))
                throwStatus(SHC_ERR_INTERRUPTED, "interrupted by a signal");
        }
        std::this_thread::sleep_for(nap_);
        nap_ = std::min(nap_ * 2, kLongestNap);
    }

  private:
    Clock::time_point asked_ = Clock::now();
    std::chrono::microseconds nap_ = kFirstNap;
};

} // namespace

void checkCuda(shc_status status)
{
    if (status != SHC_OK) [[unlikely]]
        throwStatus(status, shc_cuda_error_text());
}

c10::Stream currentStream(c10::Device device)
{
    return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void waitOnHost(const c10::Event &event, const CudaGroup &group, std::chrono::milliseconds timeout)
{
    GilRelease release;
    const Clock::time_point begun = Clock::now();
    for (Naps naps; !event.query(); naps.take()) {
        checkCuda(shc_cuda_comm_error(group.get()));
        if (timeout.count() > 0 && Clock::now() - begun >= timeout)
            throwStatus(SHC_ERR_TIMEOUT,
                        c10::str("an operation on CUDA tensors has not ended after ",
                                 timeout.count(), " ms; it is still running"));
    }
    stayOutOfDyingPython();
    checkCuda(shc_cuda_comm_error(group.get()));
}

shc_status waitUntilIdle(const CudaGroup &group)
{
    GilRelease release;
    bool pending = false;
    shc_status status = shc_cuda_comm_pending(group.get(), &pending);
    for (Naps naps; status == SHC_OK && pending;) {
        naps.take();
        status = shc_cuda_comm_pending(group.get(), &pending);
    }
    stayOutOfDyingPython();
    return status;
}

bool groupIsRight(const CudaGroup &group)
{
    bool pending;
    return shc_cuda_comm_pending(group.get(), &pending) == SHC_OK;
}

void Stash::drop()
{
    std::vector<at::Tensor>
        dropped; // after the lock is released: a tensor may run Python when it ends
    std::lock_guard<std::mutex> guard(lock);
    dropped.swap(tensors);
}

WorkCuda::WorkCuda(CudaGroup group, int rank, const Call &call, c10::Stream stream,
                   std::shared_ptr<Stash> stash, uint64_t sequence)
    : Work(rank, call.type, call.title, call.shown().vec()), group_(std::move(group)),
      stream_(stream), stash_(std::move(stash)), outputs_(call.outputs.vec()), sequence_(sequence)
{
    if (recordFunctionEndCallback_) { // for the CPU, the operation ends here
        recordFunctionEndCallback_();
        recordFunctionEndCallback_ = nullptr;
    }
}

shc_status WorkCuda::failure() const
{
    return stash_->right ? SHC_OK : shc_cuda_comm_error(group_.get());
}

shc_status WorkCuda::look(bool *ended) const
{
    *ended = stash_->right || stash_->passed();
    if (*ended && !stash_->captured && groupIsRight(group_)) // after the event
        stash_->right = true;
    return failure();
}

bool WorkCuda::isCompleted()
{
    bool ended;
    return look(&ended) != SHC_OK || ended;
}

bool WorkCuda::isSuccess() const
{
    bool ended;
    return look(&ended) == SHC_OK && ended;
}

std::exception_ptr WorkCuda::exception() const
{
    bool ended;
    const shc_status status = look(&ended);
    return status == SHC_OK ? nullptr : makeException(status, shc_cuda_error_text());
}

// Without a time-out no event is queried: a capture of this thread would forbid it.
bool WorkCuda::wait(std::chrono::milliseconds timeout)
{
    const shc_status status = failure();
    if (!stash_->right) {
        // Also after a failure: until its stream has passed it, an operation may restore what was
        // there.
        try {
            stash_->end.block(currentStream(stream_.device()));
        } catch (...) {
            checkCuda(status); // the group's reason comes first
            throw;
        }
        checkCuda(status);
        if (timeout != kNoTimeout && !stash_->captured) {
            waitOnHost(stash_->end, group_, timeout);
            stash_->right = true;
        }
    }
    stash_->drop();
    return true;
}

void WorkCuda::abort()
{
    shc_cuda_comm_abort(group_.get(), "Work.abort() was called");
}

// Completed at once, as seen from the stream: code that takes the value waits on the device.
c10::intrusive_ptr<c10::ivalue::Future> WorkCuda::getFuture()
{
    std::lock_guard<std::mutex> guard(lock_);
    if (future_)
        return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{stream_.device()});
    const shc_status status = failure();
    if (status == SHC_OK) {
        c10::StreamGuard onStream(stream_);
        future_->markCompleted(c10::IValue(outputs_));
    } else
        future_->setError(makeException(status, shc_cuda_error_text()));
    return future_;
}

} // namespace shmcoll
