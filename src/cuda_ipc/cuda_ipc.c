/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/cuda_ipc.h"
#include "cuda_ipc/cuda_error.h"
#include "cuda_ipc/inventory.h"

enum shc_status shc_cuda_info(char *text, size_t capacity)
{
    return shc_inventory_write(SHC_DRIVER_LIBRARY, text, capacity);
}

const char *shc_cuda_error_text(void)
{
    return shc_cuda_failure();
}
