// SPDX-License-Identifier: BSD-3-Clause
#include "backend/memory.hpp"

#include "backend/process_group_shm.hpp"
#include "shm/shmcoll_memory.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <cstring>
#include <torch/library.h>

namespace shmcoll
{

namespace
{

// In a forked child this does nothing to a block of its parent.
void freeShared(void *memory)
{
    c10::profiledCPUMemoryReporter().Delete(memory);
    shc_memory_free(memory);
}

void sayOnceThatItIsFull(const char *why)
{
    static std::atomic<bool> said{false};
    if (!said.exchange(true))
        shc_log_warning(
            c10::str("tensors that should be in shared memory are in private memory: ", why)
                .c_str());
}

c10::DataPtr allocateShared(size_t bytes, c10::Allocator &otherwise)
{
    void *memory = nullptr;
    if (bytes == 0)
        return otherwise.allocate(bytes);
    const shc_status status = shc_memory_alloc(bytes, &memory);
    if (status != SHC_OK) {
        if (status == SHC_ERR_NOSPACE)
            sayOnceThatItIsFull(shc_error_text());
        return otherwise.allocate(bytes);
    }
    c10::profiledCPUMemoryReporter().New(memory, bytes);
    return {memory, memory, freeShared, c10::Device(c10::DeviceType::CPU)};
}

// For memory of either kind. (A block is never asked for by its end.)
void freeAny(void *memory)
{
    if (memory != nullptr && shc_memory_is_shared(memory, 1))
        freeShared(memory);
    else
        c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
}

class SharedAllocator : public c10::Allocator
{
  public:
    c10::DataPtr allocate(size_t bytes) override
    {
        return allocateShared(bytes, *c10::GetDefaultCPUAllocator());
    }
    c10::DeleterFnPtr raw_deleter() const override { return freeAny; }
    void copy_data(void *to, const void *from, size_t bytes) const override
    {
        default_copy_data(to, from, bytes);
    }
};

// From how many bytes on this thread's allocations go to shared memory; 0: none do.
thread_local int64_t sharedFrom = 0;

// Takes the place of torch's allocator for CPU tensors, for all threads, from the first scope on. Outside
// of scopes it does what that one does.
class ScopedAllocator : public SharedAllocator
{
  public:
    explicit ScopedAllocator(c10::Allocator &before) : before_(before) {}

    c10::DataPtr allocate(size_t bytes) override
    {
        if (sharedFrom == 0 || bytes < static_cast<size_t>(sharedFrom)) [[likely]]
            return before_.allocate(bytes);
        return allocateShared(bytes, before_);
    }

  private:
    c10::Allocator &before_;
};

// Does the scope reach torch's allocations? Not if another allocator insists on its place.
bool isInstalled()
{
    static ScopedAllocator *const ours = [] {
        auto *made = new ScopedAllocator(*c10::GetCPUAllocator()); // for ever: storages refer to it
        c10::SetCPUAllocator(made, 1);
        return made;
    }();
    return c10::GetCPUAllocator() == ours;
}

at::Tensor emptyStrided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                        at::ScalarType dtype)
{
    return emptyShared(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), dtype);
}

} // namespace

std::shared_ptr<c10::Allocator> sharedAllocator()
{
    static auto *const allocator = new SharedAllocator; // for ever: storages refer to it
    return {std::shared_ptr<void>(), allocator};
}

at::Tensor emptyShared(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype)
{
    return at::Tensor(at::detail::empty_strided_generic(sizes, strides, sharedAllocator().get(),
                                                        c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                        dtype));
}

// As share_memory_() does.
bool moveToShared(const at::Tensor &tensor)
{
    TORCH_CHECK_TYPE(tensor.is_cpu() && tensor.has_storage(),
                     "shmcoll.share takes dense CPU tensors, not one of ", tensor.toString());
    c10::StorageImpl *storage = tensor.storage().unsafeGetStorageImpl();
    const c10::DeleterFnPtr deleter = storage->data_ptr().get_deleter();
    if (deleter == freeShared)
        return true;
    if (!storage->resizable() || deleter != c10::GetDefaultCPUAllocator()->raw_deleter())
        return false;
    c10::DataPtr made = allocateShared(storage->nbytes(), *c10::GetDefaultCPUAllocator());
    if (made.get_deleter() != freeShared)
        return false;
    std::memcpy(made.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(made));
    storage->set_allocator(sharedAllocator().get());
    return true;
}

std::shared_ptr<c10::Allocator> ProcessGroupShm::getMemAllocator()
{
    return sharedAllocator();
}

// torch names no device in the question, only its index: the CPU has none.
bool ProcessGroupShm::supportsTensorAlloc(c10::DeviceIndex index)
{
    return index < 0;
}

at::Tensor ProcessGroupShm::allocateTensor(long size, at::TensorOptions options)
{
    TORCH_CHECK_VALUE(size >= 0, "shmcoll: allocate_tensor: ", size, " elements");
    TORCH_CHECK_VALUE(options.device().is_cpu(), "shmcoll: allocate_tensor makes CPU tensors, and ",
                      options.device(), " was asked for");
    return emptyShared(size, 1, c10::typeMetaToScalarType(options.dtype()))
        .set_requires_grad(options.requires_grad());
}

TORCH_LIBRARY_FRAGMENT(shmcoll, m)
{
    m.def("empty_strided(SymInt[] size, SymInt[] stride, ScalarType dtype) -> Tensor");
    m.def("share(Tensor tensor) -> bool", moveToShared);
    m.impl("empty_strided", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(emptyStrided));
}

} // namespace shmcoll

long long shmcoll_share_allocations(long long bytes)
{
    const int64_t before = shmcoll::sharedFrom;
    if (bytes != 0 && !shmcoll::isInstalled())
        return -1;
    shmcoll::sharedFrom = bytes;
    return before;
}
