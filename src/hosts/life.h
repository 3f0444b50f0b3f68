/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * What of a group may outlive it: its store and its watch, and the threads that are inside a call of one of them,
 * which nothing can end. The group, each thread and each errand hold a reference; the last one frees it.
 *
 * `group` says whether the group is still there: it is NULL from shc_life_close() on. A thread uses the group only
 * between shc_life_enter() and shc_life_leave(), which the close waits for; no call of the store is made there.
 */

#include "hosts/hosts.h"

#include "shm/base/attrs.h"
#include "shm/base/clock.h"

struct shc_life;

/* Copies the store, and retains it. NULL: no memory. */
struct shc_life *shc_life_create(const struct shc_store *store, const char *prefix, void *group);

/* The watch is the life's from now on. */
void shc_life_take_watch(struct shc_life *life, const struct shc_watch *watch);
const struct shc_watch *shc_life_watch(const struct shc_life *life);
const struct shc_store *shc_life_store(const struct shc_life *life);

/* "<prefix>/<what>", or with number >= 0 "<prefix>/<what>/<number>". */
#define SHC_LIFE_KEY_BYTES 96
void shc_life_key(const struct shc_life *life, const char *what, int number,
                  char key[SHC_LIFE_KEY_BYTES]);

/* The group goes: no thread uses it any longer. False: it had gone before. */
bool shc_life_close(struct shc_life *life);

/* The group's reference, after the close. If the store or the watch is the caller's, waits for the end of their calls. */
void shc_life_release(struct shc_life *life);

/* ---- a thread of the group ---- */

/* Starts a thread, which ends with shc_life_drop(). An errno: there is none. */
SHC_NODISCARD int shc_life_start(struct shc_life *life, void *(*entry)(void *), void *arg);
void shc_life_drop(struct shc_life *life);

/* The group; NULL: it is gone, and there is nothing to leave. */
SHC_NODISCARD void *shc_life_enter(struct shc_life *life);
void shc_life_leave(struct shc_life *life);

/* Sleeps, at most that long, until the next shc_life_stir() or the close. False: the group is gone. */
SHC_NODISCARD bool shc_life_pause(struct shc_life *life, uint64_t ns);
void shc_life_stir(struct shc_life *life);

/* Guards what the threads of a rank share. No call of the store and none of the group is made under it. */
void shc_life_lock(struct shc_life *life);
void shc_life_unlock(struct shc_life *life);

/* ---- errands ---- */

/* Calls of the store that may take for ever, made by a thread of their own. `run` uses the store and the errand's
 * memory alone. */
struct shc_errand {
    struct shc_life *life;
    void (*run)(struct shc_errand *errand);
    int references;
    bool done;
    int error;        /* an errno of the store, set by `run` */
    uint64_t *memory; /* `bytes`, zero at first: its input and its output */
};

/* NULL: no memory. */
SHC_NODISCARD struct shc_errand *
shc_errand_create(struct shc_life *life, void (*run)(struct shc_errand *errand), size_t bytes);

/* Begins it. If there is no thread for it: `run` is called now if `anyway`, or the errand fails with EAGAIN. */
void shc_errand_start(struct shc_errand *errand, bool anyway);

/* Waits at most that long. True: it is done, and its memory is the caller's until the drop. */
SHC_NODISCARD bool shc_errand_wait(struct shc_errand *errand, uint64_t ns);

void shc_errand_drop(struct shc_errand *errand);
