// SPDX-License-Identifier: BSD-3-Clause
// A stand-in GPU's memory: files without a name (memfd). An exported descriptor is the file itself;
// a legacy handle says where /proc shows it. The name of a file tells whose memory it is.
#include "tests/cuda/fakedriver/fake.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace fake
{
namespace
{

constexpr size_t kGranularity = 2 << 20;
constexpr char kFileName[] = "memfd:fakecuda-";

// Physical memory. It lives while a handle or a mapping refers to it.
struct Block {
    int fd = -1;
    size_t bytes = 0;
    int home = 0; // number in the UUID of the device it is on
    int handle_types = 0;
    bool counted = false; // in this process's memory_mib
    ~Block();
};

enum class Kind { kAlloc, kReserved, kMapped, kOpened, kHost };

// A range of addresses.
struct Region {
    size_t bytes = 0;
    Kind kind = Kind::kReserved;
    std::shared_ptr<Block> block;
    std::set<int> devices; // that may touch it
    bool exported = false; // by a legacy handle
    void *alias = nullptr; // of kHost: where the device sees it
    int registered_by = 0;
};

struct Memory {
    std::mutex lock;
    std::map<shc_cu_address, Region> regions;
    std::map<uint64_t, std::shared_ptr<Block>> handles;
    uint64_t next_handle = 0x1000;
    size_t used = 0;
};

Memory &memory()
{
    static Memory *m = new Memory;
    return *m;
}

struct LegacyHandle {
    char magic[8];
    int32_t pid;
    int32_t fd;
    uint64_t inode;
    uint64_t bytes;
};
static_assert(sizeof(LegacyHandle) <= sizeof(shc_cu_ipc_handle), "fits");

Block::~Block()
{
    if (counted)
        memory().used -= bytes;
    if (fd >= 0)
        close(fd);
}

int uuid_number(int device)
{
    return device + knobs().first_uuid;
}

// pre: memory().lock is held.
int make_block(size_t bytes, int device, std::shared_ptr<Block> *out)
{
    if (memory().used + bytes > knobs().memory_mib << 20)
        return SHC_CU_OUT_OF_MEMORY;
    auto block = std::make_shared<Block>();
    char name[32];
    snprintf(name, sizeof name, "fakecuda-%d", uuid_number(device));
    block->fd = memfd_create(name, MFD_CLOEXEC);
    if (block->fd < 0 || ftruncate(block->fd, static_cast<off_t>(bytes)) != 0)
        return SHC_CU_OUT_OF_MEMORY;
    block->bytes = bytes;
    block->home = uuid_number(device);
    block->counted = true;
    memory().used += bytes;
    *out = block;
    return SHC_CU_SUCCESS;
}

// Takes ownership of the descriptor, if it is one of ours.
std::shared_ptr<Block> adopt(int fd)
{
    char path[64], target[128] = {};
    struct stat st;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const char *name =
        readlink(path, target, sizeof target - 1) > 0 ? strstr(target, kFileName) : nullptr;
    if (name == nullptr || fstat(fd, &st) != 0) {
        close(fd);
        return nullptr;
    }
    auto block = std::make_shared<Block>();
    block->fd = fd;
    block->bytes = static_cast<size_t>(st.st_size);
    block->home = atoi(name + sizeof kFileName - 1);
    block->handle_types = SHC_CU_HANDLE_POSIX_FD;
    return block;
}

// The region that holds the range, or NULL. pre: the lock is held.
std::pair<const shc_cu_address, Region> *find(shc_cu_address address, size_t bytes)
{
    auto it = memory().regions.upper_bound(address);
    if (it == memory().regions.begin())
        return nullptr;
    --it;
    const bool inside =
        address - it->first < it->second.bytes && bytes <= it->second.bytes - (address - it->first);
    return inside ? &*it : nullptr;
}

int map_whole(const std::shared_ptr<Block> &block, Kind kind, shc_cu_address *address)
{
    void *base = mmap(nullptr, block->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, block->fd, 0);
    if (base == MAP_FAILED)
        return SHC_CU_MAP_FAILED;
    Region region;
    region.bytes = block->bytes;
    region.kind = kind;
    region.block = block;
    region.devices = {current_device()};
    *address = reinterpret_cast<shc_cu_address>(base);
    memory().regions[*address] = region;
    return SHC_CU_SUCCESS;
}

int unmap_whole(shc_cu_address address, Kind kind)
{
    std::lock_guard<std::mutex> guard(memory().lock);
    auto it = memory().regions.find(address);
    if (it == memory().regions.end() || it->second.kind != kind)
        return SHC_CU_INVALID_VALUE;
    // Importers that still look at it must not find what they expect.
    if (it->second.exported)
        memset(reinterpret_cast<void *>(address), 0xdb, it->second.bytes);
    munmap(reinterpret_cast<void *>(address), it->second.bytes);
    memory().regions.erase(it);
    return SHC_CU_SUCCESS;
}

bool reaches(int device, int home)
{
    return uuid_number(device) == home || knobs().p2p != P2p::kNone;
}

} // namespace

bool may_touch(shc_cu_address address, size_t bytes, int device)
{
    std::lock_guard<std::mutex> guard(memory().lock);
    auto it = memory().regions.upper_bound(address + bytes - 1);
    if (it == memory().regions.begin())
        return true;
    --it;
    if (it->second.kind == Kind::kHost || it->first + it->second.bytes <= address)
        return true;
    return it->first <= address && address + bytes <= it->first + it->second.bytes &&
           it->second.devices.count(device) != 0;
}

bool is_gpu_memory(shc_cu_address address)
{
    std::lock_guard<std::mutex> guard(memory().lock);
    auto it = memory().regions.upper_bound(address);
    if (it == memory().regions.begin())
        return false;
    --it;
    return it->second.kind != Kind::kHost && address < it->first + it->second.bytes;
}

bool is_device_visible(shc_cu_address address, size_t bytes)
{
    std::lock_guard<std::mutex> guard(memory().lock);
    for (auto &[base, region] : memory().regions) {
        const shc_cu_address seen =
            region.alias ? reinterpret_cast<shc_cu_address>(region.alias) : base;
        if (address >= seen && address + bytes <= seen + region.bytes)
            return region.kind == Kind::kHost || !region.devices.empty();
    }
    return false;
}

P2p fault_at(shc_cu_address address, int device, shc_cu_address *base, size_t *bytes)
{
    std::lock_guard<std::mutex> guard(memory().lock);
    auto *found = find(address, 1);
    if (found == nullptr)
        return P2p::kWorks;
    const Region &region = found->second;
    *base = found->first;
    *bytes = region.bytes;
    if (region.kind == Kind::kHost)
        return knobs().host;
    const bool own = region.block && region.block->home == uuid_number(device) &&
                     (region.block->counted || !knobs().p2p_inside);
    return own || !region.block ? P2p::kWorks : knobs().p2p;
}

// ---- one call, one allocation ----

int cuMemAlloc(shc_cu_address *address, size_t bytes)
{
    if (const int error = forbidden())
        return error;
    if (current_device() < 0)
        return SHC_CU_INVALID_CONTEXT;
    if (bytes == 0)
        return SHC_CU_INVALID_VALUE;
    std::lock_guard<std::mutex> guard(memory().lock);
    std::shared_ptr<Block> block;
    const int result = make_block(bytes, current_device(), &block);
    return result == SHC_CU_SUCCESS ? map_whole(block, Kind::kAlloc, address) : result;
}

int cuMemGetInfo(size_t *free, size_t *total)
{
    if (current_device() < 0)
        return SHC_CU_INVALID_CONTEXT;
    std::lock_guard<std::mutex> guard(memory().lock);
    *total = knobs().memory_mib << 20;
    *free = *total - memory().used;
    return SHC_CU_SUCCESS;
}

// Waits for all streams, as CUDA does: if one of them waits for a peer, this waits for that peer, too.
int cuMemFree(shc_cu_address address)
{
    if (const int error = forbidden())
        return error;
    if (current_device() < 0)
        return SHC_CU_INVALID_CONTEXT;
    synchronize_all_streams();
    return unmap_whole(address, Kind::kAlloc);
}

int cuPointerGetAttribute(void *value, int attribute, shc_cu_address address)
{
    if (attribute != SHC_CU_POINTER_DEVICE_ORDINAL)
        return SHC_CU_NOT_SUPPORTED; // by the stand-in
    std::lock_guard<std::mutex> guard(memory().lock);
    auto *found = find(address, 1);
    if (found == nullptr || found->second.kind == Kind::kReserved)
        return SHC_CU_INVALID_VALUE;
    const Region &region = found->second;
    const int device =
        region.kind == Kind::kHost ? region.registered_by : region.block->home - knobs().first_uuid;
    memcpy(value, &device, sizeof device);
    return SHC_CU_SUCCESS;
}

// ---- virtual memory management ----

int cuMemGetAllocationGranularity(size_t *bytes, const shc_cu_allocation *, int)
{
    *bytes = kGranularity;
    return knobs().vmm ? SHC_CU_SUCCESS : SHC_CU_NOT_SUPPORTED;
}

int cuMemCreate(uint64_t *handle, size_t bytes, const shc_cu_allocation *allocation,
                unsigned long long flags)
{
    if (!knobs().vmm)
        return SHC_CU_NOT_SUPPORTED;
    if (bytes == 0 || bytes % kGranularity != 0 || flags != 0 ||
        allocation->type != SHC_CU_ALLOCATION_PINNED ||
        allocation->location.type != SHC_CU_LOCATION_DEVICE)
        return SHC_CU_INVALID_VALUE;
    if (!device_exists(allocation->location.id))
        return SHC_CU_INVALID_DEVICE;
    if (allocation->handle_types != 0 && !knobs().fds)
        return SHC_CU_NOT_SUPPORTED;
    std::lock_guard<std::mutex> guard(memory().lock);
    std::shared_ptr<Block> block;
    const int result = make_block(bytes, allocation->location.id, &block);
    if (result != SHC_CU_SUCCESS)
        return result;
    block->handle_types = allocation->handle_types;
    *handle = memory().next_handle++;
    memory().handles[*handle] = block;
    return SHC_CU_SUCCESS;
}

int cuMemRelease(uint64_t handle)
{
    std::lock_guard<std::mutex> guard(memory().lock);
    return memory().handles.erase(handle) ? SHC_CU_SUCCESS : SHC_CU_INVALID_VALUE;
}

int cuMemExportToShareableHandle(void *out, uint64_t handle, int type, unsigned long long flags)
{
    if (knobs().export_result != SHC_CU_SUCCESS)
        return knobs().export_result;
    std::lock_guard<std::mutex> guard(memory().lock);
    auto it = memory().handles.find(handle);
    if (it == memory().handles.end() || type != SHC_CU_HANDLE_POSIX_FD || flags != 0 ||
        (it->second->handle_types & type) == 0)
        return SHC_CU_INVALID_VALUE;
    const int fd = fcntl(it->second->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return SHC_CU_NOT_PERMITTED;
    memcpy(out, &fd, sizeof fd);
    return SHC_CU_SUCCESS;
}

int cuMemImportFromShareableHandle(uint64_t *handle, void *in, int type)
{
    if (current_device() < 0)
        return SHC_CU_INVALID_CONTEXT;
    if (knobs().import_result != SHC_CU_SUCCESS)
        return knobs().import_result;
    if (type != SHC_CU_HANDLE_POSIX_FD)
        return SHC_CU_INVALID_VALUE;
    // The caller keeps its descriptor, and may close it.
    const int fd = fcntl(static_cast<int>(reinterpret_cast<intptr_t>(in)), F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return SHC_CU_INVALID_VALUE;
    auto block = adopt(fd);
    if (!block)
        return SHC_CU_INVALID_VALUE;
    std::lock_guard<std::mutex> guard(memory().lock);
    *handle = memory().next_handle++;
    memory().handles[*handle] = block;
    return SHC_CU_SUCCESS;
}

int cuMemAddressReserve(shc_cu_address *address, size_t bytes, size_t alignment, shc_cu_address,
                        unsigned long long flags)
{
    if (!knobs().vmm)
        return SHC_CU_NOT_SUPPORTED;
    if (bytes == 0 || bytes % kGranularity != 0 || flags != 0 || alignment > kGranularity)
        return SHC_CU_INVALID_VALUE;
    void *base =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return SHC_CU_OUT_OF_MEMORY;
    Region region;
    region.bytes = bytes;
    std::lock_guard<std::mutex> guard(memory().lock);
    *address = reinterpret_cast<shc_cu_address>(base);
    memory().regions[*address] = region;
    return SHC_CU_SUCCESS;
}

int cuMemAddressFree(shc_cu_address address, size_t bytes)
{
    std::lock_guard<std::mutex> guard(memory().lock);
    auto it = memory().regions.find(address);
    if (it == memory().regions.end() || it->second.kind != Kind::kReserved ||
        it->second.bytes != bytes)
        return SHC_CU_INVALID_VALUE;
    munmap(reinterpret_cast<void *>(address), bytes);
    memory().regions.erase(it);
    return SHC_CU_SUCCESS;
}

// Whole reservations only: that is how slabs are mapped.
int cuMemMap(shc_cu_address address, size_t bytes, size_t offset, uint64_t handle,
             unsigned long long flags)
{
    std::lock_guard<std::mutex> guard(memory().lock);
    auto it = memory().regions.find(address);
    auto block = memory().handles.find(handle);
    if (it == memory().regions.end() || block == memory().handles.end() || offset != 0 ||
        flags != 0 || it->second.kind != Kind::kReserved || it->second.bytes != bytes ||
        block->second->bytes != bytes)
        return SHC_CU_INVALID_VALUE;
    if (mmap(reinterpret_cast<void *>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
             block->second->fd, 0) == MAP_FAILED)
        return SHC_CU_MAP_FAILED;
    it->second.kind = Kind::kMapped;
    it->second.block = block->second;
    return SHC_CU_SUCCESS;
}

// Waits for no stream: later work that touches the memory ends the process.
int cuMemUnmap(shc_cu_address address, size_t bytes)
{
    std::unique_lock<std::mutex> guard(memory().lock);
    auto it = memory().regions.find(address);
    if (it == memory().regions.end() || it->second.kind != Kind::kMapped ||
        it->second.bytes != bytes)
        return SHC_CU_INVALID_VALUE;
    mmap(reinterpret_cast<void *>(address), bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    it->second.kind = Kind::kReserved;
    it->second.block.reset();
    it->second.devices.clear();
    guard.unlock();
    if (knobs().unmap_us > 0)
        std::this_thread::sleep_for(std::chrono::microseconds(knobs().unmap_us));
    return SHC_CU_SUCCESS;
}

int cuMemSetAccess(shc_cu_address address, size_t bytes, const shc_cu_access *access, size_t count)
{
    std::lock_guard<std::mutex> guard(memory().lock);
    auto it = memory().regions.find(address);
    if (it == memory().regions.end() || it->second.kind != Kind::kMapped ||
        it->second.bytes != bytes)
        return SHC_CU_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (access[i].location.type != SHC_CU_LOCATION_DEVICE ||
            access[i].flags != SHC_CU_ACCESS_READWRITE)
            return SHC_CU_INVALID_VALUE;
        if (!device_exists(access[i].location.id) ||
            !reaches(access[i].location.id, it->second.block->home))
            return SHC_CU_INVALID_DEVICE;
        it->second.devices.insert(access[i].location.id);
    }
    mprotect(reinterpret_cast<void *>(address), bytes, PROT_READ | PROT_WRITE);
    return SHC_CU_SUCCESS;
}

// ---- legacy handles ----

int cuIpcGetMemHandle(shc_cu_ipc_handle *handle, shc_cu_address address)
{
    std::lock_guard<std::mutex> guard(memory().lock);
    auto *found = find(address, 1);
    if (found == nullptr || found->second.kind != Kind::kAlloc) // not of cuMemCreate
        return SHC_CU_INVALID_VALUE;
    struct stat st;
    fstat(found->second.block->fd, &st);
    LegacyHandle legacy = {{'f', 'a', 'k', 'e', 'c', 'u', 'd', 'a'},
                           getpid(),
                           found->second.block->fd,
                           st.st_ino,
                           found->second.block->bytes};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &legacy, sizeof legacy);
    found->second.exported = true;
    return SHC_CU_SUCCESS;
}

int cuIpcOpenMemHandle(shc_cu_address *address, shc_cu_ipc_handle handle, unsigned flags)
{
    LegacyHandle legacy;
    memcpy(&legacy, &handle, sizeof legacy);
    if (current_device() < 0 || legacy.pid == getpid()) // not in the process that made it
        return SHC_CU_INVALID_CONTEXT;
    if (knobs().open_result != SHC_CU_SUCCESS)
        return knobs().open_result;
    if (memcmp(legacy.magic, "fakecuda", 8) != 0 || flags != SHC_CU_IPC_LAZY_PEER_ACCESS)
        return SHC_CU_INVALID_VALUE;
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", legacy.pid, legacy.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return SHC_CU_MAP_FAILED;
    if (fstat(fd, &st) != 0 || st.st_ino != legacy.inode) {
        close(fd);
        return SHC_CU_MAP_FAILED;
    }
    // Its name tells nothing here: the link in /proc of this process does.
    auto block = adopt(fd);
    if (!block || block->bytes != legacy.bytes)
        return SHC_CU_INVALID_VALUE;
    if (!reaches(current_device(), block->home))
        return SHC_CU_INVALID_DEVICE;
    std::lock_guard<std::mutex> guard(memory().lock);
    return map_whole(block, Kind::kOpened, address);
}

int cuIpcCloseMemHandle(shc_cu_address address)
{
    return unmap_whole(address, Kind::kOpened);
}

// ---- host memory that the GPU sees ----

int cuMemHostRegister(void *host, size_t bytes, unsigned flags)
{
    if (const int error = forbidden())
        return error;
    if (current_device() < 0)
        return SHC_CU_INVALID_CONTEXT;
    if (bytes == 0 || (flags & ~(SHC_CU_HOST_PORTABLE | SHC_CU_HOST_DEVICEMAP)) != 0)
        return SHC_CU_INVALID_VALUE;
    std::lock_guard<std::mutex> guard(memory().lock);
    const auto address = reinterpret_cast<shc_cu_address>(host);
    if (find(address, 1) != nullptr)
        return 712; // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    Region region;
    region.bytes = bytes;
    region.kind = Kind::kHost;
    region.registered_by = current_device();
    if (knobs().alias && (flags & SHC_CU_HOST_DEVICEMAP)) {
        region.alias = mremap(host, 0, bytes, MREMAP_MAYMOVE); // shared memory a second time
        if (region.alias == MAP_FAILED)
            return SHC_CU_INVALID_VALUE;
    }
    if (flags & SHC_CU_HOST_DEVICEMAP)
        region.devices = {current_device()};
    memory().regions[address] = region;
    return SHC_CU_SUCCESS;
}

int cuMemHostUnregister(void *host)
{
    std::lock_guard<std::mutex> guard(memory().lock);
    auto it = memory().regions.find(reinterpret_cast<shc_cu_address>(host));
    if (it == memory().regions.end() || it->second.kind != Kind::kHost)
        return 713; // CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
    if (it->second.alias)
        munmap(it->second.alias, it->second.bytes);
    memory().regions.erase(it);
    return SHC_CU_SUCCESS;
}

int cuMemHostGetDevicePointer(shc_cu_address *address, void *host, unsigned flags)
{
    std::lock_guard<std::mutex> guard(memory().lock);
    auto *found = find(reinterpret_cast<shc_cu_address>(host), 1);
    if (found == nullptr || found->second.kind != Kind::kHost || found->second.devices.empty() ||
        flags != 0)
        return SHC_CU_INVALID_VALUE;
    const size_t offset = reinterpret_cast<shc_cu_address>(host) - found->first;
    *address = (found->second.alias ? reinterpret_cast<shc_cu_address>(found->second.alias)
                                    : found->first) +
               offset;
    return SHC_CU_SUCCESS;
}

} // namespace fake
