/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Memory that the ranks of one machine can share: a part of the public interface of libshmcoll, for
 * C11 and C++17 callers. The rules of shmcoll.h hold.
 *
 * A process has one heap: a file of memory without a name, made with its first block. It needs no
 * group, and no space in /dev/shm. Blocks are ordinary memory to the process. What is freed is kept
 * for later blocks, and found there with its pages; what is kept beyond 256 MiB, or beyond what is
 * in use if that is more, goes back to the system.
 *
 *   - Any thread may call any of these functions at any time. A block may be freed by a thread that
 *     did not allocate it.
 *   - A heap holds 64 GiB at most.
 *   - A forked child shares the bytes of its parent's blocks with the parent, as with any shared
 *     mapping, and owns none of them: it can read and store there, and cannot free them. It has a
 *     heap of its own as soon as it allocates.
 *   - The kernel counts the heap as shared memory (RssShmem, and shmem in the memory cgroup).
 *   - The memory goes with the process.
 */

#include <stdbool.h>
#include <stddef.h>

#include "shm/shmcoll.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* ---- memory that ranks can share ---- */

/*
 * A block of at least so many bytes, whole pages at the beginning of a page. Its bytes are not
 * cleared: they may be those of an earlier block. All its memory is there, so that no store to it
 * can fail for want of memory.
 *
 * SHC_ERR_INVALID: 0 bytes. SHC_ERR_NOSPACE: the machine, the memory cgroup, RLIMIT_FSIZE or the
 * heap itself has no room for it; smaller blocks may still be had. SHC_ERR_NOMEM. SHC_ERR_UNSUPPORTED:
 * the system has no memfd or no such range of addresses. After each of these the caller takes
 * ordinary memory.
 */
enum shc_status shc_memory_alloc(size_t bytes, void **memory);

/* Frees a block. NULL is allowed. In a forked child the call does nothing to a block of the parent.
 * An address inside the heap at which no block begins is a bug of the caller: the call logs it. */
void shc_memory_free(void *memory);

/* Do all these bytes lie in one block of this process? 0 bytes lie there if their address does. In
 * a forked child the blocks of the parent are not its own. */
bool shc_memory_is_shared(const void *memory, size_t bytes);

/* What the heap of this process holds. All zero before the first block, and in a forked child that
 * has none. */
struct shc_memory_counts {
    size_t reserved_bytes; /* memory that the system has given: blocks, and what is kept */
    size_t used_bytes;     /* of the blocks that are in use, in whole pages */
    size_t block_count;    /* in use */
    size_t attached_count; /* heaps of other processes that this one has mapped */
};

void shc_memory_usage(struct shc_memory_counts *usage);

/* ---- the memory of another process ---- */

/* What another process needs to map bytes of this one's blocks: 128 bytes without a meaning to the caller, who hands
 * them over in any way. Valid for processes of the same user, in the same pid namespace, on this machine. */
struct shc_memory_handle {
    unsigned char bytes[128];
};

/* Describes these bytes, which are at least one. SHC_ERR_INVALID: they do not lie in one block of this process. */
enum shc_status shc_memory_export(const void *memory, size_t bytes,
                                  struct shc_memory_handle *handle);

/*
 * Maps those bytes, at *memory, to read and to store; in the process that exported them, that is where they are. A heap
 * is mapped once, whatever the number of imports. The mapping stays valid after the owner has freed the block, and
 * after it has ended: the bytes are then those of a later block of the owner, 0, or the last ones. A forked child does
 * not have it.
 *
 * SHC_ERR_INVALID: it is no handle, or the heap does not have these bytes. SHC_ERR_UNREACHABLE: the owner has ended, or
 * this process may not look at it. SHC_ERR_NOMEM.
 */
enum shc_status shc_memory_import(const struct shc_memory_handle *handle, void **memory,
                                  size_t *bytes);

/* Ends one import, by any address in it. The last one of a heap unmaps it. NULL is allowed. */
void shc_memory_release(void *memory);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
