// SPDX-License-Identifier: BSD-3-Clause
#include "backend/cuda_side.hpp"

#include "backend/convert.hpp"
#include "backend/error.hpp"
#include "backend/python.hpp"

#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>

namespace shmcoll
{

namespace
{

// The one GPU that all tensors of the call are on.
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

void *nativeHandle(const c10::Stream &stream)
{
#if SHMCOLL_TORCH_AT_LEAST(2, 11)
    return stream.native_handle();
#else
    TORCH_CHECK_TYPE(false, "shmcoll: CUDA tensors need torch 2.11 or newer");
#endif
}

} // namespace

CudaSide::Gpu *CudaSide::find(c10::Device device)
{
    std::lock_guard<std::mutex> guard(lock_);
    TORCH_CHECK_WITH(DistBackendError, !closed_, "shmcoll: this rank has closed the group");
    auto found = gpus_.find(device.index());
    return found == gpus_.end() ? nullptr : &found->second;
}

// The ranks meet here.
CudaGroup CudaSide::make(c10::Device device) const
{
    shc_cuda_config config{};
    config.device = device.index();
    config.name = name_.c_str();
    config.timeout_ns = timeoutNs(timeout_);
    shc_cuda_comm *made = nullptr;
    const shc_status status = shc_cuda_comm_create(group_.get(), &config, &made);
    // A machine that cannot is no mistake of the caller's type.
    TORCH_CHECK_WITH(DistBackendError, status != SHC_ERR_UNSUPPORTED,
                     "shmcoll: ", shc_cuda_error_text());
    checkCuda(status);
    return CudaGroup(made, [core = group_](shc_cuda_comm *old) {
        GilRelease release;
        shc_cuda_comm_free(old);
    });
}

// pre: order_ is held.
CudaSide::Gpu &CudaSide::gpuOf(c10::Device device)
{
    if (Gpu *found = find(device))
        return *found;
    const c10::impl::VirtualGuardImpl streams(device.type());
    Gpu gpu{make(device),
            streams.getStreamFromGlobalPool(device, true),
            streams.getStreamFromGlobalPool(device, true),
            {}};
    std::lock_guard<std::mutex> guard(lock_);
    if (closed_) // while it was made
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
    std::lock_guard<std::mutex> guard(order_);
    Gpu *known = find(device);
    // Memory is made then, which a capture forbids; and the ranks meet, which a replay would not.
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
    const bool captured = isCapturing(&gpu, device);
    const c10::Stream stream = captured ? gpu.forked : gpu.stream;
    c10::Event begin(device.type());
    begin.record(current);
    begin.block(stream);
    checkCuda(shc_cuda_comm_enqueue(gpu.group.get(), &call.op, nativeHandle(stream)));
    auto stash = std::make_shared<Stash>(device.type(), captured);
    stash->end.record(stream);
    stash->tensors = call.tensors();
    if (!captured) { // else nobody may ask for events, and the graph keeps the memory
        dropPassed(gpu);
        gpu.stashes.push_back(stash);
    }
    return c10::make_intrusive<WorkCuda>(gpu.group, rank_, call, stream, std::move(stash),
                                         ++sequence_);
}

// What nobody waits for is dropped when the next operation comes.
void CudaSide::dropPassed(Gpu &gpu)
{
    while (!gpu.stashes.empty() && gpu.stashes.front()->end.query()) {
        gpu.stashes.front()->drop();
        gpu.stashes.pop_front();
    }
}

void CudaSide::settle(std::chrono::milliseconds timeout)
{
    for (Gpu *gpu : all()) {
        TORCH_CHECK_TYPE(!isCapturing(gpu, gpu->stream.device()),
                         "shmcoll: barrier() waits on the host, and cannot be captured");
        c10::Event passed(gpu->stream.device_type());
        passed.record(currentStream(gpu->stream.device()));
        waitOnHost(passed, gpu->group, timeout);
    }
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
