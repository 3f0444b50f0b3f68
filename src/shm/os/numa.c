/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/os/numa.h"

#include <pthread.h>
#include <string.h>

static struct shc_numa numa;

#ifdef SHC_HAVE_NUMA
#include <dlfcn.h>

static struct {
    int (*numa_available)(void);
    int (*numa_max_node)(void);
    int (*numa_node_of_cpu)(int cpu);
    int (*numa_distance)(int node, int other);
    long (*mbind)(void *memory, unsigned long bytes, int mode, const unsigned long *nodes,
                  unsigned long max_node, unsigned flags);
} libnuma;

/* False: the library has no such function. */
static bool find(void *library, const char *name, void *pointer)
{
    void *function = dlsym(library, name);
    /* ISO C has no conversion between pointers to data and to functions; POSIX does. */
    memcpy(pointer, &function, sizeof function);
    return function != NULL;
}

/* The library stays open: the pointers lead into it. */
static bool open_library(void)
{
    void *library = dlopen("libnuma.so.1", RTLD_NOW | RTLD_LOCAL);
    return library && find(library, "numa_available", &libnuma.numa_available) &&
           find(library, "numa_max_node", &libnuma.numa_max_node) &&
           find(library, "numa_node_of_cpu", &libnuma.numa_node_of_cpu) &&
           find(library, "numa_distance", &libnuma.numa_distance) &&
           find(library, "mbind", &libnuma.mbind) && libnuma.numa_available() >= 0;
}

static void read_nodes(void)
{
    const int last = libnuma.numa_max_node();
    for (int cpu = 0; last > 0 && cpu < SHC_OS_MAX_CPUS; cpu++) {
        const int node = libnuma.numa_node_of_cpu(cpu);
        if (node >= 0 && node < SHC_NUMA_MAX_NODES)
            numa.node_of[cpu] = (int8_t)node;
    }
    for (int a = 0; a <= last && a < SHC_NUMA_MAX_NODES; a++)
        for (int b = 0; b <= last && b < SHC_NUMA_MAX_NODES; b++) {
            const int distance = libnuma.numa_distance(a, b);
            if (distance > 0 && distance <= UINT8_MAX)
                numa.distance[a][b] = (uint8_t)distance;
        }
}
#endif

static void look_at_machine(void)
{
    memset(numa.node_of, -1, sizeof numa.node_of);
#ifdef SHC_HAVE_NUMA
    if (!open_library())
        return;
    read_nodes();
    numa.mbind = libnuma.mbind;
#endif
}

const struct shc_numa *shc_numa_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_at_machine);
    return &numa;
}

bool shc_os_has_numa(void)
{
    return shc_numa_get()->mbind != NULL;
}

int shc_numa_node_of(const struct shc_numa *machine, const struct shc_os_cpus *cpus)
{
    int node = -1;
    for (int cpu = 0; cpu < SHC_OS_MAX_CPUS; cpu++) {
        if (!shc_os_cpus_have(cpus, cpu))
            continue;
        const int its = machine->node_of[cpu];
        if (its < 0 || (node >= 0 && its != node))
            return -1;
        node = its;
    }
    return node;
}
