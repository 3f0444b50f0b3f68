/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/gpu.h"
#include "cuda_ipc/cuda_error.h"

#include <string.h>

static int attribute(const struct shc_gpu *gpu, int which)
{
    int value = 0;
    return gpu->driver->cuDeviceGetAttribute(&value, which, gpu->device) == SHC_CU_SUCCESS ? value
                                                                                           : 0;
}

enum shc_status shc_gpu_describe(const struct shc_driver *driver, int ordinal, struct shc_gpu *gpu)
{
    struct shc_gpu found;
    memset(&found, 0, sizeof found);
    found.driver = driver;
    if (ordinal < 0 || ordinal >= driver->device_count)
        return shc_cuda_fail(SHC_ERR_INVALID, "there is no GPU %d: this process sees %d (0 to %d)",
                             ordinal, driver->device_count, driver->device_count - 1);
    int result = driver->cuDeviceGet(&found.device, ordinal);
    if (result == SHC_CU_SUCCESS)
        result = driver->cuDeviceGetName(found.name, sizeof found.name, found.device);
    if (result == SHC_CU_SUCCESS)
        result = driver->cuDeviceGetUuid(&found.uuid, found.device);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result, "GPU %d cannot be described", ordinal);
    found.capability = 10 * attribute(&found, SHC_CU_ATTRIBUTE_CAPABILITY_MAJOR) +
                       attribute(&found, SHC_CU_ATTRIBUTE_CAPABILITY_MINOR);
    found.exports_fd = shc_driver_has_fd_memory(driver) &&
                       attribute(&found, SHC_CU_ATTRIBUTE_VIRTUAL_MEMORY) != 0 &&
                       attribute(&found, SHC_CU_ATTRIBUTE_POSIX_FD) != 0;
    found.by_mps = attribute(&found, SHC_CU_ATTRIBUTE_MPS) != 0;
    *gpu = found;
    return SHC_OK;
}

/* The error of a refused primary context depends on the mode, and on the driver's age. */
static enum shc_status refused(const struct shc_gpu *gpu, int ordinal, int result)
{
    const int mode = attribute(gpu, SHC_CU_ATTRIBUTE_COMPUTE_MODE);
    if (mode == SHC_CU_MODE_EXCLUSIVE_PROCESS)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED,
                             "GPU %d (%s) is in the compute mode EXCLUSIVE_PROCESS and another "
                             "process has it; nvidia-smi -c DEFAULT lets several ranks share it",
                             ordinal, gpu->name);
    if (mode == SHC_CU_MODE_PROHIBITED)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED,
                             "GPU %d (%s) is in the compute mode PROHIBITED; nvidia-smi -c DEFAULT "
                             "ends that",
                             ordinal, gpu->name);
    return shc_driver_fail(gpu->driver, result, "GPU %d (%s) gives no context", ordinal, gpu->name);
}

/* Every order between ranks is such a word. A driver that does not know the question is asked by the
 * first operation. */
static enum shc_status check_words(const struct shc_gpu *gpu, int ordinal)
{
    int words = 1;
    const int result =
        gpu->driver->cuDeviceGetAttribute(&words, SHC_CU_ATTRIBUTE_STREAM_WORDS, gpu->device);
    if (result == SHC_CU_SUCCESS && words == 0)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED,
                             "the streams of GPU %d (%s) cannot write and await 64-bit words "
                             "(cuStreamWaitValue64), which all ranks' order rests on",
                             ordinal, gpu->name);
    return SHC_OK;
}

enum shc_status shc_gpu_open(const struct shc_driver *driver, int ordinal, struct shc_gpu *gpu)
{
    struct shc_gpu opened;
    SHC_TRY(shc_gpu_describe(driver, ordinal, &opened));
    SHC_TRY(check_words(&opened, ordinal));
    const int result = driver->cuDevicePrimaryCtxRetain(&opened.context, opened.device);
    if (result != SHC_CU_SUCCESS)
        return refused(&opened, ordinal, result);
    *gpu = opened;
    return SHC_OK;
}

void shc_gpu_close(struct shc_gpu *gpu)
{
    if (gpu->context != NULL)
        (void)gpu->driver->cuDevicePrimaryCtxRelease(gpu->device);
    gpu->context = NULL;
}

enum shc_status shc_gpu_enter(const struct shc_gpu *gpu)
{
    const int result = gpu->driver->cuCtxPushCurrent(gpu->context);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(gpu->driver, result, "the context of %s cannot be used", gpu->name);
    return SHC_OK;
}

void shc_gpu_leave(const struct shc_gpu *gpu)
{
    struct shc_cu_context *popped;
    (void)gpu->driver->cuCtxPopCurrent(&popped);
}
