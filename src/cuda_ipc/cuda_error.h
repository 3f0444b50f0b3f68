/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * This library's per-thread error record (the core's own is not visible outside of it). The
 * function that first decides what the error is records it; its callers pass the status on.
 */

#include "shm/base/attrs.h"
#include "shm/shmcoll.h"
#include <stdarg.h>

#define SHC_CUDA_ERROR_BYTES 1024

SHC_NODISCARD SHC_COLD enum shc_status shc_cuda_fail(enum shc_status status, const char *format,
                                                     ...) SHC_PRINTF(2, 3);
SHC_NODISCARD SHC_COLD enum shc_status shc_cuda_fail_args(enum shc_status status,
                                                          const char *suffix, const char *format,
                                                          va_list args) SHC_PRINTF(3, 0);

/* The same, with ": <strerror(error)>" after the text. */
SHC_NODISCARD SHC_COLD enum shc_status shc_cuda_fail_errno(enum shc_status status, int error,
                                                           const char *format, ...)
    SHC_PRINTF(3, 4);

/* The calling thread's last failure. */
const char *shc_cuda_failure(void);
