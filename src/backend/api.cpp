// SPDX-License-Identifier: BSD-3-Clause
// What Python calls without shmcoll._C: functions by ctypes, and operators for what needs a group. The
// operators take the group in torch's own box, so they fit every Python.
#include "backend/api.hpp"

#include "backend/fabric.hpp"
#include "backend/forks.hpp"
#include "backend/process_group_shm.hpp"
#include "backend/python.hpp"
#include "backend/reconfigurable.hpp"
#include "backend/store_bootstrap.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

void shmcoll_set_main_thread(unsigned long ident)
{
    shmcoll::setMainThread(ident);
}

void shmcoll_after_fork_in_child()
{
    shmcoll::forks++;
    shmcoll::AbortHooks::forgetParents();
    shmcoll::forgetParentsFutures();
    shmcoll::Engine::forgetParents();
    shmcoll::StoreBootstrap::forgetParentsFileWrites();
    shmcoll::renewPythonInChild();
}

void shmcoll_leave(int forget_python)
{
    shmcoll::leaveProcess(forget_python != 0, [] {
        shmcoll::failOpenFutures();
        shmcoll::StoreBootstrap::finishFileWrites();
        shmcoll::AbortHooks::finishAll();
    });
}

namespace shmcoll
{

namespace
{

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

#if SHMCOLL_TORCH_AT_LEAST(2, 9)
c10::intrusive_ptr<c10d::Store> storeOf(const c10d::ProcessGroup &group)
{
    return group.getStore();
}
#else
// Reaches a protected member.
struct Opened : c10d::ProcessGroup {
    static c10::intrusive_ptr<c10d::Store> storeOf(const c10d::ProcessGroup &group)
    {
        return group.*(&Opened::store_);
    }
};

c10::intrusive_ptr<c10d::Store> storeOf(const c10d::ProcessGroup &group)
{
    return Opened::storeOf(group);
}
#endif

c10::intrusive_ptr<GroupOptions> optionsOf(int64_t timeoutMs, const std::string &name,
                                           const c10::List<int64_t> &ranks,
                                           const std::string &tuning, const std::string &backend)
{
    auto options = c10::make_intrusive<GroupOptions>(std::chrono::milliseconds(timeoutMs), backend);
    options->group_name = name;
    for (const int64_t rank : ranks)
        options->global_ranks_in_group.push_back(static_cast<uint64_t>(rank));
    options->tuning = tuning;
    return options;
}

void setBackend(const Group &group, c10::intrusive_ptr<c10d::Backend> backend)
{
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                      std::move(backend));
}

c10::intrusive_ptr<ProcessGroupShm> backendOf(const Group &group)
{
    auto ours = shmOf(group->getBackend(c10::DeviceType::CPU), "the group");
    TORCH_CHECK_VALUE(ours, "shmcoll: the group's backend is another one");
    return ours;
}

// Makes the backend of a group that has a store, a rank and a size, for its tensors on the CPU.
void attach(const Group &group, int64_t timeoutMs, const std::string &name,
            const c10::List<int64_t> &ranks, const std::string &tuning, const std::string &backend)
{
    const auto options = optionsOf(timeoutMs, name, ranks, tuning, backend);
    setBackend(group, c10::make_intrusive<ProcessGroupShm>(storeOf(*group), group->getRank(),
                                                           group->getSize(), options));
}

// The same of a group that has no ranks before reconfigure().
void attachReconfigurable(const Group &group, int64_t timeoutMs, const std::string &name,
                          const std::string &tuning, const std::string &host, int64_t pid)
{
    setBackend(group, c10::make_intrusive<ReconfigurableGroup>(
                          storeOf(*group), group->getRank(), group->getSize(),
                          optionsOf(timeoutMs, name, c10::List<int64_t>(), tuning, kBackendName),
                          host, pid));
}

// The same over several hosts; `texts`: name, tuning, backend, engine, order, partials. Returns lines of key=value: this rank's place
// (HostsSide::place()).
std::string meetHosts(const Group &group, int64_t timeoutMs, const c10::List<int64_t> &ranks,
                      const c10::Dict<std::string, std::string> &texts,
                      const c10::List<std::string> &words, int64_t rails, int64_t lateMs)
{
    const auto options =
        optionsOf(timeoutMs, texts.at("name"), ranks, texts.at("tuning"), texts.at("backend"));
    const HostsWish wish{{words.begin(), words.end()},      static_cast<int>(rails),
                         std::chrono::milliseconds(lateMs), texts.at("engine"),
                         texts.at("order") == "rank",       texts.at("partials") == "wide"};
    auto made = c10::make_intrusive<ProcessGroupShm>(storeOf(*group), group->getRank(),
                                                     group->getSize(), options, wish);
    std::string place = made->hosts()->place();
    setBackend(group, std::move(made));
    return place;
}

// Hands over the engines, each in a box.
void connectHosts(const Group &group, const std::optional<Group> &line,
                  const std::optional<Group> &rail, const Group &mesh)
{
    const auto engineOf = [](const std::optional<Group> &box) {
        return box ? (*box)->getBackend(c10::DeviceType::CPU) : nullptr;
    };
    backendOf(group)->hosts()->connect(engineOf(line), engineOf(rail), engineOf(mesh));
}

// This rank has no engine: no other rank must wait for it.
void abortHosts(const Group &group, const std::string &why)
{
    backendOf(group)->hosts()->abort(why.c_str());
}

// A process ends without having closed its groups over hosts.
void closeHosts()
{
    GilRelease release;
    HostsSide::closeAll();
}

std::string info(const Group &group)
{
    return backendOf(group)->info();
}

// Python calls it where torch's class of backends has no set_timeout.
void setTimeout(const Group &group, int64_t timeoutMs)
{
    backendOf(group)->changeTimeout(std::chrono::milliseconds(timeoutMs));
}

void checkOptions(int64_t timeoutMs, const std::string &tuning)
{
    GroupOptions options{std::chrono::milliseconds(timeoutMs)};
    options.tuning = tuning;
    options.check();
}

} // namespace

TORCH_LIBRARY(shmcoll, m)
{
    const std::string group = "(__torch__.torch.classes.c10d.ProcessGroup group";
    m.def(("attach" + group +
           ", int timeout_ms, str name, int[] ranks, str tuning, str backend) -> ()")
              .c_str(),
          attach);
    m.def(("attach_reconfigurable" + group +
           ", int timeout_ms, str name, str tuning, str host, int pid) -> ()")
              .c_str(),
          attachReconfigurable);
    m.def(("meet_hosts" + group +
           ", int timeout_ms, int[] ranks, Dict(str, str) texts, str[] words, int rails, int "
           "late_ms) -> str")
              .c_str(),
          meetHosts);
    const std::string box = "__torch__.torch.classes.c10d.ProcessGroup? ";
    m.def(("connect_hosts" + group + ", " + box + "line, " + box +
           "rail, __torch__.torch.classes.c10d.ProcessGroup mesh) -> ()")
              .c_str(),
          connectHosts);
    m.def(("abort_hosts" + group + ", str why) -> ()").c_str(), abortHosts);
    m.def("close_hosts() -> ()", closeHosts);
    m.def(("info" + group + ") -> str").c_str(), info);
    m.def(("set_timeout" + group + ", int timeout_ms) -> ()").c_str(), setTimeout);
    m.def("check_options(int timeout_ms, str tuning) -> ()", checkOptions);
}

} // namespace shmcoll
