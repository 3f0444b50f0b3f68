/* SPDX-License-Identifier: BSD-3-Clause */
/* Stands in for libnuma: a machine of two NUMA nodes, whose CPUs take turns. Policies are noted, not set. */
#include <pthread.h>
#include <stddef.h>

struct two_nodes_note {
    const char *memory;
    unsigned long bytes;
    int mode;
    unsigned long nodes;
};

#define MOST 4096
int two_nodes_count;
struct two_nodes_note two_nodes_notes[MOST];

int numa_available(void)
{
    return 0;
}

int numa_max_node(void)
{
    return 1;
}

int numa_node_of_cpu(int cpu)
{
    return cpu < 512 ? cpu % 2 : -1;
}

int numa_distance(int node, int other)
{
    return node == other ? 10 : 21;
}

long mbind(void *memory, unsigned long bytes, int mode, const unsigned long *nodes,
           unsigned long max_node, unsigned flags)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    (void)max_node;
    (void)flags;
    pthread_mutex_lock(&lock);
    if (two_nodes_count < MOST)
        two_nodes_notes[two_nodes_count++] = (struct two_nodes_note){memory, bytes, mode, nodes[0]};
    pthread_mutex_unlock(&lock);
    return 0;
}
