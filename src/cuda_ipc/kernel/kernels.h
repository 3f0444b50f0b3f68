/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The kernels on one GPU: loaded at once when a group is made (a kernel that is loaded lazily may
 * wait for the whole GPU), launched on any stream. Loading is for one thread; launching any
 * thread's. A launch enqueues and returns; the arguments are copied.
 */

#include "cuda_ipc/gpu.h"
#include "cuda_ipc/kernel/args.h"

struct shc_kernels {
    const struct shc_gpu *gpu;
    struct shc_cu_module *module;
    unsigned blocks; /* of a large launch: fills the GPU */
    struct shc_cu_function *gate, *copy;
    struct shc_cu_function *reduce[SHC_DTYPE_COUNT][SHC_REDOP_COUNT]; /* NULL: not offered */
};

/* Is there a GPU image in this build? Without nvcc there is none, and CUDA is off. */
bool shc_kernels_built(void);

/* SHC_ERR_UNSUPPORTED: no image in this build, or none that this GPU can run. */
SHC_NODISCARD enum shc_status shc_kernels_load(const struct shc_gpu *gpu,
                                               struct shc_kernels *kernels);
void shc_kernels_unload(struct shc_kernels *kernels);

SHC_NODISCARD enum shc_status shc_kernels_gate(const struct shc_kernels *kernels,
                                               struct shc_cu_stream *stream,
                                               const struct shc_gate_args *args);
SHC_NODISCARD enum shc_status shc_kernels_copy(const struct shc_kernels *kernels,
                                               struct shc_cu_stream *stream,
                                               const struct shc_copy_args *args);
/* pre: shc_reduction_supported(). */
SHC_NODISCARD enum shc_status shc_kernels_reduce(const struct shc_kernels *kernels,
                                                 struct shc_cu_stream *stream, enum shc_dtype dtype,
                                                 enum shc_redop redop,
                                                 const struct shc_reduce_args *args);
