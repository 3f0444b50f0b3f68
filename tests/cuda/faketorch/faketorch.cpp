// SPDX-License-Identifier: BSD-3-Clause
// CUDA tensors for a torch without CUDA, over the stand-in driver (../fakedriver): as much of torch's
// CUDA side as shmcoll's glue and a test need. Devices, streams and events are the stand-in's; memory
// is its memory, which the CPU may read. Of torch's kernels only copying exists.
//
// A Python extension; tests/python/faketorch.py builds and loads it, in ranks only: what it registers
// stays for the life of the process.

#include "cuda_ipc/cuda_abi.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

namespace
{

// The functions of cuda_abi.h, by their names.
struct Driver {
#define FAKETORCH_CALL(name, version, need, parameters) int(*name) parameters;
    SHC_DRIVER_CALLS(FAKETORCH_CALL)
#undef FAKETORCH_CALL
    int (*cuGetProcAddress)(const char *, void **, int, unsigned long long, int *);
};

Driver driver;
std::vector<shc_cu_context *> contexts; // by device
thread_local c10::DeviceIndex currentDevice = 0;
thread_local std::vector<shc_cu_stream *> currentStreams;

void check(int result, const char *what)
{
    TORCH_CHECK(result == SHC_CU_SUCCESS, "faketorch: ", what, ": error ", result);
}

void loadDriver(const std::string &path)
{
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    TORCH_CHECK(library != nullptr, "faketorch: ", dlerror());
    void *find = dlsym(library, "cuGetProcAddress_v2");
    TORCH_CHECK(find != nullptr, "faketorch: the driver has no cuGetProcAddress_v2");
    memcpy(&driver.cuGetProcAddress, &find, sizeof find);
// An older driver lacks some of them: a call of a missing function ends here.
#define FAKETORCH_FIND(name, version, need, parameters)                       \
    {                                                                         \
        void *found = nullptr;                                                \
        int status = 0;                                                       \
        if (driver.cuGetProcAddress(#name, &found, version, 0, &status) != 0) \
            found = nullptr;                                                  \
        memcpy(&driver.name, &found, sizeof found);                           \
    }
    SHC_DRIVER_CALLS(FAKETORCH_FIND)
#undef FAKETORCH_FIND
    int count = 0;
    check(driver.cuInit(0), "cuInit");
    check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
    contexts.resize(static_cast<size_t>(count));
    for (int i = 0; i < count; i++)
        check(driver.cuDevicePrimaryCtxRetain(&contexts[static_cast<size_t>(i)], i), "context");
}

// The device's context is the thread's current one while this lives.
struct Inside {
    explicit Inside(c10::DeviceIndex device)
    {
        check(driver.cuCtxPushCurrent(contexts.at(static_cast<size_t>(device))), "push");
    }
    ~Inside()
    {
        shc_cu_context *popped = nullptr;
        driver.cuCtxPopCurrent(&popped);
    }
};

c10::Stream wrap(shc_cu_stream *stream, c10::DeviceIndex device)
{
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, device),
                       reinterpret_cast<int64_t>(stream));
}

shc_cu_stream *unwrap(const c10::Stream &stream)
{
    return reinterpret_cast<shc_cu_stream *>(stream.id());
}

shc_cu_stream *newStream(c10::DeviceIndex device)
{
    Inside inside(device);
    shc_cu_stream *stream = nullptr;
    check(driver.cuStreamCreateWithPriority(&stream, SHC_CU_STREAM_NON_BLOCKING, 0), "stream");
    return stream;
}

// The stand-in has no NULL stream: each thread and device gets one of its own.
shc_cu_stream *&currentStream(c10::DeviceIndex device)
{
    currentStreams.resize(contexts.size());
    shc_cu_stream *&stream = currentStreams.at(static_cast<size_t>(device));
    if (stream == nullptr)
        stream = newStream(device);
    return stream;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return c10::kCUDA; }
    c10::Device exchangeDevice(c10::Device device) const override
    {
        c10::Device old = getDevice();
        setDevice(device);
        return old;
    }
    c10::Device getDevice() const override { return {c10::kCUDA, currentDevice}; }
    void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
    void uncheckedSetDevice(c10::Device device) const noexcept override
    {
        if (device.has_index())
            currentDevice = device.index();
    }
    c10::Stream getStream(c10::Device device) const override
    {
        const c10::DeviceIndex index = device.has_index() ? device.index() : currentDevice;
        return wrap(currentStream(index), index);
    }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override
    {
        return wrap(newStream(device.index()), device.index());
    }
    c10::Stream exchangeStream(c10::Stream stream) const override
    {
        shc_cu_stream *&current = currentStream(stream.device_index());
        c10::Stream old = wrap(current, stream.device_index());
        current = unwrap(stream);
        return old;
    }
    void *getStreamNativeHandle(const c10::Stream stream) const override { return unwrap(stream); }
    c10::DeviceIndex deviceCount() const noexcept override
    {
        return static_cast<c10::DeviceIndex>(contexts.size());
    }

    void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override
    {
        if (event != nullptr)
            driver.cuEventDestroy(static_cast<shc_cu_event *>(event));
    }
    void record(void **event, const c10::Stream &stream, const c10::DeviceIndex,
                const c10::EventFlag) const override
    {
        Inside inside(stream.device_index());
        auto *made = static_cast<shc_cu_event *>(*event);
        if (made == nullptr)
            check(driver.cuEventCreate(&made, SHC_CU_EVENT_DISABLE_TIMING), "event");
        check(driver.cuEventRecord(made, unwrap(stream)), "record");
        *event = made;
    }
    void block(void *event, const c10::Stream &stream) const override
    {
        if (event == nullptr)
            return;
        Inside inside(stream.device_index());
        check(driver.cuStreamWaitEvent(unwrap(stream), static_cast<shc_cu_event *>(event), 0),
              "block");
    }
    bool queryEvent(void *event) const override
    {
        if (event == nullptr)
            return true;
        const int result = driver.cuEventQuery(static_cast<shc_cu_event *>(event));
        TORCH_CHECK(result == SHC_CU_SUCCESS || result == SHC_CU_NOT_READY,
                    "faketorch: event query: error ", result);
        return result == SHC_CU_SUCCESS;
    }
    bool queryStream(const c10::Stream &stream) const override
    {
        return driver.cuStreamQuery(unwrap(stream)) == SHC_CU_SUCCESS;
    }
    void synchronizeStream(const c10::Stream &stream) const override
    {
        Inside inside(stream.device_index());
        check(driver.cuStreamSynchronize(unwrap(stream)), "synchronize");
    }
    void synchronizeEvent(void *event) const override
    {
        while (!queryEvent(event)) {
        }
    }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// ---- tensors ----

void freeMemory(void *memory)
{
    driver.cuMemFree(reinterpret_cast<shc_cu_address>(memory));
}

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override
    {
        Inside inside(currentDevice);
        shc_cu_address address = 0;
        if (bytes > 0)
            check(driver.cuMemAlloc(&address, bytes), "cuMemAlloc");
        auto *memory = reinterpret_cast<void *>(address);
        return {memory, memory, bytes > 0 ? freeMemory : [](void *) {},
                c10::Device(c10::kCUDA, currentDevice)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return freeMemory; }
    void copy_data(void *to, const void *from, std::size_t bytes) const override
    {
        memcpy(to, from, bytes);
    }
};

Allocator allocator;

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format)
{
    c10::DeviceGuard guard(device.value_or(c10::Device(c10::kCUDA)));
    return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), &allocator,
                                     c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor emptyStrided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                        std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                        std::optional<c10::Device> device, std::optional<bool>)
{
    c10::DeviceGuard guard(device.value_or(c10::Device(c10::kCUDA)));
    return at::detail::empty_strided_generic(
        C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), &allocator,
        c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype));
}

// Between contiguous tensors of one type, in the order of the current stream.
at::Tensor &copyInto(at::Tensor &self, const at::Tensor &from, bool)
{
    TORCH_CHECK(self.is_contiguous() && from.is_contiguous() && self.sizes() == from.sizes() &&
                    self.scalar_type() == from.scalar_type(),
                "faketorch: only contiguous tensors of one type and size are copied");
    const c10::Device device = self.is_cuda() ? self.device() : from.device();
    Inside inside(device.index());
    shc_cu_stream *stream = currentStream(device.index());
    if (self.nbytes() > 0)
        check(driver.cuMemcpyAsync(reinterpret_cast<shc_cu_address>(self.data_ptr()),
                                   reinterpret_cast<shc_cu_address>(from.data_ptr()), self.nbytes(),
                                   stream),
              "cuMemcpyAsync");
    if (!self.is_cuda() || !from.is_cuda())
        check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return self;
}

at::Tensor asStrided(const at::Tensor &self, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                     std::optional<c10::SymInt> offset)
{
    std::optional<int64_t> begin;
    if (offset)
        begin = offset->guard_int(__FILE__, __LINE__);
    return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(sizes),
                                             C10_AS_INTARRAYREF_SLOW(strides), begin);
}

at::Tensor view(const at::Tensor &self, c10::SymIntArrayRef sizes)
{
    return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

TORCH_LIBRARY_IMPL(aten, CUDA, m)
{
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", emptyStrided);
    m.impl("copy_", copyInto);
    m.impl("as_strided", asStrided);
    m.impl("view", view);
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    m.def("load", &loadDriver, "The stand-in at this path becomes torch's CUDA.");
    m.def("new_stream", [](int device) {
        return reinterpret_cast<int64_t>(newStream(static_cast<c10::DeviceIndex>(device)));
    });
    m.def("set_stream", [](int64_t stream, int device) { // returns the one before
        shc_cu_stream *&current = currentStream(static_cast<c10::DeviceIndex>(device));
        auto *old = current;
        current = reinterpret_cast<shc_cu_stream *>(stream);
        return reinterpret_cast<int64_t>(old);
    });
    m.def("stream", [](int device) {
        return reinterpret_cast<int64_t>(currentStream(static_cast<c10::DeviceIndex>(device)));
    });
    m.def("query", [](int64_t stream) {
        return driver.cuStreamQuery(reinterpret_cast<shc_cu_stream *>(stream)) == SHC_CU_SUCCESS;
    });
    m.def(
        "synchronize",
        [](int device) {
            Inside inside(static_cast<c10::DeviceIndex>(device));
            check(driver.cuStreamSynchronize(currentStream(static_cast<c10::DeviceIndex>(device))),
                  "synchronize");
        },
        pybind11::call_guard<pybind11::gil_scoped_release>());
}
