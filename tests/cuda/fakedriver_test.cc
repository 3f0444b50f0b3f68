// SPDX-License-Identifier: BSD-3-Clause
// The stand-in itself: does it do what CUDA's documentation says, and does each knob cause its fault?
#include "tests/cuda/standin.h"

#include "tests/cuda/fakedriver/fake.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace shmcoll::test
{
namespace
{

constexpr size_t kBytes = 2 << 20;

shc_cu_address address_of(const void *p)
{
    return reinterpret_cast<shc_cu_address>(p);
}

struct Stream {
    explicit Stream(const Standin &standin) : driver(standin.driver)
    {
        EXPECT_EQ(driver.cuStreamCreateWithPriority(&stream, SHC_CU_STREAM_NON_BLOCKING, 0), 0);
    }
    ~Stream() { driver.cuStreamDestroy(stream); }
    int synchronize() { return driver.cuStreamSynchronize(stream); }
    const shc_driver &driver;
    shc_cu_stream *stream = nullptr;
};

// Memory of cuMemCreate, mapped and accessible.
struct Mapped {
    Mapped(const Standin &standin, size_t bytes = kBytes) : driver(standin.driver)
    {
        shc_cu_allocation what = {};
        what.type = SHC_CU_ALLOCATION_PINNED;
        what.handle_types = SHC_CU_HANDLE_POSIX_FD;
        what.location = {SHC_CU_LOCATION_DEVICE, standin.gpu.device};
        const shc_cu_access access = {what.location, SHC_CU_ACCESS_READWRITE};
        EXPECT_EQ(driver.cuMemCreate(&handle, bytes, &what, 0), 0);
        EXPECT_EQ(driver.cuMemAddressReserve(&address, bytes, 0, 0, 0), 0);
        EXPECT_EQ(driver.cuMemMap(address, bytes, 0, handle, 0), 0);
        EXPECT_EQ(driver.cuMemSetAccess(address, bytes, &access, 1), 0);
    }
    const shc_driver &driver;
    uint64_t handle = 0;
    shc_cu_address address = 0;
};

TEST(FakeDriver, CallsNeedACurrentContext)
{
    configure("");
    shc_driver driver;
    shc_cu_address address;
    ASSERT_EQ(shc_driver_open(FAKE_CUDA_LIBRARY, &driver), SHC_OK);
    EXPECT_EQ(driver.cuMemAlloc(&address, 64), SHC_CU_INVALID_CONTEXT);
    shc_cu_stream *stream;
    EXPECT_EQ(driver.cuStreamCreateWithPriority(&stream, 0, 0), SHC_CU_INVALID_CONTEXT);
}

TEST(FakeDriver, HasNoCudaInAForkedChild)
{
    Standin standin("");
    const pid_t child = fork();
    if (child == 0) {
        int count;
        _exit(standin.driver.cuDeviceGetCount(&count) == SHC_CU_NOT_INITIALIZED &&
                      standin.driver.cuInit(0) == SHC_CU_NOT_INITIALIZED
                  ? 0
                  : 1);
    }
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

TEST(FakeDriver, AStreamWorksInOrder)
{
    Standin standin("slow_us=200");
    Stream s(standin);
    shc_cu_address memory;
    ASSERT_EQ(standin.driver.cuMemAlloc(&memory, 64), 0);
    char out[64] = {};
    EXPECT_EQ(standin.driver.cuMemsetD8Async(memory, 1, 64, s.stream), 0);
    EXPECT_EQ(standin.driver.cuMemsetD8Async(memory, 2, 32, s.stream), 0);
    EXPECT_EQ(standin.driver.cuMemcpyAsync(address_of(out), memory, 64, s.stream), 0);
    EXPECT_EQ(standin.driver.cuStreamQuery(s.stream), SHC_CU_NOT_READY);
    EXPECT_EQ(s.synchronize(), 0);
    EXPECT_EQ(out[0], 2);
    EXPECT_EQ(out[63], 1);
    EXPECT_EQ(standin.driver.cuMemFree(memory), 0);
}

TEST(FakeDriver, AnEventOrdersTwoStreams)
{
    Standin standin("slow_us=1000");
    Stream a(standin), b(standin);
    shc_cu_event *event;
    int value = 0, seen = -1;
    ASSERT_EQ(standin.driver.cuEventCreate(&event, SHC_CU_EVENT_DISABLE_TIMING), 0);
    auto set = [](void *p) { *static_cast<int *>(p) = 7; };
    struct Look {
        int *value, *seen;
    } look = {&value, &seen};
    auto read = [](void *p) { *static_cast<Look *>(p)->seen = *static_cast<Look *>(p)->value; };
    EXPECT_EQ(standin.driver.cuLaunchHostFunc(a.stream, set, &value), 0);
    EXPECT_EQ(standin.driver.cuEventRecord(event, a.stream), 0);
    EXPECT_EQ(standin.driver.cuStreamWaitEvent(b.stream, event, 0), 0);
    EXPECT_EQ(standin.driver.cuLaunchHostFunc(b.stream, read, &look), 0);
    EXPECT_EQ(b.synchronize(), 0);
    EXPECT_EQ(seen, 7);
    EXPECT_EQ(standin.driver.cuEventQuery(event), 0);
    EXPECT_EQ(standin.driver.cuEventDestroy(event), 0);
}

TEST(FakeDriver, AWaitEndsWhenTheValueIsReachedInCyclicOrder)
{
    Standin standin("delay_us=300");
    Stream waits(standin), writes(standin);
    Mapped memory(standin);
    const uint64_t before_wrap = UINT64_MAX - 1, behind_wrap = 3;
    EXPECT_EQ(standin.driver.cuStreamWriteValue64(writes.stream, memory.address, before_wrap, 0),
              0);
    EXPECT_EQ(writes.synchronize(), 0);
    EXPECT_EQ(standin.driver.cuStreamWaitValue64(waits.stream, memory.address, behind_wrap, 0), 0);
    usleep(5000);
    EXPECT_EQ(standin.driver.cuStreamQuery(waits.stream), SHC_CU_NOT_READY);
    EXPECT_EQ(standin.driver.cuStreamWriteValue64(writes.stream, memory.address, behind_wrap, 0),
              0);
    EXPECT_EQ(waits.synchronize(), 0);
}

// What a GPU may do [gpu.md, 0.6]: then only a stream write ends a wait.
TEST(FakeDriver, AStoreDoesNotWakeWhereOnlyWritesDo)
{
    Standin standin("only_writes_wake=1");
    Stream waits(standin), writes(standin);
    void *host = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shc_cu_address seen;
    ASSERT_EQ(standin.driver.cuMemHostRegister(host, 4096, SHC_CU_HOST_DEVICEMAP), 0);
    ASSERT_EQ(standin.driver.cuMemHostGetDevicePointer(&seen, host, 0), 0);
    EXPECT_EQ(standin.driver.cuStreamWaitValue64(waits.stream, seen, 1, 0), 0);
    usleep(5000);
    // The wait has looked once by now.
    EXPECT_EQ(standin.driver.cuLaunchHostFunc(
                  writes.stream, [](void *p) { *static_cast<uint64_t *>(p) = 1; },
                  static_cast<uint64_t *>(host) + 1),
              0);
    EXPECT_EQ(writes.synchronize(), 0);
    EXPECT_EQ(standin.driver.cuStreamQuery(waits.stream), SHC_CU_NOT_READY);
    EXPECT_EQ(standin.driver.cuStreamWriteValue64(writes.stream, seen, 1, 0), 0);
    EXPECT_EQ(waits.synchronize(), 0);
    EXPECT_EQ(standin.driver.cuMemHostUnregister(host), 0);
    munmap(host, 4096);
}

TEST(FakeDriver, MemoryOperationsTakeAddressesOfTheGpuOnly)
{
    Standin standin("alias=1");
    Stream s(standin);
    void *host = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shc_cu_address seen;
    EXPECT_EQ(standin.driver.cuStreamWriteValue64(s.stream, address_of(host), 1, 0),
              SHC_CU_INVALID_VALUE);
    ASSERT_EQ(standin.driver.cuMemHostRegister(host, 4096, SHC_CU_HOST_DEVICEMAP), 0);
    ASSERT_EQ(standin.driver.cuMemHostGetDevicePointer(&seen, host, 0), 0);
    EXPECT_NE(seen, address_of(host));
    EXPECT_EQ(standin.driver.cuStreamWriteValue64(s.stream, address_of(host), 1, 0),
              SHC_CU_INVALID_VALUE);
    EXPECT_EQ(standin.driver.cuStreamWriteValue64(s.stream, seen + 8, 5, 0), 0);
    EXPECT_EQ(s.synchronize(), 0);
    EXPECT_EQ(static_cast<uint64_t *>(host)[1], 5U);
    EXPECT_EQ(standin.driver.cuMemHostUnregister(host), 0);
    munmap(host, 4096);
}

TEST(FakeDriver, MemoryWithoutAccessBreaksTheContext)
{
    Standin standin("");
    Stream s(standin);
    shc_cu_allocation what = {};
    what.type = SHC_CU_ALLOCATION_PINNED;
    what.location = {SHC_CU_LOCATION_DEVICE, 0};
    uint64_t handle;
    shc_cu_address address;
    char byte = 0;
    ASSERT_EQ(standin.driver.cuMemCreate(&handle, kBytes, &what, 0), 0);
    ASSERT_EQ(standin.driver.cuMemAddressReserve(&address, kBytes, 0, 0, 0), 0);
    ASSERT_EQ(standin.driver.cuMemMap(address, kBytes, 0, handle, 0), 0);
    EXPECT_EQ(standin.driver.cuMemcpyAsync(address_of(&byte), address, 1, s.stream), 0);
    EXPECT_EQ(s.synchronize(), SHC_CU_ILLEGAL_ADDRESS);
    EXPECT_EQ(standin.driver.cuStreamQuery(s.stream), SHC_CU_ILLEGAL_ADDRESS);
}

TEST(FakeDriver, MemoryLivesWhileItIsMappedOrHeld)
{
    Standin standin("memory_mib=2");
    const shc_driver &d = standin.driver;
    Stream s(standin);
    Mapped memory(standin);
    shc_cu_allocation what = {};
    what.type = SHC_CU_ALLOCATION_PINNED;
    what.location = {SHC_CU_LOCATION_DEVICE, 0};
    uint64_t second;
    EXPECT_EQ(d.cuMemCreate(&second, kBytes, &what, 0), SHC_CU_OUT_OF_MEMORY);
    EXPECT_EQ(d.cuMemRelease(memory.handle), 0);
    EXPECT_EQ(d.cuMemsetD8Async(memory.address, 3, kBytes, s.stream), 0);
    EXPECT_EQ(s.synchronize(), 0);
    EXPECT_EQ(d.cuMemCreate(&second, kBytes, &what, 0), SHC_CU_OUT_OF_MEMORY);
    EXPECT_EQ(d.cuMemAddressFree(memory.address, kBytes), SHC_CU_INVALID_VALUE); // still mapped
    EXPECT_EQ(d.cuMemUnmap(memory.address, kBytes), 0);
    EXPECT_EQ(d.cuMemAddressFree(memory.address, kBytes), 0);
    EXPECT_EQ(d.cuMemCreate(&second, kBytes, &what, 0), 0);
    EXPECT_EQ(d.cuMemRelease(second), 0);
}

TEST(FakeDriver, TakesOnlyWholeGranules)
{
    Standin standin("");
    shc_cu_allocation what = {};
    what.type = SHC_CU_ALLOCATION_PINNED;
    what.location = {SHC_CU_LOCATION_DEVICE, 0};
    uint64_t handle;
    EXPECT_EQ(standin.driver.cuMemCreate(&handle, 4096, &what, 0), SHC_CU_INVALID_VALUE);
}

TEST(FakeDriver, ImportsItsOwnFilesOnly)
{
    Standin standin("");
    const int stranger = memfd_create("something else", MFD_CLOEXEC);
    uint64_t handle;
    EXPECT_EQ(standin.driver.cuMemImportFromShareableHandle(
                  &handle, reinterpret_cast<void *>(static_cast<intptr_t>(stranger)),
                  SHC_CU_HANDLE_POSIX_FD),
              SHC_CU_INVALID_VALUE);
    close(stranger);
}

TEST(FakeDriver, LegacyHandlesAreForOtherProcessesAndPlainAllocations)
{
    Standin standin("");
    shc_cu_address plain, opened;
    shc_cu_ipc_handle handle;
    ASSERT_EQ(standin.driver.cuMemAlloc(&plain, 4096), 0);
    EXPECT_EQ(standin.driver.cuIpcGetMemHandle(&handle, plain), 0);
    EXPECT_EQ(standin.driver.cuIpcOpenMemHandle(&opened, handle, 1), SHC_CU_INVALID_CONTEXT);
    Mapped memory(standin);
    EXPECT_EQ(standin.driver.cuIpcGetMemHandle(&handle, memory.address), SHC_CU_INVALID_VALUE);
    EXPECT_EQ(standin.driver.cuMemFree(plain), 0);
}

void add_twin(void **parameters, unsigned grid, unsigned block)
{
    auto *to = *static_cast<int **>(parameters[0]);
    const int value = *static_cast<int *>(parameters[1]);
    for (unsigned i = 0; i < grid * block; i++)
        to[i] += value;
}

void endless_twin(void **, unsigned, unsigned)
{
    for (;;)
        usleep(1000);
}

const uint32_t kImage[4] = {0xba55ed50u};

shc_cu_function *kernel(const Standin &standin, const char *name, const FakeKernel *twin)
{
    standin_function<void (*)(const FakeKernel *)>("fake_add_kernel")(twin);
    shc_cu_module *module; // lives as long as its functions: to the end of the process
    shc_cu_function *function = nullptr;
    EXPECT_EQ(standin.driver.cuModuleLoadData(&module, kImage), 0);
    EXPECT_EQ(standin.driver.cuModuleGetFunction(&function, module, name), 0);
    EXPECT_EQ(standin.driver.cuModuleGetFunction(&function, module, "nothing"), SHC_CU_NOT_FOUND);
    static std::vector<shc_cu_module *> *kept = new std::vector<shc_cu_module *>;
    kept->push_back(module);
    return function;
}

TEST(FakeDriver, LaunchesTheTwinWithACopyOfTheParameters)
{
    Standin standin("slow_us=2000");
    Stream s(standin);
    static const size_t sizes[] = {sizeof(int *), sizeof(int)};
    static const FakeKernel twin = {"add", add_twin, 2, sizes};
    shc_cu_function *add = kernel(standin, "add", &twin);
    std::vector<int> values(8, 1);
    int *to = values.data(), value = 5;
    void *parameters[] = {&to, &value};
    EXPECT_EQ(
        standin.driver.cuLaunchKernel(add, 2, 1, 1, 4, 1, 1, 0, s.stream, parameters, nullptr), 0);
    value = 100; // too late
    EXPECT_EQ(s.synchronize(), 0);
    EXPECT_EQ(values, std::vector<int>(8, 6));
}

TEST(FakeDriver, RefusesAnImageThatIsNoFatBinary)
{
    Standin standin("");
    shc_cu_module *module;
    EXPECT_EQ(standin.driver.cuModuleLoadData(&module, "no fat binary"), SHC_CU_INVALID_IMAGE);
}

void run_endless()
{
    Standin standin("kernel_ms=50");
    Stream s(standin);
    static const FakeKernel twin = {"endless", endless_twin, 0, nullptr};
    shc_cu_function *endless = kernel(standin, "endless", &twin);
    standin.driver.cuLaunchKernel(endless, 1, 1, 1, 1, 1, 1, 0, s.stream, nullptr, nullptr);
    s.synchronize();
}

// Where contexts take turns, two kernels that must run at the same time never do.
TEST(FakeDriver, AKernelThatWaitsForAPeerEndsTheProcess)
{
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    EXPECT_DEATH(run_endless(), "kernel endless waits for a peer");
}

TEST(FakeDriver, AGpuThatLiesAboutPeersChangesWhatIsCopied)
{
    Standin first("devices=2 p2p=lies");
    Stream s(first);
    shc_cu_address here, there;
    shc_gpu second;
    ASSERT_EQ(shc_gpu_open(&first.driver, 1, &second), SHC_OK);
    ASSERT_EQ(first.driver.cuMemAlloc(&here, 64), 0);
    Mapped memory(first);
    const shc_cu_access access = {{SHC_CU_LOCATION_DEVICE, 1}, SHC_CU_ACCESS_READWRITE};
    ASSERT_EQ(first.driver.cuMemSetAccess(memory.address, kBytes, &access, 1), 0);
    ASSERT_EQ(shc_gpu_enter(&second), SHC_OK);
    Stream other(first);
    ASSERT_EQ(first.driver.cuMemAlloc(&there, 64), 0);
    std::vector<char> zeros(64), out(64, 1);
    EXPECT_EQ(first.driver.cuMemcpyAsync(there, memory.address, 64, other.stream), 0);
    EXPECT_EQ(first.driver.cuMemcpyAsync(address_of(out.data()), there, 64, other.stream), 0);
    EXPECT_EQ(other.synchronize(), 0);
    EXPECT_NE(out, zeros);
    EXPECT_EQ(first.driver.cuMemFree(there), 0);
    shc_gpu_leave(&second);
    shc_gpu_close(&second);
    EXPECT_EQ(first.driver.cuMemFree(here), 0);
}

TEST(FakeDriver, WithoutPeersThereIsNoAccessFromAnotherGpu)
{
    Standin first("devices=2 p2p=0");
    Mapped memory(first);
    const shc_cu_access access = {{SHC_CU_LOCATION_DEVICE, 1}, SHC_CU_ACCESS_READWRITE};
    EXPECT_EQ(first.driver.cuMemSetAccess(memory.address, kBytes, &access, 1),
              SHC_CU_INVALID_DEVICE);
    int can = 1;
    EXPECT_EQ(first.driver.cuDeviceCanAccessPeer(&can, 0, 1), 0);
    EXPECT_EQ(can, 0);
}

} // namespace
} // namespace shmcoll::test
