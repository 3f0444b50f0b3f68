// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Tensors whose bytes lie in this process's shared memory (shm/shmcoll_memory.h). Where there is no
// room in it, they lie in private memory.

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <memory>

namespace shmcoll
{

// An allocator over that memory. torch's profiler sees what it gives and takes.
std::shared_ptr<c10::Allocator> sharedAllocator();

// A CPU tensor from that allocator; its elements have no values yet.
at::Tensor emptyShared(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);

// Moves the bytes of a tensor's storage into that memory: all its views go along. False, with nothing changed: others
// hold addresses in it (numpy), another allocator made it, or there is no room.
bool moveToShared(const at::Tensor &tensor);

} // namespace shmcoll
