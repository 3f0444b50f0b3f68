/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Does a CPU's store end a stream's wait on this machine? The relay rests on it.
 */
#include "cuda_ipc/cuda_comm.h"
#include "cuda_ipc/cuda_error.h"
#include "shm/base/clock.h"

#define PENDING_NS  (10 * SHC_NS_PER_MS) /* from an event before a wait until that is pending */
#define PATIENCE_NS SHC_NS_PER_S
#define TRIALS      3 /* on a busy machine a stream may come to its wait only after the store */

/* Has the stream come to the wait after the event? It may have other work, or a test no CPU, meanwhile. */
static enum shc_status has_come(const struct shc_cuda_comm *comm, bool *come)
{
    const uint64_t end_ns = shc_clock_ns() + PATIENCE_NS;
    for (uint64_t pause_ns = 0;;) {
        const int result = comm->driver.cuEventQuery(comm->lane.tail);
        *come = result == SHC_CU_SUCCESS;
        if (result != SHC_CU_SUCCESS && result != SHC_CU_NOT_READY)
            return shc_driver_fail(&comm->driver, result, "a stream broke");
        if (*come || shc_clock_ns() >= end_ns)
            return SHC_OK;
        shc_sys_nap(&pause_ns);
    }
}

static enum shc_status is_over(const struct shc_cuda_comm *comm, struct shc_cu_stream *stream,
                               uint64_t patience_ns, bool *over)
{
    const uint64_t end_ns = shc_clock_ns() + patience_ns;
    for (uint64_t pause_ns = 0;;) {
        const int result = comm->driver.cuStreamQuery(stream);
        *over = result == SHC_CU_SUCCESS;
        if (result != SHC_CU_SUCCESS && result != SHC_CU_NOT_READY)
            return shc_driver_fail(&comm->driver, result, "a stream broke");
        if (*over || shc_clock_ns() >= end_ns)
            return SHC_OK;
        shc_sys_nap(&pause_ns);
    }
}

/* Where the store does not end the wait, a stream's write does. None is made before: another rank's wait,
 * which is under way at the same time, might end by it. */
static enum shc_status try_store(struct shc_cuda_comm *comm, struct shc_cu_stream *waits,
                                 struct shc_cu_stream *writes, bool *works)
{
    shc_a64 *word = &shc_host_lane(&comm->host, comm->rank)->released.word;
    const shc_cu_address address = shc_host_device(&comm->host, word);
    bool come = false, over = false;
    int result = comm->driver.cuEventRecord(comm->lane.tail, waits);
    if (result == SHC_CU_SUCCESS)
        result = comm->driver.cuStreamWaitValue64(waits, address, 1, SHC_CU_WAIT_GEQ);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(&comm->driver, result, "an event, or cuStreamWaitValue64");
    const bool hung = comm->prober.hung;
    comm->prober.hung = true; /* until the wait is over all that it may look at stays */
    SHC_TRY(has_come(comm, &come));
    SHC_TRY(is_over(comm, waits, PENDING_NS, &over));
    const bool waited = come && !over;
    /* release cuda/released -> acquire in the device: nothing; it ends the wait. */
    shc_a64_store_release(word, 1);
    SHC_TRY(is_over(comm, waits, PATIENCE_NS, &over));
    *works = waited && over;
    if (!over) {
        SHC_TRY(shc_timeline_signal(&comm->gpu, writes, address, 1));
        SHC_TRY(is_over(comm, waits, PATIENCE_NS, &over));
    }
    if (over)
        SHC_TRY(is_over(comm, writes, PATIENCE_NS, &over));
    if (!over)
        return shc_cuda_fail(SHC_ERR_SYSTEM, "a stream's write does not end a stream's wait on %s",
                             comm->gpu.name);
    comm->prober.hung = hung;
    /* relaxed: nothing is enqueued yet. */
    shc_a64_store_relaxed(word, 0);
    return SHC_OK;
}

enum shc_status shc_relay_look(struct shc_cuda_comm *comm, bool *works)
{
    struct shc_cu_stream *streams[2] = {NULL, NULL};
    enum shc_status st = SHC_OK;
    *works = false;
    SHC_TRY(shc_gpu_enter(&comm->gpu));
    for (int i = 0; i < 2 && st == SHC_OK; i++) {
        const int result =
            comm->driver.cuStreamCreateWithPriority(&streams[i], SHC_CU_STREAM_NON_BLOCKING, 0);
        if (result != SHC_CU_SUCCESS)
            st = shc_driver_fail(&comm->driver, result, "no stream on %s", comm->gpu.name);
    }
    for (int i = 0; i < TRIALS && st == SHC_OK && (i == 0 || *works); i++)
        st = try_store(comm, streams[0], streams[1], works);
    for (int i = 0; i < 2; i++)
        if (streams[i] != NULL)
            (void)comm->driver.cuStreamDestroy(streams[i]);
    shc_gpu_leave(&comm->gpu);
    return st;
}
