// SPDX-License-Identifier: BSD-3-Clause
#include "backend/reconfigurable.hpp"

#include "backend/convert.hpp"
#include "backend/error.hpp"
#include "backend/forks.hpp"
#include "backend/python.hpp"

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace shmcoll
{

namespace
{

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char *kHow =
    "give all ranks the handles of all ranks (dist._get_reconfigure_handle()), and let each call "
    "dist._reconfigure(uuid, handles)";

std::string wordsOf(const std::exception &error)
{
    const auto *torchs = dynamic_cast<const c10::Error *>(&error);
    const std::string text = torchs ? torchs->what_without_backtrace() : error.what();
    return text.substr(0, text.find('\n'));
}

// What is left until `end`; a millisecond at least, because 0 is no limit.
milliseconds leftUntil(std::optional<Clock::time_point> end)
{
    if (!end)
        return milliseconds(0);
    return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(*end - Clock::now()));
}

} // namespace

// A thread is in change(). If it does not get as far as take(), calls say why there is no group.
struct ReconfigurableGroup::Turn {
    explicit Turn(ReconfigurableGroup &of) : of_(of)
    {
        const std::lock_guard<std::mutex> guard(of.lock_);
        TORCH_CHECK_WITH(DistBackendError, !of.turning_,
                         "shmcoll: reconfigure: another thread is in it");
        of.turning_ = true;
    }
    ~Turn()
    {
        const std::lock_guard<std::mutex> guard(of_.lock_);
        of_.turning_ = false;
    }
    Turn(const Turn &) = delete;
    Turn &operator=(const Turn &) = delete;

    ReconfigurableGroup &of_;
};

ReconfigurableGroup::ReconfigurableGroup(const Store &store, int rank, int size,
                                         c10::intrusive_ptr<GroupOptions> options,
                                         const std::string &host, int64_t pid)
    : Backend(rank, size), options_(std::move(options)), store_(store), forks_(forks.load()),
      own_(ReconfigureHandle::make(static_cast<uint64_t>(std::max(rank, 0)), host,
                                   static_cast<uint64_t>(pid))),
      why_(c10::str("the group was made with enable_reconfigure=True and has not been configured "
                    "yet: ",
                    kHow)),
      timeout_(options_->timeout)
{
    checkTimeout(timeout_);
    init();
}

ReconfigurableGroup::Inner ReconfigurableGroup::peek()
{
    const std::lock_guard<std::mutex> guard(lock_);
    return current_;
}

ReconfigurableGroup::Inner ReconfigurableGroup::current(const char *what)
{
    const std::lock_guard<std::mutex> guard(lock_);
    TORCH_CHECK_WITH(DistBackendError, current_, "shmcoll: ", what, ": ", why_);
    return current_;
}

std::string ReconfigurableGroup::handle() const
{
    checkProcess();
    const std::lock_guard<std::mutex> guard(lock_);
    return own_.text();
}

// A child's handle would name its parent.
void ReconfigurableGroup::checkProcess() const
{
    TORCH_CHECK_WITH(DistBackendError, forks.load() == forks_,
                     "shmcoll: reconfigure: the group belongs to the parent process; a forked "
                     "child makes its own groups");
}

// From here on there is no group, whatever becomes of the call: a rank that times out must not go on in the old
// one, which others may have left.
void ReconfigurableGroup::begin(int64_t uuid)
{
    Inner old;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        TORCH_CHECK_VALUE(used_.insert(uuid).second, "shmcoll: reconfigure: the uuid ", uuid,
                          " was already used; give all ranks one that is new to them");
        old = std::move(current_);
        current_ = nullptr;
        failed_ = false;
        why_ = c10::str("reconfigure(uuid=", uuid, ") is under way in another thread");
    }
    if (old)
        old->leave();
}

ReconfigurableGroup::Inner ReconfigurableGroup::make(int64_t uuid, const ReconfigureHandles &all,
                                                     int rank, milliseconds timeout)
{
    auto options = c10::make_intrusive<GroupOptions>(*options_);
    options->timeout = timeout;
    options->global_ranks_in_group.clear(); // ranks are counted anew: who comes later had no number
    options->group_desc = getGroupDesc();
    auto made = c10::make_intrusive<ProcessGroupShm>(
        c10::make_intrusive<c10d::PrefixStore>(c10::str("reconfigure/", uuid), store_), rank,
        static_cast<int>(all.handles.size()), options);
    made->setGroupUid(getGroupUid());
    made->setGroupDesc(getGroupDesc());
    return made;
}

// The rendezvous knows ranks by their numbers: ranks that gave other handles may have met.
void ReconfigurableGroup::confirm(ProcessGroupShm &made, const ReconfigureHandles &all, int rank)
{
    const auto pid = static_cast<int64_t>(all.handles[static_cast<size_t>(rank)].pid);
    at::Tensor mine = at::empty({2}, at::TensorOptions(at::kLong));
    at::Tensor theirs = at::empty({static_cast<int64_t>(2 * all.handles.size())}, mine.options());
    mine.data_ptr<int64_t>()[0] = static_cast<int64_t>(all.hash);
    mine.data_ptr<int64_t>()[1] = pid;
    made.allGatherNow(theirs, mine);
    const int64_t *told = theirs.data_ptr<int64_t>();
    std::vector<std::string> others;
    for (size_t i = 0; i < all.handles.size(); i++)
        if (told[2 * i] != static_cast<int64_t>(all.hash))
            others.push_back(c10::str("rank ", i, " (pid ", told[2 * i + 1], ")"));
    TORCH_CHECK_WITH(DistBackendError, others.empty(), "shmcoll: rank ", rank,
                     ": reconfigure: other handles, or another order of them, were given by ",
                     c10::Join(", ", others));
}

void ReconfigurableGroup::take(Inner made, int rank, int size)
{
    const std::lock_guard<std::mutex> guard(lock_);
    made->changeTimeout(timeout_);
    for (const auto &[id, hook] : hooks_)
        made->abortHooks().add(id, hook);
    current_ = std::move(made);
    own_.number = static_cast<uint64_t>(rank);
    own_.generation++;
#ifdef C10D_BACKEND_HAS_RECONFIGURE // before, they are constants
    rank_ = rank;
    size_ = size;
#endif
}

void ReconfigurableGroup::change(int64_t uuid, const std::vector<std::string> &texts, bool ordered,
                                 std::optional<milliseconds> timeout)
{
    const GilRelease release;
    checkProcess();
    const Turn turn(*this);
    const ReconfigureHandles all = ReconfigureHandles::read(texts, ordered);
    ReconfigureHandle own;
    milliseconds limit;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        own = own_;
        limit = timeout.value_or(timeout_);
    }
    const int rank = all.placeOf(own);
    checkTimeout(limit);
    begin(uuid);
    std::optional<Clock::time_point> end;
    if (limit.count() > 0)
        end = Clock::now() + limit;
    try {
        Inner made = make(uuid, all, rank, limit);
        made->changeTimeout(leftUntil(end));
        confirm(*made, all, rank);
        take(std::move(made), rank, static_cast<int>(all.handles.size()));
    } catch (const std::exception &error) {
        const std::lock_guard<std::mutex> guard(lock_);
        failed_ = true;
        why_ = c10::str("the last reconfigure (uuid=", uuid,
                        ") has failed; call it again with a new uuid. It said: ", wordsOf(error));
        throw;
    }
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE

ReconfigurableGroup::WorkPtr
ReconfigurableGroup::reconfigure(const c10d::ReconfigureOptions &options)
{
    const auto *list = std::get_if<std::vector<std::string>>(&options.handles);
    const auto *set = std::get_if<std::unordered_set<std::string>>(&options.handles);
    change(options.uuid, list ? *list : std::vector<std::string>(set->begin(), set->end()),
           list != nullptr, options.timeout);
    return endedWork();
}

#endif

void ReconfigurableGroup::addHook(int64_t id, AbortHooks::Hook hook)
{
    auto shared = std::make_shared<const AbortHooks::Hook>(std::move(hook));
    std::shared_ptr<const AbortHooks::Hook>
        old; // is freed after the guard: it may want Python's lock
    const std::lock_guard<std::mutex> guard(lock_);
    old = std::exchange(hooks_[id], shared);
    if (current_)
        current_->abortHooks().add(id, std::move(shared));
}

void ReconfigurableGroup::removeHook(int64_t id)
{
    std::shared_ptr<const AbortHooks::Hook> old;
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = hooks_.find(id);
    if (found == hooks_.end())
        return;
    old = std::move(found->second);
    hooks_.erase(found);
    if (current_)
        current_->abortHooks().remove(id);
}

void ReconfigurableGroup::changeTimeout(milliseconds timeout)
{
    checkTimeout(timeout);
    const std::lock_guard<std::mutex> guard(lock_);
    if (current_)
        current_->changeTimeout(timeout);
    timeout_ = timeout;
}

uint64_t ReconfigurableGroup::getSequenceNumberForGroup()
{
    const Inner now = peek();
    return now ? now->getSequenceNumberForGroup() : 0;
}

c10d::ErrorType ReconfigurableGroup::getError()
{
    if (const Inner now = peek())
        return now->getError();
    const std::lock_guard<std::mutex> guard(lock_);
    return failed_ ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

void ReconfigurableGroup::abort()
{
    if (const Inner now = peek())
        now->abort();
}

void ReconfigurableGroup::shutdown()
{
    if (const Inner now = peek())
        now->shutdown();
}

#if SHMCOLL_TORCH_AT_LEAST(2, 9)

c10::intrusive_ptr<c10d::Backend::Options> ReconfigurableGroup::getBackendOptions()
{
    auto copy = c10::make_intrusive<GroupOptions>(*options_); // torch writes into it
    const std::lock_guard<std::mutex> guard(lock_);
    copy->timeout = timeout_;
    return copy;
}

#endif

c10::intrusive_ptr<ProcessGroupShm> shmOf(const c10::intrusive_ptr<c10d::Backend> &backend,
                                          const char *what)
{
    if (auto *group = dynamic_cast<ReconfigurableGroup *>(backend.get()))
        return group->current(what);
    return c10::dynamic_intrusive_pointer_cast<ProcessGroupShm>(backend);
}

} // namespace shmcoll
