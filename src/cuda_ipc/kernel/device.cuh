/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The functions that bodies.cuh needs, as a GPU has them. The tests have the same for the
 * CPU (tests/cuda/twins.cc).
 *
 * The system's loads and stores are written as PTX: it says ld.acquire.sys since CUDA 9, while
 * nvcc's own atomics of that kind and libcu++'s differ from version to version. All of them pass
 * the caches that could be stale.
 */

#include "cuda_ipc/kernel/args.h"

#define SHC_DEVICE    __device__ __forceinline__
#define SHC_PRAGMA(x) _Pragma(#x)
#define SHC_UNROLL(n) SHC_PRAGMA(unroll n)

namespace shmcoll::kernel
{

using Word = uint4; /* of 16 bytes: the widest load there is on every GPU */

struct Lane {
    unsigned grid, block;     /* blocks, and which one */
    unsigned threads, thread; /* of a block, and which one */
};

/* pre: aligned as a T is. */
template <class T>
SHC_DEVICE T load(const void *from)
{
    return *static_cast<const T *>(from);
}

template <class T>
SHC_DEVICE void store(void *to, T value)
{
    *static_cast<T *>(to) = value;
}

/* A word that a CPU or another GPU has written: accesses after it see what was written before. */
SHC_DEVICE uint64_t load_acquire(const void *from)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

/* The same, and orders nothing: several are on their way at once. */
SHC_DEVICE uint64_t load_relaxed(const void *from)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

/* For a CPU, which sees what was before. */
SHC_DEVICE void store_release(void *to, uint64_t value)
{
    asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(to), "l"(value) : "memory");
}

/* Of a word that the threads of a block share. */
SHC_DEVICE void lower(uint32_t *word, uint32_t value)
{
    atomicMin(word, value);
}

} // namespace shmcoll::kernel
