/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/kernel/kernels.h"
#include "cuda_ipc/cuda_error.h"
#include "cuda_ipc/kernel/image.h"
#include "cuda_ipc/kernel/list.h"
#include "shm/base/num.h"

#include <string.h>

struct entry {
    enum shc_dtype dtype;
    enum shc_redop redop;
    const char *name;
};

#define ENTRY(dtype, dtype_name, redop, redop_name) \
    {dtype, redop, "shc_reduce_" #dtype_name #redop_name},
static const struct entry reductions[] = {SHC_KERNEL_REDUCTIONS(ENTRY)};
#undef ENTRY

bool shc_kernels_built(void)
{
    return shc_kernel_image != NULL;
}

/* ---- loading ---- */

static enum shc_status load_module(const struct shc_gpu *gpu, struct shc_cu_module **module)
{
    const int result = gpu->driver->cuModuleLoadData(module, shc_kernel_image);
    if (result == SHC_CU_SUCCESS)
        return SHC_OK;
    const bool other_gpu = result == SHC_CU_NO_BINARY_FOR_GPU || result == SHC_CU_UNSUPPORTED_PTX;
    const enum shc_status st = shc_driver_fail(
        gpu->driver, result, "the kernels do not load on %s (compute capability %d.%d)%s",
        gpu->name, gpu->capability / 10, gpu->capability % 10,
        other_gpu ? "; build with SHMCOLL_CUDA_ARCHS naming it, by an nvcc no newer than the driver"
                  : "");
    return other_gpu ? SHC_ERR_UNSUPPORTED : st;
}

/* A function that is found may not be loaded yet; drivers before CUDA 12.4 have no other state. */
static enum shc_status load_function(const struct shc_kernels *kernels, const char *name,
                                     struct shc_cu_function **function)
{
    const struct shc_driver *driver = kernels->gpu->driver;
    int result = driver->cuModuleGetFunction(function, kernels->module, name);
    if (result == SHC_CU_SUCCESS && driver->cuFuncLoad != NULL)
        result = driver->cuFuncLoad(*function);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result, "the kernel %s does not load on %s", name,
                               kernels->gpu->name);
    return SHC_OK;
}

static enum shc_status load_functions(struct shc_kernels *kernels)
{
    SHC_TRY(load_function(kernels, "shc_gate", &kernels->gate));
    SHC_TRY(load_function(kernels, "shc_copy", &kernels->copy));
    for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++) {
        const struct entry *one = &reductions[i];
        SHC_TRY(load_function(kernels, one->name, &kernels->reduce[one->dtype][one->redop]));
    }
    return SHC_OK;
}

static enum shc_status count_blocks(const struct shc_gpu *gpu, unsigned *blocks)
{
    int multiprocessors = 0;
    const int result = gpu->driver->cuDeviceGetAttribute(
        &multiprocessors, SHC_CU_ATTRIBUTE_MULTIPROCESSORS, gpu->device);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(gpu->driver, result, "%s does not tell its size", gpu->name);
    *blocks = (unsigned)(multiprocessors > 0 ? multiprocessors : 1) * SHC_KERNEL_BLOCKS;
    return SHC_OK;
}

static enum shc_status load(struct shc_kernels *kernels)
{
    SHC_TRY(count_blocks(kernels->gpu, &kernels->blocks));
    SHC_TRY(load_module(kernels->gpu, &kernels->module));
    const enum shc_status st = load_functions(kernels);
    if (st != SHC_OK)
        (void)kernels->gpu->driver->cuModuleUnload(kernels->module);
    return st;
}

enum shc_status shc_kernels_load(const struct shc_gpu *gpu, struct shc_kernels *kernels)
{
    struct shc_kernels loaded;
    memset(&loaded, 0, sizeof loaded);
    loaded.gpu = gpu;
    if (!shc_kernels_built())
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED,
                             "this build has no GPU kernels: there was no nvcc; build again where "
                             "a CUDA toolkit is installed");
    SHC_TRY(shc_gpu_enter(gpu));
    const enum shc_status st = load(&loaded);
    shc_gpu_leave(gpu);
    if (st == SHC_OK)
        *kernels = loaded;
    return st;
}

void shc_kernels_unload(struct shc_kernels *kernels)
{
    if (kernels->module != NULL && shc_gpu_enter(kernels->gpu) == SHC_OK) {
        (void)kernels->gpu->driver->cuModuleUnload(kernels->module);
        shc_gpu_leave(kernels->gpu);
    }
    memset(kernels, 0, sizeof *kernels);
}

/* ---- launching ---- */

/* `args` is copied before this returns. */
static enum shc_status launch(const struct shc_kernels *kernels, struct shc_cu_function *function,
                              struct shc_cu_stream *stream, uint64_t blocks, const void *args)
{
    const struct shc_driver *driver = kernels->gpu->driver;
    const unsigned grid = blocks < kernels->blocks ? (unsigned)blocks : kernels->blocks;
    void *parameters[1];
    memcpy(parameters, &args,
           sizeof args); /* the driver only reads; its declaration has no const */
    SHC_TRY(shc_gpu_enter(kernels->gpu));
    const int result = driver->cuLaunchKernel(function, grid, 1, 1, SHC_KERNEL_THREADS, 1, 1, 0,
                                              stream, parameters, NULL);
    shc_gpu_leave(kernels->gpu);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result, "a kernel cannot be launched on %s",
                               kernels->gpu->name);
    return SHC_OK;
}

static enum shc_status no_world(const char *what, int world)
{
    return shc_cuda_fail(SHC_ERR_INVALID, "%s: %d is no number of ranks (1 to %d)", what, world,
                         SHC_MAX_WORLD);
}

enum shc_status shc_kernels_gate(const struct shc_kernels *kernels, struct shc_cu_stream *stream,
                                 const struct shc_gate_args *args)
{
    if (args->world < 1 || args->world > SHC_MAX_WORLD)
        return no_world("gate", args->world);
    return launch(kernels, kernels->gate, stream, 1, args);
}

enum shc_status shc_kernels_copy(const struct shc_kernels *kernels, struct shc_cu_stream *stream,
                                 const struct shc_copy_args *args)
{
    uint64_t runs = 0;
    if (args->count > SHC_COPY_PIECES)
        return shc_cuda_fail(SHC_ERR_INVALID, "copy: %u pieces, %d is the most", args->count,
                             SHC_COPY_PIECES);
    for (uint32_t i = 0; i < args->count; i++)
        runs += shc_div_ceil(args->piece[i].bytes, SHC_COPY_RUN_BYTES);
    if (runs == 0)
        return SHC_OK;
    return launch(kernels, kernels->copy, stream, runs, args);
}

enum shc_status shc_kernels_reduce(const struct shc_kernels *kernels, struct shc_cu_stream *stream,
                                   enum shc_dtype dtype, enum shc_redop redop,
                                   const struct shc_reduce_args *args)
{
    if ((unsigned)dtype >= SHC_DTYPE_COUNT || (unsigned)redop >= SHC_REDOP_COUNT ||
        kernels->reduce[dtype][redop] == NULL)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "no kernel for reduction %d of dtype %d",
                             (int)redop, (int)dtype);
    if (args->world < 1 || args->world > SHC_MAX_WORLD)
        return no_world("reduce", args->world);
    if (args->count == 0)
        return SHC_OK;
    /* Enough where elements go one by one; a block that finds nothing to do ends at once. */
    return launch(kernels, kernels->reduce[dtype][redop], stream,
                  shc_div_ceil(args->count, SHC_KERNEL_THREADS), args);
}
