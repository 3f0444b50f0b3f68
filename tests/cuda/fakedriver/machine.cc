// SPDX-License-Identifier: BSD-3-Clause
// The stand-in's knobs, devices and contexts, and how its functions are found.
#include "tests/cuda/fakedriver/fake.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <unistd.h>
#include <vector>

namespace fake
{
namespace
{

// Never destroyed: threads of streams outlive main.
Knobs *the_knobs = new Knobs;
bool configured = false;
std::atomic<bool> initialized{false};
std::atomic<int> broken{SHC_CU_SUCCESS};
std::mutex *contexts_lock = new std::mutex;
shc_cu_context *contexts = new shc_cu_context[64];
pid_t initialized_by = 0;
thread_local std::vector<shc_cu_context *> current;

P2p p2p_of(const std::string &word)
{
    static const std::pair<const char *, P2p> words[] = {
        {"0", P2p::kNone},
        {"1", P2p::kWorks},
        {"lies", P2p::kLies},
        {"wraps", P2p::kWraps},
        {"stale", P2p::kStale},
        {"hangs", P2p::kHangs},
        {"loads_lie", P2p::kLoadsLie},
        {"loads_hang", P2p::kLoadsHang},
    };
    for (auto &[name, fault] : words)
        if (word == name)
            return fault;
    fprintf(stderr, "the stand-in for libcuda knows no fault \"%s\"\n", word.c_str());
    abort();
}

void set(Knobs &k, const std::string &key, const std::string &value)
{
    const int number = atoi(value.c_str());
    const std::pair<const char *, int *> numbers[] = {
        {"version", &k.version},
        {"devices", &k.devices},
        {"first_uuid", &k.first_uuid},
        {"init", &k.init},
        {"mode", &k.mode},
        {"context", &k.context},
        {"export", &k.export_result},
        {"import", &k.import_result},
        {"open", &k.open_result},
        {"load", &k.load_result},
        {"delay_us", &k.delay_us},
        {"slow_us", &k.slow_us},
        {"queues", &k.queues},
        {"call_us", &k.call_us},
        {"unmap_us", &k.unmap_us},
        {"kernel_ms", &k.kernel_ms},
    };
    const std::pair<const char *, bool *> switches[] = {
        {"vmm", &k.vmm},
        {"words", &k.words},
        {"fds", &k.fds},
        {"mps", &k.mps},
        {"alias", &k.alias},
        {"lazy", &k.lazy},
        {"p2p_inside", &k.p2p_inside},
        {"only_writes_wake", &k.only_writes_wake},
        {"shuffle", &k.shuffle},
    };
    for (auto &[name, to] : numbers)
        if (key == name) {
            *to = number;
            return;
        }
    for (auto &[name, to] : switches)
        if (key == name) {
            *to = number != 0;
            return;
        }
    if (key == "p2p")
        k.p2p = p2p_of(value);
    else if (key == "host")
        k.host = p2p_of(value);
    else if (key == "memory_mib")
        k.memory_mib = static_cast<size_t>(number);
    else if (key == "state")
        k.state = value;
    else if (key == "alone")
        k.alone = value;
    else if (key == "image")
        k.image = value;
    else if (key == "without")
        k.without = value;
    else if (key == "hide")
        k.hidden.insert(value);
    else {
        fprintf(stderr, "the stand-in for libcuda has no knob \"%s\"\n", key.c_str());
        abort();
    }
}

void configure(const char *text)
{
    *the_knobs = Knobs();
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        const size_t equals = word.find('=');
        set(*the_knobs, word.substr(0, equals),
            equals == word.npos ? "1" : word.substr(equals + 1));
    }
}

// A child that was forked after cuInit has no CUDA.
bool usable()
{
    return initialized.load() && initialized_by == getpid();
}

} // namespace

const Knobs &knobs()
{
    return *the_knobs;
}

void read_environment()
{
    const char *text = getenv("FAKE_CUDA");
    if (!configured && text != nullptr)
        configure(text);
}

int current_device()
{
    return usable() && !current.empty() ? current.back()->device : -1;
}

bool device_exists(int device)
{
    return usable() && device >= 0 && device < knobs().devices;
}

void break_context()
{
    broken = SHC_CU_ILLEGAL_ADDRESS;
}

int sticky_error()
{
    return broken;
}

// ---- the driver's functions ----

int cuDriverGetVersion(int *version)
{
    read_environment();
    *version = knobs().version;
    return SHC_CU_SUCCESS;
}

int cuInit(unsigned flags)
{
    read_environment();
    if (flags != 0)
        return SHC_CU_INVALID_VALUE;
    if (knobs().init != SHC_CU_SUCCESS)
        return knobs().init;
    if (knobs().devices == 0)
        return SHC_CU_NO_DEVICE;
    if (initialized.load() && initialized_by != getpid())
        return SHC_CU_NOT_INITIALIZED;
    initialized_by = getpid();
    initialized = true;
    return SHC_CU_SUCCESS;
}

int cuGetErrorName(int result, const char **name)
{
    static const struct {
        int result;
        const char *name;
    } names[] = {
        {SHC_CU_SUCCESS, "CUDA_SUCCESS"},
        {SHC_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {SHC_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {SHC_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {SHC_CU_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY"},
        {SHC_CU_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
        {SHC_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {SHC_CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {SHC_CU_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
        {SHC_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {SHC_CU_MAP_FAILED, "CUDA_ERROR_MAP_FAILED"},
        {SHC_CU_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
        {SHC_CU_UNSUPPORTED_PTX, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
        {SHC_CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {SHC_CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {SHC_CU_NOT_READY, "CUDA_ERROR_NOT_READY"},
        {SHC_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {SHC_CU_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
        {SHC_CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {SHC_CU_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
        {SHC_CU_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {SHC_CU_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
        {SHC_CU_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
        {SHC_CU_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
        {SHC_CU_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
        {SHC_CU_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
        {SHC_CU_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"},
        {SHC_CU_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
    };
    *name = nullptr;
    for (auto &one : names)
        if (one.result == result)
            *name = one.name;
    return *name ? SHC_CU_SUCCESS : SHC_CU_INVALID_VALUE;
}

int cuGetErrorString(int result, const char **text)
{
    const char *name;
    *text = cuGetErrorName(result, &name) == SHC_CU_SUCCESS ? "as the stand-in says" : nullptr;
    return *text ? SHC_CU_SUCCESS : SHC_CU_INVALID_VALUE;
}

int cuDeviceGetCount(int *count)
{
    *count = knobs().devices;
    return usable() ? SHC_CU_SUCCESS : SHC_CU_NOT_INITIALIZED;
}

int cuDeviceGet(int *device, int ordinal)
{
    if (!device_exists(ordinal))
        return usable() ? SHC_CU_INVALID_DEVICE : SHC_CU_NOT_INITIALIZED;
    *device = ordinal;
    return SHC_CU_SUCCESS;
}

int cuDeviceGetName(char *name, int capacity, int device)
{
    if (!device_exists(device))
        return SHC_CU_INVALID_DEVICE;
    snprintf(name, static_cast<size_t>(capacity), "Stand-in GPU");
    return SHC_CU_SUCCESS;
}

int cuDeviceGetUuid(shc_cu_uuid *uuid, int device)
{
    if (!device_exists(device))
        return SHC_CU_INVALID_DEVICE;
    memcpy(uuid->bytes, "STANDIN-FOR-GPU", 15);
    uuid->bytes[15] = static_cast<unsigned char>(device + knobs().first_uuid);
    return SHC_CU_SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    if (!device_exists(device))
        return SHC_CU_INVALID_DEVICE;
    switch (attribute) {
    case SHC_CU_ATTRIBUTE_MULTIPROCESSORS:
        *value = 4;
        return SHC_CU_SUCCESS;
    case SHC_CU_ATTRIBUTE_COMPUTE_MODE:
        *value = knobs().mode;
        return SHC_CU_SUCCESS;
    case SHC_CU_ATTRIBUTE_CAPABILITY_MAJOR:
        *value = 9;
        return SHC_CU_SUCCESS;
    case SHC_CU_ATTRIBUTE_CAPABILITY_MINOR:
        *value = 0;
        return SHC_CU_SUCCESS;
    case SHC_CU_ATTRIBUTE_VIRTUAL_MEMORY:
        *value = knobs().vmm;
        return SHC_CU_SUCCESS;
    case SHC_CU_ATTRIBUTE_MPS:
        *value = knobs().mps;
        return SHC_CU_SUCCESS;
    case SHC_CU_ATTRIBUTE_STREAM_WORDS:
        *value = knobs().words;
        return SHC_CU_SUCCESS;
    case SHC_CU_ATTRIBUTE_POSIX_FD:
        *value = knobs().vmm && knobs().fds;
        return SHC_CU_SUCCESS;
    default:
        return SHC_CU_INVALID_VALUE;
    }
}

int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (!device_exists(device) || !device_exists(peer))
        return SHC_CU_INVALID_DEVICE;
    *can = device != peer && knobs().p2p != P2p::kNone;
    return SHC_CU_SUCCESS;
}

int cuDevicePrimaryCtxRetain(shc_cu_context **context, int device)
{
    if (!device_exists(device))
        return SHC_CU_INVALID_DEVICE;
    if (knobs().context != SHC_CU_SUCCESS)
        return knobs().context;
    std::lock_guard<std::mutex> guard(*contexts_lock);
    contexts[device].device = device;
    contexts[device].users++;
    *context = &contexts[device];
    return SHC_CU_SUCCESS;
}

int cuDevicePrimaryCtxRelease(int device)
{
    std::lock_guard<std::mutex> guard(*contexts_lock);
    if (!device_exists(device) || contexts[device].users == 0)
        return SHC_CU_INVALID_CONTEXT;
    contexts[device].users--;
    return SHC_CU_SUCCESS;
}

int cuCtxPushCurrent(shc_cu_context *context)
{
    if (!usable())
        return SHC_CU_NOT_INITIALIZED;
    std::lock_guard<std::mutex> guard(*contexts_lock);
    if (context == nullptr || context->users == 0)
        return SHC_CU_INVALID_CONTEXT;
    current.push_back(context);
    return SHC_CU_SUCCESS;
}

int cuCtxPopCurrent(shc_cu_context **context)
{
    if (current.empty())
        return SHC_CU_INVALID_CONTEXT;
    *context = current.back();
    current.pop_back();
    return SHC_CU_SUCCESS;
}

namespace
{

struct Entry {
    const char *name;
    int version;
    void *function;
};

#define FAKE_ENTRY(name, version, need, parameters) \
    {#name, version, reinterpret_cast<void *>(name)},
const Entry entries[] = {SHC_DRIVER_CALLS(FAKE_ENTRY)};
#undef FAKE_ENTRY

} // namespace
} // namespace fake

extern "C" void fake_configure(const char *text)
{
    fake::configured = true;
    fake::configure(text);
}

extern "C" int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t,
                                   int *why)
{
    fake::read_environment();
    *function = nullptr;
    *why = SHC_CU_PROC_NOT_FOUND;
    if (fake::knobs().hidden.count(symbol))
        return SHC_CU_SUCCESS; // as CUDA 12 does: success, and no function
    for (const fake::Entry &entry : fake::entries) {
        if (strcmp(symbol, entry.name) != 0)
            continue;
        if (version < entry.version || entry.version > fake::knobs().version) {
            *why = SHC_CU_PROC_VERSION_NOT_SUFFICIENT;
            return SHC_CU_NOT_FOUND;
        }
        *function = entry.function;
        *why = SHC_CU_PROC_FOUND;
        return SHC_CU_SUCCESS;
    }
    return SHC_CU_NOT_FOUND;
}

extern "C" int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    int why;
    const int result = cuGetProcAddress_v2(symbol, function, version, flags, &why);
    return *function ? result : SHC_CU_NOT_FOUND;
}
