/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A group's heaps: this rank's, whose name it publishes, and those of the other ranks, which it maps. The rules are
 * HEAP-5 to HEAP-14 (docs/internals/protocol/heap.md). Run by the thread that holds the group's runner.
 */

#include "shm/proto/heap.h"
#include "shm/proto/seat.h"

/* What the process knows of its own heap, and of those that it has mapped (comm/memory.h). Any thread. */
struct shc_heap_hooks {
    bool (*name)(struct shc_heap_name *name);
    bool (*place)(const void *memory, size_t bytes, uint64_t *offset);
    int (*divorce)(void *memory, size_t bytes);
    /* Maps that heap, or counts one use more of the mapping. */
    int (*open)(const struct shc_os_process *owner, const struct shc_heap_name *name,
                struct shc_heap_view *view);
    void (*close)(const struct shc_heap_view *view);
};

struct shc_peer_heap {
    struct shc_heap_view view; /* base == NULL: not mapped */
    bool tried;
};

struct shc_peer_heaps {
    const struct shc_heap_hooks *hooks;
    struct shc_peer_heap *of; /* by rank; NULL until this rank has a place for the first time */
    bool named;               /* this rank has published its heap's name */
    shc_a32 mapped;           /* of the other ranks' heaps; stored to by the runner */
    shc_a64 pushed;           /* operations; stored to by the runner */
};

/* Does this rank reach the heaps of all others? */
SHC_INLINE bool shc_peer_heaps_reach_all(const struct shc_seat *seat)
{
    /* relaxed: only the runner stores to it. */
    return shc_a32_load_relaxed(&seat->heaps->mapped) + 1 == (uint32_t)seat->world_size;
}

/* Publishes the name of this rank's heap, once (HEAP-5). pre: it has one. False: no memory for the table of the
 * others', or no heap. */
SHC_NODISCARD bool shc_peer_heaps_say_own(struct shc_seat *seat);

/* Maps the heaps of those ranks that have published a name, each once (HEAP-14). pre: shc_peer_heaps_say_own(). */
void shc_peer_heaps_open(struct shc_seat *seat);

/* Where these bytes of that rank's heap lie here. NULL: the heap is not mapped, or does not have them (HEAP-9). pre:
 * shc_peer_heaps_say_own(). */
char *shc_peer_heaps_at(struct shc_seat *seat, int rank, uint64_t offset, uint64_t bytes);

/* The group is closed. */
void shc_peer_heaps_fini(struct shc_seat *seat);
