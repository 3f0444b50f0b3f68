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

Group makeGroup(const ProcessGroupShm::Store &store, int rank, int size,
                const GroupOptions &options)
{
    watchSignals();
    const std::unique_ptr<StoreBootstrap, void (*)(StoreBootstrap *)> bootstrap(
        StoreBootstrap::create(store), [](StoreBootstrap *old) { old->release(); });
    shc_comm_config config{};
    config.rank = rank;
    config.world_size = size;
    config.name = options.group_name.c_str();
    if (isDescription(options.group_desc))
        config.description = options.group_desc.c_str();
    std::vector<int32_t> globalRanks(options.global_ranks_in_group.begin(),
                                     options.global_ranks_in_group.end());
    if (globalRanks.size() == static_cast<size_t>(size))
        config.global_ranks = globalRanks.data();
    config.timeout_ns = groupTimeoutNs(options.timeout);
    config.store = bootstrap->view();
    if (options.isForGloo()) {
        config.outsider_prefix = "0/"; // gloo's: the number of its device
        config.outsider_text =
            "SHMCOLL_FOR_GLOO, or shmcoll.use_for_gloo(), must be in force on all ranks or on none";
    }
    config.interrupted = pythonInterrupted;
    checkText(options.tuning);
    config.tuning = options.tuning.empty() ? nullptr : options.tuning.c_str();
    shc_comm *comm = nullptr;
    shc_status status;
    {
        GilRelease release;
        status = shc_comm_create(&config, &comm);
    }
    if (status == SHC_ERR_STORE)
        bootstrap->rethrow(shc_error_text());
    check(status);
    return Group(comm, [](shc_comm *old) {
        GilRelease release;
        shc_comm_free(old);
    });
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
    : Backend(rank, size), options_(std::move(options)), forGloo_(options_->isForGloo()),
      timeout_(options_->timeout), group_(makeGroup(store, rank, size, *options_)),
      cuda_(group_, rank, options_->group_name, options_->timeout)
{
    init();
}

uint64_t ProcessGroupShm::getSequenceNumberForGroup()
{
    return shc_comm_sequence(group_.get()) + cuda_.sequence();
}

c10d::ErrorType ProcessGroupShm::getError()
{
    switch (shc_comm_error(group_.get())) {
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
    shc_comm_abort(group_.get(), "abort() was called");
    cuda_.abort("abort() was called"); // after it: a thread that makes a communicator lets go
    cuda_.close();
    shc_comm_close(group_.get());
}

// As with NCCL, enqueued operations are waited for: the caller may never have waited for them.
void ProcessGroupShm::shutdown()
{
    GilRelease release;
    const std::exception_ptr unfinished = cuda_.finish();
    cuda_.close();
    shc_comm_close(group_.get());
    if (unfinished)
        std::rethrow_exception(unfinished);
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

std::string ProcessGroupShm::info()
{
    char text[8192];
    check(shc_comm_info(group_.get(), text, sizeof text));
    return text + cuda_.info();
}

#if SHMCOLL_TORCH_AT_LEAST(2, 9)

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupShm::getBackendOptions()
{
    return c10::make_intrusive<GroupOptions>(*options()); // a copy: torch writes into it
}

c10::intrusive_ptr<c10d::Backend>
ProcessGroupShm::split(const Store &store, const std::vector<int> &ranks,
                       const c10::intrusive_ptr<c10d::Backend::Options> &options)
{
    auto found = std::find(ranks.begin(), ranks.end(), rank_);
    if (found == ranks.end())
        return nullptr;
    // The options may be another backend's: a mixed group splits all its backends with the options of
    // one.
    auto own = c10::make_intrusive<GroupOptions>(options->timeout, options_->backend);
    own->group_name = options->group_name;
#if SHMCOLL_TORCH_AT_LEAST(2, 11)
    own->group_desc = options->group_desc;
#endif
    // torch hands over the parent's options.
    const std::vector<uint64_t> &parents = options_->global_ranks_in_group;
    for (const int rank : ranks)
        own->global_ranks_in_group.push_back(
            parents.size() == static_cast<size_t>(size_) ? parents.at(rank) : rank);
    auto *ours = dynamic_cast<const GroupOptions *>(options.get());
    own->tuning = ours ? ours->tuning : options_->tuning;
    // All backends of the group get the same store, without a prefix for the device.
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>(kBackendName, store);
    return c10::make_intrusive<ProcessGroupShm>(prefixed, static_cast<int>(found - ranks.begin()),
                                                static_cast<int>(ranks.size()), own);
}

#endif

} // namespace shmcoll
