/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/os/numa.h"
#include "shm/os/os.h"

#ifdef SHC_HAVE_NUMA
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static struct shc_numa numa;
static bool usable;

static const struct {
    const char *name;
    size_t offset; /* of its pointer in struct shc_numa */
} calls[] = {{"numa_available", offsetof(struct shc_numa, numa_available)},
             {"mbind", offsetof(struct shc_numa, mbind)}};

/* The library stays open: the table points into it. */
static void open_library(void)
{
    void *library = dlopen("libnuma.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        void *function = dlsym(library, calls[i].name);
        if (function == NULL)
            return;
        /* ISO C has no conversion between pointers to data and to functions; POSIX does. */
        memcpy((char *)&numa + calls[i].offset, &function, sizeof function);
    }
    usable = numa.numa_available() >= 0;
}

const struct shc_numa *shc_numa(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    return usable ? &numa : NULL;
}
#else
const struct shc_numa *shc_numa(void)
{
    return NULL;
}
#endif

bool shc_os_has_numa(void)
{
    return shc_numa() != NULL;
}
