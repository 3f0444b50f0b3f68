/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/hostarena.h"
#include "cuda_ipc/cuda_error.h"
#include "cuda_ipc/timeline.h"
#include "shm/base/num.h"

#include <stdlib.h>
#include <string.h>

#define HOST_MAGIC 0x3461736f68636873ULL /* the layout's version is its first byte */

_Static_assert(sizeof(struct shc_cuda_record) == SHC_LINE_BYTES, "records fill lines");
_Static_assert(sizeof(struct shc_part_shm) % SHC_LINE_BYTES == 0, "parts fill lines");
_Static_assert(sizeof(struct shc_lane_shm) % SHC_LINE_BYTES == 0, "lanes fill lines");
_Static_assert(sizeof(struct shc_host_header_shm) <= SHC_PAGE_BYTES, "the header fits its page");

static void lay_out(struct shc_host *host, size_t half_bytes, size_t cell_bytes, size_t box_bytes)
{
    const size_t world = (size_t)host->world;
    host->ends_offset =
        sizeof(struct shc_part_shm) + shc_host_waited(host) * sizeof(struct shc_lone_shm);
    host->counts_offset = host->ends_offset + 2 * world * sizeof(struct shc_lane_shm);
    const size_t counts = 2 * 2 * world * sizeof(uint64_t);
    host->halves_offset = shc_align_up(host->counts_offset + counts, SHC_PAGE_BYTES);
    host->cells_offset =
        shc_align_up(host->halves_offset + shc_data_bytes(half_bytes, host->world), SHC_PAGE_BYTES);
    host->boxes_offset =
        shc_align_up(host->cells_offset + SHC_RELAY_CELLS * cell_bytes, SHC_PAGE_BYTES);
    host->box_bytes = box_bytes;
    host->part_bytes =
        shc_align_up(host->boxes_offset + SHC_BOXES * world * box_bytes, SHC_PAGE_BYTES);
    host->bytes = SHC_PAGE_BYTES + world * host->part_bytes;
}

/* Rank 0's memory, or none yet. */
static enum shc_status offer(struct shc_host *host)
{
    host->fd = -1;
    const int error = host->rank == 0 ? shc_sys_memory_make(host->bytes, &host->fd) : 0;
    if (error)
        return shc_cuda_fail_errno(SHC_ERR_NOSPACE, error, "a host arena of %zu bytes",
                                   host->bytes);
    return SHC_OK;
}

static enum shc_status accept_offer(struct shc_host *host, struct shc_control_message *theirs)
{
    if (host->rank == 0)
        return SHC_OK;
    host->fd = theirs[0].fd;
    theirs[0].fd = -1;
    if (host->fd < 0)
        return shc_cuda_fail(SHC_ERR_VERSION, "rank 0 made no host arena");
    const int error = shc_sys_memory_check(host->fd, host->bytes);
    if (error)
        return shc_cuda_fail_errno(SHC_ERR_VERSION, error,
                                   "what rank 0 sent is no host arena of %zu bytes", host->bytes);
    return SHC_OK;
}

static enum shc_status reserve(struct shc_host *host)
{
    const size_t own = SHC_PAGE_BYTES + (size_t)host->rank * host->part_bytes;
    const size_t begin = host->rank == 0 ? 0 : own; /* rank 0 has the header, too */
    int error = shc_sys_memory_reserve(host->fd, begin, own + host->part_bytes - begin);
    if (error)
        return shc_cuda_fail_errno(SHC_ERR_NOSPACE, error,
                                   "%zu bytes of a host arena cannot be reserved (is the memory "
                                   "cgroup full? It needs %zu less without a relay)",
                                   host->part_bytes, host->part_bytes - host->cells_offset);
    void *base;
    error = shc_sys_memory_map(host->fd, host->bytes, &base);
    if (error)
        return shc_cuda_fail_errno(SHC_ERR_NOMEM, error, "a host arena of %zu bytes", host->bytes);
    host->base = base;
    return SHC_OK;
}

enum shc_status shc_host_share(struct shc_control *control, size_t half_bytes, size_t cell_bytes,
                               size_t box_bytes, uint64_t deadline_ns, struct shc_host *host)
{
    struct shc_host made;
    struct shc_control_message mine = {.count = 1};
    struct shc_control_message *theirs = malloc((size_t)control->world * sizeof *theirs);
    if (theirs == NULL)
        return shc_cuda_fail(SHC_ERR_NOMEM, "out of memory");
    memset(&made, 0, sizeof made);
    made.rank = control->rank;
    made.world = control->world;
    lay_out(&made, half_bytes, cell_bytes, box_bytes);
    enum shc_status st = offer(&made);
    char failure[SHC_CUDA_ERROR_BYTES];
    memcpy(failure, shc_cuda_failure(), sizeof failure);
    mine.fd = made.fd; /* also without: the others wait for it */
    const enum shc_status swapped = shc_control_swap(control, &mine, deadline_ns, theirs);
    if (st != SHC_OK)
        (void)!shc_cuda_fail(st, "%s", failure); /* the swap's is not the reason */
    else
        st = swapped == SHC_OK ? accept_offer(&made, theirs) : swapped;
    if (swapped == SHC_OK)
        shc_control_close_received(theirs, control->world);
    free(theirs);
    if (st == SHC_OK)
        st = reserve(&made);
    shc_sys_close(made.fd); /* the mapping stays */
    made.fd = -1;
    if (st == SHC_OK)
        *host = made;
    return st;
}

void shc_host_begin(struct shc_host *host)
{
    /* The pages are zero; this writes them where this thread runs. */
    memset(shc_host_part(host, host->rank), 0, host->part_bytes);
    struct shc_host_header_shm *header = shc_host_header(host);
    if (host->rank == 0) {
        header->magic = HOST_MAGIC;
        header->world = (uint64_t)host->world;
        header->part_bytes = host->part_bytes;
    }
    /* relaxed: its only reader is this rank. No rank waits for itself. */
    shc_a64_store_relaxed(&shc_host_word(host, host->rank, SHC_ROW_ARRIVAL, host->rank)->word,
                          SHC_TIMELINE_LAST);
}

enum shc_status shc_host_register(struct shc_host *host, const struct shc_gpu *gpu)
{
    const struct shc_driver *driver = gpu->driver;
    struct shc_host_header_shm header;
    shc_copy_once(&header, shc_host_header(host), sizeof header);
    if (header.magic != HOST_MAGIC || header.world != (uint64_t)host->world ||
        header.part_bytes != host->part_bytes)
        return shc_cuda_fail(SHC_ERR_VERSION, "rank 0's host arena has another layout");
    SHC_TRY(shc_gpu_enter(gpu));
    int result = driver->cuMemHostRegister(host->base, host->bytes,
                                           SHC_CU_HOST_PORTABLE | SHC_CU_HOST_DEVICEMAP);
    if (result == SHC_CU_SUCCESS) {
        host->gpu = gpu;
        result = driver->cuMemHostGetDevicePointer(&host->device, host->base, 0);
    }
    shc_gpu_leave(gpu);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result,
                               "%zu bytes of host memory cannot be shown to %s (ulimit -l?)",
                               host->bytes, gpu->name);
    return SHC_OK;
}

void shc_host_undo(struct shc_host *host)
{
    if (host->gpu != NULL && shc_gpu_enter(host->gpu) == SHC_OK) {
        (void)host->gpu->driver->cuMemHostUnregister(host->base);
        shc_gpu_leave(host->gpu);
    }
    if (host->base != NULL)
        shc_sys_memory_unmap(host->base, host->bytes);
    memset(host, 0, sizeof *host);
    host->fd = -1;
}
