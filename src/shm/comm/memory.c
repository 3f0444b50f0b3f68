/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/memory.h"

#include "shm/base/log.h"
#include "shm/base/num.h"
#include "shm/comm/blocks.h"
#include "shm/comm/process.h"
#include "shm/os/lock.h"
#include "shm/proto/heap.h"
#include "shm/shmcoll_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KEPT_BYTES  ((size_t)256 << 20) /* of freed blocks, at least */
#define LARGE_BYTES ((size_t)16 << 20)

/* ---- other processes' heaps: each is mapped once, whatever the number of groups (HEAP-6) ---- */

struct entry {
    struct shc_heap_view view;
    size_t users;
    struct entry *next;
};

static struct {
    struct shc_lock lock;
    struct entry *first;
    shc_a64 count; /* a number for people, who take no lock */
} views;

/* A child has none of the mappings, so that it cannot store into other processes' tensors, but the descriptors. A
 * thread of the parent's may have held the entries. */
static void forget_views(void)
{
    for (struct entry *entry = views.first; entry; entry = entry->next)
        shc_os_file_close_own(entry->view.fd, &entry->view.name.file);
    views.lock = (struct shc_lock){0};
    views.first = NULL;
    /* relaxed: the child has one thread. */
    shc_a64_store_relaxed(&views.count, 0);
}

static bool is_of(const struct entry *entry, const struct shc_os_process *owner,
                  const struct shc_heap_name *name)
{
    const struct shc_os_process *process = &entry->view.owner;
    const struct shc_heap_name *known = &entry->view.name;
    return process->pid == owner->pid && process->start_time == owner->start_time &&
           known->owner_fd == name->owner_fd && known->file.device == name->file.device &&
           known->file.inode == name->file.inode &&
           memcmp(known->nonce, name->nonce, sizeof known->nonce) == 0;
}

/* The lock is held. */
static int add(const struct shc_os_process *owner, const struct shc_heap_name *name,
               struct entry **out)
{
    struct entry *made = calloc(1, sizeof *made);
    if (!made)
        return ENOMEM;
    const int error = shc_heap_attach(&made->view, owner, name);
    if (error != 0) {
        free(made);
        return error;
    }
    made->next = views.first;
    views.first = made;
    /* relaxed: stored to under the lock; a number for people. */
    shc_a64_store_relaxed(&views.count, shc_a64_load_relaxed(&views.count) + 1);
    *out = made;
    return 0;
}

/* Maps that heap, unless it is mapped, and counts its users. As shc_heap_attach(). post: *view is a copy, for the
 * caller alone. */
static int open_view(const struct shc_os_process *owner, const struct shc_heap_name *name,
                     struct shc_heap_view *view)
{
    int error = 0;
    shc_lock_take(&views.lock);
    struct entry *entry = views.first;
    while (entry && !is_of(entry, owner, name))
        entry = entry->next;
    if (!entry)
        error = add(owner, name, &entry);
    if (error == 0) {
        entry->users++;
        *view = entry->view;
    }
    shc_lock_drop(&views.lock);
    return error;
}

/* One user less; the last one unmaps it. */
static void close_view(const struct shc_heap_view *view)
{
    shc_lock_take(&views.lock);
    struct entry **at = &views.first;
    while (*at && (*at)->view.base != view->base)
        at = &(*at)->next;
    struct entry *entry = *at;
    if (entry && --entry->users == 0) {
        *at = entry->next;
        shc_heap_detach(&entry->view);
        free(entry);
        /* relaxed: stored to under the lock; a number for people. */
        shc_a64_store_relaxed(&views.count, shc_a64_load_relaxed(&views.count) - 1);
    }
    shc_lock_drop(&views.lock);
}

/* ---- this process's heap ---- */

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
    forget_views();
    if (memory.heap.base)
        shc_os_file_close_own(memory.heap.fd, &memory.heap.name.file);
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
    const bool full = error == ENOSPC || error == EFBIG || error == ENOMEM || error == EBADF;
    const char *why = "there is";
    if (error == EFBIG)
        why = "`ulimit -f` leaves";
    else if (error == EBADF)
        why = "the program has closed its descriptor, so there is";
    return shc_fail_errno(full ? SHC_ERR_NOSPACE : SHC_ERR_SYSTEM, error,
                          "shared memory for tensors: %s no room for %zu bytes", why, bytes);
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
    .open = open_view,
    .close = close_view,
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
    /* relaxed: a number for people. */
    usage->attached_count = (size_t)shc_a64_load_relaxed(&views.count);
    shc_lock_drop(&memory.lock);
}

/* ---- handles ---- */

static const char magic[8] = "shcmem1";

struct exported {
    char magic[sizeof magic];
    struct shc_os_process owner;
    struct shc_heap_name name;
    uint64_t offset, bytes;
};

_Static_assert(sizeof(struct exported) <= sizeof(struct shc_memory_handle), "it does not fit");

enum shc_status shc_memory_export(const void *address, size_t bytes,
                                  struct shc_memory_handle *handle)
{
    struct exported made = {.bytes = bytes};
    memcpy(made.magic, magic, sizeof magic);
    if (bytes == 0 || !shc_memory_place(address, bytes, &made.offset) ||
        !shc_memory_heap_name(&made.name))
        return shc_fail(SHC_ERR_INVALID,
                        "shared memory for tensors: %zu bytes at %p are not in one block of this "
                        "process",
                        bytes, address);
    const int error = shc_os_process_self(&made.owner);
    if (error != 0)
        return shc_fail_errno(SHC_ERR_SYSTEM, error, "cannot read this process's /proc");
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &made, sizeof made);
    return SHC_OK;
}

/* Of this process, which reaches it without a mapping? */
static bool is_own(const struct exported *given)
{
    struct shc_heap_name name;
    return shc_memory_heap_name(&name) && memcmp(&name, &given->name, sizeof name) == 0;
}

static enum shc_status fail_import(const struct exported *given, int error)
{
    return shc_fail_errno(error == ENOMEM ? SHC_ERR_NOMEM : SHC_ERR_UNREACHABLE, error,
                          "cannot map the tensors that process %d has in shared memory",
                          given->owner.pid);
}

enum shc_status shc_memory_import(const struct shc_memory_handle *handle, void **address,
                                  size_t *bytes)
{
    struct exported given;
    struct shc_heap_view view;
    memcpy(&given, handle, sizeof given);
    if (memcmp(given.magic, magic, sizeof magic) != 0 || given.bytes == 0 ||
        given.offset >= SHC_HEAP_RANGE || given.bytes > SHC_HEAP_RANGE - given.offset)
        return shc_fail(SHC_ERR_INVALID, "shared memory for tensors: that is no handle");
    *bytes = given.bytes;
    if (is_own(&given)) {
        *address = (char *)(uintptr_t)heap_base() + given.offset;
        return SHC_OK;
    }
    const int error = open_view(&given.owner, &given.name, &view);
    if (error != 0)
        return fail_import(&given, error);
    *address = shc_heap_at(&view, given.offset, given.bytes);
    if (*address)
        return SHC_OK;
    close_view(&view);
    return shc_fail(SHC_ERR_INVALID, "shared memory for tensors: process %d has no such bytes",
                    given.owner.pid);
}

void shc_memory_release(void *address)
{
    struct shc_heap_view found = {.base = NULL};
    shc_lock_take(&views.lock);
    for (struct entry *entry = views.first; entry; entry = entry->next)
        if ((uintptr_t)address - (uintptr_t)entry->view.base < SHC_HEAP_RANGE)
            found = entry->view;
    shc_lock_drop(&views.lock);
    if (found.base)
        close_view(&found);
}
