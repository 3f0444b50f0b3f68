/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/slab.h"
#include "cuda_ipc/cuda_error.h"
#include "shm/base/num.h"

#include <string.h>

#define NOTICE_MAGIC 0x62616c73u /* "slab", and the version of what follows */

/* What a control message says of a slab. */
struct notice {
    uint32_t magic;
    uint32_t kind;
    uint64_t bytes;
    struct shc_cu_ipc_handle legacy;
};

_Static_assert(sizeof(struct notice) <= SHC_CONTROL_BYTES, "a notice fits a message");

static const char *const kind_names[SHC_SLAB_KIND_COUNT] = {
    [SHC_SLAB_NONE] = "none",
    [SHC_SLAB_FD] = "file descriptor",
    [SHC_SLAB_LEGACY] = "legacy handle",
};

const char *shc_slab_kind_name(enum shc_slab_kind kind)
{
    return (unsigned)kind < SHC_SLAB_KIND_COUNT ? kind_names[kind] : "unknown";
}

static struct shc_cu_allocation allocation_of(const struct shc_gpu *gpu)
{
    return (struct shc_cu_allocation){
        .type = SHC_CU_ALLOCATION_PINNED,
        .handle_types = SHC_CU_HANDLE_POSIX_FD,
        .location = {.type = SHC_CU_LOCATION_DEVICE, .id = gpu->device},
    };
}

/* Gives the memory of slab->handle an address that this GPU may use. */
static enum shc_status map(struct shc_slab *slab)
{
    const struct shc_driver *driver = slab->gpu->driver;
    const struct shc_cu_access access = {
        .location = {.type = SHC_CU_LOCATION_DEVICE, .id = slab->gpu->device},
        .flags = SHC_CU_ACCESS_READWRITE,
    };
    enum shc_status st;
    int result = driver->cuMemAddressReserve(&slab->address, slab->bytes, 0, 0, 0);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result, "no addresses for %zu bytes: cuMemAddressReserve",
                               slab->bytes);
    result = driver->cuMemMap(slab->address, slab->bytes, 0, slab->handle, 0);
    if (result != SHC_CU_SUCCESS) {
        st = shc_driver_fail(driver, result, "a slab of %zu bytes: cuMemMap", slab->bytes);
        goto err_reserved;
    }
    result = driver->cuMemSetAccess(slab->address, slab->bytes, &access, 1);
    if (result != SHC_CU_SUCCESS) {
        st = shc_driver_fail(driver, result, "%s may not use the memory: cuMemSetAccess",
                             slab->gpu->name);
        goto err_mapped;
    }
    return SHC_OK;
err_mapped:
    (void)driver->cuMemUnmap(slab->address, slab->bytes);
err_reserved:
    (void)driver->cuMemAddressFree(slab->address, slab->bytes);
    return st;
}

static void unmap(const struct shc_slab *slab)
{
    const struct shc_driver *driver = slab->gpu->driver;
    (void)driver->cuMemUnmap(slab->address, slab->bytes);
    (void)driver->cuMemAddressFree(slab->address, slab->bytes);
}

/* ---- memory as a file descriptor ---- */

static enum shc_status create_fd(struct shc_slab *slab)
{
    const struct shc_driver *driver = slab->gpu->driver;
    const struct shc_cu_allocation allocation = allocation_of(slab->gpu);
    enum shc_status st;
    size_t granule;
    if (!slab->gpu->exports_fd)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "%s exports no memory as a file descriptor",
                             slab->gpu->name);
    int result =
        driver->cuMemGetAllocationGranularity(&granule, &allocation, SHC_CU_GRANULARITY_MINIMUM);
    if (result == SHC_CU_SUCCESS) {
        slab->bytes = shc_div_ceil(slab->bytes, granule) * granule;
        result = driver->cuMemCreate(&slab->handle, slab->bytes, &allocation, 0);
    }
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result, "a slab of %zu bytes: cuMemCreate", slab->bytes);
    result =
        driver->cuMemExportToShareableHandle(&slab->fd, slab->handle, SHC_CU_HANDLE_POSIX_FD, 0);
    if (result != SHC_CU_SUCCESS) {
        st = shc_driver_fail(driver, result, "cuMemExportToShareableHandle");
        goto err_created;
    }
    st = map(slab);
    if (st != SHC_OK)
        goto err_exported;
    return SHC_OK;
err_exported:
    shc_sys_close(slab->fd);
err_created:
    (void)driver->cuMemRelease(slab->handle);
    return st;
}

static enum shc_status import_fd(struct shc_slab *view, int fd)
{
    const struct shc_driver *driver = view->gpu->driver;
    if (!view->gpu->exports_fd)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "%s imports no memory from a file descriptor",
                             view->gpu->name);
    if (fd < 0)
        return shc_cuda_fail(SHC_ERR_VERSION, "a slab came without its file descriptor");
    const int result = driver->cuMemImportFromShareableHandle(&view->handle, (void *)(intptr_t)fd,
                                                              SHC_CU_HANDLE_POSIX_FD);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result, "cuMemImportFromShareableHandle");
    const enum shc_status st = map(view);
    if (st != SHC_OK)
        (void)driver->cuMemRelease(view->handle);
    return st;
}

/* ---- memory by a legacy handle ---- */

static enum shc_status create_legacy(struct shc_slab *slab)
{
    const struct shc_driver *driver = slab->gpu->driver;
    if (!shc_driver_has_legacy_ipc(driver))
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "the driver has no legacy handles");
    const int result = driver->cuMemAlloc(&slab->address, slab->bytes);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result, "a slab of %zu bytes: cuMemAlloc", slab->bytes);
    return SHC_OK;
}

static enum shc_status import_legacy(struct shc_slab *view, const struct shc_cu_ipc_handle *handle)
{
    const struct shc_driver *driver = view->gpu->driver;
    if (!shc_driver_has_legacy_ipc(driver))
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "the driver has no legacy handles");
    const int result =
        driver->cuIpcOpenMemHandle(&view->address, *handle, SHC_CU_IPC_LAZY_PEER_ACCESS);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result, "cuIpcOpenMemHandle");
    return SHC_OK;
}

/* ---- both ---- */

enum shc_status shc_slab_create(const struct shc_gpu *gpu, enum shc_slab_kind kind, size_t bytes,
                                struct shc_slab *slab)
{
    struct shc_slab made = {.gpu = gpu, .kind = kind, .bytes = bytes, .fd = -1};
    SHC_TRY(shc_gpu_enter(gpu));
    const enum shc_status st = kind == SHC_SLAB_FD ? create_fd(&made) : create_legacy(&made);
    shc_gpu_leave(gpu);
    if (st == SHC_OK)
        *slab = made;
    return st;
}

enum shc_status shc_slab_import(const struct shc_gpu *gpu,
                                const struct shc_control_message *message, struct shc_slab *view)
{
    struct notice notice;
    if (message->count != sizeof notice)
        return shc_cuda_fail(SHC_ERR_VERSION, "%u bytes are no slab", message->count);
    memcpy(&notice, message->bytes, sizeof notice);
    if (notice.magic != NOTICE_MAGIC || notice.bytes == 0 || notice.bytes > SIZE_MAX / 2 ||
        (notice.kind != SHC_SLAB_FD && notice.kind != SHC_SLAB_LEGACY))
        return shc_cuda_fail(SHC_ERR_VERSION, "what came is no slab of this version");
    struct shc_slab made = {.gpu = gpu,
                            .kind = (enum shc_slab_kind)notice.kind,
                            .imported = true,
                            .bytes = (size_t)notice.bytes,
                            .fd = -1};
    SHC_TRY(shc_gpu_enter(gpu));
    const enum shc_status st = made.kind == SHC_SLAB_FD ? import_fd(&made, message->fd)
                                                        : import_legacy(&made, &notice.legacy);
    shc_gpu_leave(gpu);
    if (st == SHC_OK)
        *view = made;
    return st;
}

enum shc_status shc_slab_show(struct shc_slab *slab, struct shc_control_message *message)
{
    struct notice notice;
    memset(&notice, 0, sizeof notice);
    notice.magic = NOTICE_MAGIC;
    notice.kind = slab->kind;
    notice.bytes = slab->bytes;
    if (slab->kind == SHC_SLAB_LEGACY) {
        const struct shc_driver *driver = slab->gpu->driver;
        SHC_TRY(shc_gpu_enter(slab->gpu));
        const int result = driver->cuIpcGetMemHandle(&notice.legacy, slab->address);
        shc_gpu_leave(slab->gpu);
        if (result != SHC_CU_SUCCESS)
            return shc_driver_fail(driver, result, "cuIpcGetMemHandle");
        slab->shown = true;
    }
    message->count = sizeof notice;
    message->fd = slab->fd;
    memcpy(message->bytes, &notice, sizeof notice);
    return SHC_OK;
}

void shc_slab_destroy(struct shc_slab *slab)
{
    const struct shc_driver *driver = slab->gpu ? slab->gpu->driver : NULL;
    if (slab->kind == SHC_SLAB_NONE || shc_gpu_enter(slab->gpu) != SHC_OK)
        return;
    if (slab->kind == SHC_SLAB_FD) {
        unmap(slab);
        (void)driver->cuMemRelease(slab->handle);
        shc_sys_close(slab->fd);
    } else if (slab->imported) {
        (void)driver->cuIpcCloseMemHandle(slab->address);
    } else if (!slab->shown) {
        (void)driver->cuMemFree(slab->address);
    }
    shc_gpu_leave(slab->gpu);
    *slab = (struct shc_slab){.fd = -1};
}
