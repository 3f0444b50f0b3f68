/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One job at a time. `ticket` = job number << 32 | tasks left. A thread claims a task by lowering
 * the ticket by one, and only then reads the job. A claimed task keeps its job from ending, so the
 * job cannot change under the reader. A late thread finds no task left, or another job's ticket.
 */
#include "shm/exec/pool.h"

#include "shm/base/clock.h"
#include "shm/proto/bell.h"

#include <pthread.h>
#include <stdlib.h>

#define IDLE_NS    (10 * SHC_NS_PER_S)
#define SPIN_TURNS 2000

struct shc_pool {
    pthread_mutex_t busy; /* held by the caller whose job it is */
    void (*task)(void *arg, uint32_t index);
    void *arg;
    shc_a64 ticket;
    shc_a64 finished;         /* tasks, ever */
    struct shc_bell_shm bell; /* idle threads sleep here */
    struct shc_os_cpus cpus;
    bool pinned;
    int size;
};

static uint32_t tasks_left(uint64_t ticket)
{
    return (uint32_t)ticket;
}

/* Does one task of the current job; false if none is left. */
static bool work_once(struct shc_pool *pool)
{
    /* acquire pool/ticket <- release in shc_pool_run(): the job, for the thread that then claims a
     * task. */
    uint64_t ticket = shc_a64_load_acquire(&pool->ticket);
    do {
        if (tasks_left(ticket) == 0)
            return false;
        /* acq_rel pool/ticket: claims a task, and sees the job it belongs to. */
        if (shc_a64_cas_acq_rel(&pool->ticket, ticket, ticket - 1))
            break;
        /* acquire pool/ticket <- release in shc_pool_run(): the job, for the thread that then
         * claims a task. */
        ticket = shc_a64_load_acquire(&pool->ticket);
    } while (true);
    pool->task(pool->arg, tasks_left(ticket) - 1);
    /* acq_rel pool/finished: what the task wrote, to the caller that waits for all. */
    shc_a64_add_acq_rel(&pool->finished, 1);
    return true;
}

static bool has_work(const struct shc_pool *pool)
{
    /* acquire pool/ticket <- release in shc_pool_run(): there is a job. */
    return tasks_left(shc_a64_load_acquire(&pool->ticket)) > 0;
}

/* The next piece of an operation comes within microseconds, and waking a sleeper takes longer than
 * doing it. True: there is work. */
static bool linger(const struct shc_pool *pool)
{
    for (int turn = 0; turn < SPIN_TURNS; turn++) {
        if (has_work(pool))
            return true;
        shc_cpu_relax();
    }
    return false;
}

static void pool_thread(void *arg)
{
    struct shc_pool *pool = arg;
    int refused = pool->pinned ? shc_os_thread_pin(&pool->cpus) : 0;
    (void)refused; /* then the scheduler chooses a CPU */
    for (;;) {
        while (work_once(pool))
            continue;
        if (linger(pool))
            continue;
        uint32_t heard = shc_bell_listen(&pool->bell);
        if (!has_work(pool))
            shc_bell_sleep(&pool->bell, heard, IDLE_NS, false);
    }
}

enum shc_status shc_pool_create(struct shc_pool **out, int threads, const struct shc_os_cpus *cpus)
{
    struct shc_pool *pool = calloc(1, sizeof *pool);
    struct shc_os_thread thread;
    if (!pool)
        return shc_fail(SHC_ERR_NOMEM, "no memory for the reduction threads");
    pthread_mutex_init(&pool->busy, NULL);
    if (cpus) {
        pool->cpus = *cpus;
        pool->pinned = true;
    }
    while (pool->size < threads && pool->size < SHC_POOL_MAX_THREADS &&
           shc_os_thread_start(&thread, "shc-reduce", pool_thread, pool) == 0) {
        shc_os_thread_detach(&thread);
        pool->size++;
    }
    *out = pool;
    return SHC_OK;
}

int shc_pool_size(const struct shc_pool *pool)
{
    return pool ? pool->size : 0;
}

uint64_t shc_pool_jobs(const struct shc_pool *pool)
{
    /* relaxed: a counter. */
    return pool ? shc_a64_load_relaxed(&pool->ticket) >> 32 : 0;
}

/* The tasks that others have claimed run on threads of this pool, and wait for no rank. */
static void wait_for_all(const struct shc_pool *pool, uint64_t finished)
{
    for (uint32_t turn = 0;; turn++) {
        /* acquire pool/finished <- acq_rel in work_once(): what the tasks wrote. */
        if (shc_a64_load_acquire(&pool->finished) == finished)
            return;
        if (turn < SPIN_TURNS)
            shc_cpu_relax();
        else
            shc_os_thread_yield();
    }
}

void shc_pool_run(struct shc_pool *pool, void (*task)(void *arg, uint32_t index), void *arg,
                  uint32_t count)
{
    if (count < 2 || shc_pool_size(pool) == 0 || pthread_mutex_trylock(&pool->busy) != 0) {
        for (uint32_t i = 0; i < count; i++)
            task(arg, i);
        return;
    }
    pool->task = task;
    pool->arg = arg;
    /* relaxed: no task is running, so no other thread changes it. */
    uint64_t finished = shc_a64_load_relaxed(&pool->finished) + count;
    /* relaxed: only the owner of the job begins another. */
    uint64_t job = (shc_a64_load_relaxed(&pool->ticket) >> 32) + 1;
    /* release pool/ticket -> acquire in work_once(): task and arg. */
    shc_a64_store_release(&pool->ticket, job << 32 | count);
    shc_bell_ring(&pool->bell, false);
    while (work_once(pool))
        continue;
    wait_for_all(pool, finished);
    pthread_mutex_unlock(&pool->busy);
}
