/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The out-of-band channel of a group (OOB): its store and its watch, and the threads that are inside a call of one of
 * them, which nothing can end. It may outlive the group. The group, each thread and each work item hold a reference; the
 * last one frees it.
 *
 * `group` says whether the group is still there: it is NULL from shc_oob_close() on. A thread uses the group only
 * between shc_oob_enter() and shc_oob_leave(), which the close waits for; no call of the store is made there.
 */

#include "hosts/hosts.h"

#include "shm/base/attrs.h"
#include "shm/base/clock.h"

struct shc_oob;

/* Copies the store, and retains it. NULL: no memory. */
struct shc_oob *shc_oob_create(const struct shc_store *store, const char *prefix, void *group);

/* The watch is the channel's from now on. */
void shc_oob_take_watch(struct shc_oob *oob, const struct shc_watch *watch);
const struct shc_watch *shc_oob_watch(const struct shc_oob *oob);
const struct shc_store *shc_oob_store(const struct shc_oob *oob);

/* Does nobody listen at the store's port? torch's TCPStore would find that out, too, but writes the stack of its caller
 * to stderr. False: somebody does, or that is not known within 0.2 s. */
bool shc_oob_refuses(const struct shc_oob *oob);

/* "<prefix>/<what>", or with number >= 0 "<prefix>/<what>/<number>". */
#define SHC_OOB_KEY_BYTES 96
void shc_oob_key(const struct shc_oob *oob, const char *what, int number,
                 char key[SHC_OOB_KEY_BYTES]);

/* The group goes: no thread uses it any longer. False: it had gone before. */
bool shc_oob_close(struct shc_oob *oob);

/* The group's reference, after the close. If the store or the watch is the caller's, waits for the end of their calls. */
void shc_oob_release(struct shc_oob *oob);

/* ---- a thread of the group ---- */

/* Starts a thread, which ends with shc_oob_drop(). An errno: there is none. */
SHC_NODISCARD int shc_oob_start(struct shc_oob *oob, void *(*entry)(void *), void *arg);
void shc_oob_drop(struct shc_oob *oob);

/* The group; NULL: it is gone, and there is nothing to leave. */
SHC_NODISCARD void *shc_oob_enter(struct shc_oob *oob);
void shc_oob_leave(struct shc_oob *oob);

/* Sleeps, at most that long, until the next shc_oob_stir() or the close; not at all if there was one since the last
 * pause. One thread of the channel does. False: the group is gone. */
SHC_NODISCARD bool shc_oob_pause(struct shc_oob *oob, uint64_t ns);
void shc_oob_stir(struct shc_oob *oob);

/* Guards what the threads of a rank share. No call of the store and none of the group is made under it. */
void shc_oob_lock(struct shc_oob *oob);
void shc_oob_unlock(struct shc_oob *oob);

/* ---- work items ---- */

/* Calls of the store that may take for ever, made by a thread of their own. `run` uses the store and the work item's
 * memory alone. */
struct shc_work_item {
    struct shc_oob *oob;
    void (*run)(struct shc_work_item *item);
    int references;
    bool done;
    int error;        /* an errno of the store, set by `run` */
    uint64_t *memory; /* `bytes`, zero at first: its input and its output */
};

/* NULL: no memory. */
SHC_NODISCARD struct shc_work_item *
shc_work_item_create(struct shc_oob *oob, void (*run)(struct shc_work_item *item), size_t bytes);

/* Begins it. If there is no thread for it: `run` is called now if `anyway`, or the work item fails with EAGAIN. */
void shc_work_item_start(struct shc_work_item *item, bool anyway);

/* Waits at most that long. True: it is done, and its memory is the caller's until the drop. */
SHC_NODISCARD bool shc_work_item_wait(struct shc_work_item *item, uint64_t ns);

void shc_work_item_drop(struct shc_work_item *item);
