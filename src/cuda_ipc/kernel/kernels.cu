/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The kernels as nvcc compiles them. The file has no host code: kernels.c launches.
 */
#include "cuda_ipc/kernel/device.cuh"

#include "cuda_ipc/kernel/bodies.cuh"

namespace shmcoll::kernel
{

template <class Kernel>
SHC_DEVICE void run(const typename Kernel::Args &args)
{
    __shared__ typename Kernel::Shared shared;
    const Lane lane = {gridDim.x, blockIdx.x, blockDim.x, threadIdx.x};
#pragma unroll
    for (int step = 0; step < Kernel::kSteps; step++) {
        if (step > 0)
            __syncthreads();
        Kernel::step(step, lane, args, shared);
    }
}

/* Arguments stay where the launch puts them: no thread has a copy. Without the number of blocks the
 * compiler goes for more of them than are launched, and spills. */
#define SHC_ENTRY(name, Kernel)                                                         \
    extern "C" __global__ void __launch_bounds__(SHC_KERNEL_THREADS, SHC_KERNEL_BLOCKS) \
        name(const __grid_constant__ Kernel::Args args)                                 \
    {                                                                                   \
        run<Kernel>(args);                                                              \
    }

#define SHC_REDUCE_ENTRY(dtype, dtype_name, redop, redop_name) \
    SHC_ENTRY(shc_reduce_##dtype_name##redop_name, Reduce<dtype_name##redop_name>)

SHC_ENTRY(shc_gate, Gate)
SHC_ENTRY(shc_copy, Copy)
SHC_KERNEL_REDUCTIONS(SHC_REDUCE_ENTRY)

} // namespace shmcoll::kernel
