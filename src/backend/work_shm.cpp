// SPDX-License-Identifier: BSD-3-Clause
#include "backend/work_shm.hpp"

#include "backend/convert.hpp"
#include "backend/error.hpp"
#include "backend/hosts_side.hpp"
#include "backend/python.hpp"

#include <ATen/core/ivalue.h>
#include <cxxabi.h>
#include <unordered_map>

namespace shmcoll
{

namespace
{

std::shared_ptr<Flight> &flightOf(void *ctx)
{
    return *static_cast<std::shared_ptr<Flight> *>(ctx);
}

// Flights whose future waits for `complete`. Never destructed.
struct OpenFutures {
    std::mutex lock;
    std::unordered_map<Flight *, std::weak_ptr<Flight>> flights;
};

OpenFutures *openFutures = new OpenFutures;

void remember(const std::shared_ptr<Flight> &flight)
{
    std::lock_guard<std::mutex> guard(openFutures->lock);
    openFutures->flights.emplace(flight.get(), flight);
}

void forget(Flight &flight)
{
    std::lock_guard<std::mutex> guard(openFutures->lock);
    openFutures->flights.erase(&flight);
}

void succeed(Flight &flight, c10::ivalue::Future &future)
{
    std::exception_ptr error;
    try {
        flight.finishOnce();
    } catch (...) {
        error = std::current_exception();
    }
    if (error)
        future.setErrorIfNeeded(error);
    else
        future.markCompleted(c10::IValue(flight.outputs));
}

// On a thread of the library that holds nothing: callbacks may submit and wait. No reference is taken
// here, because this thread must not drop the last one.
void complete(void *ctx, shc_status status, const char *error)
{
    Flight &flight = *flightOf(ctx);
    c10::ivalue::Future *future;
    {
        std::lock_guard<std::mutex> guard(flight.lock);
        flight.ended = true;
        future = flight.future.get();
    }
    if (future != nullptr)
        forget(flight);
    try { // callbacks are the user's; the caller is C
        if (flight.recordEnd)
            flight.recordEnd();
        if (future != nullptr && status == SHC_OK)
            succeed(flight, *future);
        else if (future != nullptr) {
            if (mayBeAFailure(status) && flight.failsGroup)
                flight.abortHooks->run(false);
            future->setErrorIfNeeded(makeException(status, error));
        }
    } catch (const std::exception &raised) {
        TORCH_WARN("shmcoll: a callback of a finished operation threw: ", raised.what());
    } catch (abi::__forced_unwind &) { // the thread is being ended
        throw;
    } catch (...) {
        TORCH_WARN("shmcoll: a callback of a finished operation threw");
    }
}

void retire(void *ctx)
{
    delete &flightOf(ctx);
}

} // namespace

void Flight::finishOnce()
{
    if (!finish)
        return;
    std::lock_guard<std::mutex> guard(finishing);
    if (!finished)
        finish();
    finished = true;
}

shc_request_hooks Flight::hooks(const std::shared_ptr<Flight> &flight)
{
    return {new std::shared_ptr<Flight>(flight), complete, retire};
}

WorkShm::WorkShm(Group group, int rank, c10d::OpType type, const char *title, at::TensorList shown,
                 std::shared_ptr<Flight> flight)
    : Work(rank, type, title, shown.vec()), group_(std::move(group)), flight_(std::move(flight))
{
    flight_->recordEnd = std::move(recordFunctionEndCallback_);
    recordFunctionEndCallback_ = nullptr;
}

WorkShm::~WorkShm()
{
    GilRelease release;
    if (request_ != nullptr)
        shc_request_release(request_);
}

void WorkShm::submit(const shc_op &op, HostsSide *hosts)
{
    shc_request_hooks hooks = Flight::hooks(flight_);
    std::string text;
    shc_status status = hosts != nullptr ? hosts->submit(op, hooks, &request_, text)
                                         : shc_submit(group_.get(), &op, &hooks, &request_);
    if (status != SHC_OK) {
        if (hosts == nullptr)
            text = shc_error_text();
        retire(hooks.ctx);
        throwStatus(status, text);
    }
    sequence_ = shc_comm_sequence(group_.get());
    if (flight_->recordEnd) {
        flight_->notified = shc_request_notify(request_);
        if (!flight_->notified)
            flight_->recordEnd(); // it has ended already, or no thread could tell when it does
    }
}

bool WorkShm::isCompleted()
{
    shc_status status = SHC_OK;
    {
        GilRelease release; // it may have to run the operation
        if (!shc_request_done(request_, &status))
            return false;
    }
    if (status == SHC_OK)
        flight_->finishOnce(); // a caller that does not wait finds the result all the same
    return true;
}

bool WorkShm::isSuccess() const
{
    shc_status status = SHC_OK;
    return shc_request_done(request_, &status) && status == SHC_OK;
}

std::exception_ptr WorkShm::exception() const
{
    shc_status status = SHC_OK;
    if (!shc_request_done(request_, &status) || status == SHC_OK)
        return nullptr;
    return makeException(status, shc_request_error(request_));
}

std::vector<at::Tensor> WorkShm::result()
{
    TORCH_CHECK(isCompleted(), "shmcoll: result() of an operation that has not completed");
    return flight_->outputs;
}

int WorkShm::sourceRank() const
{
    TORCH_CHECK(retrieveOpType() == c10d::OpType::RECV ||
                    retrieveOpType() == c10d::OpType::RECVANYSOURCE,
                "shmcoll: only a receive has a source rank");
    const int source = shc_request_source(request_);
    return rankOf_ ? rankOf_(source) : source;
}

void WorkShm::synchronize()
{
    wait();
}

bool WorkShm::wait(std::chrono::milliseconds timeout)
{
    shc_status status;
    {
        GilRelease release;
        status = shc_request_wait(request_, timeoutNs(timeout));
        stayOutOfDyingPython(); // torch released the lock, so ~GilRelease does not look
    }
    if (status != SHC_OK) [[unlikely]]
        throwStatus(status, flight_->abortHooks->tell(
                                status, [this] { return shc_comm_error(group_.get()) != SHC_OK; }));
    flight_->finishOnce();
    return true;
}

void WorkShm::abort()
{
    shc_comm_abort(group_.get(), "Work.abort() was called");
}

// There is no callback: the future is settled from the start. `why` not, if the operation has not
// ended.
void WorkShm::settle(c10::ivalue::Future &future, const std::string &why) const
{
    shc_status status = SHC_OK;
    if (!shc_request_done(request_, &status)) {
        status = shc_comm_error(group_.get()); // a forked child, or the process is leaving
        future.setError(makeException(status == SHC_OK ? SHC_ERR_SYSTEM : status,
                                      status == SHC_OK ? why : shc_error_text()));
    } else if (status == SHC_OK)
        succeed(*flight_, future);
    else
        future.setError(makeException(status, shc_request_error(request_)));
}

// Will there be a callback, or has it been? pre: the flight's lock.
bool WorkShm::isServed()
{
    if (!flight_->notified && !flight_->ended)
        flight_->notified = shc_request_notify(request_);
    return flight_->notified || flight_->ended;
}

// No thread can be made for the callback: a thread that wants the future waits for the operation here.
std::string WorkShm::waitUnserved()
{
    std::string why = shc_error_text();
    GilRelease release;
    if (shc_comm_error(group_.get()) == SHC_OK && // not a forked child's, and the process stays
        shc_request_wait(request_, 0) == SHC_ERR_INTERRUPTED)
        throwPendingPythonError();
    stayOutOfDyingPython();
    return why;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkShm::getFuture()
{
    std::unique_lock<std::mutex> guard(flight_->lock);
    std::string why;
    if (!flight_->future && !isServed()) {
        guard.unlock();
        why = waitUnserved();
        guard.lock();
    }
    if (flight_->future)
        return flight_->future;
    flight_->future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (flight_->ended || !flight_->notified)
        // (No callback can be attached yet: none runs here.)
        settle(*flight_->future, why);
    else
        remember(flight_);
    return flight_->future;
}

c10::intrusive_ptr<c10d::Work> endedWork()
{
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(std::vector<at::Tensor>()));
    return c10d::Work::create_from_future(future);
}

void forgetParentsFutures()
{
    openFutures = new OpenFutures;
}

void failOpenFutures()
{
    std::unordered_map<Flight *, std::weak_ptr<Flight>> flights;
    {
        std::lock_guard<std::mutex> guard(openFutures->lock);
        flights.swap(openFutures->flights);
    }
    for (auto &entry : flights)
        if (std::shared_ptr<Flight> flight = entry.second.lock())
            flight->future->setErrorIfNeeded(
                makeException(SHC_ERR_CLOSED, "the process ended before the operation did"));
}

} // namespace shmcoll
