/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/views.h"

#include "shm/os/lock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct shc_heap_view view;
    size_t users;
    struct entry *next;
};

static struct {
    struct shc_lock lock;
    struct entry *first;
    shc_a64 count; /* for shc_view_count(), which takes no lock */
} views;

/* A child has none of the mappings, but the descriptors. A thread of the parent's may have held the entries. */
void shc_views_forget_parent(void)
{
    for (struct entry *entry = views.first; entry; entry = entry->next)
        shc_os_file_close(entry->view.fd);
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

int shc_view_open(const struct shc_os_process *owner, const struct shc_heap_name *name,
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

void shc_view_close(const struct shc_heap_view *view)
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

size_t shc_view_count(void)
{
    /* relaxed: a number for people. */
    return (size_t)shc_a64_load_relaxed(&views.count);
}
