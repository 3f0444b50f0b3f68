/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/timeline.h"
#include "cuda_ipc/cuda_error.h"
#include "cuda_ipc/sys.h"
#include "shm/base/clock.h"

#include <string.h>

#define POISONED        0x80000000u
#define POISON_AGAIN_NS SHC_NS_PER_MS
#define LAST_WRITES_NS  SHC_NS_PER_S /* poison that is still on its way */

enum shc_status shc_timeline_init(const struct shc_gpu *gpu, shc_cu_address words, shc_a64 *host,
                                  uint32_t count, uint32_t stride, struct shc_timeline *timeline)
{
    struct shc_timeline made;
    memset(&made, 0, sizeof made);
    made.gpu = gpu;
    made.words = words;
    made.host = host;
    made.count = count;
    made.stride = stride;
    SHC_TRY(shc_gpu_enter(gpu));
    const int result =
        gpu->driver->cuStreamCreateWithPriority(&made.rescue, SHC_CU_STREAM_NON_BLOCKING, 0);
    shc_gpu_leave(gpu);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(gpu->driver, result, "no stream on %s", gpu->name);
    *timeline = made;
    return SHC_OK;
}

static shc_cu_address address_of(const struct shc_timeline *timeline, uint32_t word)
{
    return timeline->words + (uint64_t)word * timeline->stride * sizeof(uint64_t);
}

static enum shc_status enqueue_wait(const struct shc_timeline *timeline,
                                    struct shc_cu_stream *stream, uint32_t word, uint64_t value)
{
    const struct shc_driver *driver = timeline->gpu->driver;
    const int result =
        driver->cuStreamWaitValue64(stream, address_of(timeline, word), value, SHC_CU_WAIT_GEQ);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result, "cuStreamWaitValue64");
    return SHC_OK;
}

enum shc_status shc_timeline_wait(struct shc_timeline *timeline, struct shc_cu_stream *stream,
                                  uint32_t word, uint64_t value)
{
    if (word >= timeline->count || value > SHC_TIMELINE_LAST)
        return shc_cuda_fail(SHC_ERR_INVALID, "no wait for value %llu of word %u: there are %u",
                             (unsigned long long)value, word, timeline->count);
    /* acq_rel timeline/state: either this thread sees the poison, or the draining thread sees this thread. */
    const uint32_t before = shc_a32_add_acq_rel(&timeline->state, 1);
    enum shc_status st;
    if (before & POISONED)
        st = shc_cuda_fail(SHC_ERR_ABORTED, "the group has failed: nothing more is enqueued");
    else
        st = enqueue_wait(timeline, stream, word, value);
    /* acq_rel timeline/state: the wait is in its stream, where the draining thread will find it. */
    (void)shc_a32_add_acq_rel(&timeline->state, UINT32_MAX);
    return st;
}

enum shc_status shc_timeline_signal(const struct shc_gpu *gpu, struct shc_cu_stream *stream,
                                    shc_cu_address word, uint64_t value)
{
    if (value > SHC_TIMELINE_LAST)
        return shc_cuda_fail(SHC_ERR_INVALID, "%llu is no value of a timeline",
                             (unsigned long long)value);
    const int result = gpu->driver->cuStreamWriteValue64(stream, word, value, SHC_CU_WRITE_DEFAULT);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(gpu->driver, result, "cuStreamWriteValue64");
    return SHC_OK;
}

/* By the CPU, where it sees the words. */
static void store_poison(const struct shc_timeline *timeline)
{
    for (uint32_t i = 0; timeline->host != NULL && i < timeline->count; i++)
        /* release timeline/word -> acquire in the device: nothing; it ends waits. */
        shc_a64_store_release(&timeline->host[(size_t)i * timeline->stride], SHC_TIMELINE_POISON);
}

/* By the GPU, once. */
static enum shc_status write_poison(struct shc_timeline *timeline)
{
    const struct shc_driver *driver = timeline->gpu->driver;
    int result = SHC_CU_SUCCESS;
    SHC_TRY(shc_gpu_enter(timeline->gpu));
    for (uint32_t i = 0; i < timeline->count && result == SHC_CU_SUCCESS; i++)
        result = driver->cuStreamWriteValue64(timeline->rescue, address_of(timeline, i),
                                              SHC_TIMELINE_POISON, SHC_CU_WRITE_DEFAULT);
    shc_gpu_leave(timeline->gpu);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result, "waits cannot be ended: cuStreamWriteValue64");
    return SHC_OK;
}

void shc_timeline_poison_by_cpu(struct shc_timeline *timeline)
{
    /* acq_rel timeline/state: a thread that begins to enqueue a wait after this sees it. */
    (void)shc_a32_or_acq_rel(&timeline->state, POISONED);
    store_poison(timeline);
}

enum shc_status shc_timeline_poison(struct shc_timeline *timeline)
{
    shc_timeline_poison_by_cpu(timeline);
    return write_poison(timeline);
}

bool shc_timeline_poisoned(const struct shc_timeline *timeline)
{
    /* acquire timeline/state <- acq_rel in shc_timeline_poison_by_cpu(). */
    return (shc_a32_load_acquire(&timeline->state) & POISONED) != 0;
}

/* Is no thread enqueuing, and is every stream idle? */
static enum shc_status is_idle(const struct shc_timeline *timeline,
                               struct shc_cu_stream *const *streams, size_t count, bool *idle)
{
    const struct shc_driver *driver = timeline->gpu->driver;
    /* acquire timeline/state <- acq_rel in shc_timeline_wait(). */
    *idle = (shc_a32_load_acquire(&timeline->state) & ~POISONED) == 0;
    for (size_t i = 0; i < count; i++) {
        const int result = driver->cuStreamQuery(streams[i]);
        if (result == SHC_CU_NOT_READY)
            *idle = false;
        else if (result != SHC_CU_SUCCESS)
            return shc_driver_fail(driver, result, "a stream broke");
    }
    return SHC_OK;
}

enum shc_status shc_timeline_poison_again(struct shc_timeline *timeline)
{
    bool written = false;
    store_poison(timeline); /* the driver may keep this thread, and the rescue stream may stand */
    SHC_TRY(shc_gpu_enter(timeline->gpu)); /* a thread of ours has no context by itself */
    const enum shc_status st = is_idle(timeline, &timeline->rescue, 1, &written);
    shc_gpu_leave(timeline->gpu);
    return st == SHC_OK && written ? write_poison(timeline) : st;
}

enum shc_status shc_timeline_drain(struct shc_timeline *timeline,
                                   struct shc_cu_stream *const *streams, size_t count,
                                   uint64_t deadline_ns)
{
    bool idle, written = false;
    SHC_TRY(shc_timeline_poison(timeline));
    for (;;) {
        SHC_TRY(is_idle(timeline, streams, count, &idle));
        SHC_TRY(is_idle(timeline, &timeline->rescue, 1, &written));
        if (idle && written)
            return SHC_OK;
        if (shc_clock_ns() >= deadline_ns)
            return shc_cuda_fail(SHC_ERR_TIMEOUT, "a stream still works, poisoned as it is");
        shc_sys_sleep_ns(POISON_AGAIN_NS);
        store_poison(timeline);
        if (written) /* else it is on its way */
            SHC_TRY(write_poison(timeline));
    }
}

bool shc_timeline_fini(struct shc_timeline *timeline)
{
    const uint64_t deadline_ns = shc_clock_ns() + LAST_WRITES_NS;
    bool written = timeline->rescue == NULL;
    if (written)
        return true;
    if (shc_gpu_enter(timeline->gpu) != SHC_OK)
        return false;
    while (is_idle(timeline, &timeline->rescue, 1, &written) == SHC_OK && !written &&
           shc_clock_ns() < deadline_ns)
        shc_sys_sleep_ns(POISON_AGAIN_NS);
    if (written) {
        (void)timeline->gpu->driver->cuStreamDestroy(timeline->rescue);
        timeline->rescue = NULL;
    }
    shc_gpu_leave(timeline->gpu);
    return written;
}
