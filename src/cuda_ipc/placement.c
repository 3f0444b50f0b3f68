/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/placement.h"
#include "cuda_ipc/cuda_error.h"

static bool is_empty(const struct shc_tensor *tensor)
{
    for (int d = 0; d < (int)tensor->ndim; d++)
        if (tensor->sizes[d] == 0)
            return true;
    return false;
}

/* Memory of which the driver is not certain is accepted: the check only prevents mistakes. */
static enum shc_status check_list(const struct shc_gpu *gpu, const struct shc_flat *flat,
                                  const char *what)
{
    const struct shc_driver *driver = gpu->driver;
    for (uint32_t i = 0; i < flat->count; i++) {
        int device = gpu->device;
        if (is_empty(&flat->list[i]))
            continue;
        const shc_cu_address address = (shc_cu_address)(uintptr_t)flat->list[i].data;
        const int result =
            driver->cuPointerGetAttribute(&device, SHC_CU_POINTER_DEVICE_ORDINAL, address);
        if (result == SHC_CU_INVALID_VALUE)
            return shc_cuda_fail(SHC_ERR_INVALID, "%s tensor %u (at %p) is no GPU's memory", what,
                                 i, flat->list[i].data);
        if (result == SHC_CU_SUCCESS && device >= 0 && device != gpu->device)
            return shc_cuda_fail(SHC_ERR_INVALID,
                                 "%s tensor %u is on GPU %d, the group on GPU %d (%s)", what, i,
                                 device, gpu->device, gpu->name);
    }
    return SHC_OK;
}

enum shc_status shc_placement_check(const struct shc_gpu *gpu, const struct shc_demand *demand)
{
    if (gpu->driver->cuPointerGetAttribute == NULL)
        return SHC_OK;
    SHC_TRY(check_list(gpu, &demand->in, "input"));
    return check_list(gpu, &demand->out, "output");
}
