/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The CUDA devices and driver of this machine, in lines of `key=value`. Any thread; nothing is kept.
 */

#include "cuda_ipc/driver.h"

/* As shc_cuda_info says it, of the driver that this library is. */
SHC_NODISCARD enum shc_status shc_inventory_write(const char *library, char *text, size_t capacity);
