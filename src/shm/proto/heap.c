/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/heap.h"

#include <errno.h>

int shc_heap_make(struct shc_heap *heap)
{
    struct shc_heap made = {.fd = -1};
    void *base = NULL;
    size_t bytes;
    int error = shc_os_memfd_create("shmcoll-heap", &made.fd);
    if (error != 0)
        return error;
    error = shc_os_memfd_seal_against_shrinking(made.fd);
    if (error == 0)
        error = shc_os_file_stat(made.fd, &made.name.file, &bytes);
    if (error == 0)
        error = shc_os_random(made.name.nonce, sizeof made.name.nonce);
    if (error == 0)
        error = shc_os_map_range(made.fd, SHC_HEAP_RANGE, &base);
    if (error != 0) {
        shc_os_file_close(made.fd);
        return error;
    }
    made.name.owner_fd = made.fd;
    made.base = base;
    *heap = made;
    return 0;
}

/* Is the descriptor still the heap's (HEAP-15)? */
static bool has_file(const struct shc_heap *heap)
{
    return shc_os_file_is(heap->fd, &heap->name.file);
}

int shc_heap_grow(struct shc_heap *heap, size_t bytes)
{
    if (bytes <= heap->bytes)
        return 0;
    const int error = has_file(heap) ? shc_os_file_grow(heap->fd, bytes) : EBADF;
    if (error == 0)
        heap->bytes = bytes;
    return error;
}

int shc_heap_reserve(const struct shc_heap *heap, size_t offset, size_t bytes)
{
    return has_file(heap) ? shc_os_file_reserve(heap->fd, offset, bytes) : EBADF;
}

void shc_heap_punch(const struct shc_heap *heap, size_t offset, size_t bytes)
{
    if (has_file(heap))
        shc_os_file_punch(heap->fd, offset, bytes);
}

int shc_heap_attach(struct shc_heap_view *view, const struct shc_os_process *owner,
                    const struct shc_heap_name *name)
{
    struct shc_heap_view made = {.owner = *owner, .name = *name, .fd = -1};
    struct shc_os_file_id file;
    void *base = NULL;
    int error = shc_os_process_open_fd(owner, name->owner_fd, &name->file, &made.fd);
    if (error != 0)
        return error;
    error = shc_os_file_stat(made.fd, &file, &made.bytes);
    if (error == 0 &&
        (!shc_os_file_is_ours(made.fd, true) || !shc_os_memfd_is_sealed_against_shrinking(made.fd)))
        error = EPERM;
    if (error == 0)
        error = shc_os_map_range(made.fd, SHC_HEAP_RANGE, &base);
    if (error != 0) {
        shc_os_file_close(made.fd);
        return error;
    }
    shc_os_keep_from_children(base, SHC_HEAP_RANGE);
    made.base = base;
    *view = made;
    return 0;
}

void shc_heap_detach(struct shc_heap_view *view)
{
    if (!view->base)
        return;
    shc_os_unmap(view->base, SHC_HEAP_RANGE, 0);
    shc_os_file_close_own(view->fd, &view->name.file);
    view->base = NULL;
}

char *shc_heap_at(struct shc_heap_view *view, uint64_t offset, uint64_t bytes)
{
    struct shc_os_file_id file;
    size_t now;
    if (offset > SHC_HEAP_RANGE || bytes > SHC_HEAP_RANGE - offset)
        return NULL;
    if (offset + bytes > view->bytes && shc_os_file_stat(view->fd, &file, &now) == 0 &&
        file.device == view->name.file.device && file.inode == view->name.file.inode)
        view->bytes = now;
    return offset + bytes <= view->bytes ? view->base + offset : NULL;
}
