// SPDX-License-Identifier: BSD-3-Clause
// What Python calls without shmcoll._C: functions by ctypes, and operators for what needs a group. The
// operators take the group in torch's own box, so they fit every Python.
#include "backend/api.hpp"

#include "backend/process_group_shm.hpp"
#include "backend/python.hpp"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

void shmcoll_set_main_thread(unsigned long ident)
{
    shmcoll::setMainThread(ident);
}

void shmcoll_after_fork_in_child()
{
    shmcoll::forgetParentsFutures();
    shmcoll::renewPythonInChild();
}

void shmcoll_leave(int forget_python)
{
    shmcoll::leaveProcess(forget_python != 0, shmcoll::failOpenFutures);
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

// Makes the backend of a group that has a store, a rank and a size, for its tensors on the CPU.
void attach(const Group &group, int64_t timeoutMs, const std::string &name,
            const c10::List<int64_t> &ranks, const std::string &tuning, const std::string &backend)
{
    auto options = c10::make_intrusive<GroupOptions>(std::chrono::milliseconds(timeoutMs), backend);
    options->group_name = name;
    for (const int64_t rank : ranks)
        options->global_ranks_in_group.push_back(static_cast<uint64_t>(rank));
    options->tuning = tuning;
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                      c10::make_intrusive<ProcessGroupShm>(storeOf(*group), group->getRank(),
                                                           group->getSize(), options));
}

std::string info(const Group &group)
{
    const auto backend = group->getBackend(c10::DeviceType::CPU);
    auto *ours = dynamic_cast<ProcessGroupShm *>(backend.get());
    TORCH_CHECK_VALUE(ours != nullptr, "shmcoll: the group's backend is another one");
    return ours->info();
}

void checkOptions(int64_t timeoutMs, const std::string &tuning)
{
    GroupOptions options{std::chrono::milliseconds(timeoutMs)};
    options.tuning = tuning;
    options.check();
}

// torch.compile cannot follow a method of a backend; it can follow an operator. The group goes by its name
// because a graph holds no group.
void allReduce(at::Tensor &tensor, const std::string &group)
{
    const auto backend = c10d::resolve_process_group(group)->getBackend(c10::DeviceType::CPU);
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.asyncOp = false;
    const auto work = backend->allreduce(tensors, options);
    if (work)
        work->wait();
}

// What torch runs to learn the shapes of a graph: the tensor's shape stays.
void allReduceShapes(at::Tensor & /*tensor*/, const std::string & /*group*/) {}

} // namespace

TORCH_LIBRARY(shmcoll, m)
{
    const std::string group = "(__torch__.torch.classes.c10d.ProcessGroup group";
    m.def(("attach" + group +
           ", int timeout_ms, str name, int[] ranks, str tuning, str backend) -> ()")
              .c_str(),
          attach);
    m.def(("info" + group + ") -> str").c_str(), info);
    m.def("check_options(int timeout_ms, str tuning) -> ()", checkOptions);
    m.def("all_reduce_(Tensor(a!) tensor, str group_name) -> ()");
}

TORCH_LIBRARY_IMPL(shmcoll, CPU, m)
{
    m.impl("all_reduce_", allReduce);
}

TORCH_LIBRARY_IMPL(shmcoll, Meta, m)
{
    m.impl("all_reduce_", allReduceShapes);
}

} // namespace shmcoll
