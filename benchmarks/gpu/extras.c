/* SPDX-License-Identifier: BSD-3-Clause */
#include "extras.h"

#include <dlfcn.h>
#include <math.h>
#include <string.h>

/* `slot` is that of a function pointer: POSIX lets one go through a data pointer. */
static void find(void *library, const char *name, void *slot)
{
    void *found = dlsym(library, name);
    memcpy(slot, &found, sizeof found);
}

void extras_find(const char *library, struct extras *extras)
{
    void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    memset(extras, 0, sizeof *extras);
    if (opened == NULL)
        return;
    find(opened, "cuMemGetInfo_v2", &extras->mem_info);
    find(opened, "cuStreamBeginCapture_v2", &extras->begin_capture);
    find(opened, "cuStreamEndCapture", &extras->end_capture);
    find(opened, "cuGraphInstantiateWithFlags", &extras->instantiate);
    find(opened, "cuGraphLaunch", &extras->launch);
    find(opened, "cuGraphExecDestroy", &extras->destroy_exec);
    find(opened, "cuGraphDestroy", &extras->destroy_graph);
    find(opened, "cuMemcpy2DAsync_v2", &extras->copy_2d);
    find(opened, "cuMemcpyPeerAsync", &extras->copy_peer);
}

bool extras_have_graphs(const struct extras *extras)
{
    return extras->begin_capture && extras->end_capture && extras->instantiate && extras->launch &&
           extras->destroy_exec && extras->destroy_graph;
}

#define UNIFIED 4

/* CUDA_MEMCPY2D. */
struct copy_end {
    size_t x, y;
    int type;
    const void *host;
    shc_cu_address device;
    void *array;
    size_t pitch;
};
struct copy_rows {
    struct copy_end from, to;
    size_t width, height;
};

int extras_copy_rows(const struct extras *extras, shc_cu_address to, shc_cu_address from,
                     size_t width, size_t rows, size_t pitch, struct shc_cu_stream *stream)
{
    const struct copy_rows what = {
        .from = {.type = UNIFIED, .device = from, .pitch = pitch},
        .to = {.type = UNIFIED, .device = to, .pitch = width},
        .width = width,
        .height = rows,
    };
    return extras->copy_2d(&what, stream);
}

double extras_free_mib(const struct extras *extras)
{
    size_t free_bytes, all_bytes;
    if (extras->mem_info == NULL || extras->mem_info(&free_bytes, &all_bytes) != SHC_CU_SUCCESS)
        return NAN;
    return (double)free_bytes / (1 << 20);
}
