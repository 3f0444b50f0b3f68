// SPDX-License-Identifier: BSD-3-Clause
// Direct calls in a compiled graph. torch.compile cannot follow a method of a backend; it can follow an
// operator. The group goes by its name because a graph holds no group. The operators work for a group of
// any backend, as direct calls do.
//
// Each says that it writes to `order`, a tensor of the process that holds nothing. So to the compiler each
// depends on the one before: none is left out, and they run in the order of the program, on every rank,
// even if the ranks' graphs differ in what lies between.
//
// What else an operator writes to is a new tensor, from which Dynamo's graph copies. Inductor (torch 2.13,
// sizes that are not fixed) lets an operator write elsewhere if it should write to a part of a tensor: it
// forgets where the part begins. A compiler leaves out the copy where it can.
#include "backend/process_group_shm.hpp"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/library.h>

namespace shmcoll
{

namespace
{

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using Tensors = std::vector<at::Tensor>;

BackendPtr backendFor(const at::Tensor &tensor, const std::string &group)
{
    TORCH_CHECK_TYPE(tensor.defined(), "shmcoll: None is no tensor");
    return c10d::resolve_process_group(group)->getBackend(tensor.device().type());
}

void finish(const c10::intrusive_ptr<c10d::Work> &work)
{
    if (work)
        work->wait();
}

c10d::ReduceOp reductionOf(const std::string &text)
{
    static const std::unordered_map<std::string, c10d::ReduceOp::RedOpType> known = {
        {"sum", c10d::ReduceOp::SUM},   {"avg", c10d::ReduceOp::AVG},
        {"min", c10d::ReduceOp::MIN},   {"max", c10d::ReduceOp::MAX},
        {"band", c10d::ReduceOp::BAND}, {"bor", c10d::ReduceOp::BOR},
        {"bxor", c10d::ReduceOp::BXOR}, {"product", c10d::ReduceOp::PRODUCT},
    };
    const auto found = known.find(text);
    TORCH_CHECK_VALUE(found != known.end(), "shmcoll: there is no reduction ", text);
    return found->second;
}

// The reductions of a complex number that are those of its two parts.
bool isOfParts(const c10d::ReduceOp &op)
{
    return op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG;
}

// torch.distributed sees complex numbers as pairs of real ones, too.
at::Tensor asReal(const at::Tensor &tensor)
{
    return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

template <class Options>
Options synchronous()
{
    Options options;
    options.asyncOp = false;
    return options;
}

// The input may be a part of a larger tensor, and stays.
void allReduce(at::Tensor &output, const at::Tensor &input, at::Tensor & /*order*/,
               const std::string &op, const std::string &group)
{
    auto options = synchronous<c10d::AllreduceOptions>();
    options.reduceOp = reductionOf(op);
    TORCH_CHECK_VALUE(!input.is_complex() || isOfParts(options.reduceOp), // as torch.distributed
                      "shmcoll: all_reduce: ", op, " of complex numbers does not exist");
    const auto backend = backendFor(input, group);
    auto *const ours = dynamic_cast<ProcessGroupShm *>(backend.get());
    if (ours != nullptr && ours->allReduceInto(output, input, options.reduceOp))
        return;
    output.copy_(input);
    Tensors list{asReal(output)};
    finish(backend->allreduce(list, options));
}

void broadcast(at::Tensor &output, const at::Tensor &input, at::Tensor & /*order*/, int64_t root,
               const std::string &group)
{
    auto options = synchronous<c10d::BroadcastOptions>();
    options.rootRank = root;
    const auto backend = backendFor(input, group);
    if (backend->getRank() == root)
        output.copy_(input);
    Tensors list{asReal(output)};
    finish(backend->broadcast(list, options));
}

void allGather(at::Tensor &output, const at::Tensor &input, at::Tensor & /*order*/,
               const std::string &group)
{
    at::Tensor out = asReal(output), in = asReal(input);
    finish(backendFor(in, group)->_allgather_base(out, in, synchronous<c10d::AllgatherOptions>()));
}

void reduceScatter(at::Tensor &output, const at::Tensor &input, at::Tensor & /*order*/,
                   const std::string &op, const std::string &group)
{
    auto options = synchronous<c10d::ReduceScatterOptions>();
    options.reduceOp = reductionOf(op);
    const bool ofParts = isOfParts(options.reduceOp);
    at::Tensor out = ofParts ? asReal(output) : output, in = ofParts ? asReal(input) : input;
    finish(backendFor(in, group)->_reduce_scatter_base(out, in, options));
}

void allToAll(at::Tensor &output, const at::Tensor &input, at::Tensor & /*order*/,
              const std::string &group)
{
    at::Tensor out = asReal(output), in = asReal(input);
    std::vector<int64_t> even, evenToo;
    finish(backendFor(in, group)->alltoall_base(out, in, even, evenToo,
                                                synchronous<c10d::AllToAllOptions>()));
}

void barrier(at::Tensor & /*order*/, const std::string &group)
{
    const auto found = c10d::resolve_process_group(group);
    finish(found->barrier(synchronous<c10d::BarrierOptions>()));
}

// What torch runs to learn the shapes of a graph: all stay.
void moveShapes(at::Tensor &, const at::Tensor &, at::Tensor &, const std::string &) {}
void broadcastShapes(at::Tensor &, const at::Tensor &, at::Tensor &, int64_t, const std::string &)
{
}
void reduceShapes(at::Tensor &, const at::Tensor &, at::Tensor &, const std::string &,
                  const std::string &)
{
}
void barrierShapes(at::Tensor &, const std::string &) {}

} // namespace

TORCH_LIBRARY_FRAGMENT(shmcoll, m)
{
    const std::string tensors = "(Tensor(a!) output, Tensor input, Tensor(b!) order, ";
    const std::string group = "str group_name) -> ()";
    m.def(("all_reduce_" + tensors + "str op, " + group).c_str());
    m.def(("broadcast_" + tensors + "int root, " + group).c_str());
    m.def(("all_gather_into_" + tensors + group).c_str());
    m.def(("reduce_scatter_into_" + tensors + "str op, " + group).c_str());
    m.def(("all_to_all_" + tensors + group).c_str());
    m.def(("barrier_(Tensor(a!) order, " + group).c_str());
}

TORCH_LIBRARY_IMPL(shmcoll, CompositeExplicitAutograd, m)
{
    m.impl("all_reduce_", allReduce);
    m.impl("broadcast_", broadcast);
    m.impl("all_gather_into_", allGather);
    m.impl("reduce_scatter_into_", reduceScatter);
    m.impl("all_to_all_", allToAll);
    m.impl("barrier_", barrier);
}

TORCH_LIBRARY_IMPL(shmcoll, Meta, m)
{
    m.impl("all_reduce_", reduceShapes);
    m.impl("broadcast_", broadcastShapes);
    m.impl("all_gather_into_", moveShapes);
    m.impl("reduce_scatter_into_", reduceShapes);
    m.impl("all_to_all_", moveShapes);
    m.impl("barrier_", barrierShapes);
}

} // namespace shmcoll
