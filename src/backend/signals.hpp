// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Has a signal arrived for which Python has a handler? Known without the interpreter's lock
// (docs/internals/adr/0015-signals-without-the-lock.md): the operating system's handler of each such
// signal is wrapped by one that counts, and calls it.

#include <csignal>

namespace shmcoll
{

// A thread has the signals of the one that starts it: one that is started meanwhile handles none, like the threads of
// the core.
class SignalsBlocked
{
  public:
    SignalsBlocked()
    {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked &) = delete;
    SignalsBlocked &operator=(const SignalsBlocked &) = delete;

  private:
    sigset_t before_;
};

// Wraps the handlers of the signals for which Python has one now. Those that were not wrapped may have
// been called meanwhile: signalMayBePending() then says so. The interpreter's lock is held, on Python's main
// thread: that one alone sets handlers, so none is set meanwhile, with or without a lock of the interpreter.
void wrapSignalHandlers();

// Restores what was wrapped, except handlers that have been replaced since.
void unwrapSignalHandlers();

// May a Python handler be due? A signal has arrived since the last forgetSignals(), or a handler has
// been set whose signals were not counted. Never waits. On Python's main thread.
bool signalMayBePending();

// All signals that have arrived until now are about to be handled. On Python's main thread.
void forgetSignals();

// There may be handlers that are not wrapped: the next signalMayBePending() says so. On any thread.
void doubtSignalHandlers();

// In a forked child, whose only thread this is.
void renewSignalsInChild();

} // namespace shmcoll
