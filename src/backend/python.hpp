// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// The interpreter, as far as a thread inside a wait deals with it. No function here may be called by a
// thread of the library.

#include "backend/api.hpp"

namespace shmcoll
{

// Lets other Python threads run while this one waits; no effect without an interpreter, or if the
// calling thread does not hold its lock.
class GilRelease
{
  public:
    GilRelease();
    ~GilRelease();
    GilRelease(const GilRelease &) = delete;
    GilRelease &operator=(const GilRelease &) = delete;

  private:
    void *state_;
};

// A thread whose wait ends while the interpreter shuts down must not return into it: taking its lock
// would end the process by abort (before Python 3.14). Such a thread stays here, and ends with the
// process. No effect on the thread that called forgetPython().
void stayOutOfDyingPython();

// The thread that runs Python's signal handlers, as threading.get_ident() returns it.
void setMainThread(unsigned long ident);

// What throws Python's pending error with the lock held. shmcoll._C has pybind11's own exception for that,
// which more of torch's code hands on as it is than what this library throws otherwise.
SHMCOLL_EXPORT void setPythonErrorThrower(void (*function)());

// From now on pythonInterrupted() knows of signals without the interpreter's lock, which this takes on the main
// thread. Throws what a handler raises there that is due by now.
void watchSignals();

// Runs the Python handlers of signals that have arrived. True if one of them raised: then the error is
// pending on this thread. The core calls this in threads that wait, about every 10 ms. It takes the
// interpreter's lock only if a signal has arrived and another thread has just found the lock free, and
// waits for it a millisecond at most.
bool pythonInterrupted(void *);

// Throws the error that pythonInterrupted() left pending; returns when there is none.
void throwPendingPythonError();

// The interpreter is about to end: from now on none of the above touches it. Its lock is held.
void forgetPython();

// After forgetPython(), without the lock: waits until no thread of the library wants it any more; 100 ms at
// most.
void settlePython();

// This process says goodbye to its groups; `afterwards` is called without the lock. If `forget`, the
// interpreter may end after that. The lock is held.
void leaveProcess(bool forget, void (*afterwards)());

// In a forked child, whose only thread this is.
void renewPythonInChild();

} // namespace shmcoll
