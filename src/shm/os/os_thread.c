/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/base/clock.h"
#include "shm/os/os.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Reached if there is no memory for the fence, or if a filter was installed after its preparation.
 * Nothing guarantees an order then, but no processor holds a store back for that long. */
#define SETTLE_NS (20 * SHC_NS_PER_MS)

/* Newer than the headers of old systems. The number is the same on all processors. */
#define CALL_FUTEX_WAITV 449
#define FUTEX_OF_32_BITS 2

/* Shared by the thread and its handle. The last of the two frees it. */
struct shc_os_thread_control {
    void (*entry)(void *);
    void *arg;
    shc_a32 references;
    shc_a32 ended;
};

static void control_drop(struct shc_os_thread_control *control)
{
    /* acq_rel thread/references: the other side's last use comes before the free. */
    if (shc_a32_add_acq_rel(&control->references, (uint32_t)-1) == 1)
        free(control);
}

static void *run_thread(void *arg)
{
    struct shc_os_thread_control *control = arg;
    control->entry(control->arg);
    /* release thread/end -> acquire in shc_os_thread_join(): all the thread did. */
    shc_a32_store_release(&control->ended, 1);
    shc_os_futex_wake_all(&control->ended, false);
    control_drop(control);
    return NULL;
}

int shc_os_thread_start(struct shc_os_thread *thread, const char *name, void (*entry)(void *),
                        void *arg)
{
    struct shc_os_thread_control *control = malloc(sizeof *control);
    if (!control)
        return ENOMEM;
    *control = (struct shc_os_thread_control){.entry = entry, .arg = arg};
    /* relaxed: the thread does not exist yet. */
    shc_a32_store_relaxed(&control->references, 2);
    /* Signals belong to the application's threads; the library's threads inherit a full mask. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t handle;
    int error = pthread_create(&handle, NULL, run_thread, control);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        free(control);
        return error;
    }
    pthread_setname_np(handle, name);
    *thread = (struct shc_os_thread){.handle = (uint64_t)handle, .control = control};
    return 0;
}

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / SHC_NS_PER_S),
                             .tv_nsec = (long)(ns % SHC_NS_PER_S)};
}

int shc_os_thread_join(struct shc_os_thread *thread, uint64_t timeout_ns)
{
    if (!thread->control)
        return 0;
    if (pthread_equal((pthread_t)thread->handle, pthread_self()))
        return EDEADLK;
    /* Thread sanitizers do not know pthread's own join with a time-out. So: first wait for the end,
     * then join without waiting. */
    uint64_t now_ns = shc_clock_ns(), deadline_ns = shc_deadline_after(now_ns, timeout_ns);
    /* acquire thread/end <- release in run_thread(). */
    while (!shc_a32_load_acquire(&thread->control->ended)) {
        if (now_ns >= deadline_ns)
            return ETIMEDOUT;
        shc_os_futex_wait(&thread->control->ended, 0, deadline_ns - now_ns, false);
        now_ns = shc_clock_ns();
    }
    int error = pthread_join((pthread_t)thread->handle, NULL);
    control_drop(thread->control);
    thread->control = NULL;
    return error;
}

void shc_os_thread_detach(struct shc_os_thread *thread)
{
    if (!thread->control)
        return;
    pthread_detach((pthread_t)thread->handle);
    control_drop(thread->control);
    thread->control = NULL;
}

int32_t shc_os_thread_id(void)
{
    return (int32_t)syscall(SYS_gettid);
}

void shc_os_thread_yield(void)
{
    sched_yield();
}

void shc_os_sleep_ns(uint64_t ns)
{
    struct timespec time = timespec_of(ns);
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

bool shc_os_fence_prepare(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

void shc_os_fence_heavy(void)
{
    if (SHC_LIKELY(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0))
        return;
    const uint64_t end_ns = shc_clock_ns() + SETTLE_NS;
    while (shc_clock_ns() < end_ns)
        shc_os_thread_yield();
}

int shc_os_futex_wait(shc_a32 *word, uint32_t expected, uint64_t timeout_ns, bool shared)
{
    struct timespec timeout = timespec_of(timeout_ns);
    int op = shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
    long result = syscall(SYS_futex, shc_a32_address(word), op, expected, &timeout, NULL, 0);
    return result == 0 ? 0 : errno;
}

void shc_os_futex_wake_all(shc_a32 *word, bool shared)
{
    int op = shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE;
    syscall(SYS_futex, shc_a32_address(word), op, INT_MAX, NULL, NULL, 0);
}

struct shc_os_futex shc_os_futex_of(shc_a32 *word, uint32_t expected, bool shared)
{
    return (struct shc_os_futex){
        .expected = expected,
        .address = (uint64_t)(uintptr_t)shc_a32_address(word),
        .flags = FUTEX_OF_32_BITS | (shared ? 0 : FUTEX_PRIVATE_FLAG),
    };
}

int shc_os_futex_wait_any(const struct shc_os_futex *words, int count, uint64_t timeout_ns)
{
    struct timespec until = timespec_of(shc_deadline_after(shc_clock_ns(), timeout_ns));
    long result = syscall(CALL_FUTEX_WAITV, words, (unsigned)count, 0u, &until, CLOCK_MONOTONIC);
    return result >= 0 ? 0 : errno;
}

/* A word that differs: a kernel that has the call says so. */
static bool probe_wait_any(void)
{
    shc_a32 word;
    /* relaxed: no other thread knows the word. */
    shc_a32_store_relaxed(&word, 1);
    const struct shc_os_futex futex = shc_os_futex_of(&word, 0, false);
    return shc_os_futex_wait_any(&futex, 1, 0) == EAGAIN;
}

bool shc_os_futex_waits_for_any(void)
{
    static shc_a32 known; /* 0: not asked yet; 1: no; 2: yes */
    /* relaxed: a thread that asks at the same time gets the same answer. */
    uint32_t answer = shc_a32_load_relaxed(&known);
    if (answer == 0) {
        answer = probe_wait_any() ? 2 : 1;
        /* relaxed: a thread that asks at the same time gets the same answer. */
        shc_a32_store_relaxed(&known, answer);
    }
    return answer == 2;
}

int shc_os_robust_init(struct shc_os_robust_list *list)
{
    list->first = (struct shc_os_robust_entry *)list; /* circular: an empty list points to itself */
    list->distance = SHC_OS_ROBUST_DISTANCE;
    list->pending = NULL;
    return syscall(SYS_set_robust_list, list, sizeof *list) == 0 ? 0 : errno;
}

static struct shc_os_robust_entry *entry_of(shc_a32 *word)
{
    return (struct shc_os_robust_entry *)(void *)((char *)word - SHC_OS_ROBUST_DISTANCE);
}

/* The kernel may walk the list between any two stores. `pending` covers an entry that is not linked
 * yet, or not any more. relaxed: the reader is the kernel, in this very thread. */
static void publish_to_kernel(struct shc_os_robust_entry **slot, struct shc_os_robust_entry *value)
{
    __asm__ __volatile__("" ::: "memory");
    *slot = value;
    __asm__ __volatile__("" ::: "memory");
}

void shc_os_robust_link(struct shc_os_robust_list *list, shc_a32 *word, bool awaited)
{
    struct shc_os_robust_entry *entry = entry_of(word);
    publish_to_kernel(&list->pending, entry);
    /* release life/own -> acquire in shc_member_look(): only the thread id itself. */
    shc_a32_store_release(word,
                          (uint32_t)shc_os_thread_id() | (awaited ? SHC_OS_OWNER_AWAITED : 0));
    entry->next = list->first;
    publish_to_kernel(&list->first, entry);
    publish_to_kernel(&list->pending, NULL);
}

void shc_os_robust_unlink(struct shc_os_robust_list *list, shc_a32 *word)
{
    struct shc_os_robust_entry *entry = entry_of(word);
    struct shc_os_robust_entry **slot = &list->first;
    while (*slot != entry && *slot != (struct shc_os_robust_entry *)list)
        slot = &(*slot)->next;
    if (*slot != entry)
        return;
    publish_to_kernel(&list->pending, entry);
    publish_to_kernel(slot, entry->next);
    /* release life/own -> acquire in shc_member_look(): the member's LEFT, stored before. */
    shc_a32_store_release(word, 0);
    publish_to_kernel(&list->pending, NULL);
}
