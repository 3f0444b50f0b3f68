// SPDX-License-Identifier: BSD-3-Clause
#include "backend/cuda_side.hpp"

#include "backend/convert.hpp"
#include "backend/error.hpp"
#include "backend/python.hpp"

#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <unordered_set>

namespace shmcoll
{

c10::Device deviceOf(const Call &call)
{
    const c10::Device device =
        call.outputs.empty() ? call.inputs.front().device() : call.outputs.front().device();
    for (at::TensorList list : {call.outputs, call.inputs})
        for (const at::Tensor &tensor : list) {
            TORCH_CHECK_VALUE(tensor.device() == device, "shmcoll: ", call.title,
                              ": tensors of one call are on ", device, " and on ", tensor.device());
            TORCH_CHECK_TYPE(tensor.is_contiguous(), "shmcoll: ", call.title,
                             ": a CUDA tensor that is not contiguous; call contiguous() first");
        }
    return device;
}

namespace
{

void *nativeHandle(const c10::Stream &stream)
{
#if SHMCOLL_TORCH_AT_LEAST(2, 11)
    return stream.native_handle();
#else
    TORCH_CHECK_TYPE(false, "shmcoll: CUDA tensors need torch 2.11 or newer");
#endif
}

// If two streams of this group were the same one, they would wait for each other: torch hands out 32
// streams of each priority in turn, to all groups of the process and to the user.
constexpr int kPooled = 2 * 32;
struct Taken {
    std::mutex lock;
    std::unordered_multiset<c10::Stream> streams;
};

Taken &taken()
{
    static Taken &all = *new Taken; // never destructed: threads may outlive the library
    return all;
}

// A stream that no other lane has, as long as there is one.
OwnStream newStream(c10::Device device)
{
    const c10::impl::VirtualGuardImpl pool(device.type());
    std::lock_guard<std::mutex> guard(taken().lock);
    c10::Stream stream = pool.getStreamFromGlobalPool(device, true);
    for (int tries = 0; tries < kPooled && taken().streams.count(stream) > 0; tries++)
        stream = pool.getStreamFromGlobalPool(device, tries < kPooled / 2);
    taken().streams.insert(stream);
    return {new c10::Stream(stream), [](const c10::Stream *old) {
                std::lock_guard<std::mutex> guard(taken().lock);
                taken().streams.erase(taken().streams.find(*old));
                delete old;
            }};
}

// SHMCOLL_RELAY, as a group's config takes it. Read again for each group, since groups may differ.
uint64_t relayBytes()
{
    constexpr long kMostKib = 1 << 20;
    const char *text = std::getenv("SHMCOLL_RELAY");
    if (text == nullptr || *text == '\0' || strcmp(text, "auto") == 0)
        return 0;
    if (strcmp(text, "off") == 0)
        return SHC_CUDA_RELAY_OFF;
    char *end = nullptr;
    const long kib = std::strtol(text, &end, 10);
    if (end != text && *end == '\0' && kib >= 1 && kib <= kMostKib)
        return static_cast<uint64_t>(kib) << 10;
    fprintf(stderr,
            "shmcoll: SHMCOLL_RELAY=%s is not one of auto|off, nor a number from 1 to %ld; "
            "ignored\n",
            text, kMostKib);
    return 0;
}

} // namespace

bool CudaSide::isPossible()
{
    constexpr auto type = c10::DeviceType::CUDA;
    return c10::impl::hasDeviceGuardImpl(type) &&
           c10::impl::getDeviceGuardImpl(type)->deviceCount() > 0;
}

CudaSide::Gpu *CudaSide::find(c10::Device device)
{
    std::lock_guard<std::mutex> guard(lock_);
    TORCH_CHECK_WITH(DistBackendError, !closed_, "shmcoll: this rank has closed the group");
    auto found = gpus_.find(device.index());
    return found == gpus_.end() ? nullptr : &found->second;
}

// The ranks meet here.
CudaGroup CudaSide::make(c10::Device device, const char *hint)
{
    shc_cuda_config config{};
    config.device = device.index();
    config.name = name_.c_str();
    config.relay_bytes = relayBytes();
    {
        std::lock_guard<std::mutex> guard(lock_);
        config.timeout_ns = groupTimeoutNs(timeout_);
    }
    shc_cuda_comm *made = nullptr;
    const shc_status status = shc_cuda_comm_create(group_.get(), &config, &made);
    // A machine without the features is no error in the caller's types.
    TORCH_CHECK_WITH(DistBackendError, status != SHC_ERR_UNSUPPORTED,
                     "shmcoll: ", shc_cuda_error_text());
    if (status != SHC_OK)
        throwStatus(status, c10::str(shc_cuda_error_text(), hint));
    return CudaGroup(made, [core = group_](shc_cuda_comm *old) {
        GilRelease release;
        shc_cuda_comm_free(old);
    });
}

// pre: order_ is held.
CudaSide::Gpu &CudaSide::gpuOf(c10::Device device, const char *hint)
{
    if (Gpu *found = find(device))
        return *found;
    Gpu gpu{
        make(device, hint), std::make_unique<Lane>(newStream(device)), newStream(device), {}, {}};
    std::lock_guard<std::mutex> guard(lock_);
    shc_cuda_comm_set_timeout(gpu.group.get(),
                              groupTimeoutNs(timeout_)); // it may be another by now
    if (closed_)                                         // while it was made
        shc_cuda_comm_close(gpu.group.get());
    return gpus_.emplace(device.index(), std::move(gpu)).first->second;
}

std::vector<CudaSide::Gpu *> CudaSide::all()
{
    std::lock_guard<std::mutex> guard(lock_);
    std::vector<Gpu *> found;
    for (auto &[index, gpu] : gpus_)
        found.push_back(&gpu);
    return found;
}

// Is what is enqueued on the current stream captured into a graph?
bool CudaSide::isCapturing(const Gpu *gpu, c10::Device device)
{
    bool capturing = false;
    checkCuda(shc_cuda_capturing(gpu == nullptr ? nullptr : gpu->group.get(),
                                 nativeHandle(currentStream(device)), &capturing));
    return capturing;
}

c10::intrusive_ptr<c10d::Work> CudaSide::run(const Call &call)
{
    const c10::Device device = deviceOf(call);
    TORCH_CHECK_TYPE(!call.finish, "shmcoll: ", call.title,
                     ": sparse CUDA tensors are not offered");
    c10::DeviceGuard onDevice(device);
    GilRelease release;
    if (call.isMessage())
        return transfer(call, device);
    std::lock_guard<std::mutex> guard(order_);
    Gpu *known = find(device);
    // In that case memory is allocated, which a capture forbids, and the ranks meet, which a replay
    // would not do.
    TORCH_CHECK_TYPE(known != nullptr || !isCapturing(nullptr, device), "shmcoll: ", call.title,
                     ": the group's first operation on ", device,
                     " cannot be captured; run one before the capture");
    Gpu &gpu = known != nullptr ? *known : gpuOf(device);
    const c10::Stream current = currentStream(device);
    if (isInline(call.asyncOp)) {
        RECORD_FUNCTION(call.title, std::vector<c10::IValue>{});
        checkCuda(shc_cuda_comm_enqueue(gpu.group.get(), &call.op, nativeHandle(current)));
        sequence_++;
        return nullptr;
    }
    return enqueue(gpu, *gpu.collectives, call, isCapturing(&gpu, device));
}

void CudaSide::checkMessage(const Call &call, c10::Device device)
{
    TORCH_CHECK_TYPE(call.op.peer != SHC_ANY_SOURCE, "shmcoll: ", call.title,
                     ": a CUDA tensor from any rank is not offered; name the sender, or receive "
                     "into a CPU tensor");
    TORCH_CHECK_TYPE(!isCapturing(find(device), device), "shmcoll: ", call.title,
                     ": not offered while a CUDA graph is captured; call it outside the graph");
}

CudaSide::Gpu &CudaSide::gpuOfMessage(c10::Device device)
{
    if (Gpu *found = find(device))
        return *found;
    std::lock_guard<std::mutex> guard(order_);
    return gpuOf(
        device,
        " (in a group's first operation on CUDA tensors all its ranks meet, even if it is a "
        "message: run a collective first)");
}

// A message that waits for room in its channel blocks no other channel, and no collective.
c10::intrusive_ptr<c10d::Work> CudaSide::transfer(const Call &call, c10::Device device)
{
    checkMessage(call, device);
    Gpu &gpu = gpuOfMessage(device);
    Lane &lane = laneOf(gpu, call.op);
    std::lock_guard<std::mutex> guard(lane.order);
    return enqueue(gpu, lane, call, false);
}

void CudaSide::collect(const Call &call, Batch &batch)
{
    const c10::Device device = deviceOf(call);
    const at::Tensor &tensor = call.shown().front();
    TORCH_CHECK_VALUE(batch.messages.empty() || batch.messages.front().tensor.device() == device,
                      "shmcoll: ", call.title, ": messages of one batch are on ",
                      batch.messages.front().tensor.device(), " and on ", device);
    c10::DeviceGuard onDevice(device);
    GilRelease release;
    checkMessage(call, device);
    const c10::Stream current = currentStream(device);
    if (std::find(batch.behind.begin(), batch.behind.end(), current) == batch.behind.end())
        batch.behind.push_back(current);
    batch.messages.push_back({tensor, call.op});
}

c10::intrusive_ptr<c10d::Work> CudaSide::run(const Batch &batch)
{
    const size_t count = batch.messages.size();
    std::vector<TensorViews> views(count);
    std::vector<shc_op> ops;
    std::vector<at::Tensor> sent, received;
    for (size_t i = 0; i < count; i++) {
        const auto &[tensor, described] = batch.messages[i];
        views[i].add(tensor, shc_op_kind_name(described.kind));
        ops.push_back(described);
        const bool sends = described.kind == SHC_SEND;
        (sends ? ops[i].input : ops[i].output) = views[i].view();
        (sends ? sent : received).push_back(tensor);
    }
    Call call{ops.front(), received, sent, true, c10d::OpType::COALESCED, "shmcoll:coalesced"};
    call.count = static_cast<int>(count);
    const c10::Device device = batch.messages.front().tensor.device();
    c10::DeviceGuard onDevice(device);
    GilRelease release;
    checkMessage(call, device); // it may be another stream that is current now
    Gpu &gpu = gpuOfMessage(device);
    Lane &lane = count == 1 ? laneOf(gpu, call.op) : laneOfBatches(gpu);
    std::lock_guard<std::mutex> guard(lane.order);
    for (const c10::Stream &before : batch.behind) {
        c10::Event called(device.type());
        called.record(before);
        called.block(lane.stream);
    }
    return enqueue(gpu, lane, call, false);
}

CudaSide::Lane &CudaSide::laneOf(Gpu &gpu, const shc_op &op)
{
    std::lock_guard<std::mutex> guard(lock_);
    const auto key = std::make_pair(op.kind, op.peer);
    auto found = gpu.ends.find(key);
    if (found == gpu.ends.end())
        found = gpu.ends.try_emplace(key, newStream(gpu.collectives->stream.device())).first;
    return found->second;
}

CudaSide::Lane &CudaSide::laneOfBatches(Gpu &gpu)
{
    std::lock_guard<std::mutex> guard(lock_);
    if (!gpu.batches)
        gpu.batches = std::make_unique<Lane>(newStream(gpu.collectives->stream.device()));
    return *gpu.batches;
}

// pre: the lane's order is held. On a stream of the group, after what the current one has.
c10::intrusive_ptr<c10d::Work> CudaSide::enqueue(Gpu &gpu, Lane &lane, const Call &call,
                                                 bool captured)
{
    const c10::Stream stream = captured ? *gpu.forked : lane.stream;
    const c10::Device device = stream.device();
    c10::Event begin(device.type());
    begin.record(currentStream(device));
    begin.block(stream);
    if (!captured) // else no Work may query events, and the graph keeps the memory
        dropPassed(gpu, lane);
    auto stash = std::make_shared<Stash>(device.type(), captured);
    stash->tensors = call.tensors();
    const shc_status status =
        call.count > 1 ? shc_cuda_comm_enqueue_batch(gpu.group.get(), &call.op, call.count,
                                                     nativeHandle(stream))
                       : shc_cuda_comm_enqueue(gpu.group.get(), &call.op, nativeHandle(stream));
    if (status != SHC_OK && captured) { // a stream that is not joined again breaks the capture
        const std::string text = shc_cuda_error_text();
        stash->end.record(stream);
        stash->end.block(currentStream(device));
        throwStatus(status, text);
    }
    if (!captured) // the stream may use the tensors, also if a part was enqueued before the failure
        lane.stashes.push_back(stash);
    stash->end.record(stream);
    checkCuda(status);
    const uint64_t sequence = call.isMessage() ? sequence_.load() : ++sequence_;
    return c10::make_intrusive<WorkCuda>(gpu.group, rank_, call, stream, std::move(stash),
                                         sequence);
}

// Tensors of operations that are not waited for are dropped when the next operation comes. pre: the
// lane's order is held.
void CudaSide::dropPassed(const Gpu &gpu, Lane &lane)
{
    size_t passed = 0;
    while (passed < lane.stashes.size() && lane.stashes[passed]->end.query())
        passed++;
    const bool right = passed > 0 && groupIsRight(gpu.group); // after the events
    for (; passed > 0; passed--) {
        if (right)
            lane.stashes.front()->right = true;
        lane.stashes.front()->drop();
        lane.stashes.pop_front();
    }
}

// The Works may not have been queried before the group is closed, and afterwards they cannot be told
// apart.
void CudaSide::markRight(const Gpu &gpu, Lane &lane, std::mutex &order)
{
    bool pending;
    std::unique_lock<std::mutex> guard(order, std::try_to_lock);
    if (!guard || shc_cuda_comm_pending(gpu.group.get(), &pending) != SHC_OK || pending)
        return; // a call at the same time as shutdown()
    for (const std::shared_ptr<Stash> &stash : lane.stashes)
        stash->right = true;
}

void CudaSide::markRight(Gpu &gpu)
{
    std::vector<Lane *> lanes;
    {
        std::lock_guard<std::mutex> guard(lock_);
        for (auto &[end, lane] : gpu.ends)
            lanes.push_back(&lane);
        if (gpu.batches)
            lanes.push_back(gpu.batches.get());
    }
    markRight(gpu, *gpu.collectives, order_);
    for (Lane *lane : lanes)
        markRight(gpu, *lane, lane->order);
}

void CudaSide::settle(std::chrono::milliseconds timeout)
{
    for (Gpu *gpu : all()) {
        const c10::Stream own = gpu->collectives->stream;
        TORCH_CHECK_TYPE(!isCapturing(gpu, own.device()),
                         "shmcoll: barrier() waits on the host, and cannot be captured");
        // The current stream does not know of asynchronous operations that were not waited for.
        c10::Event here(own.device_type()), passed(own.device_type());
        here.record(currentStream(own.device()));
        here.block(own);
        passed.record(own);
        waitOnHost(passed, gpu->group, timeout);
    }
}

std::string CudaSide::info()
{
    std::string lines;
    for (Gpu *gpu : all()) {
        char text[8192];
        checkCuda(shc_cuda_comm_info(gpu->group.get(), text, sizeof text));
        std::istringstream of(text);
        const c10::Device device = gpu->collectives->stream.device();
        for (std::string line; std::getline(of, line);)
            lines += c10::str(device, ".", line, "\n");
    }
    return lines;
}

std::exception_ptr CudaSide::finish()
{
    std::exception_ptr unfinished;
    for (Gpu *gpu : all()) {
        bool pending;
        if (shc_cuda_comm_pending(gpu->group.get(), &pending) != SHC_OK)
            continue; // in the same way as if another GPU's had failed
        const shc_status status = waitUntilIdle(gpu->group);
        if (status == SHC_OK)
            markRight(*gpu);
        else
            unfinished =
                makeException(status, c10::str("shutdown: pending operations on ",
                                               gpu->collectives->stream.device(),
                                               " have not finished: ", shc_cuda_error_text()));
    }
    return unfinished;
}

void CudaSide::setTimeout(std::chrono::milliseconds timeout)
{
    std::lock_guard<std::mutex> guard(lock_);
    timeout_ = timeout;
    for (auto &[index, gpu] : gpus_)
        shc_cuda_comm_set_timeout(gpu.group.get(), groupTimeoutNs(timeout));
}

void CudaSide::abort(const char *reason)
{
    for (Gpu *gpu : all())
        shc_cuda_comm_abort(gpu->group.get(), reason);
}

void CudaSide::close()
{
    {
        std::lock_guard<std::mutex> guard(lock_);
        closed_ = true;
    }
    for (Gpu *gpu : all())
        shc_cuda_comm_close(gpu->group.get());
}

} // namespace shmcoll
