// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// What a program wants to be called before a group's failure ends it: torch's flight recorder writes its file then.
//
// The hooks of a group run once, when the first thread is told of its failure, or aborts it. They run on a
// thread of their own, with no lock held and all signals blocked. A call that fails does not wait for them: it
// tells of a death at once. abort() waits, and not longer than kPatience: a hook may block for ever. What a hook throws is a line of the log.

#include "backend/api.hpp"
#include "backend/condition.hpp"

#include "shm/shmcoll.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace shmcoll
{

// Can this be what a call is told of a failure of its group?
bool mayBeAFailure(shc_status status);

class SHMCOLL_EXPORT AbortHooks : public std::enable_shared_from_this<AbortHooks>
{
  public:
    using Hook = std::function<void()>;
    static constexpr std::chrono::seconds kPatience{10};

    explicit AbortHooks(std::string group) : group_(std::move(group)) {}

    // A hook of Python's needs the interpreter's lock to be copied or freed: that must not be under ours.
    using Shared = std::shared_ptr<const Hook>;

    void add(int64_t id, Shared hook);
    void remove(int64_t id); // also of one that is not there; one that runs goes on

    bool any() const { return any_; }

    // Any thread, without the interpreter's lock. A second call waits for the first one's hooks; so a thread
    // that would end the process does not do it in the middle of one.
    void run(bool wait);

    // The text of the calling thread's error. If `status` and the group tell of the group's failure, the hooks begin,
    // and are not waited for: the flight recorder's takes a second, and a death is told at once.
    template <class HasFailed>
    std::string tell(shc_status status, HasFailed hasFailed)
    {
        std::string text = shc_error_text(); // to ask the group changes it
        if (any() && mayBeAFailure(status) && hasFailed())
            run(false);
        return text;
    }

    // The process ends: no hook begins from now on, and those that run have kPatience to end. A hook may need the
    // interpreter: without its lock, and before it ends.
    static void finishAll();

    // In a forked child: the threads of its parent are not in it.
    static void forgetParents();

  private:
    bool start(std::vector<Shared> hooks);
    void runAll(const std::vector<Shared> &hooks) const;
    void end();

    const std::string group_;
    std::atomic<bool> any_{false};
    Condition change_; // guards what follows
    std::map<int64_t, Shared> hooks_;
    bool begun_ = false, ended_ = false;
};

} // namespace shmcoll
