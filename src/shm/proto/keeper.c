/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/keeper.h"

#include "shm/base/clock.h"

#include <pthread.h>
#include <stdlib.h>

#define REST_NS (3600 * SHC_NS_PER_S) /* until either side looks again without being woken */

enum request { REQUEST_NONE, REQUEST_LINK, REQUEST_UNLINK };

/* A futex and not a condition variable, whose mutex either side would find held when it wakes.
 * Every new group asks, and with 8 ranks on 2 CPUs each context switch counts. */
struct shc_keeper {
    struct shc_keeper *first; /* its `askers` guards `next` and `words` of all */
    struct shc_keeper *next;  /* for further words */
    uint32_t words;           /* linked here, or about to be */
    pthread_mutex_t askers;   /* one at a time */
    shc_a32 request;          /* enum request: the asker's, then NONE by the keeper */
    shc_a32 *life;            /* of the request */
    shc_a32 unmarked;         /* the kernel marks no words here */
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
        shc_os_robust_link(&probe->list, probe_word(probe), true);
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
    if (shc_os_robust_init(&keeper->list) != 0) {
        /* relaxed: no other data depends on this word. */
        shc_a32_store_relaxed(&keeper->unmarked, 1);
    }
    for (;;) {
        /* acquire keeper/request <- release in ask(): the word. */
        uint32_t request = shc_a32_load_acquire(&keeper->request);
        if (request == REQUEST_NONE) {
            shc_os_futex_wait(&keeper->request, REQUEST_NONE, REST_NS, false);
            continue;
        }
        if (request == REQUEST_LINK)
            shc_os_robust_link(&keeper->list, keeper->life, shc_keeper_marks(keeper));
        else
            shc_os_robust_unlink(&keeper->list, keeper->life);
        /* release keeper/request -> acquire in ask(): the request is done. */
        shc_a32_store_release(&keeper->request, REQUEST_NONE);
        shc_os_futex_wake_all(&keeper->request, false);
    }
}

/* first: NULL if this is the first one. */
static enum shc_status start(struct shc_keeper *first, bool marks, struct shc_keeper **keeper)
{
    struct shc_keeper *new_keeper = calloc(1, sizeof *new_keeper);
    if (!new_keeper)
        return shc_fail(SHC_ERR_NOMEM, "no memory for the keeper");
    new_keeper->first = first ? first : new_keeper;
    pthread_mutex_init(&new_keeper->askers, NULL);
    /* relaxed: the thread does not exist yet. */
    shc_a32_store_relaxed(&new_keeper->unmarked, !marks);
    int error = shc_os_thread_start(&new_keeper->thread, "shc-keeper", keeper_thread, new_keeper);
    if (error != 0) {
        pthread_mutex_destroy(&new_keeper->askers);
        free(new_keeper);
        return shc_fail_errno(
            SHC_ERR_SYSTEM, error,
            "cannot start the thread that tells others of this process's death: it lacks a process "
            "(ulimit -u, pids of a container) or memory for a stack (ulimit -v)");
    }
    *keeper = new_keeper; /* lives as long as the process */
    return SHC_OK;
}

enum shc_status shc_keeper_start(struct shc_keeper **keeper)
{
    return start(NULL, probe_marks(), keeper);
}

bool shc_keeper_marks(struct shc_keeper *keeper)
{
    /* relaxed: no other data depends on this word. */
    return shc_a32_load_relaxed(&keeper->unmarked) == 0;
}

static void ask(struct shc_keeper *keeper, enum request request, shc_a32 *life)
{
    pthread_mutex_lock(&keeper->askers);
    keeper->life = life;
    /* release keeper/request -> acquire in keeper_thread(): the word. */
    shc_a32_store_release(&keeper->request, (uint32_t)request);
    shc_os_futex_wake_all(&keeper->request, false);
    /* acquire keeper/request <- release in keeper_thread(): the request is done. */
    while (shc_a32_load_acquire(&keeper->request) != REQUEST_NONE)
        shc_os_futex_wait(&keeper->request, (uint32_t)request, REST_NS, false);
    pthread_mutex_unlock(&keeper->askers);
}

/* The first keeper with room for one more word. If no thread can be made, the last keeper takes it.
 * The kernel then leaves out that keeper's oldest words, and ranks that look at the process see its
 * end. */
static struct shc_keeper *find_room(struct shc_keeper *first)
{
    pthread_mutex_lock(&first->askers);
    struct shc_keeper *keeper = first;
    while (keeper->words >= SHC_KEEPER_WORDS && keeper->next)
        keeper = keeper->next;
    if (keeper->words >= SHC_KEEPER_WORDS &&
        start(first, shc_keeper_marks(first), &keeper->next) == SHC_OK)
        keeper = keeper->next;
    keeper->words++;
    pthread_mutex_unlock(&first->askers);
    return keeper;
}

struct shc_keeper *shc_keeper_link(struct shc_keeper *any, shc_a32 *life)
{
    struct shc_keeper *keeper = find_room(any->first);
    ask(keeper, REQUEST_LINK, life);
    return keeper;
}

void shc_keeper_unlink(struct shc_keeper *keeper, shc_a32 *life)
{
    ask(keeper, REQUEST_UNLINK, life);
    pthread_mutex_lock(&keeper->first->askers);
    keeper->words--;
    pthread_mutex_unlock(&keeper->first->askers);
}
