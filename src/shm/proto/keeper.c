/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/keeper.h"

#include "shm/base/clock.h"

#include <pthread.h>
#include <stdlib.h>

enum request { REQUEST_NONE, REQUEST_LINK, REQUEST_UNLINK };

struct shc_keeper {
    pthread_mutex_t askers; /* one at a time */
    pthread_mutex_t lock;   /* guards what follows */
    pthread_cond_t changed;
    enum request request;
    shc_a32 *life;
    bool marks;
    struct shc_os_thread thread;
    struct shc_os_robust_list list;
};

/* ---- the probe: a thread that ends holding a word ---- */

struct probe {
    struct shc_os_robust_list list;
    char *page; /* the entry's page, then the word's */
    int error;
};

static shc_a32 *probe_word(const struct probe *probe)
{
    return (shc_a32 *)(void *)(probe->page + SHC_OS_ROBUST_DISTANCE);
}

static void probe_thread(void *arg)
{
    struct probe *probe = arg;
    probe->error = shc_os_robust_init(&probe->list);
    if (probe->error == 0)
        shc_os_robust_link(&probe->list, probe_word(probe));
}

static bool probe_marks(void)
{
    struct probe probe = {.page = calloc(2, SHC_OS_ROBUST_DISTANCE)};
    struct shc_os_thread thread;
    bool marks = false;
    if (probe.page && shc_os_thread_start(&thread, "shc-probe", probe_thread, &probe) == 0) {
        while (shc_os_thread_join(&thread, SHC_NS_PER_S) != 0)
            continue;
        /* acquire life/own <- release in shc_os_robust_link(): the kernel has marked it since. */
        uint32_t word = shc_a32_load_acquire(probe_word(&probe));
        marks = probe.error == 0 && (word & SHC_OS_OWNER_DIED) != 0;
    }
    free(probe.page);
    return marks;
}

/* ---- the thread ---- */

static void keeper_thread(void *arg)
{
    struct shc_keeper *keeper = arg;
    pthread_mutex_lock(&keeper->lock);
    if (shc_os_robust_init(&keeper->list) != 0)
        keeper->marks = false;
    for (;;) {
        while (keeper->request == REQUEST_NONE)
            pthread_cond_wait(&keeper->changed, &keeper->lock);
        if (keeper->request == REQUEST_LINK)
            shc_os_robust_link(&keeper->list, keeper->life);
        else
            shc_os_robust_unlink(&keeper->list, keeper->life);
        keeper->request = REQUEST_NONE;
        pthread_cond_broadcast(&keeper->changed);
    }
}

enum shc_status shc_keeper_start(struct shc_keeper **keeper)
{
    struct shc_keeper *new_keeper = calloc(1, sizeof *new_keeper);
    if (!new_keeper)
        return shc_fail(SHC_ERR_NOMEM, "no memory for the keeper");
    pthread_mutex_init(&new_keeper->askers, NULL);
    pthread_mutex_init(&new_keeper->lock, NULL);
    pthread_cond_init(&new_keeper->changed, NULL);
    new_keeper->marks = probe_marks();
    int error = shc_os_thread_start(&new_keeper->thread, "shc-keeper", keeper_thread, new_keeper);
    if (error != 0) {
        pthread_cond_destroy(&new_keeper->changed);
        pthread_mutex_destroy(&new_keeper->lock);
        pthread_mutex_destroy(&new_keeper->askers);
        free(new_keeper);
        return shc_fail_errno(SHC_ERR_SYSTEM, error, "cannot start the keeper thread");
    }
    *keeper = new_keeper; /* lives as long as the process */
    return SHC_OK;
}

bool shc_keeper_marks(struct shc_keeper *keeper)
{
    pthread_mutex_lock(&keeper->lock);
    bool marks = keeper->marks;
    pthread_mutex_unlock(&keeper->lock);
    return marks;
}

static void ask(struct shc_keeper *keeper, enum request request, shc_a32 *life)
{
    pthread_mutex_lock(&keeper->askers);
    pthread_mutex_lock(&keeper->lock);
    keeper->request = request;
    keeper->life = life;
    pthread_cond_broadcast(&keeper->changed);
    while (keeper->request != REQUEST_NONE)
        pthread_cond_wait(&keeper->changed, &keeper->lock);
    pthread_mutex_unlock(&keeper->lock);
    pthread_mutex_unlock(&keeper->askers);
}

void shc_keeper_link(struct shc_keeper *keeper, shc_a32 *life)
{
    ask(keeper, REQUEST_LINK, life);
}

void shc_keeper_unlink(struct shc_keeper *keeper, shc_a32 *life)
{
    ask(keeper, REQUEST_UNLINK, life);
}
