// SPDX-License-Identifier: BSD-3-Clause
#include "backend/abort_hooks.hpp"

#include "backend/signals.hpp"

#include <cxxabi.h>
#include <thread>

namespace shmcoll
{

namespace
{

// Never destructed: threads use it while the process ends.
struct Running {
    Condition change; // guards what follows
    int threads = 0;
    bool closed = false;
};

Running *running = new Running;

bool enter()
{
    const Condition::Guard guard(running->change);
    running->threads += !running->closed;
    return !running->closed;
}

void leave()
{
    const Condition::Guard guard(running->change);
    running->threads--;
    running->change.wake();
}

thread_local bool insideHook = false; // a hook that aborts the group must not wait for itself

} // namespace

// (Not for what this process did itself: it closed the group, or was interrupted.)
bool mayBeAFailure(shc_status status)
{
    switch (status) {
    case SHC_OK:
    case SHC_ERR_INVALID:
    case SHC_ERR_UNSUPPORTED:
    case SHC_ERR_INTERRUPTED:
    case SHC_ERR_CLOSED:
    case SHC_ERR_FORKED:
        return false;
    default:
        return true;
    }
}

void AbortHooks::add(int64_t id, Shared hook)
{
    const Condition::Guard guard(change_);
    hooks_[id].swap(hook); // the old one is freed after the guard
    any_ = true;
}

void AbortHooks::remove(int64_t id)
{
    Shared old;
    const Condition::Guard guard(change_);
    const auto found = hooks_.find(id);
    if (found == hooks_.end())
        return;
    old.swap(found->second);
    hooks_.erase(found);
    any_ = !hooks_.empty();
}

void AbortHooks::run(bool wait)
{
    if (!any() || insideHook)
        return;
    std::vector<Shared> hooks;
    bool first;
    {
        const Condition::Guard guard(change_);
        first = !begun_;
        begun_ = true;
        for (const auto &entry : hooks_)
            if (first)
                hooks.push_back(entry.second);
    }
    if (first && !start(std::move(hooks)))
        end();
    if (!wait)
        return;
    bool ended;
    {
        const Condition::Guard guard(change_);
        change_.waitFor(kPatience, [this] { return ended_; });
        ended = ended_;
    }
    if (!ended)
        shc_log_warning(("an abort hook of the group \"" + group_ +
                         "\" has not returned after 10 s; the call ends without it")
                            .c_str());
}

void AbortHooks::finishAll()
{
    const Condition::Guard guard(running->change);
    running->closed = true;
    running->change.waitFor(kPatience, [] { return running->threads == 0; });
}

void AbortHooks::forgetParents()
{
    running = new Running;
}

bool AbortHooks::start(std::vector<Shared> hooks)
{
    const SignalsBlocked blocked;
    if (!enter())
        return false;
    try {
        std::thread([self = shared_from_this(), all = std::move(hooks)] {
            insideHook = true;
            self->runAll(all);
            self->end();
            leave();
        }).detach();
        return true;
    } catch (const std::exception &error) {
        leave();
        shc_log_warning(("the abort hooks of the group \"" + group_ +
                         "\" cannot run: there is no thread: " + error.what())
                            .c_str());
        return false;
    }
}

void AbortHooks::runAll(const std::vector<Shared> &hooks) const
{
    for (const Shared &hook : hooks) {
        std::string said;
        try {
            (*hook)();
            continue;
        } catch (const std::exception &error) {
            said = error.what();
        } catch (abi::__forced_unwind &) { // the interpreter ends the thread
            throw;
        } catch (...) {
            said = "something that is no std::exception";
        }
        shc_log_warning(
            ("an abort hook of the group \"" + group_ + "\" has thrown: " + said).c_str());
    }
}

void AbortHooks::end()
{
    const Condition::Guard guard(change_);
    ended_ = true;
    change_.wake();
}

} // namespace shmcoll
