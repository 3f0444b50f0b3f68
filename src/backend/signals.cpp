// SPDX-License-Identifier: BSD-3-Clause
#include "backend/signals.hpp"

#include "backend/python_api.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <pthread.h>

namespace shmcoll
{

namespace
{

using Clock = std::chrono::steady_clock;
using Handler = void (*)(int);
using InfoHandler = void (*)(int, siginfo_t *, void *);

// Between two looks for handlers that have been set since: 64 system calls.
constexpr std::chrono::milliseconds kBetweenLooks{50};

// What our handler of a signal calls: the handler that was found first, and nothing that is set later. Such a
// handler may have kept ours, to call it or to restore it.
struct Wrapped {
    std::atomic<Handler> handler{nullptr};
    std::atomic<InfoHandler> infoHandler{nullptr}; // if the handler takes three arguments
    std::atomic<pthread_t> inside{}; // the thread that the last signal has interrupted
};

std::array<Wrapped, NSIG> wrapped;
std::atomic<unsigned> arrived{0};
static_assert(std::atomic<unsigned>::is_always_lock_free, "a signal handler counts");

// A handler was set without a wrapper over it: signals may have been missed.
std::atomic<bool> changed{false};

// Python's main thread's, as handlers are: no other one sets or wraps any.
std::array<const void *, NSIG> known; // what wrapSignalHandlers() found, or left
const char uncounted = 0; // its address in `known`: no handler's, so that each look asks Python
unsigned seen = 0;
Clock::time_point looked;

void count(int number, siginfo_t *info, void *context)
{
    Wrapped &inner = wrapped[static_cast<size_t>(number)];
    const pthread_t self = pthread_self();
    const bool nested = inner.inside.exchange(self) == self;
    const InfoHandler infoHandler = inner.infoHandler.load();
    const Handler handler = inner.handler.load();
    if (nested) { // the handler below calls the one that it found, and that is this one
        const int error = errno;
        pythonApi()->PyErr_SetInterruptEx(number);
        errno = error;
    } else if (infoHandler != nullptr) {
        infoHandler(number, info, context);
    } else if (handler != nullptr) {
        handler(number);
    }
    // What another thread has stored stays. A handler that never came back misses one signal more.
    pthread_t left = self;
    inner.inside.compare_exchange_strong(left, pthread_t{});
    arrived.fetch_add(1); // only now: a thread that counts it finds it in Python
}

// Of either kind, for comparisons.
const void *addressOf(const struct sigaction &action)
{
    return (action.sa_flags & SA_SIGINFO) ? reinterpret_cast<const void *>(action.sa_sigaction)
                                          : reinterpret_cast<const void *>(action.sa_handler);
}

bool isOurs(const void *address)
{
    return address == reinterpret_cast<const void *>(count);
}

// nullptr if there is no such signal.
const void *currentHandler(int number)
{
    struct sigaction action;
    return sigaction(number, nullptr, &action) == 0 ? addressOf(action) : nullptr;
}

// The one that our handler of this signal calls; nullptr: this signal never had ours.
const void *innerOf(const Wrapped &inner)
{
    const InfoHandler infoHandler = inner.infoHandler.load();
    return infoHandler != nullptr ? reinterpret_cast<const void *>(infoHandler)
                                  : reinterpret_cast<const void *>(inner.handler.load());
}

// Returns what the next looks are to find.
const void *wrap(int number)
{
    struct sigaction action;
    if (sigaction(number, nullptr, &action) != 0)
        return nullptr;
    const void *found = addressOf(action);
    const bool takesThree = (action.sa_flags & SA_SIGINFO) != 0;
    const bool isFunction =
        takesThree || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
    if (isOurs(found) || !isFunction || (action.sa_flags & SA_RESETHAND) != 0)
        return found;
    changed = true;
    Wrapped &inner = wrapped[static_cast<size_t>(number)];
    const void *first = innerOf(inner);
    if (first != nullptr && found != first)
        return &uncounted; // C code has replaced ours, and may call it
    inner.infoHandler.store(takesThree ? action.sa_sigaction : nullptr);
    inner.handler.store(takesThree ? nullptr : action.sa_handler);
    action.sa_sigaction = count;
    action.sa_flags |= SA_SIGINFO;
    return sigaction(number, &action, nullptr) == 0 ? addressOf(action) : found;
}

void unwrap(int number)
{
    struct sigaction action;
    if (sigaction(number, nullptr, &action) != 0 || !isOurs(addressOf(action)))
        return;
    const Wrapped &inner = wrapped[static_cast<size_t>(number)];
    const InfoHandler infoHandler = inner.infoHandler.load();
    if (infoHandler != nullptr) {
        action.sa_sigaction = infoHandler;
    } else {
        action.sa_flags &= ~SA_SIGINFO;
        action.sa_handler = inner.handler.load();
    }
    sigaction(number, &action, nullptr);
}

// Which signals have a Python handler? Of C functions alone, so that no handler runs meanwhile.
std::array<bool, NSIG> pythonsSignals()
{
    static const PythonApi &python = *pythonApi();
    static Object *const getsignal = [] {
        Object *module = python.PyImport_ImportModule("_signal");
        Object *function = module ? python.PyObject_GetAttrString(module, "getsignal") : nullptr;
        python.Py_DecRef(module);
        return function;
    }();
    std::array<bool, NSIG> found{};
    for (int number = 1; getsignal != nullptr && number < NSIG; number++) {
        Object *handler = python.PyObject_CallFunction(getsignal, "i", number);
        found[static_cast<size_t>(number)] =
            handler != nullptr && python.PyCallable_Check(handler) == 1;
        python.Py_DecRef(handler);
        python.PyErr_Clear(); // a number that is no signal's
    }
    python.PyErr_Clear();
    return found;
}

} // namespace

void wrapSignalHandlers()
{
    const std::array<bool, NSIG> pythons = pythonsSignals();
    for (int number = 1; number < NSIG; number++) {
        const auto index = static_cast<size_t>(number);
        known[index] = pythons[index] ? wrap(number) : currentHandler(number);
    }
}

void unwrapSignalHandlers()
{
    for (int number = 1; number < NSIG; number++)
        unwrap(number);
}

bool signalMayBePending()
{
    const Clock::time_point now = Clock::now();
    if (!changed && now - looked >= kBetweenLooks) {
        looked = now;
        for (int number = 1; number < NSIG && !changed; number++)
            changed = currentHandler(number) != known[static_cast<size_t>(number)];
    }
    return changed || arrived.load() != seen;
}

void forgetSignals()
{
    changed = false;
    seen = arrived.load();
}

void doubtSignalHandlers()
{
    changed = true;
}

void renewSignalsInChild()
{
    for (Wrapped &inner : wrapped)
        inner.inside.store(pthread_t{});
}

} // namespace shmcoll
