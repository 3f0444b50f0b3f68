/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/liveness.h"

#include "shm/base/clock.h"

#include <pthread.h>
#include <stdlib.h>

#define REST_NS (3600 * SHC_NS_PER_S) /* until either side looks again without being woken */

enum request { REQUEST_NONE, REQUEST_LINK, REQUEST_UNLINK };

/* A futex and not a condition variable, whose mutex either side would find held when it wakes.
 * Every new group asks, and with 8 ranks on 2 CPUs each context switch counts. */
struct shc_liveness {
    struct shc_liveness *first; /* its `askers` guards `next` and `words` of all */
    struct shc_liveness *next;  /* for further words */
    uint32_t words;             /* linked here, or about to be */
    pthread_mutex_t askers;     /* one at a time */
    shc_a32 request;            /* enum request: the asker's, then NONE by the liveness thread */
    shc_a32 *life;              /* of the request */
    shc_a32 unmarked;           /* the kernel marks no words here */
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

static void liveness_thread(void *arg)
{
    struct shc_liveness *liveness = arg;
    if (shc_os_robust_init(&liveness->list) != 0) {
        /* relaxed: no other data depends on this word. */
        shc_a32_store_relaxed(&liveness->unmarked, 1);
    }
    for (;;) {
        /* acquire liveness/request <- release in ask(): the word. */
        uint32_t request = shc_a32_load_acquire(&liveness->request);
        if (request == REQUEST_NONE) {
            shc_os_futex_wait(&liveness->request, REQUEST_NONE, REST_NS, false);
            continue;
        }
        if (request == REQUEST_LINK)
            shc_os_robust_link(&liveness->list, liveness->life, shc_liveness_marks(liveness));
        else
            shc_os_robust_unlink(&liveness->list, liveness->life);
        /* release liveness/request -> acquire in ask(): the request is done. */
        shc_a32_store_release(&liveness->request, REQUEST_NONE);
        shc_os_futex_wake_all(&liveness->request, false);
    }
}

/* first: NULL if this is the first one. */
static enum shc_status start(struct shc_liveness *first, bool marks, struct shc_liveness **liveness)
{
    struct shc_liveness *new_liveness = calloc(1, sizeof *new_liveness);
    if (!new_liveness)
        return shc_fail(SHC_ERR_NOMEM, "no memory for the liveness");
    new_liveness->first = first ? first : new_liveness;
    pthread_mutex_init(&new_liveness->askers, NULL);
    /* relaxed: the thread does not exist yet. */
    shc_a32_store_relaxed(&new_liveness->unmarked, !marks);
    int error =
        shc_os_thread_start(&new_liveness->thread, "shc-liveness", liveness_thread, new_liveness);
    if (error != 0) {
        pthread_mutex_destroy(&new_liveness->askers);
        free(new_liveness);
        return shc_fail_errno(
            SHC_ERR_SYSTEM, error,
            "cannot start the thread that tells others of this process's death: it lacks a process "
            "(ulimit -u, pids of a container) or memory for a stack (ulimit -v)");
    }
    *liveness = new_liveness; /* lives as long as the process */
    return SHC_OK;
}

enum shc_status shc_liveness_start(struct shc_liveness **liveness)
{
    return start(NULL, probe_marks(), liveness);
}

bool shc_liveness_marks(struct shc_liveness *liveness)
{
    /* relaxed: no other data depends on this word. */
    return shc_a32_load_relaxed(&liveness->unmarked) == 0;
}

static void ask(struct shc_liveness *liveness, enum request request, shc_a32 *life)
{
    pthread_mutex_lock(&liveness->askers);
    liveness->life = life;
    /* release liveness/request -> acquire in liveness_thread(): the word. */
    shc_a32_store_release(&liveness->request, (uint32_t)request);
    shc_os_futex_wake_all(&liveness->request, false);
    /* acquire liveness/request <- release in liveness_thread(): the request is done. */
    while (shc_a32_load_acquire(&liveness->request) != REQUEST_NONE)
        shc_os_futex_wait(&liveness->request, (uint32_t)request, REST_NS, false);
    pthread_mutex_unlock(&liveness->askers);
}

/* The first liveness thread with room for one more word. If no thread can be made, the last liveness thread takes it.
 * The kernel then leaves out that liveness thread's oldest words, and ranks that look at the process see its
 * end. */
static struct shc_liveness *find_room(struct shc_liveness *first)
{
    pthread_mutex_lock(&first->askers);
    struct shc_liveness *liveness = first;
    while (liveness->words >= SHC_LIVENESS_WORDS && liveness->next)
        liveness = liveness->next;
    if (liveness->words >= SHC_LIVENESS_WORDS &&
        start(first, shc_liveness_marks(first), &liveness->next) == SHC_OK)
        liveness = liveness->next;
    liveness->words++;
    pthread_mutex_unlock(&first->askers);
    return liveness;
}

struct shc_liveness *shc_liveness_link(struct shc_liveness *any, shc_a32 *life)
{
    struct shc_liveness *liveness = find_room(any->first);
    ask(liveness, REQUEST_LINK, life);
    return liveness;
}

void shc_liveness_unlink(struct shc_liveness *liveness, shc_a32 *life)
{
    ask(liveness, REQUEST_UNLINK, life);
    pthread_mutex_lock(&liveness->first->askers);
    liveness->words--;
    pthread_mutex_unlock(&liveness->first->askers);
}
