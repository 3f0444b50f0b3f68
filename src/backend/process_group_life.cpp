// SPDX-License-Identifier: BSD-3-Clause
// A group from its rendezvous to its end: what is not an operation. The operations are in
// process_group_shm.cpp.
#include "backend/convert.hpp"
#include "backend/error.hpp"
#include "backend/process_group_shm.hpp"
#include "backend/python.hpp"
#include "backend/store_bootstrap.hpp"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace shmcoll
{

namespace
{

void checkText(const std::string &tuning)
{
    TORCH_CHECK_VALUE(tuning.find('\0') == std::string::npos,
                      "shmcoll: the tuning text has a character 0 in it");
}

// A group's, for a call that makes it. Refers to the options.
class Config
{
  public:
    Config(const ProcessGroupShm::Store &store, int rank, int size, const GroupOptions &options)
        : bootstrap_(StoreBootstrap::create(store), [](StoreBootstrap *old) { old->release(); }),
          members_(options.global_ranks_in_group.begin(), options.global_ranks_in_group.end())
    {
        watchSignals();
        config_.rank = rank;
        config_.world_size = size;
        config_.name = options.group_name.c_str();
        if (isDescription(options.group_desc))
            config_.description = options.group_desc.c_str();
        if (members_.size() == static_cast<size_t>(size))
            config_.global_ranks = members_.data();
        config_.timeout_ns = groupTimeoutNs(options.timeout);
        config_.store = bootstrap_->view();
        if (options.isForGloo()) {
            config_.outsider_prefix = "0/"; // gloo's: the number of its device
            config_.outsider_text = "SHMCOLL_FOR_GLOO, or shmcoll.use_for_gloo(), must be in force "
                                    "on all ranks or on none";
        }
        config_.interrupted = pythonInterrupted;
        checkText(options.tuning);
        config_.tuning = options.tuning.empty() ? nullptr : options.tuning.c_str();
    }

    const shc_comm_config &operator*() const { return config_; }
    bool storeIsFile() const { return bootstrap_->isFile(); }

    void check(shc_status status, const char *error) const
    {
        if (status == SHC_ERR_STORE)
            bootstrap_->rethrow(error);
        if (status != SHC_OK)
            throwStatus(status, error);
    }

  private:
    const std::unique_ptr<StoreBootstrap, void (*)(StoreBootstrap *)> bootstrap_;
    const std::vector<int32_t> members_;
    shc_comm_config config_{};
};

Group makeGroup(const ProcessGroupShm::Store &store, int rank, int size,
                const GroupOptions &options)
{
    const Config config(store, rank, size, options);
    shc_comm *comm = nullptr;
    shc_status status;
    {
        GilRelease release;
        status = shc_comm_create(&*config, &comm);
    }
    config.check(status, shc_error_text());
    return Group(comm, [](shc_comm *old) {
        GilRelease release;
        shc_comm_free(old);
    });
}

std::shared_ptr<HostsSide> makeHosts(const ProcessGroupShm::Store &store, int rank, int size,
                                     const GroupOptions &options, HostsWish wish)
{
    // Its own connection: the group uses it as long as it lives, and a store's client makes one call at a time.
    const Config config(store->clone(), rank, size, options);
    wish.inFile = config.storeIsFile();
    auto side = std::make_shared<HostsSide>();
    char error[SHC_HOSTS_ERROR_BYTES];
    config.check(side->meet(*config, wish, error), error);
    return side;
}

} // namespace

void GroupOptions::check() const
{
    checkTimeout(timeout);
    checkText(tuning);
    shmcoll::check(shc_tuning_check(tuning.c_str()));
}

ProcessGroupShm::ProcessGroupShm(const Store &store, int rank, int size,
                                 c10::intrusive_ptr<GroupOptions> options)
    : Backend(rank, size), options_(std::move(options)), store_(store),
      forGloo_(options_->isForGloo()), timeout_(options_->timeout),
      group_(makeGroup(store, rank, size, *options_)),
      cuda_(group_, rank, options_->group_name, options_->timeout)
{
    init();
}

ProcessGroupShm::ProcessGroupShm(std::shared_ptr<HostsSide> hosts, int rank, int size,
                                 c10::intrusive_ptr<GroupOptions> options)
    : Backend(rank, size), options_(std::move(options)), forGloo_(options_->isForGloo()),
      timeout_(options_->timeout), hosts_(std::move(hosts)), group_(HostsSide::sequencerOf(hosts_)),
      cuda_(group_, rank, options_->group_name, options_->timeout)
{
    init();
}

ProcessGroupShm::ProcessGroupShm(const Store &store, int rank, int size,
                                 c10::intrusive_ptr<GroupOptions> options, const HostsWish &wish)
    : ProcessGroupShm(makeHosts(store, rank, size, *options, wish), rank, size, options)
{
}

uint64_t ProcessGroupShm::getSequenceNumberForGroup()
{
    return shc_comm_sequence(group_.get()) + cuda_.sequence();
}

c10d::ErrorType ProcessGroupShm::getError()
{
    switch (hosts_ ? hosts_->error() : shc_comm_error(group_.get())) {
    case SHC_OK:
        return c10d::ErrorType::SUCCESS;
    case SHC_ERR_TIMEOUT:
        return c10d::ErrorType::TIMEOUT;
    case SHC_ERR_PEER_DEAD:
        return c10d::ErrorType::REMOTE_ERROR;
    default:
        return c10d::ErrorType::COMM_ERROR;
    }
}

void ProcessGroupShm::abort()
{
    GilRelease release;
    hooks_->run(true);
    if (hosts_)
        hosts_->abort("abort() was called");
    else
        shc_comm_abort(group_.get(), "abort() was called");
    cuda_.abort("abort() was called"); // after it: a thread that makes a communicator lets go
    cuda_.close();
    close();
}

// As with NCCL, enqueued operations are waited for: the caller may never have waited for them.
void ProcessGroupShm::shutdown()
{
    GilRelease release;
    const std::exception_ptr unfinished = cuda_.finish();
    cuda_.close();
    close();
    if (unfinished)
        std::rethrow_exception(unfinished);
}

void ProcessGroupShm::leave()
{
    GilRelease release;
    cuda_.abort("the group was left");
    cuda_.close();
    close();
}

void ProcessGroupShm::close()
{
    if (hosts_)
        hosts_->close();
    else
        shc_comm_close(group_.get());
}

c10::intrusive_ptr<GroupOptions> ProcessGroupShm::options()
{
    options_->timeout = timeout_;
    return options_;
}

void ProcessGroupShm::changeTimeout(std::chrono::milliseconds timeout)
{
    const uint64_t timeout_ns = groupTimeoutNs(timeout); // or it throws, and nothing has changed
    timeout_ = timeout;
    shc_comm_set_timeout(group_.get(), timeout_ns);
    cuda_.setTimeout(timeout);
}

int64_t ProcessGroupShm::globalRank(int64_t rank) const
{
    const std::vector<uint64_t> &ranks = options_->global_ranks_in_group;
    const auto index = static_cast<size_t>(rank);
    return index < ranks.size() ? static_cast<int64_t>(ranks[index]) : rank;
}

// torch tells a group's description only after it has made the group.
void ProcessGroupShm::takeDescription()
{
    if (described_.exchange(true) || !isDescription(getGroupDesc()))
        return;
    if (hosts_)
        hosts_->describe(getGroupDesc().c_str());
    else
        shc_comm_describe(group_.get(), getGroupDesc().c_str());
}

std::string ProcessGroupShm::info()
{
    if (hosts_)
        return hosts_->info() +
               c10::str("rank=", rank_, "\nworld_size=", size_,
                        "\nmembers=", c10::Join(",", options_->global_ranks_in_group), "\n");
    char text[8192];
    check(shc_comm_info(group_.get(), text, sizeof text));
    return text + cuda_.info();
}

#if SHMCOLL_TORCH_AT_LEAST(2, 9)

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupShm::getBackendOptions()
{
    return c10::make_intrusive<GroupOptions>(*options()); // a copy: torch writes into it
}

// Those of a group that is made of this one. torch hands over this one's, or another backend's: a mixed group makes all its
// backends with the options of one.
c10::intrusive_ptr<GroupOptions>
ProcessGroupShm::optionsFor(const c10d::Backend::Options &options) const
{
    auto own = c10::make_intrusive<GroupOptions>(options.timeout, options_->backend);
    own->group_name = options.group_name;
#if SHMCOLL_TORCH_AT_LEAST(2, 11)
    own->group_desc = options.group_desc;
#endif
    auto *ours = dynamic_cast<const GroupOptions *>(&options);
    own->tuning = ours ? ours->tuning : options_->tuning;
    return own;
}

// All backends of a new group get the same store, without a prefix for the device.
ProcessGroupShm::Store ProcessGroupShm::storeFor(const Store &store)
{
    return c10::make_intrusive<c10d::PrefixStore>(kBackendName, store);
}

c10::intrusive_ptr<c10d::Backend>
ProcessGroupShm::split(const Store &store, const std::vector<int> &ranks,
                       const c10::intrusive_ptr<c10d::Backend::Options> &options)
{
    auto found = std::find(ranks.begin(), ranks.end(), rank_);
    if (found == ranks.end())
        return nullptr;
    auto own = optionsFor(*options);
    for (const int rank : ranks)
        own->global_ranks_in_group.push_back(globalRank(rank));
    return c10::make_intrusive<ProcessGroupShm>(storeFor(store),
                                                static_cast<int>(found - ranks.begin()),
                                                static_cast<int>(ranks.size()), own);
}

// Ranks of several groups, which may be of several jobs: what number a rank had there says nothing.
c10::intrusive_ptr<c10d::Backend>
ProcessGroupShm::merge(const Store &store,
                       const c10::intrusive_ptr<c10d::Backend::Options> &options, const int &rank,
                       const int &size)
{
    return c10::make_intrusive<ProcessGroupShm>(storeFor(store), rank, size, optionsFor(*options));
}

#endif
#if SHMCOLL_TORCH_AT_LEAST(2, 10)

// The ranks keep their numbers in the job (_backend.py: job_ranks).
c10::intrusive_ptr<c10d::Backend>
ProcessGroupShm::shrink(const std::vector<int64_t> &excluded, int flags,
                        const c10::intrusive_ptr<c10d::Backend::Options> &options)
{
    TORCH_CHECK_VALUE(!hosts_, "shmcoll: shrink: the group is on several hosts");
    std::vector<int> left;
    for (int rank = 0; rank < size_; rank++)
        if (std::find(excluded.begin(), excluded.end(), rank) == excluded.end())
            left.push_back(rank);
    TORCH_CHECK_VALUE(
        left.size() + excluded.size() == static_cast<size_t>(size_) &&
            std::find(left.begin(), left.end(), rank_) != left.end(),
        "shmcoll: shrink: not other ranks of the group, each once: ", c10::Join(", ", excluded));
    auto wanted = optionsFor(options ? *options : *this->options());
    wanted->group_name =
        c10::str(options_->group_name, " without ranks ", c10::Join(",", excluded));
    if (flags != 0) // SHRINK_ABORT
        abort();
    auto prefixed =
        c10::make_intrusive<c10d::PrefixStore>(c10::str("shrink/", c10::Join(",", left)), store_);
    return split(prefixed, left, wanted);
}

#endif

} // namespace shmcoll
