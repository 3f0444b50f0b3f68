// SPDX-License-Identifier: BSD-3-Clause
// Runs the kernels' bodies on a CPU: the counterpart of device.cuh, which does so on a GPU. Where a GPU
// would stop with an error that no later call survives, this ends the process.
#include "tests/cuda/twins.h"

extern "C" {
#include "cuda_ipc/kernel/args.h"
#include "shm/base/atomic.h"
}

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define SHC_DEVICE inline
#define SHC_UNROLL(n)

namespace shmcoll::kernel
{

struct alignas(16) Word {
    uint32_t part[4];
};

struct Lane {
    unsigned grid, block;
    unsigned threads, thread;
};

inline void must_be_aligned(const void *p, size_t alignment)
{
    if (reinterpret_cast<uintptr_t>(p) % alignment == 0)
        return;
    fprintf(stderr, "a kernel accesses %zu bytes at %p: a GPU stops here\n", alignment, p);
    abort();
}

template <class T>
T load(const void *from)
{
    must_be_aligned(from, alignof(T));
    T value;
    memcpy(&value, from, sizeof value);
    return value;
}

template <class T>
void store(void *to, T value)
{
    must_be_aligned(to, alignof(T));
    memcpy(to, &value, sizeof value);
}

inline uint64_t load_acquire(const void *from)
{
    must_be_aligned(from, sizeof(uint64_t));
    return shc_a64_load_acquire(static_cast<const shc_a64 *>(from));
}

inline uint64_t load_relaxed(const void *from)
{
    must_be_aligned(from, sizeof(uint64_t));
    return shc_a64_load_relaxed(static_cast<const shc_a64 *>(from));
}

inline void store_release(void *to, uint64_t value)
{
    must_be_aligned(to, sizeof(uint64_t));
    shc_a64_store_release(static_cast<shc_a64 *>(to), value);
}

inline void lower(uint32_t *word, uint32_t value)
{
    *word = value < *word ? value : *word;
}

} // namespace shmcoll::kernel

#include "cuda_ipc/kernel/bodies.cuh"

namespace shmcoll::kernel
{
namespace
{

// Runs blocks and threads one after another, but not in the order of their numbers, so that tests find
// code that depends on the order. The memory that a block's threads share holds rubbish at first.
template <class Kernel>
void run(void **parameters, unsigned grid, unsigned threads)
{
    const auto &args = *static_cast<const typename Kernel::Args *>(parameters[0]);
    for (unsigned block = 0; block < grid; block++) {
        typename Kernel::Shared shared;
        memset(static_cast<void *>(&shared), 0xdd, sizeof shared);
        for (int step = 0; step < Kernel::kSteps; step++)
            for (unsigned i = 0; i < threads; i++) {
                // 77 and SHC_KERNEL_THREADS have no common divisor: each thread has its turn.
                const Lane lane = {grid, block, threads, (i * 77 + 5 * block) % threads};
                Kernel::step(step, lane, args, shared);
            }
    }
}

template <class Kernel>
FakeKernel twin(const char *name)
{
    static const size_t bytes = sizeof(typename Kernel::Args);
    return {name, run<Kernel>, 1, &bytes};
}

} // namespace
} // namespace shmcoll::kernel

namespace shmcoll::test
{

const std::vector<FakeKernel> &twins()
{
    using namespace shmcoll::kernel;
#define REDUCE_TWIN(dtype, dtype_name, redop, redop_name) \
    twin<Reduce<dtype_name##redop_name>>("shc_reduce_" #dtype_name #redop_name),
    // Never destructed: a stream that has not ended when the program ends still runs them.
    static const auto &all = *new std::vector<FakeKernel>{
        twin<Gate>("shc_gate"), twin<Copy>("shc_copy"), SHC_KERNEL_REDUCTIONS(REDUCE_TWIN)};
#undef REDUCE_TWIN
    return all;
}

void add_twins(void (*add)(const FakeKernel *))
{
    for (const FakeKernel &one : twins())
        add(&one);
}

} // namespace shmcoll::test
