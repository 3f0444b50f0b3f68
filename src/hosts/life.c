/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/life.h"

#include "hosts/hosts_sys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shc_life {
    pthread_mutex_t lock; /* guards the rest, all errands, and what shc_life_lock() says */
    pthread_cond_t stir;
    struct shc_store store;
    struct shc_watch watch;
    char prefix[SHC_HOSTS_PREFIX_BYTES];
    void *group;    /* NULL: it is gone */
    int inside;     /* threads that use the group */
    int references; /* the group's, and one of each thread and errand */
};

static bool is_kept(const struct shc_store *store)
{
    return store->retain && store->release;
}

struct shc_life *shc_life_create(const struct shc_store *store, const char *prefix, void *group)
{
    struct shc_life *life = calloc(1, sizeof *life);
    if (!life)
        return NULL;
    pthread_mutex_init(&life->lock, NULL);
    shc_hosts_cond_init(&life->stir);
    snprintf(life->prefix, sizeof life->prefix, "%s", prefix);
    life->store = *store;
    life->group = group;
    life->references = 1;
    if (is_kept(store))
        store->retain(store->ctx);
    return life;
}

void shc_life_take_watch(struct shc_life *life, const struct shc_watch *watch)
{
    life->watch = *watch;
}

const struct shc_watch *shc_life_watch(const struct shc_life *life)
{
    return life->watch.wait ? &life->watch : NULL;
}

const struct shc_store *shc_life_store(const struct shc_life *life)
{
    return &life->store;
}

void shc_life_key(const struct shc_life *life, const char *what, int number,
                  char key[SHC_LIFE_KEY_BYTES])
{
    const int used = snprintf(key, SHC_LIFE_KEY_BYTES, "%s/%s", life->prefix, what);
    if (number >= 0)
        snprintf(key + used, SHC_LIFE_KEY_BYTES - (size_t)used, "/%d", number);
}

void shc_life_lock(struct shc_life *life)
{
    pthread_mutex_lock(&life->lock);
}

void shc_life_unlock(struct shc_life *life)
{
    pthread_mutex_unlock(&life->lock);
}

bool shc_life_close(struct shc_life *life)
{
    pthread_mutex_lock(&life->lock);
    const bool there = life->group != NULL;
    life->group = NULL;
    pthread_cond_broadcast(&life->stir);
    while (life->inside > 0)
        pthread_cond_wait(&life->stir, &life->lock);
    pthread_mutex_unlock(&life->lock);
    return there;
}

void shc_life_drop(struct shc_life *life)
{
    pthread_mutex_lock(&life->lock);
    const bool last = --life->references == 0;
    pthread_cond_broadcast(&life->stir);
    pthread_mutex_unlock(&life->lock);
    if (!last)
        return;
    if (life->watch.release)
        life->watch.release(life->watch.ctx);
    if (is_kept(&life->store))
        life->store.release(life->store.ctx);
    pthread_cond_destroy(&life->stir);
    pthread_mutex_destroy(&life->lock);
    free(life);
}

void shc_life_release(struct shc_life *life)
{
    const bool waits = !is_kept(&life->store) || (life->watch.wait != NULL && !life->watch.release);
    pthread_mutex_lock(&life->lock);
    while (waits && life->references > 1)
        pthread_cond_wait(&life->stir, &life->lock);
    pthread_mutex_unlock(&life->lock);
    shc_life_drop(life);
}

/* ---- a thread of the group ---- */

int shc_life_start(struct shc_life *life, void *(*entry)(void *), void *arg)
{
    pthread_mutex_lock(&life->lock);
    life->references++;
    pthread_mutex_unlock(&life->lock);
    const int error = shc_hosts_start_thread("shc-hosts", entry, arg);
    if (error)
        shc_life_drop(life);
    return error;
}

void *shc_life_enter(struct shc_life *life)
{
    pthread_mutex_lock(&life->lock);
    void *group = life->group;
    life->inside += group != NULL;
    pthread_mutex_unlock(&life->lock);
    return group;
}

void shc_life_leave(struct shc_life *life)
{
    pthread_mutex_lock(&life->lock);
    life->inside--;
    pthread_cond_broadcast(&life->stir);
    pthread_mutex_unlock(&life->lock);
}

bool shc_life_pause(struct shc_life *life, uint64_t ns)
{
    const uint64_t deadline_ns = shc_deadline_after(shc_clock_ns(), ns);
    pthread_mutex_lock(&life->lock);
    if (life->group)
        (void)shc_hosts_cond_wait(&life->stir, &life->lock, deadline_ns);
    const bool there = life->group != NULL;
    pthread_mutex_unlock(&life->lock);
    return there;
}

void shc_life_stir(struct shc_life *life)
{
    pthread_mutex_lock(&life->lock);
    pthread_cond_broadcast(&life->stir);
    pthread_mutex_unlock(&life->lock);
}

/* ---- errands ---- */

struct shc_errand *shc_errand_create(struct shc_life *life, void (*run)(struct shc_errand *errand),
                                     size_t bytes)
{
    struct shc_errand *errand = calloc(1, sizeof *errand);
    uint64_t *memory = calloc(bytes / sizeof *memory + 1, sizeof *memory);
    if (!errand || !memory) {
        free(errand);
        free(memory);
        return NULL;
    }
    *errand = (struct shc_errand){.life = life, .run = run, .references = 1, .memory = memory};
    pthread_mutex_lock(&life->lock);
    life->references++;
    pthread_mutex_unlock(&life->lock);
    return errand;
}

static void *serve(void *arg)
{
    struct shc_errand *errand = arg;
    struct shc_life *life = errand->life;
    errand->run(errand);
    pthread_mutex_lock(&life->lock);
    errand->done = true;
    pthread_cond_broadcast(&life->stir);
    pthread_mutex_unlock(&life->lock);
    shc_errand_drop(errand);
    shc_life_drop(life);
    return NULL;
}

void shc_errand_start(struct shc_errand *errand, bool anyway)
{
    errand->references++;
    if (shc_life_start(errand->life, serve, errand) == 0)
        return;
    errand->references--;
    errand->error = EAGAIN;
    if (anyway)
        errand->run(errand);
    errand->done = true;
}

bool shc_errand_wait(struct shc_errand *errand, uint64_t ns)
{
    struct shc_life *life = errand->life;
    const uint64_t deadline_ns = shc_deadline_after(shc_clock_ns(), ns);
    pthread_mutex_lock(&life->lock);
    while (!errand->done && ns > 0 && shc_hosts_cond_wait(&life->stir, &life->lock, deadline_ns))
        continue;
    const bool done = errand->done;
    pthread_mutex_unlock(&life->lock);
    return done;
}

void shc_errand_drop(struct shc_errand *errand)
{
    struct shc_life *life = errand->life;
    pthread_mutex_lock(&life->lock);
    const bool last = --errand->references == 0;
    pthread_mutex_unlock(&life->lock);
    if (!last)
        return;
    free(errand->memory);
    free(errand);
    shc_life_drop(life);
}
