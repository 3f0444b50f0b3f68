/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/memory.h"

#include "shm/base/log.h"
#include "shm/base/num.h"
#include "shm/comm/blocks.h"
#include "shm/comm/process.h"
#include "shm/comm/views.h"
#include "shm/os/lock.h"
#include "shm/proto/heap.h"
#include "shm/shmcoll_memory.h"

#include <errno.h>

#define KEPT_BYTES  ((size_t)256 << 20) /* of freed blocks, at least */
#define LARGE_BYTES ((size_t)16 << 20)

/* `base` is set once in a process, by the thread that makes the heap, under the lock. */
static struct {
    struct shc_lock lock;
    struct shc_process_mark mark; /* whose heap it is */
    shc_a64 base;                 /* its address; 0: there is no heap */
    struct shc_heap heap;         /* the lock is held for this and what follows */
    struct shc_blocks blocks;
    size_t page_bytes;
} memory;

void shc_memory_forget_parent(void)
{
    shc_views_forget_parent();
    if (memory.heap.base)
        shc_os_file_close(memory.heap.fd);
    memory.lock = (struct shc_lock){0};
    memory.heap = (struct shc_heap){0};
    memory.blocks =
        (struct shc_blocks){0}; /* the old table stays: a thread of the parent's may have held it */
    /* release memory/base -> acquire in heap_base(): that there is no heap. */
    shc_a64_store_release(&memory.base, 0);
}

/* The address of this process's heap; 0: it has none, also a forked child whose parent has one. Takes no lock,
 * which another thread of the parent may have held at the fork. */
static uint64_t heap_base(void)
{
    /* acquire memory/base <- release in make_heap() and shc_memory_forget_parent(). */
    const uint64_t base = shc_a64_load_acquire(&memory.base);
    return base != 0 && shc_process_is(&memory.mark) ? base : 0;
}

/* The offset of that address in this process's heap. False: it lies elsewhere. */
static bool heap_offset(const void *address, size_t *offset)
{
    const uint64_t base = heap_base();
    *offset = (size_t)((uintptr_t)address - base);
    return base != 0 && *offset < SHC_HEAP_RANGE;
}

static enum shc_status make_heap(const struct shc_process_mark *mark)
{
    const int error = shc_heap_make(&memory.heap);
    if (error != 0)
        return shc_fail_errno(
            error == ENOSPC || error == EMFILE || error == ENFILE ? SHC_ERR_NOSPACE
                                                                  : SHC_ERR_UNSUPPORTED,
            error, "shared memory for tensors: cannot make a memfd, or map %zu GiB",
            SHC_HEAP_RANGE >> 30);
    memory.page_bytes = shc_os_page_bytes();
    memory.mark = *mark;
    /* release memory/base -> acquire in heap_base(): whose heap it is. */
    shc_a64_store_release(&memory.base, (uintptr_t)memory.heap.base);
    return SHC_OK;
}

static enum shc_status fail_no_room(size_t bytes, int error)
{
    if (error == 0)
        return shc_fail(
            SHC_ERR_NOSPACE,
            "shared memory for tensors: the heap of this process, of at most %zu GiB, has "
            "no room for %zu bytes",
            SHC_HEAP_RANGE >> 30, bytes);
    return shc_fail_errno(error == ENOSPC || error == EFBIG || error == ENOMEM ? SHC_ERR_NOSPACE
                                                                               : SHC_ERR_SYSTEM,
                          error, "shared memory for tensors: no room for %zu bytes", bytes);
}

/* The lock is held. post: *taken is a block of the heap, whose pages may not be there. */
static enum shc_status take_locked(const struct shc_process_mark *mark, size_t bytes,
                                   struct shc_part *taken, bool *ready)
{
    struct shc_part rest;
    if (!memory.heap.base)
        SHC_TRY(make_heap(mark));
    bytes = shc_align_up(bytes, memory.page_bytes);
    if (!shc_blocks_take(&memory.blocks, bytes, SHC_HEAP_RANGE, taken, ready, &rest))
        return fail_no_room(bytes, 0);
    if (rest.bytes > 0)
        shc_heap_punch(&memory.heap, rest.offset, rest.bytes);
    const int error = shc_heap_grow(&memory.heap, taken->offset + taken->bytes);
    if (error == 0)
        return SHC_OK;
    shc_blocks_give_empty(&memory.blocks, taken->offset);
    return fail_no_room(bytes, error);
}

/* The lock is not held: the block is nobody else's, and its pages take a while. A large one is not even begun
 * where the machine lacks the memory: a memfd has no limit, and the kernel would end some process. */
static int reserve(const struct shc_heap *heap, struct shc_part part)
{
    int error = 0;
    if (part.bytes >= LARGE_BYTES && part.bytes > shc_os_memory_available())
        error = ENOSPC;
    if (error == 0)
        error = shc_heap_reserve(heap, part.offset, part.bytes);
    if (error != 0)
        shc_heap_punch(heap, part.offset, part.bytes);
    return error;
}

enum shc_status shc_memory_alloc(size_t bytes, void **block)
{
    struct shc_process_mark mark;
    struct shc_part taken;
    bool ready;
    if (bytes == 0)
        return shc_fail(SHC_ERR_INVALID, "shared memory for tensors: a block of 0 bytes");
    if (bytes > SHC_HEAP_RANGE)
        return fail_no_room(bytes, 0);
    SHC_TRY(shc_process_be(&mark));
    shc_lock_take(&memory.lock);
    const enum shc_status st = take_locked(&mark, bytes, &taken, &ready);
    const struct shc_heap heap = memory.heap;
    shc_lock_drop(&memory.lock);
    if (st != SHC_OK)
        return st;
    const int error = ready ? 0 : reserve(&heap, taken);
    if (error != 0) {
        shc_lock_take(&memory.lock);
        shc_blocks_give_empty(&memory.blocks, taken.offset);
        shc_lock_drop(&memory.lock);
        return fail_no_room(bytes, error);
    }
    *block = heap.base + taken.offset;
    return SHC_OK;
}

/* A divorced block has gone: its memory comes back, its addresses do not. The lock is held. */
static void drop_lost(struct shc_part part)
{
    shc_heap_punch(&memory.heap, part.offset, part.bytes);
    shc_os_drop_private(memory.heap.base + part.offset, part.bytes);
}

/* How many bytes of freed blocks are kept. */
static size_t most_kept(void)
{
    return memory.blocks.used_bytes > KEPT_BYTES ? memory.blocks.used_bytes : KEPT_BYTES;
}

void shc_memory_free(void *block)
{
    struct shc_part part = {0, 0};
    size_t offset;
    bool known = false;
    if (!block)
        return;
    if (heap_offset(block, &offset)) {
        shc_lock_take(&memory.lock);
        const struct shc_block *entry = shc_blocks_find(&memory.blocks, offset);
        const bool lost = entry && entry->state == SHC_BLOCK_DIVORCED;
        part = entry ? (struct shc_part){entry->offset, entry->bytes} : part;
        known = shc_blocks_give(&memory.blocks, offset);
        if (known && lost)
            drop_lost(part);
        while (known && shc_blocks_trim(&memory.blocks, most_kept(), &part))
            shc_heap_punch(&memory.heap, part.offset, part.bytes);
        shc_lock_drop(&memory.lock);
        if (!known)
            shc_log(SHC_LOG_WARN, "shc_memory_free: no block of this process begins at %p", block);
    }
}

bool shc_memory_place(const void *address, size_t bytes, uint64_t *place)
{
    size_t offset;
    if (!heap_offset(address, &offset))
        return false;
    shc_lock_take(&memory.lock);
    const struct shc_block *block = shc_blocks_find(&memory.blocks, offset);
    const bool shared =
        block && block->state == SHC_BLOCK_USED && bytes <= block->offset + block->bytes - offset;
    shc_lock_drop(&memory.lock);
    if (shared)
        *place = offset;
    return shared;
}

bool shc_memory_is_shared(const void *address, size_t bytes)
{
    uint64_t unused;
    return shc_memory_place(address, bytes, &unused);
}

bool shc_memory_heap_name(struct shc_heap_name *name)
{
    if (heap_base() == 0)
        return false;
    shc_lock_take(&memory.lock);
    *name = memory.heap.name;
    shc_lock_drop(&memory.lock);
    return true;
}

int shc_memory_divorce(void *address, size_t bytes)
{
    uint64_t place;
    if (!heap_offset(address, &place))
        return EINVAL;
    shc_lock_take(&memory.lock);
    const size_t first = place - place % memory.page_bytes;
    const size_t end = shc_align_up(place + bytes, memory.page_bytes);
    char *pages = memory.heap.base + first;
    shc_blocks_divorce(&memory.blocks, place);
    shc_lock_drop(&memory.lock);
    return shc_os_make_private(pages, end - first);
}

const struct shc_heap_hooks shc_memory_hooks = {
    .name = shc_memory_heap_name,
    .place = shc_memory_place,
    .divorce = shc_memory_divorce,
    .open = shc_view_open,
    .close = shc_view_close,
};

void shc_memory_usage(struct shc_memory_counts *usage)
{
    *usage = (struct shc_memory_counts){0};
    if (heap_base() == 0)
        return;
    shc_lock_take(&memory.lock);
    const struct shc_blocks *blocks = &memory.blocks;
    usage->reserved_bytes = blocks->used_bytes + blocks->ready_bytes;
    usage->used_bytes = blocks->used_bytes;
    usage->block_count = blocks->used_count;
    usage->attached_count = shc_view_count();
    shc_lock_drop(&memory.lock);
}
