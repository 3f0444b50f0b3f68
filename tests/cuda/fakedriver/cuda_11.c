/* SPDX-License-Identifier: BSD-3-Clause */
/* A driver of CUDA 11.4: it has cuGetProcAddress in its first form only. */

#include <stdint.h>
#include <string.h>

int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);

static int version_is_11_4(int *version)
{
    *version = 11040;
    return 0;
}

int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    int (*found)(int *) = version_is_11_4;
    (void)version;
    (void)flags;
    if (strcmp(symbol, "cuDriverGetVersion") != 0)
        return 500; /* CUDA_ERROR_NOT_FOUND */
    memcpy(function, &found, sizeof found);
    return 0;
}
