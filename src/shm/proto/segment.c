/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/segment.h"

#include "shm/base/num.h"

#include <errno.h>
#include <stdio.h>

#define MAX_SEGMENT_SIZE (1ULL << 42)

static bool same_file(const struct shc_os_file_id *a, const struct shc_os_file_id *b)
{
    return a->device == b->device && a->inode == b->inode;
}

static int map_file(struct shc_segment *segment)
{
    struct shc_mapping_cache *cache = segment->cache;
    void *base = NULL;
    const int error = cache ? cache->map(cache, segment, &base)
                            : shc_os_map(segment->fd, segment->bytes, segment->guard_bytes, &base);
    segment->base = error == 0 ? base : NULL;
    return error;
}

static void unmap_file(const struct shc_segment *segment)
{
    if (segment->cache)
        segment->cache->unmap(segment->cache, segment);
    else
        shc_os_unmap(segment->base, segment->bytes, segment->guard_bytes);
}

const char *shc_segment_form_name(uint32_t form)
{
    switch (form) {
    case SHC_FORM_UNNAMED:
        return "unnamed file in /dev/shm";
    case SHC_FORM_NAMED:
        return "named file in /dev/shm";
    case SHC_FORM_MEMFD:
        return "memfd";
    default:
        return "unknown";
    }
}

static int create_file(struct shc_segment *segment)
{
    switch (segment->name.form) {
    case SHC_FORM_UNNAMED:
        return shc_os_shm_create_unnamed(&segment->fd);
    case SHC_FORM_NAMED:
        return shc_os_shm_create_named(&segment->fd, segment->name.path);
    default:
        return shc_os_memfd_create("shmcoll", &segment->fd);
    }
}

static int size_file(struct shc_segment *segment)
{
    size_t bytes;
    int error = shc_os_file_grow(segment->fd, segment->bytes);
    if (error == 0 && segment->name.form == SHC_FORM_MEMFD)
        error = shc_os_memfd_seal(segment->fd);
    if (error == 0)
        error = shc_os_file_stat(segment->fd, &segment->name.file, &bytes);
    if (error == 0)
        error = shc_os_random(segment->name.nonce, sizeof segment->name.nonce);
    return error;
}

static enum shc_status fail_to_create(const struct shc_segment *segment, int error)
{
    char limit[64] = "";
    if (error == EFBIG)
        snprintf(limit, sizeof limit, "; `ulimit -f` must be %zu KiB or more",
                 segment->bytes >> 10);
    return shc_fail_errno(SHC_ERR_SYSTEM, error,
                          "cannot size and map a segment of %zu bytes (%s%s)", segment->bytes,
                          shc_segment_form_name(segment->name.form), limit);
}

enum shc_status shc_segment_create(struct shc_segment *segment, uint32_t form, size_t bytes,
                                   size_t guard_bytes, const struct shc_os_process *self,
                                   struct shc_mapping_cache *cache)
{
    *segment = (struct shc_segment){
        .fd = -1,
        .bytes = shc_align_up(bytes, SHC_PAGE_BYTES),
        .guard_bytes = guard_bytes,
        .cache = cache,
        .name = {.creator = *self, .form = form},
    };
    int error = create_file(segment);
    if (error != 0)
        return shc_fail_errno(error == ENOSPC ? SHC_ERR_NOSPACE : SHC_ERR_SYSTEM, error,
                              "cannot create a segment (%s)", shc_segment_form_name(form));
    error = size_file(segment);
    segment->name.bytes = segment->bytes;
    segment->name.creator_fd = segment->fd;
    if (error == 0)
        error = map_file(segment);
    if (error == 0)
        return SHC_OK;
    shc_segment_detach(segment);
    return fail_to_create(segment, error);
}

static int open_file(const struct shc_segment_name *name, int *fd)
{
    if (name->form == SHC_FORM_NAMED)
        return shc_os_shm_open(name->path, fd);
    return shc_os_process_open_fd(&name->creator, name->creator_fd, &name->file, fd);
}

static void close_file(struct shc_segment *segment)
{
    if (segment->fd >= 0)
        shc_os_file_close(segment->fd);
    segment->fd = -1;
}

enum shc_status shc_segment_attach(struct shc_segment *segment, const struct shc_segment_name *name,
                                   size_t guard_bytes, struct shc_mapping_cache *cache)
{
    *segment = (struct shc_segment){
        .fd = -1,
        .bytes = (size_t)name->bytes,
        .guard_bytes = guard_bytes,
        .cache = cache,
        .name = *name,
    };
    if (name->bytes == 0 || name->bytes % SHC_PAGE_BYTES != 0 || name->bytes > MAX_SEGMENT_SIZE)
        return shc_fail(SHC_ERR_VERSION, "the name of a segment says %llu bytes",
                        (unsigned long long)name->bytes);
    int error = open_file(name, &segment->fd);
    struct shc_os_file_id file;
    size_t bytes = 0;
    if (error == 0)
        error = shc_os_file_stat(segment->fd, &file, &bytes);
    if (error == 0 && (!same_file(&file, &name->file) || bytes != segment->bytes))
        error = ESTALE;
    if (error == 0)
        error = map_file(segment);
    if (error == 0)
        return SHC_OK;
    close_file(segment); /* the name stays: others may still open it */
    if (error == EMFILE || error == ENFILE || error == ENOMEM) /* it could be shared */
        return shc_fail_errno(
            SHC_ERR_SYSTEM, error, "cannot open and map the segment of pid %d (%s, %zu bytes)",
            (int)name->creator.pid, shc_segment_form_name(name->form), segment->bytes);
    return shc_fail_errno(SHC_ERR_UNREACHABLE, error,
                          "cannot open the segment of pid %d (%s). Ranks must share /dev/shm, or "
                          "one pid namespace as one user; containers: a volume at /dev/shm, or "
                          "docker's --ipc=host or --ipc=container:<name>, or kubernetes' "
                          "emptyDir of medium Memory at /dev/shm",
                          (int)name->creator.pid, shc_segment_form_name(name->form));
}

/* ", 4096 bytes available"; nothing if the file system has no limit, or does not tell it. */
static void space_text(const struct shc_segment *segment, char *text, size_t capacity)
{
    size_t available;
    text[0] = '\0';
    if (shc_os_file_space(segment->fd, &available) == 0 && available != SIZE_MAX)
        snprintf(text, capacity, ", %zu bytes available", available);
}

enum shc_status shc_segment_reserve(struct shc_segment *segment, size_t offset, size_t bytes,
                                    uint64_t nodes)
{
    shc_os_place(segment->base + offset, bytes, nodes);
    int error = shc_os_file_reserve(segment->fd, offset, bytes);
    if (error == 0)
        return SHC_OK;
    char space[64];
    space_text(segment, space, sizeof space);
    return shc_fail_errno(error == ENOSPC || error == ENOMEM ? SHC_ERR_NOSPACE : SHC_ERR_SYSTEM,
                          error,
                          "cannot reserve %zu bytes of shared memory (%s%s; docker: --shm-size, "
                          "kubernetes: an emptyDir of medium Memory)",
                          bytes, shc_segment_form_name(segment->name.form), space);
}

void shc_segment_settle(struct shc_segment *segment)
{
    if (segment->name.form == SHC_FORM_NAMED) {
        shc_os_shm_unlink(segment->name.path); /* also if it could not be opened: once is enough */
        segment->name.path[0] = '\0';
    }
    close_file(segment);
}

void shc_segment_detach(struct shc_segment *segment)
{
    shc_segment_settle(segment);
    if (segment->base)
        unmap_file(segment);
    segment->base = NULL;
}
