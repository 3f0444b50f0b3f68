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
    find(opened, "cuMemcpyPeerAsync", &extras->copy_peer);
}

bool extras_have_graphs(const struct extras *extras)
{
    return extras->begin_capture && extras->end_capture && extras->instantiate && extras->launch &&
           extras->destroy_exec && extras->destroy_graph;
}

double extras_free_mib(const struct extras *extras)
{
    size_t free_bytes, all_bytes;
    if (extras->mem_info == NULL || extras->mem_info(&free_bytes, &all_bytes) != SHC_CU_SUCCESS)
        return NAN;
    return (double)free_bytes / (1 << 20);
}
