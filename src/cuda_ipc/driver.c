/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/driver.h"
#include "cuda_ipc/cuda_error.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The two forms of the function that finds all others: CUDA 12's tells why it found nothing. */
typedef int (*find_v2_fn)(const char *symbol, void **function, int version, uint64_t flags,
                          int *why);
typedef int (*find_v1_fn)(const char *symbol, void **function, int version, uint64_t flags);

struct finder {
    find_v2_fn v2;
    find_v1_fn v1;
};

enum need { MAY, NEED };

struct entry {
    const char *name;
    int version;
    enum need need;
    size_t offset; /* of its pointer in struct shc_driver */
};

#define ENTRY(name, version, need, parameters) \
    {#name, version, need, offsetof(struct shc_driver, name)},
static const struct entry entries[] = {SHC_DRIVER_CALLS(ENTRY)};
#undef ENTRY

#define ENTRY_COUNT (sizeof entries / sizeof entries[0])

/* A version as people write it. */
struct spelled {
    char text[16];
};

static struct spelled spell(int version)
{
    struct spelled s;
    snprintf(s.text, sizeof s.text, "%d.%d", version / 1000, version % 1000 / 10);
    return s;
}

static enum shc_status open_library(const char *name, struct finder *finder)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "no NVIDIA driver on this machine: %s",
                             dlerror());
    /* ISO C has no conversion between pointers to data and to functions; POSIX does. */
    void *v2 = dlsym(library, "cuGetProcAddress_v2"), *v1 = dlsym(library, "cuGetProcAddress");
    memcpy(&finder->v2, &v2, sizeof v2);
    memcpy(&finder->v1, &v1, sizeof v1);
    if (v1 == NULL && v2 == NULL)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED,
                             "the NVIDIA driver is too old: %s has no cuGetProcAddress (CUDA "
                             "11.3), and CUDA %s or newer is needed",
                             name, spell(SHC_DRIVER_OLDEST).text);
    return SHC_OK;
}

/* post: *function is NULL when the driver does not have this form. */
static void find(const struct finder *finder, const struct entry *entry, void **function)
{
    int why = SHC_CU_PROC_FOUND;
    *function = NULL;
    const int result =
        finder->v2 ? finder->v2(entry->name, function, entry->version, 0, &why)
                   : finder->v1(entry->name, function, entry->version, SHC_CU_PROC_ADDRESS_DEFAULT);
    if (result != SHC_CU_SUCCESS || why != SHC_CU_PROC_FOUND)
        *function = NULL;
}

static enum shc_status check_version(const struct finder *finder, struct shc_driver *driver)
{
    void *function;
    find(finder, &entries[0], &function); /* the first of the list */
    memcpy(&driver->cuDriverGetVersion, &function, sizeof function);
    if (driver->cuDriverGetVersion == NULL ||
        driver->cuDriverGetVersion(&driver->version) != SHC_CU_SUCCESS)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "the NVIDIA driver does not tell its version");
    if (driver->version < SHC_DRIVER_OLDEST)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED,
                             "the NVIDIA driver is too old: it offers CUDA %s, and CUDA %s or "
                             "newer is needed (driver 525)",
                             spell(driver->version).text, spell(SHC_DRIVER_OLDEST).text);
    return SHC_OK;
}

static enum shc_status fill(const struct finder *finder, struct shc_driver *driver)
{
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        void *function;
        find(finder, &entries[i], &function);
        if (function == NULL && entries[i].need == NEED)
            return shc_cuda_fail(
                SHC_ERR_UNSUPPORTED, "the NVIDIA driver (CUDA %s) has no %s of CUDA %s",
                spell(driver->version).text, entries[i].name, spell(entries[i].version).text);
        memcpy((char *)driver + entries[i].offset, &function, sizeof function);
    }
    return SHC_OK;
}

static enum shc_status start(struct shc_driver *driver)
{
    const int result = driver->cuInit(0);
    if (result == SHC_CU_NO_DEVICE)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "no GPU: the NVIDIA driver is here, but it sees "
                                                  "no device (is CUDA_VISIBLE_DEVICES set?)");
    if (result != SHC_CU_SUCCESS) {
        (void)!shc_driver_fail(driver, result, "the NVIDIA driver does not start: cuInit");
        return SHC_ERR_UNSUPPORTED;
    }
    if (driver->cuDeviceGetCount(&driver->device_count) != SHC_CU_SUCCESS ||
        driver->device_count < 1)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "no GPU: the NVIDIA driver counts no device");
    return SHC_OK;
}

enum shc_status shc_driver_open(const char *library, struct shc_driver *driver)
{
    struct finder finder = {NULL, NULL};
    struct shc_driver opened;
    memset(&opened, 0, sizeof opened);
    SHC_TRY(open_library(library, &finder));
    SHC_TRY(check_version(&finder, &opened));
    SHC_TRY(fill(&finder, &opened));
    SHC_TRY(start(&opened));
    *driver = opened;
    return SHC_OK;
}

bool shc_driver_has_fd_memory(const struct shc_driver *driver)
{
    return driver->cuMemGetAllocationGranularity && driver->cuMemCreate && driver->cuMemRelease &&
           driver->cuMemExportToShareableHandle && driver->cuMemImportFromShareableHandle &&
           driver->cuMemAddressReserve && driver->cuMemAddressFree && driver->cuMemMap &&
           driver->cuMemUnmap && driver->cuMemSetAccess;
}

bool shc_driver_has_legacy_ipc(const struct shc_driver *driver)
{
    return driver->cuIpcGetMemHandle && driver->cuIpcOpenMemHandle && driver->cuIpcCloseMemHandle;
}

enum shc_status shc_driver_fail(const struct shc_driver *driver, int result, const char *format,
                                ...)
{
    const char *name = NULL, *text = NULL;
    char suffix[256];
    if (driver->cuGetErrorName(result, &name) != SHC_CU_SUCCESS || name == NULL)
        name = "an unknown result";
    if (driver->cuGetErrorString(result, &text) != SHC_CU_SUCCESS || text == NULL)
        text = "no description";
    snprintf(suffix, sizeof suffix, ": %s (%d), %s", name, result, text);
    va_list args;
    va_start(args, format);
    const enum shc_status st = shc_cuda_fail_args(
        result == SHC_CU_OUT_OF_MEMORY ? SHC_ERR_NOMEM : SHC_ERR_SYSTEM, suffix, format, args);
    va_end(args);
    return st;
}
