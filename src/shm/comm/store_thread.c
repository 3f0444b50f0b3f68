/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/store_thread.h"

#include "shm/base/clock.h"
#include "shm/comm/process.h"
#include "shm/os/os.h"

#include <errno.h>
#include <stdlib.h>

#define ENDED    (UINT32_C(1) << 31) /* in `asked`: there are no more questions */
#define SLOTS    2u
#define YIELD_NS (50 * SHC_NS_PER_US)

/* Shared by the thread and its owner; the last of the two frees it. */
struct shc_store_thread {
    struct shc_store store;
    shc_a32 asked;    /* W: the owner. Calls handed over, modulo 2^31, and ENDED */
    shc_a32 answered; /* W: the thread */
    shc_a32 references;
    struct shc_store_call calls[SLOTS]; /* by their number */
};

static void drop(struct shc_store_thread *thread)
{
    /* acq_rel store/references: the other one's last use comes before the free. */
    if (shc_a32_add_acq_rel(&thread->references, (uint32_t)-1) == 1)
        free(thread);
}

void shc_store_make_call(const struct shc_store *store, struct shc_store_call *call)
{
    void *ctx = store->ctx;
    const char *key = call->key;
    call->now_bytes = 0;
    switch (call->kind) {
    case SHC_STORE_SET:
        call->error = store->set(ctx, key, call->value, call->bytes);
        return;
    case SHC_STORE_GET:
        call->error = store->get(ctx, key, call->now, sizeof call->now, &call->now_bytes);
        return;
    case SHC_STORE_CHECK:
        call->error = store->check(ctx, &key, 1);
        return;
    case SHC_STORE_ADD:
        call->error = store->add(ctx, key, call->number, &call->number);
        return;
    case SHC_STORE_PUT_FIRST:
        call->error = store->put_first(ctx, key, call->value, call->bytes, call->now,
                                       sizeof call->now, &call->now_bytes);
        return;
    }
}

/* Most answers come sooner than falling asleep and being woken takes. So at first it only yields. Next to
 * programs that compute, one yield may last for milliseconds, and is the last one. False: a signal came. */
static bool wait_for_news(shc_a32 *word, uint32_t value, uint64_t timeout_ns)
{
    const uint64_t begun_ns = shc_clock_ns();
    do {
        /* relaxed: the caller loads it again. */
        if (shc_a32_load_relaxed(word) != value)
            return true;
        shc_os_thread_yield();
    } while (shc_clock_ns() - begun_ns < YIELD_NS);
    return shc_os_futex_wait(word, value, timeout_ns, false) != EINTR;
}

static void serve(void *arg)
{
    struct shc_store_thread *thread = arg;
    uint32_t done = 0;
    for (;;) {
        /* acquire store/asked <- release in shc_store_thread_ask(): the call. */
        const uint32_t asked = shc_a32_load_acquire(&thread->asked);
        if ((asked & ~ENDED) != done) {
            shc_store_make_call(&thread->store, &thread->calls[done % SLOTS]);
            done = (done + 1) & ~ENDED;
            /* release store/answered -> acquire in shc_store_thread_await(): the answer. */
            shc_a32_store_release(&thread->answered, done);
            shc_os_futex_wake_all(&thread->answered, false);
        } else if (asked & ENDED) {
            break;
        } else {
            (void)wait_for_news(&thread->asked, asked, SHC_NS_PER_S);
        }
    }
    if (!shc_process_leaving()) /* what a store's end needs may be gone by now */
        thread->store.release(thread->store.ctx);
    drop(thread);
}

struct shc_store_thread *shc_store_thread_start(const struct shc_store *store)
{
    struct shc_store_thread *thread = NULL;
    if (store->retain && store->release)
        thread = malloc(sizeof *thread);
    if (!thread)
        return NULL;
    thread->store = *store;
    /* relaxed: the thread does not exist yet. */
    shc_a32_store_relaxed(&thread->asked, 0);
    /* relaxed: the thread does not exist yet. */
    shc_a32_store_relaxed(&thread->answered, 0);
    /* relaxed: the thread does not exist yet. */
    shc_a32_store_relaxed(&thread->references, 2);
    struct shc_os_thread handle;
    store->retain(store->ctx);
    if (shc_os_thread_start(&handle, "shc-store", serve, thread) != 0) {
        store->release(store->ctx);
        free(thread);
        return NULL;
    }
    shc_os_thread_detach(&handle);
    return thread;
}

struct shc_store_call *shc_store_thread_next(struct shc_store_thread *thread)
{
    /* relaxed: only this thread writes `asked`. */
    const uint32_t asked = shc_a32_load_relaxed(&thread->asked);
    /* acquire store/answered <- release in serve(): it is done with the call before. */
    const uint32_t answered = shc_a32_load_acquire(&thread->answered);
    return ((asked - answered) & ~ENDED) < SLOTS ? &thread->calls[asked % SLOTS] : NULL;
}

void shc_store_thread_ask(struct shc_store_thread *thread)
{
    /* relaxed: only this thread writes it. */
    const uint32_t asked = shc_a32_load_relaxed(&thread->asked);
    /* release store/asked -> acquire in serve(): the call. */
    shc_a32_store_release(&thread->asked, (asked + 1) & ~ENDED);
    shc_os_futex_wake_all(&thread->asked, false);
}

bool shc_store_thread_await(struct shc_store_thread *thread, uint64_t timeout_ns)
{
    /* relaxed: only this thread writes it. */
    const uint32_t asked = shc_a32_load_relaxed(&thread->asked);
    const uint64_t deadline_ns = shc_deadline_after(shc_clock_ns(), timeout_ns);
    for (bool goes_on = true;;) {
        /* acquire store/answered <- release in serve(): the answer. */
        const uint32_t answered = shc_a32_load_acquire(&thread->answered);
        const uint64_t now_ns = shc_clock_ns();
        if (answered == asked || now_ns >= deadline_ns || !goes_on)
            return answered == asked;
        goes_on = wait_for_news(&thread->answered, answered, deadline_ns - now_ns);
    }
}

void shc_store_thread_end(struct shc_store_thread *thread)
{
    if (!thread)
        return;
    /* relaxed: only this thread writes it. */
    const uint32_t asked = shc_a32_load_relaxed(&thread->asked);
    /* release store/asked -> acquire in serve(): no other data. */
    shc_a32_store_release(&thread->asked, asked | ENDED);
    shc_os_futex_wake_all(&thread->asked, false);
    drop(thread);
}
