// SPDX-License-Identifier: BSD-3-Clause
#include "backend/python.hpp"

#include "backend/condition.hpp"
#include "backend/python_api.hpp"
#include "backend/signals.hpp"
#include "shm/shmcoll.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <thread>

// pybind11's own base of errors that set Python's error themselves, which it knows by this name. torch's
// methods are bound by pybind11, so what is thrown through them reaches Python as it was.
namespace pybind11
{

class __attribute__((visibility("default"))) builtin_exception : public std::runtime_error
{
  public:
    using std::runtime_error::runtime_error;
    virtual void set_error() const = 0;
};

} // namespace pybind11

namespace shmcoll
{

namespace
{

std::atomic<bool> forgotten{false};
std::thread::id forgetter; // set before `forgotten`
std::atomic<unsigned long> mainThread{0};

bool hasPython()
{
    return !forgotten.load() && pythonApi() != nullptr && pythonApi()->Py_IsInitialized() != 0;
}

bool onMainThread()
{
    return pythonApi()->PyThread_get_thread_ident() == mainThread.load();
}

// (PyGILState_Check() says yes to every thread once a subinterpreter was made.)
bool holdsLock()
{
    const Thread *const own = pythonApi()->PyGILState_GetThisThreadState();
    return own != nullptr && own == pythonApi()->PyThreadState_GetUnchecked();
}

// Of a thread that may hold the lock already.
class GilAcquire
{
  public:
    GilAcquire() : state_(pythonApi()->PyGILState_Ensure()) {}
    ~GilAcquire() { pythonApi()->PyGILState_Release(state_); }
    GilAcquire(const GilAcquire &) = delete;
    GilAcquire &operator=(const GilAcquire &) = delete;

  private:
    int state_;
};

// Python's pending error, on its way through C++. The lock is held when it is made, and when Python
// takes the error back. If Python never does, the error's objects stay.
class PythonError : public pybind11::builtin_exception
{
  public:
    PythonError() : builtin_exception("an error of Python's"), parts_(std::make_shared<Parts>())
    {
        pythonApi()->PyErr_Fetch(&parts_->type, &parts_->value, &parts_->trace);
    }

    void set_error() const override
    {
        const Parts parts = *parts_;
        *parts_ = Parts(); // they are Python's now
        pythonApi()->PyErr_Restore(parts.type, parts.value, parts.trace);
    }

  private:
    struct Parts {
        Object *type = nullptr;
        Object *value = nullptr;
        Object *trace = nullptr;
    };

    std::shared_ptr<Parts> parts_;
};

void throwPythonError()
{
    throw PythonError();
}

std::atomic<void (*)()> thrower{throwPythonError};

using Clock = std::chrono::steady_clock;

// How long a thread inside a wait waits here for an answer. If the lock is free, it comes sooner.
constexpr std::chrono::milliseconds kBriefly{1};
constexpr std::chrono::milliseconds kFresh{100}; // how long an answer is valid
constexpr std::chrono::milliseconds kSettling{100};

// A thread that only takes the interpreter's lock, and releases it, when asked to. So a thread inside a
// wait learns whether the lock is free without waiting for it. Made with the first signal. Never
// destructed.
class LockAsker
{
  public:
    // Was the lock free a moment ago? If that is not known, it is asked for; a later call has the
    // answer. Always true if no thread can be made.
    bool isFree()
    {
        const Condition::Guard guard(stir_);
        if (!started_ && !start())
            return true;
        if (state_ == kAnswered && Clock::now() - answered_ > kFresh)
            state_ = kIdle;
        if (state_ == kIdle) {
            state_ = kAsked;
            stir_.wake();
            stir_.waitFor(kBriefly, [this] { return state_ == kAnswered; });
        }
        if (state_ != kAnswered)
            return false;
        state_ = kIdle;
        return true;
    }

    void settle()
    {
        const Condition::Guard guard(stir_);
        stir_.waitFor(kSettling, [this] { return state_ != kAsked; });
    }

  private:
    enum State { kIdle, kAsked, kAnswered };

    bool start()
    {
        const SignalsBlocked blocked;
        try {
            std::thread thread([this] { serve(); });
            pthread_setname_np(thread.native_handle(), "shc-python");
            thread.detach();
            started_ = true;
        } catch (const std::system_error &) { // asked again at the next signal
        }
        return started_;
    }

    // (An interpreter that ends may end this thread while it takes its lock.)
    void serve()
    {
        for (;;) {
            {
                const Condition::Guard guard(stir_);
                stir_.wait([this] { return state_ == kAsked; });
            }
            pythonApi()->PyGILState_Release(pythonApi()->PyGILState_Ensure());
            const Condition::Guard guard(stir_);
            answered_ = Clock::now();
            state_ = kAnswered;
            stir_.wake();
        }
    }

    Condition stir_; // guards what follows
    State state_ = kIdle;
    Clock::time_point answered_;
    bool started_ = false;
};

LockAsker *asker = new LockAsker;

// The lock is held.
bool runHandlers()
{
    wrapSignalHandlers();
    forgetSignals();
    return pythonApi()->PyErr_CheckSignals() != 0;
}

} // namespace

GilRelease::GilRelease()
    : state_(hasPython() && holdsLock() ? pythonApi()->PyEval_SaveThread() : nullptr)
{
}

GilRelease::~GilRelease()
{
    if (state_ == nullptr)
        return;
    stayOutOfDyingPython();
    pythonApi()->PyEval_RestoreThread(static_cast<Thread *>(state_));
}

void setMainThread(unsigned long ident)
{
    mainThread.store(ident);
}

void setPythonErrorThrower(void (*function)())
{
    thrower.store(function);
}

void watchSignals()
{
    if (!hasPython())
        return;
    if (!onMainThread()) {
        doubtSignalHandlers(); // the main thread wraps them if it waits
        return;
    }
    const GilAcquire gil; // torch makes the parts of a group that is split without it
    if (runHandlers())
        throwPendingPythonError();
}

bool pythonInterrupted(void *)
{
    // Only the main thread runs handlers.
    if (!hasPython() || !onMainThread() || !signalMayBePending())
        return false;
    if (!holdsLock() && !asker->isFree())
        return false;
    const GilAcquire gil;
    return runHandlers();
}

void throwPendingPythonError()
{
    if (!hasPython())
        return;
    const GilAcquire gil;
    if (pythonApi()->PyErr_Occurred() != nullptr)
        thrower.load()();
}

void stayOutOfDyingPython()
{
    if (!forgotten.load() || std::this_thread::get_id() == forgetter)
        return;
    for (;;)
        std::this_thread::sleep_for(std::chrono::hours(1));
}

void forgetPython()
{
    if (!forgotten.load())
        forgetter = std::this_thread::get_id();
    forgotten.store(true);
    unwrapSignalHandlers();
}

void settlePython()
{
    asker->settle();
}

void leaveProcess(bool forget, void (*afterwards)())
{
    if (forget)
        forgetPython();
    Thread *const state = pythonApi()->PyEval_SaveThread();
    shc_process_leave();
    afterwards();
    if (forget)
        settlePython();
    pythonApi()->PyEval_RestoreThread(state);
}

void renewPythonInChild()
{
    setMainThread(pythonApi()->PyThread_get_thread_ident());
    asker = new LockAsker; // the parent's thread is not here, and may have held the lock
    renewSignalsInChild();
}

} // namespace shmcoll
