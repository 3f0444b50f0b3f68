/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/inventory.h"
#include "cuda_ipc/cuda_error.h"
#include "cuda_ipc/gpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct writer {
    char *text;
    size_t capacity;
    size_t used; /* what it would take, without the 0 at its end */
};

static void put(struct writer *w, const char *format, ...) SHC_PRINTF(2, 3);

static void put(struct writer *w, const char *format, ...)
{
    const bool full = w->used >= w->capacity;
    va_list args;
    va_start(args, format);
    const int more =
        vsnprintf(full ? NULL : w->text + w->used, full ? 0 : w->capacity - w->used, format, args);
    va_end(args);
    w->used += more > 0 ? (size_t)more : 0;
}

static void put_gpu(struct writer *w, const struct shc_driver *driver, int ordinal)
{
    struct shc_gpu gpu;
    if (shc_gpu_describe(driver, ordinal, &gpu) != SHC_OK) {
        put(w, "gpu%d=%s\n", ordinal, shc_cuda_failure());
        return;
    }
    put(w, "gpu%d=%s\ngpu%d_uuid=", ordinal, gpu.name, ordinal);
    for (size_t i = 0; i < sizeof gpu.uuid.bytes; i++)
        put(w, "%02x", gpu.uuid.bytes[i]);
    put(w, "\ngpu%d_capability=%d.%d\n", ordinal, gpu.capability / 10, gpu.capability % 10);
    put(w, "gpu%d_memory=%s\n", ordinal,
        gpu.exports_fd                      ? "fd"
        : shc_driver_has_legacy_ipc(driver) ? "legacy"
                                            : "private");
}

enum shc_status shc_inventory_write(const char *library, char *text, size_t capacity)
{
    struct writer w = {.text = text, .capacity = capacity};
    struct shc_driver driver;
    if (shc_driver_open(library, &driver) != SHC_OK) {
        put(&w, "usable=no\nreason=%s\n", shc_cuda_failure());
    } else {
        put(&w, "usable=yes\ndriver=%d.%d\n", driver.version / 1000, driver.version % 1000 / 10);
        for (int i = 0; i < driver.device_count; i++)
            put_gpu(&w, &driver, i);
    }
    if (w.used >= capacity)
        return shc_cuda_fail(SHC_ERR_INVALID, "the information takes %zu bytes, there are %zu",
                             w.used + 1, capacity);
    return SHC_OK;
}
