// SPDX-License-Identifier: BSD-3-Clause
#include "backend/python.hpp"

#include "backend/signals.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <torch/csrc/utils/pybind.h>

namespace shmcoll
{

namespace
{

std::atomic<bool> forgotten{false};
std::thread::id forgetter; // set before `forgotten`
std::atomic<unsigned long> mainThread{0};

bool hasPython()
{
    return !forgotten.load() && Py_IsInitialized() != 0;
}

bool onMainThread()
{
    return PyThread_get_thread_ident() == mainThread.load();
}

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
        std::unique_lock<std::mutex> guard(lock_);
        if (!started_ && !start())
            return true;
        if (state_ == kAnswered && Clock::now() - answered_ > kFresh)
            state_ = kIdle;
        if (state_ == kIdle) {
            state_ = kAsked;
            stir_.notify_all();
            stir_.wait_for(guard, kBriefly, [this] { return state_ == kAnswered; });
        }
        if (state_ != kAnswered)
            return false;
        state_ = kIdle;
        return true;
    }

    void settle()
    {
        std::unique_lock<std::mutex> guard(lock_);
        stir_.wait_for(guard, kSettling, [this] { return state_ != kAsked; });
    }

  private:
    enum State { kIdle, kAsked, kAnswered };

    // With all signals blocked, like the threads of the core.
    bool start()
    {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            std::thread thread([this] { serve(); });
            pthread_setname_np(thread.native_handle(), "shc-python");
            thread.detach();
            started_ = true;
        } catch (const std::system_error &) { // asked again at the next signal
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return started_;
    }

    // (An interpreter that ends may end this thread while it takes its lock.)
    void serve()
    {
        for (;;) {
            {
                std::unique_lock<std::mutex> guard(lock_);
                stir_.wait(guard, [this] { return state_ == kAsked; });
            }
            PyGILState_Release(PyGILState_Ensure());
            std::lock_guard<std::mutex> guard(lock_);
            answered_ = Clock::now();
            state_ = kAnswered;
            stir_.notify_all();
        }
    }

    std::mutex lock_; // guards what follows
    std::condition_variable stir_;
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
    return PyErr_CheckSignals() != 0;
}

} // namespace

GilRelease::GilRelease()
    : state_(hasPython() && PyGILState_Check() == 1 ? PyEval_SaveThread() : nullptr)
{
}

GilRelease::~GilRelease()
{
    if (state_ == nullptr)
        return;
    stayOutOfDyingPython();
    PyEval_RestoreThread(static_cast<PyThreadState *>(state_));
}

void setMainThread(unsigned long ident)
{
    mainThread.store(ident);
}

void watchSignals()
{
    if (!hasPython())
        return;
    pybind11::gil_scoped_acquire gil; // torch makes the parts of a group that is split without it
    if (!onMainThread())
        wrapSignalHandlers();
    else if (runHandlers())
        throw pybind11::error_already_set();
}

bool pythonInterrupted(void *)
{
    // Only the main thread runs handlers.
    if (!hasPython() || !onMainThread() || !signalMayBePending())
        return false;
    if (PyGILState_Check() == 0 && !asker->isFree())
        return false;
    PyGILState_STATE state = PyGILState_Ensure();
    const bool raised = runHandlers();
    PyGILState_Release(state);
    return raised;
}

void throwPendingPythonError()
{
    if (!hasPython())
        return;
    pybind11::gil_scoped_acquire gil;
    if (PyErr_Occurred() != nullptr)
        throw pybind11::error_already_set();
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

void renewPythonInChild()
{
    setMainThread(PyThread_get_thread_ident());
    asker = new LockAsker; // the parent's thread is not here, and may have held the lock
    renewSignalLock();
}

} // namespace shmcoll
