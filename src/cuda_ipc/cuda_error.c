/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/cuda_error.h"

#include <stdio.h>
#include <string.h>

static _Thread_local char failure[SHC_CUDA_ERROR_BYTES];

enum shc_status shc_cuda_fail_args(enum shc_status status, const char *suffix, const char *format,
                                   va_list args)
{
    const int used = vsnprintf(failure, sizeof failure, format, args);
    if (used >= 0 && (size_t)used < sizeof failure)
        snprintf(failure + used, sizeof failure - (size_t)used, "%s", suffix);
    return status;
}

enum shc_status shc_cuda_fail(enum shc_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    status = shc_cuda_fail_args(status, "", format, args);
    va_end(args);
    return status;
}

enum shc_status shc_cuda_fail_errno(enum shc_status status, int error, const char *format, ...)
{
    char suffix[128], why[64];
    snprintf(suffix, sizeof suffix, ": %s", strerror_r(error, why, sizeof why));
    va_list args;
    va_start(args, format);
    status = shc_cuda_fail_args(status, suffix, format, args);
    va_end(args);
    return status;
}

const char *shc_cuda_failure(void)
{
    return failure;
}
