/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/oob.h"

#include "hosts/hosts_sys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shc_oob {
    pthread_mutex_t lock; /* guards the rest, all work items, and what shc_oob_lock() says */
    pthread_cond_t stir;
    struct shc_store store;
    struct shc_watch watch;
    char prefix[SHC_HOSTS_PREFIX_BYTES];
    void *group;    /* NULL: it is gone */
    int inside;     /* threads that use the group */
    bool stirred;   /* since the end of the last pause */
    int references; /* the group's, and one of each thread and work item */
};

static bool is_kept(const struct shc_store *store)
{
    return store->retain && store->release;
}

struct shc_oob *shc_oob_create(const struct shc_store *store, const char *prefix, void *group)
{
    struct shc_oob *oob = calloc(1, sizeof *oob);
    if (!oob)
        return NULL;
    pthread_mutex_init(&oob->lock, NULL);
    shc_hosts_cond_init(&oob->stir);
    snprintf(oob->prefix, sizeof oob->prefix, "%s", prefix);
    oob->store = *store;
    oob->group = group;
    oob->references = 1;
    if (is_kept(store))
        store->retain(store->ctx);
    return oob;
}

void shc_oob_take_watch(struct shc_oob *oob, const struct shc_watch *watch)
{
    oob->watch = *watch;
}

const struct shc_watch *shc_oob_watch(const struct shc_oob *oob)
{
    return oob->watch.wait ? &oob->watch : NULL;
}

const struct shc_store *shc_oob_store(const struct shc_oob *oob)
{
    return &oob->store;
}

bool shc_oob_refuses(const struct shc_oob *oob)
{
    /* "TCPStore at host:port" */
    const struct shc_store *store = &oob->store;
    const char *word = store->server ? strrchr(store->server, ' ') : NULL;
    const char *colon = word ? strrchr(word, ':') : NULL;
    char host[256];
    if (!colon || store->server_port <= 0)
        return false;
    snprintf(host, sizeof host, "%.*s", (int)(colon - word - 1), word + 1);
    return shc_hosts_refuses(host, store->server_port);
}

void shc_oob_key(const struct shc_oob *oob, const char *what, int number,
                 char key[SHC_OOB_KEY_BYTES])
{
    const int used = snprintf(key, SHC_OOB_KEY_BYTES, "%s/%s", oob->prefix, what);
    if (number >= 0)
        snprintf(key + used, SHC_OOB_KEY_BYTES - (size_t)used, "/%d", number);
}

void shc_oob_lock(struct shc_oob *oob)
{
    pthread_mutex_lock(&oob->lock);
}

void shc_oob_unlock(struct shc_oob *oob)
{
    pthread_mutex_unlock(&oob->lock);
}

bool shc_oob_close(struct shc_oob *oob)
{
    pthread_mutex_lock(&oob->lock);
    const bool there = oob->group != NULL;
    oob->group = NULL;
    pthread_cond_broadcast(&oob->stir);
    while (oob->inside > 0)
        pthread_cond_wait(&oob->stir, &oob->lock);
    pthread_mutex_unlock(&oob->lock);
    return there;
}

void shc_oob_drop(struct shc_oob *oob)
{
    pthread_mutex_lock(&oob->lock);
    const bool last = --oob->references == 0;
    pthread_cond_broadcast(&oob->stir);
    pthread_mutex_unlock(&oob->lock);
    if (!last)
        return;
    if (oob->watch.release)
        oob->watch.release(oob->watch.ctx);
    if (is_kept(&oob->store))
        oob->store.release(oob->store.ctx);
    pthread_cond_destroy(&oob->stir);
    pthread_mutex_destroy(&oob->lock);
    free(oob);
}

void shc_oob_release(struct shc_oob *oob)
{
    const bool waits = !is_kept(&oob->store) || (oob->watch.wait != NULL && !oob->watch.release);
    pthread_mutex_lock(&oob->lock);
    while (waits && oob->references > 1)
        pthread_cond_wait(&oob->stir, &oob->lock);
    pthread_mutex_unlock(&oob->lock);
    shc_oob_drop(oob);
}

/* ---- a thread of the group ---- */

int shc_oob_start(struct shc_oob *oob, void *(*entry)(void *), void *arg)
{
    pthread_mutex_lock(&oob->lock);
    oob->references++;
    pthread_mutex_unlock(&oob->lock);
    const int error = shc_hosts_start_thread("shc-hosts", entry, arg);
    if (error)
        shc_oob_drop(oob);
    return error;
}

void *shc_oob_enter(struct shc_oob *oob)
{
    pthread_mutex_lock(&oob->lock);
    void *group = oob->group;
    oob->inside += group != NULL;
    pthread_mutex_unlock(&oob->lock);
    return group;
}

void shc_oob_leave(struct shc_oob *oob)
{
    pthread_mutex_lock(&oob->lock);
    oob->inside--;
    pthread_cond_broadcast(&oob->stir);
    pthread_mutex_unlock(&oob->lock);
}

bool shc_oob_pause(struct shc_oob *oob, uint64_t ns)
{
    const uint64_t deadline_ns = shc_deadline_after(shc_clock_ns(), ns);
    pthread_mutex_lock(&oob->lock);
    if (oob->group && !oob->stirred)
        (void)shc_hosts_cond_wait(&oob->stir, &oob->lock, deadline_ns);
    oob->stirred = false;
    const bool there = oob->group != NULL;
    pthread_mutex_unlock(&oob->lock);
    return there;
}

void shc_oob_stir(struct shc_oob *oob)
{
    pthread_mutex_lock(&oob->lock);
    oob->stirred = true;
    pthread_cond_broadcast(&oob->stir);
    pthread_mutex_unlock(&oob->lock);
}

/* ---- work items ---- */

struct shc_work_item *shc_work_item_create(struct shc_oob *oob,
                                           void (*run)(struct shc_work_item *item), size_t bytes)
{
    struct shc_work_item *item = calloc(1, sizeof *item);
    uint64_t *memory = calloc(bytes / sizeof *memory + 1, sizeof *memory);
    if (!item || !memory) {
        free(item);
        free(memory);
        return NULL;
    }
    *item = (struct shc_work_item){.oob = oob, .run = run, .references = 1, .memory = memory};
    pthread_mutex_lock(&oob->lock);
    oob->references++;
    pthread_mutex_unlock(&oob->lock);
    return item;
}

static void *serve(void *arg)
{
    struct shc_work_item *item = arg;
    struct shc_oob *oob = item->oob;
    item->run(item);
    pthread_mutex_lock(&oob->lock);
    item->done = true;
    pthread_cond_broadcast(&oob->stir);
    pthread_mutex_unlock(&oob->lock);
    shc_work_item_drop(item);
    shc_oob_drop(oob);
    return NULL;
}

void shc_work_item_start(struct shc_work_item *item, bool anyway)
{
    item->references++;
    if (shc_oob_start(item->oob, serve, item) == 0)
        return;
    item->references--;
    item->error = EAGAIN;
    if (anyway)
        item->run(item);
    item->done = true;
}

bool shc_work_item_wait(struct shc_work_item *item, uint64_t ns)
{
    struct shc_oob *oob = item->oob;
    const uint64_t deadline_ns = shc_deadline_after(shc_clock_ns(), ns);
    pthread_mutex_lock(&oob->lock);
    while (!item->done && ns > 0 && shc_hosts_cond_wait(&oob->stir, &oob->lock, deadline_ns))
        continue;
    const bool done = item->done;
    pthread_mutex_unlock(&oob->lock);
    return done;
}

void shc_work_item_drop(struct shc_work_item *item)
{
    struct shc_oob *oob = item->oob;
    pthread_mutex_lock(&oob->lock);
    const bool last = --item->references == 0;
    pthread_mutex_unlock(&oob->lock);
    if (!last)
        return;
    free(item->memory);
    free(item);
    shc_oob_drop(oob);
}
