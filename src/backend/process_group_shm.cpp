// SPDX-License-Identifier: BSD-3-Clause
#include "backend/process_group_shm.hpp"

#include "backend/convert.hpp"
#include "backend/error.hpp"
#include "backend/python.hpp"
#include "backend/sparse.hpp"

#include <ATen/record_function.h>
#include <cxxabi.h>

namespace shmcoll
{

namespace
{

// Tensors of the same number of elements: the operation for even blocks is used.
bool isEven(at::TensorList list)
{
    for (const at::Tensor &tensor : list)
        if (tensor.numel() != list.front().numel())
            return false;
    return true;
}

} // namespace

// Begins the event of an operation that ends with this call. Marked like c10d::Work marks its own, so
// that a profile shows a synchronous operation as it shows an asynchronous one.
void ProcessGroupShm::record(at::RecordFunction &event, const Call &call)
{
    event._setAsync();
    if (event.needsInputs()) {
        at::TensorList shown = call.shown();
        std::vector<c10::IValue> inputs(shown.begin(), shown.end());
        event.before(call.title, &inputs);
    } else
        event.before(call.title);
}

ProcessGroupShm::WorkPtr ProcessGroupShm::run(const Call &call)
{
    if (Section *section = sections_.current()) [[unlikely]]
        return startInside(*section, call);
    return start(call);
}

ProcessGroupShm::WorkPtr ProcessGroupShm::startInside(Section &section, const Call &call)
{
    const bool isMessage = call.isMessage();
    if (isMessage && call.isOnGpu()) {
        cuda_.collect(call, section.batch);
        return nullptr;
    }
    std::optional<SectionGuard> guard;
    if (!isMessage) // whose refusal waits for the section's end
        guard.emplace(sections_);
    WorkPtr work = start(call);
    if (work)
        section.works.push_back(work);
    return work;
}

ProcessGroupShm::WorkPtr ProcessGroupShm::endCoalescing()
{
    const std::unique_ptr<Section> section = sections_.end();
    TORCH_CHECK_WITH(DistBackendError, section,
                     "shmcoll: endCoalescing: there is no start, or a call since then has failed");
    if (section->error)
        std::rethrow_exception(section->error);
    if (!section->batch.messages.empty())
        section->works.push_back(cuda_.run(section->batch));
    if (section->works.size() > 1)
        return c10::make_intrusive<WorkAll>(rank_, section->works);
    return section->works.empty() ? nullptr : section->works.front();
}

// `op` is the call's, as that group has it.
ProcessGroupShm::WorkPtr ProcessGroupShm::submit(const Group &group, const shc_op &op,
                                                 const Call &call, HostsSide *hosts)
{
    auto flight = flightOf(call);
    auto work =
        c10::make_intrusive<WorkShm>(group, rank_, call.type, call.title, call.shown(), flight);
    if (flight->recordEnd) [[unlikely]] // a profiler is on
        inCommsEvent(commsGroup(call), call, [&] { work->submit(op, hosts); });
    else
        work->submit(op, hosts);
    stayOutOfDyingPython();
    return work;
}

ProcessGroupShm::WorkPtr ProcessGroupShm::start(const Call &call)
{
    if (!described_) [[unlikely]]
        takeDescription();
    if (call.isOnGpu()) [[unlikely]] {
        TORCH_CHECK_TYPE(!hosts_, "shmcoll: ", shc_op_kind_name(call.op.kind),
                         ": a CUDA tensor in a group over several hosts; make the group as "
                         "\"cpu:shmcoll,cuda:nccl\"");
        check(shc_check(group_.get(), &call.op)); // whose memory overlaps
        return cuda_.run(call);
    }
    if (hosts_ && call.isMessage()) [[unlikely]]
        return startMessage(call);
    if (isInline(call.asyncOp)) {
        at::RecordFunction event(at::RecordScope::FUNCTION);
        shc_status status = event.isActive() ? runShown(event, call) : runNow(call.op);
        stayOutOfDyingPython();
        if (status != SHC_OK) [[unlikely]]
            throwStatus(status, tellHooks(status));
        if (call.finish)
            call.finish();
        return nullptr;
    }
    return submit(group_, call.op, call, hosts_.get());
}

// Of several operations in one call the first begins after all have been checked. Otherwise a call that
// raises ValueError or TypeError would have published some. For CUDA tensors this includes the checks
// of CudaSide::run().
ProcessGroupShm::WorkPtr ProcessGroupShm::examine(const Call &call)
{
    if (hosts_)
        hosts_->check(call.op);
    else
        check(shc_check(group_.get(), &call.op));
    if (call.isOnGpu())
        deviceOf(call);
    return nullptr;
}

ProcessGroupShm::WorkPtr ProcessGroupShm::broadcast(Tensors &tensors,
                                                    const c10d::BroadcastOptions &options)
{
    TORCH_CHECK_VALUE(tensors.size() == 1, "shmcoll: broadcast takes one tensor, not ",
                      tensors.size());
    return broadcastOne(tensors, options);
}

ProcessGroupShm::WorkPtr ProcessGroupShm::broadcastOne(at::TensorList tensors,
                                                       const c10d::BroadcastOptions &options)
{
    TensorViews views(tensors, "broadcast");
    shc_op op = describe(SHC_BROADCAST, options.timeout);
    setDtype(op, tensors[0].scalar_type());
    op.root = static_cast<int>(options.rootRank);
    op.input = op.output = views.view();
    return run({op, tensors, {}, options.asyncOp, c10d::OpType::BROADCAST, TITLE("broadcast")});
}

ProcessGroupShm::WorkPtr ProcessGroupShm::reduceAll(at::TensorList tensors,
                                                    const c10d::AllreduceOptions &options,
                                                    c10d::OpType type, const char *title,
                                                    at::TensorList inputs)
{
    TensorViews views(tensors, "all_reduce");
    shc_op op = describe(SHC_ALL_REDUCE, options.timeout);
    setDtype(op, commonDtype(tensors, "all_reduce"));
    setReduceOp(op, options.reduceOp);
    op.input = op.output = views.view();
    std::optional<TensorViews> in;
    if (!inputs.empty())
        op.input = in.emplace(inputs, "all_reduce").view();
    return run({op, tensors, inputs, options.asyncOp, type, title});
}

ProcessGroupShm::WorkPtr ProcessGroupShm::allreduce(Tensors &tensors,
                                                    const c10d::AllreduceOptions &options)
{
    TORCH_CHECK_VALUE(tensors.size() == 1, "shmcoll: all_reduce takes one tensor, not ",
                      tensors.size());
    if (tensors[0].layout() != at::kStrided)
        return allreduce_sparse(tensors, options);
    return reduceAll(tensors, options, c10d::OpType::ALLREDUCE, TITLE("all_reduce"));
}

// torch sends sparse CPU tensors to allreduce().
ProcessGroupShm::WorkPtr ProcessGroupShm::allreduce_sparse(Tensors &tensors,
                                                           const c10d::AllreduceOptions &options)
{
    TORCH_CHECK_VALUE(tensors.size() == 1, "shmcoll: all_reduce takes one tensor, not ",
                      tensors.size());
    auto sparse = std::make_shared<SparseTensor>(tensors[0]);
    shc_op op = describe(SHC_ALL_REDUCE_SPARSE, options.timeout);
    setDtype(op, tensors[0].scalar_type());
    setReduceOp(op, options.reduceOp);
    op.sparse = sparse->view();
    const auto store = [sparse] { sparse->storeSum(); };
    const auto type = c10d::OpType::_ALLREDUCE_SPARSE;
    return run({op, tensors, {}, options.asyncOp, type, TITLE("all_reduce_sparse"), {}, store});
}

ProcessGroupShm::WorkPtr
ProcessGroupShm::allreduce_coalesced(Tensors &tensors,
                                     const c10d::AllreduceCoalescedOptions &options)
{
    const SectionGuard guard(sections_);
    return reduceAll(tensors, options, c10d::OpType::ALLREDUCE_COALESCED,
                     TITLE("all_reduce_coalesced"));
}

ProcessGroupShm::WorkPtr ProcessGroupShm::gatherAll(at::TensorList outputs, at::TensorList inputs,
                                                    const c10d::AllgatherOptions &options,
                                                    c10d::OpType type, const char *title,
                                                    shc_op_kind kind, Step step)
{
    at::ScalarType dtype = commonDtype(outputs, "all_gather");
    at::ScalarType given = commonDtype(inputs, "all_gather");
    TORCH_CHECK_TYPE(dtype == given, "shmcoll: all_gather: the input is ", given, ", the output ",
                     dtype);
    TensorViews in(inputs, "all_gather"), out(outputs, "all_gather");
    shc_op op = describe(kind, options.timeout);
    setDtype(op, dtype);
    op.input = in.view();
    op.output = out.view();
    return (this->*step)({op, outputs, inputs, options.asyncOp, type, title});
}

ProcessGroupShm::WorkPtr ProcessGroupShm::allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                                                    const c10d::AllgatherOptions &options)
{
    TORCH_CHECK_VALUE(inputs.size() == 1 && outputs.size() == 1,
                      "shmcoll: all_gather takes one input and one list of outputs, not ",
                      inputs.size(), " and ", outputs.size());
    checkCount(outputs[0], "all_gather");
    return gatherAll(outputs[0], inputs, options, c10d::OpType::ALLGATHER, TITLE("all_gather"),
                     isEven(outputs[0]) ? SHC_ALL_GATHER : SHC_ALL_GATHER_UNEVEN);
}

// outputs[rank][i] is of the size of inputs[i]: one operation on the list of all.
ProcessGroupShm::WorkPtr ProcessGroupShm::allgather_coalesced(std::vector<Tensors> &outputs,
                                                              Tensors &inputs,
                                                              const c10d::AllgatherOptions &options)
{
    TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_),
                      "shmcoll: all_gather_coalesced: ", outputs.size(), " lists of outputs for ",
                      size_, " ranks");
    Tensors all;
    for (const Tensors &list : outputs) {
        TORCH_CHECK_VALUE(list.size() == inputs.size(),
                          "shmcoll: all_gather_coalesced: ", inputs.size(),
                          " inputs, but a list of ", list.size(), " outputs");
        for (size_t i = 0; i < list.size(); i++)
            TORCH_CHECK_VALUE(list[i].numel() == inputs[i].numel(),
                              "shmcoll: all_gather_coalesced: input ", i, " has ",
                              inputs[i].numel(), " elements, an output for it ", list[i].numel());
        all.insert(all.end(), list.begin(), list.end());
    }
    return gatherAll(all, inputs, options, c10d::OpType::COALESCED, TITLE("all_gather_coalesced"));
}

ProcessGroupShm::WorkPtr ProcessGroupShm::_allgather_base(at::Tensor &output, at::Tensor &input,
                                                          const c10d::AllgatherOptions &options)
{
    return gatherAll(output, input, options, c10d::OpType::_ALLGATHER_BASE,
                     TITLE("_all_gather_base"));
}

// The operations of a group end in order, so the last one's Work stands for all.
ProcessGroupShm::WorkPtr
ProcessGroupShm::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                 const c10d::AllgatherOptions &options)
{
    const SectionGuard guard(sections_);
    TORCH_CHECK_VALUE(outputs.size() == inputs.size() && !inputs.empty(),
                      "shmcoll: all_gather_into_tensor_coalesced: ", inputs.size(), " inputs, but ",
                      outputs.size(), " outputs");
    checkOutputsApart(outputs, "all_gather_into_tensor_coalesced");
    WorkPtr last;
    for (Step step : {&ProcessGroupShm::examine, &ProcessGroupShm::run})
        for (size_t i = 0; i < inputs.size(); i++)
            last = gatherAll(outputs[i], inputs[i], options, c10d::OpType::COALESCED,
                             TITLE("all_gather_into_tensor_coalesced"), SHC_ALL_GATHER, step);
    return last;
}

void ProcessGroupShm::checkCount(at::TensorList list, const char *op) const
{
    TORCH_CHECK_VALUE(list.size() == static_cast<size_t>(size_), "shmcoll: ", op, ": a list of ",
                      list.size(), " tensors for ", size_, " ranks");
}

// A list with a tensor for each rank, as large as the one on the other side.
void ProcessGroupShm::checkList(at::TensorList list, const at::Tensor &one, const char *op) const
{
    checkCount(list, op);
    for (const at::Tensor &tensor : list)
        TORCH_CHECK_VALUE(tensor.numel() == one.numel(), "shmcoll: ", op, ": a tensor of ",
                          tensor.numel(), " elements in the list, but ", one.numel(),
                          " elements on the other side");
}

// The list of gather or scatter: the root's, of the type of the one tensor on the other side; the
// others have none.
at::TensorList ProcessGroupShm::rootsList(const std::vector<Tensors> &lists, const at::Tensor &one,
                                          int64_t root, const char *op) const
{
    const bool isRoot = root == rank_;
    TORCH_CHECK_VALUE(lists.size() == (isRoot ? 1 : 0) || (!isRoot && lists[0].empty()),
                      "shmcoll: ", op, ": a list of tensors is for the root only; rank ",
                      globalRank(rank_), " has ", lists.size(), ", the root is rank ",
                      globalRank(root));
    if (!isRoot)
        return {};
    checkList(lists[0], one, op);
    at::ScalarType dtype = commonDtype(lists[0], op);
    TORCH_CHECK_TYPE(dtype == one.scalar_type(), "shmcoll: ", op, ": the list is of ", dtype,
                     ", the tensor on the other side ", one.scalar_type());
    return lists[0];
}

ProcessGroupShm::WorkPtr ProcessGroupShm::reduce(Tensors &tensors,
                                                 const c10d::ReduceOptions &options)
{
    TORCH_CHECK_VALUE(tensors.size() == 1, "shmcoll: reduce takes one tensor, not ",
                      tensors.size());
    TensorViews views(tensors, "reduce");
    shc_op op = describe(SHC_REDUCE, options.timeout);
    setDtype(op, tensors[0].scalar_type());
    setReduceOp(op, options.reduceOp);
    op.root = static_cast<int>(options.rootRank);
    op.input = op.output = views.view();
    return run({op, tensors, {}, options.asyncOp, c10d::OpType::REDUCE, TITLE("reduce")});
}

// The outputs are the root's; the others have none.
ProcessGroupShm::WorkPtr ProcessGroupShm::gatherToRoot(at::TensorList outputs,
                                                       at::TensorList inputs,
                                                       const c10d::GatherOptions &options,
                                                       const char *title)
{
    TensorViews in(inputs, "gather"), out(outputs, "gather");
    shc_op op = describe(SHC_GATHER, options.timeout);
    setDtype(op, inputs[0].scalar_type());
    op.root = static_cast<int>(options.rootRank);
    op.input = in.view();
    op.output = out.view();
    return run({op, outputs, inputs, options.asyncOp, c10d::OpType::GATHER, title});
}

ProcessGroupShm::WorkPtr ProcessGroupShm::gather(std::vector<Tensors> &outputs, Tensors &inputs,
                                                 const c10d::GatherOptions &options)
{
    TORCH_CHECK_VALUE(inputs.size() == 1, "shmcoll: gather takes one input, not ", inputs.size());
    at::TensorList list = rootsList(outputs, inputs[0], options.rootRank, "gather");
    return gatherToRoot(list, inputs, options, TITLE("gather"));
}

#if SHMCOLL_TORCH_AT_LEAST(2, 14)

// On a rank that is not the root, torch has no output to pass, and passes an empty tensor.
ProcessGroupShm::WorkPtr ProcessGroupShm::gather_single(at::Tensor &output, at::Tensor &input,
                                                        const c10d::GatherOptions &options)
{
    at::TensorList list, one(output);
    if (options.rootRank == rank_) {
        TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(),
                         "shmcoll: gather_single: the input is ", input.scalar_type(),
                         ", the output ", output.scalar_type());
        list = one;
    }
    return gatherToRoot(list, input, options, TITLE("gather_single"));
}

#endif

ProcessGroupShm::WorkPtr ProcessGroupShm::scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                                  const c10d::ScatterOptions &options)
{
    TORCH_CHECK_VALUE(outputs.size() == 1, "shmcoll: scatter takes one output, not ",
                      outputs.size());
    at::TensorList list = rootsList(inputs, outputs[0], options.rootRank, "scatter");
    TensorViews in(list, "scatter"), out(outputs, "scatter");
    shc_op op = describe(SHC_SCATTER, options.timeout);
    setDtype(op, outputs[0].scalar_type());
    op.root = static_cast<int>(options.rootRank);
    op.input = in.view();
    op.output = out.view();
    return run({op, outputs, list, options.asyncOp, c10d::OpType::SCATTER, TITLE("scatter")});
}

ProcessGroupShm::WorkPtr
ProcessGroupShm::reduceAndScatter(const at::Tensor &output, at::TensorList inputs,
                                  const c10d::ReduceScatterOptions &options, c10d::OpType type,
                                  const char *title, shc_op_kind kind, Step step)
{
    at::ScalarType dtype = commonDtype(inputs, "reduce_scatter");
    TORCH_CHECK_TYPE(dtype == output.scalar_type(), "shmcoll: reduce_scatter: the input is ", dtype,
                     ", the output ", output.scalar_type());
    TensorViews in(inputs, "reduce_scatter"), out(output, "reduce_scatter");
    shc_op op = describe(kind, options.timeout);
    setDtype(op, dtype);
    setReduceOp(op, options.reduceOp);
    op.input = in.view();
    op.output = out.view();
    return (this->*step)({op, output, inputs, options.asyncOp, type, title});
}

ProcessGroupShm::WorkPtr ProcessGroupShm::reduce_scatter(Tensors &outputs,
                                                         std::vector<Tensors> &inputs,
                                                         const c10d::ReduceScatterOptions &options)
{
    TORCH_CHECK_VALUE(inputs.size() == 1 && outputs.size() == 1,
                      "shmcoll: reduce_scatter takes one list of inputs and one output, not ",
                      inputs.size(), " and ", outputs.size());
    checkCount(inputs[0], "reduce_scatter");
    return reduceAndScatter(outputs[0], inputs[0], options, c10d::OpType::REDUCE_SCATTER,
                            TITLE("reduce_scatter"),
                            isEven(inputs[0]) ? SHC_REDUCE_SCATTER : SHC_REDUCE_SCATTER_UNEVEN);
}

ProcessGroupShm::WorkPtr
ProcessGroupShm::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                      const c10d::ReduceScatterOptions &options)
{
    return reduceAndScatter(output, input, options, c10d::OpType::_REDUCE_SCATTER_BASE,
                            TITLE("_reduce_scatter_base"));
}

ProcessGroupShm::WorkPtr
ProcessGroupShm::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                 const c10d::ReduceScatterOptions &options)
{
    const SectionGuard guard(sections_);
    TORCH_CHECK_VALUE(outputs.size() == inputs.size() && !inputs.empty(),
                      "shmcoll: reduce_scatter_tensor_coalesced: ", inputs.size(), " inputs, but ",
                      outputs.size(), " outputs");
    checkOutputsApart(outputs, "reduce_scatter_tensor_coalesced");
    WorkPtr last; // operations end in order
    for (Step step : {&ProcessGroupShm::examine, &ProcessGroupShm::run})
        for (size_t i = 0; i < inputs.size(); i++)
            last = reduceAndScatter(outputs[i], inputs[i], options, c10d::OpType::COALESCED,
                                    TITLE("reduce_scatter_tensor_coalesced"), SHC_REDUCE_SCATTER,
                                    step);
    return last;
}

ProcessGroupShm::WorkPtr ProcessGroupShm::exchangeAll(at::TensorList outputs, at::TensorList inputs,
                                                      const c10d::AllToAllOptions &options,
                                                      c10d::OpType type, const char *title,
                                                      at::TensorList given)
{
    TORCH_CHECK_VALUE(inputs.size() == static_cast<size_t>(size_) &&
                          outputs.size() == static_cast<size_t>(size_),
                      "shmcoll: all_to_all: lists of ", inputs.size(), " inputs and ",
                      outputs.size(), " outputs for ", size_, " ranks");
    at::ScalarType dtype = commonDtype(inputs, "all_to_all");
    TORCH_CHECK_TYPE(dtype == commonDtype(outputs, "all_to_all"),
                     "shmcoll: all_to_all: the inputs are ", dtype, ", the outputs ",
                     outputs[0].scalar_type());
    TensorViews in(inputs, "all_to_all"), out(outputs, "all_to_all");
    shc_op op = describe(SHC_ALL_TO_ALL, options.timeout);
    setDtype(op, dtype);
    op.input = in.view();
    op.output = out.view();
    return run({op, outputs, inputs, options.asyncOp, type, title, given});
}

ProcessGroupShm::WorkPtr ProcessGroupShm::alltoall(Tensors &outputs, Tensors &inputs,
                                                   const c10d::AllToAllOptions &options)
{
    return exchangeAll(outputs, inputs, options, c10d::OpType::ALLTOALL, TITLE("all_to_all"),
                       inputs);
}

// The rows of dimension 0 that belong to each rank; without splits, equally many.
ProcessGroupShm::Tensors ProcessGroupShm::rowsOf(const at::Tensor &tensor,
                                                 const std::vector<int64_t> &splits,
                                                 const char *which) const
{
    at::NoGradGuard guard;
    TORCH_CHECK_VALUE(tensor.dim() > 0, "shmcoll: all_to_all_single: the ", which,
                      " has no dimension that could be split");
    std::vector<int64_t> rows = splits;
    if (rows.empty()) {
        TORCH_CHECK_VALUE(tensor.size(0) % size_ == 0, "shmcoll: all_to_all_single: the ", which,
                          "'s first dimension, ", tensor.size(0), ", is not a multiple of ", size_,
                          " ranks, and there are no split sizes");
        rows.assign(static_cast<size_t>(size_), tensor.size(0) / size_);
    }
    int64_t sum = 0;
    for (int64_t count : rows) {
        TORCH_CHECK_VALUE(count >= 0, "shmcoll: all_to_all_single: a split size of ", count);
        sum += count;
    }
    TORCH_CHECK_VALUE(rows.size() == static_cast<size_t>(size_) && sum == tensor.size(0),
                      "shmcoll: all_to_all_single: ", rows.size(), " split sizes of ", sum,
                      " rows in all; the ", which, " has ", tensor.size(0), " rows, and there are ",
                      size_, " ranks");
    return tensor.split_with_sizes(rows, 0);
}

ProcessGroupShm::WorkPtr ProcessGroupShm::alltoall_base(at::Tensor &output, at::Tensor &input,
                                                        std::vector<int64_t> &outputSplits,
                                                        std::vector<int64_t> &inputSplits,
                                                        const c10d::AllToAllOptions &options)
{
    Tensors in = rowsOf(input, inputSplits, "input");
    Tensors out = rowsOf(output, outputSplits, "output");
    return exchangeAll(out, in, options, c10d::OpType::ALLTOALL_BASE, TITLE("all_to_all_single"),
                       input);
}

ProcessGroupShm::WorkPtr ProcessGroupShm::barrier(const c10d::BarrierOptions &options)
{
    cuda_.settle(options.timeout);
    shc_op op = describe(SHC_BARRIER, options.timeout);
    return run({op, {}, {}, options.asyncOp, c10d::OpType::BARRIER, TITLE("barrier")});
}

// Every barrier names all ranks that have not come.
void ProcessGroupShm::monitoredBarrier(const c10d::BarrierOptions &options, bool waitAllRanks)
{
    RECORD_FUNCTION(TITLE("monitored_barrier"), std::vector<c10::IValue>{});
    shc_op op = describe(SHC_BARRIER, options.timeout);
    if (options.timeout.count() == 0) // elsewhere no limit of its own; here, as in gloo, no time
        op.timeout_ns = 1;
    shc_status status = runNow(op);
    stayOutOfDyingPython();
    if (status == SHC_OK)
        return;
    const std::string text = tellHooks(status);
    if (forGloo_ && options.timeout.count() != 0)
        throwStatus(status, inGloosWords(rank_, waitAllRanks, text));
    const std::string first =
        c10::str("Rank ", globalRank(rank_), " timed out in monitoredBarrier: ");
    // For programs that expect gloo.
    throwStatus(status, status == SHC_ERR_TIMEOUT ? first + text : text);
}

// An operation that is refused in a section raises at the section's end.
ProcessGroupShm::WorkPtr ProcessGroupShm::transfer(shc_op_kind kind, Tensors &tensors, int peer,
                                                   int tag, c10d::OpType type, const char *title)
{
    Section *section = sections_.current();
    if (section == nullptr) [[likely]]
        return message(kind, tensors, peer, tag, type, title);
    if (!section->error)
        try {
            return message(kind, tensors, peer, tag, type, title);
        } catch (abi::__forced_unwind &) { // the thread is being ended
            throw;
        } catch (...) {
            section->error = std::current_exception();
        }
    return nullptr;
}

// There are no options, so the caller cannot say that the call is synchronous: the Work is always a
// real one.
ProcessGroupShm::WorkPtr ProcessGroupShm::message(shc_op_kind kind, Tensors &tensors, int peer,
                                                  int tag, c10d::OpType type, const char *title)
{
    const char *name = shc_op_kind_name(kind);
    TORCH_CHECK_VALUE(tensors.size() == 1, "shmcoll: ", name, " takes one tensor, not ",
                      tensors.size());
    TORCH_CHECK_VALUE(tag >= 0, "shmcoll: ", name, ": tag ", tag, "; tags begin at 0");
    TORCH_CHECK_VALUE(type != c10d::OpType::RECV || peer >= 0, "shmcoll: recv: the peer ", peer,
                      " is not a rank");
    return post(kind, tensors, peer, tag, c10d::kUnsetTimeout, type, title);
}

ProcessGroupShm::WorkPtr ProcessGroupShm::post(shc_op_kind kind, Tensors &tensors, int peer,
                                               int tag, std::chrono::milliseconds timeout,
                                               c10d::OpType type, const char *title)
{
    TensorViews views(tensors, shc_op_kind_name(kind));
    shc_op op = describe(kind, timeout);
    setDtype(op, tensors[0].scalar_type());
    op.peer = peer;
    op.tag = tag;
    const bool sends = kind == SHC_SEND;
    (sends ? op.input : op.output) = views.view();
    at::TensorList all(tensors), none;
    return run({op, sends ? none : all, sends ? all : none, true, type, title});
}

ProcessGroupShm::WorkPtr ProcessGroupShm::send(Tensors &tensors, int peer, int tag)
{
    return transfer(SHC_SEND, tensors, peer, tag, c10d::OpType::SEND, TITLE("send"));
}

ProcessGroupShm::WorkPtr ProcessGroupShm::recv(Tensors &tensors, int peer, int tag)
{
    return transfer(SHC_RECV, tensors, peer, tag, c10d::OpType::RECV, TITLE("recv"));
}

ProcessGroupShm::WorkPtr ProcessGroupShm::recvAnysource(Tensors &tensors, int tag)
{
    return transfer(SHC_RECV, tensors, SHC_ANY_SOURCE, tag, c10d::OpType::RECVANYSOURCE,
                    TITLE("recvAnySource"));
}

} // namespace shmcoll
