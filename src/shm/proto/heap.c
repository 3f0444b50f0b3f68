/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/heap.h"

int shc_heap_make(struct shc_heap *heap)
{
    struct shc_heap made = {.fd = -1};
    void *base = NULL;
    int error = shc_os_memfd_create("shmcoll-heap", &made.fd);
    if (error != 0)
        return error;
    error = shc_os_memfd_seal_against_shrinking(made.fd);
    if (error == 0)
        error = shc_os_map_range(made.fd, SHC_HEAP_RANGE, &base);
    if (error != 0) {
        shc_os_file_close(made.fd);
        return error;
    }
    made.base = base;
    *heap = made;
    return 0;
}

int shc_heap_grow(struct shc_heap *heap, size_t bytes)
{
    if (bytes <= heap->bytes)
        return 0;
    const int error = shc_os_file_grow(heap->fd, bytes);
    if (error == 0)
        heap->bytes = bytes;
    return error;
}

int shc_heap_reserve(const struct shc_heap *heap, size_t offset, size_t bytes)
{
    return shc_os_file_reserve(heap->fd, offset, bytes);
}

void shc_heap_punch(const struct shc_heap *heap, size_t offset, size_t bytes)
{
    shc_os_file_punch(heap->fd, offset, bytes);
}
