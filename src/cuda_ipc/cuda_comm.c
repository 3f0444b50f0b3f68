/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/cuda_comm.h"
#include "cuda_ipc/capture.h"
#include "cuda_ipc/nvtx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_NS (30 * 60 * SHC_NS_PER_S)
#define CLOSING_NS         (2 * SHC_NS_PER_S)
#define DRAINING_NS        SHC_NS_PER_S

static enum shc_status make_locks(struct shc_cuda_comm *comm)
{
    pthread_condattr_t attr;
    int error = pthread_condattr_init(&attr);
    if (!error)
        error = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (!error)
        error = pthread_cond_init(&comm->stir, &attr);
    if (!error)
        error = pthread_cond_init(&comm->relay.stir, &attr);
    if (!error)
        error = pthread_mutex_init(&comm->order_lock, NULL);
    if (!error)
        error = pthread_mutex_init(&comm->state_lock, NULL);
    if (!error)
        error = pthread_mutex_init(&comm->mail.lock, NULL);
    if (error)
        return shc_cuda_fail_errno(SHC_ERR_NOMEM, error, "no lock for a group");
    (void)pthread_condattr_destroy(&attr);
    return SHC_OK;
}

static void drop(struct shc_cuda_comm *comm)
{
    shc_setup_undo(comm);
    (void)pthread_mutex_destroy(&comm->order_lock);
    (void)pthread_mutex_destroy(&comm->state_lock);
    (void)pthread_mutex_destroy(&comm->mail.lock);
    (void)pthread_cond_destroy(&comm->stir);
    (void)pthread_cond_destroy(&comm->relay.stir);
    free(comm);
}

enum shc_status shc_cuda_comm_create_over(const char *library, struct shc_comm *comm,
                                          const struct shc_cuda_config *config,
                                          struct shc_cuda_comm **cuda)
{
    struct shc_cuda_comm *made = calloc(1, sizeof *made);
    if (made == NULL)
        return shc_cuda_fail(SHC_ERR_NOMEM, "out of memory");
    made->core = comm;
    made->rank = shc_comm_rank(comm);
    made->world = shc_comm_world_size(comm);
    shc_cuda_comm_set_timeout(made, config->timeout_ns);
    made->say = config->say;
    made->say_ctx = config->say_ctx;
    made->host.fd = -1;
    snprintf(made->name, sizeof made->name, "%s", config->name ? config->name : "unnamed");
    made->nvtx = shc_nvtx_category(made->name);
    enum shc_status st = make_locks(made);
    if (st != SHC_OK) {
        free(made);
        return st;
    }
    st = shc_setup_make(made, library, config);
    if (st != SHC_OK) {
        drop(made);
        return st;
    }
    *cuda = made;
    return SHC_OK;
}

enum shc_status shc_cuda_comm_create(struct shc_comm *comm, const struct shc_cuda_config *config,
                                     struct shc_cuda_comm **cuda)
{
    return shc_cuda_comm_create_over(SHC_DRIVER_LIBRARY, comm, config, cuda);
}

void shc_cuda_comm_set_timeout(struct shc_cuda_comm *cuda, uint64_t timeout_ns)
{
    /* relaxed: concerns the operations that start after it. */
    shc_a64_store_relaxed(&cuda->timeout_ns, timeout_ns ? timeout_ns : DEFAULT_TIMEOUT_NS);
}

/* In a forked child nothing of CUDA works, and nothing is this process's. */
static bool is_child(struct shc_cuda_comm *cuda)
{
    return shc_comm_error(cuda->core) == SHC_ERR_FORKED;
}

static bool is_closed(struct shc_cuda_comm *cuda)
{
    pthread_mutex_lock(&cuda->state_lock);
    const bool closed = cuda->closed;
    pthread_mutex_unlock(&cuda->state_lock);
    return closed;
}

/* Is the group still this process's, and open? */
static enum shc_status check_here(struct shc_cuda_comm *cuda)
{
    if (is_child(cuda))
        return shc_cuda_fail(SHC_ERR_FORKED, "the group belongs to the parent process");
    if (is_closed(cuda))
        return shc_cuda_fail(SHC_ERR_CLOSED, "this rank has closed the group");
    return SHC_OK;
}

enum shc_status shc_cuda_comm_error(struct shc_cuda_comm *cuda)
{
    SHC_TRY(check_here(cuda));
    return shc_watch_look(cuda);
}

enum shc_status shc_cuda_comm_pending(struct shc_cuda_comm *cuda, bool *pending)
{
    *pending = false;
    SHC_TRY(check_here(cuda));
    *pending = !shc_watch_idle(cuda);
    /* The watcher looks at everything else while something is in flight, and after that others may leave and
     * end. But a gate may have shut just before the last "done". */
    return shc_watch_verdicts(cuda);
}

void shc_cuda_comm_abort(struct shc_cuda_comm *cuda, const char *reason)
{
    char text[SHC_HOST_REASON_BYTES];
    if (is_child(cuda) || is_closed(cuda))
        return;
    snprintf(text, sizeof text, "%s aborted: %s", shc_comm_rank_name(cuda->core, cuda->rank).text,
             reason ? reason : "no reason");
    (void)!shc_failure_set(cuda, SHC_ERR_ABORTED, text);
}

/* "0-1,4; 2-3": which ranks share a GPU. */
static void list_ranks(const struct shc_cuda_comm *cuda, char *text, size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    for (int gpu = 0; gpu < cuda->gpu_count; gpu++) {
        const char *between = gpu > 0 ? "; " : "";
        for (int first = 0, last; first < cuda->world && used < capacity; first = last + 1) {
            last = first;
            if (cuda->gpu_of[first] != gpu)
                continue;
            while (last + 1 < cuda->world && cuda->gpu_of[last + 1] == gpu)
                last++;
            const char *format = last > first ? "%s%d-%d" : "%s%d";
            const int more = snprintf(text + used, capacity - used, format, between, first, last);
            used += more > 0 ? (size_t)more : 0;
            between = ",";
        }
    }
}

/* "path.all_reduce.65536=relay": which way an all_reduce goes, for a row of sizes. */
static void list_paths(const struct shc_cuda_comm *cuda, char *text, size_t capacity)
{
    static const uint64_t sizes[] = {8, 4096, 65536, 262144, 1048576, 4194304, 67108864};
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && used < capacity; i++) {
        struct shc_rounds rounds = {.kind = SHC_ALL_REDUCE, .world = cuda->world};
        rounds.half_bytes = cuda->half_bytes;
        rounds.bytes = sizes[i];
        const bool relayed = shc_relay_takes(cuda, &rounds);
        rounds.two = relayed ? rounds.two : shc_rounds_wants_two(&rounds, cuda->sharing);
        const int more =
            snprintf(text + used, capacity - used, "path.all_reduce.%llu=%s, %llu round%s\n",
                     (unsigned long long)sizes[i], relayed ? "relay" : "kernels",
                     (unsigned long long)shc_rounds_count(&rounds),
                     shc_rounds_count(&rounds) == 1 ? "" : "s");
        used += more > 0 ? (size_t)more : 0;
    }
}

enum shc_status shc_cuda_comm_info(struct shc_cuda_comm *cuda, char *text, size_t capacity)
{
    pthread_mutex_lock(&cuda->state_lock);
    const uint64_t sequence = cuda->lane.sequence, captured = cuda->captures.lane.sequence;
    const uint64_t messages = shc_mail_count(cuda);
    pthread_mutex_unlock(&cuda->state_lock);
    /* relaxed: a count, told as of about now. */
    const uint64_t backoffs = shc_a64_load_relaxed(&cuda->relay.backoffs);
    /* relaxed: a count, told as of about now. */
    const uint64_t relayed = shc_a64_load_relaxed(&cuda->relay.queue.pushed);
    /* relaxed: a count, told as of about now. */
    const uint64_t relayed_messages = shc_a64_load_relaxed(&cuda->relay.messages);
    char ranks[6 * SHC_MAX_WORLD];
    char paths[512];
    list_ranks(cuda, ranks, sizeof ranks);
    list_paths(cuda, paths, sizeof paths);
    const int used = snprintf(
        text, capacity,
        "route=%s\nmemory=%s\nreason=%s\nhalf_bytes=%zu\ngpu=%s\nmps=%s\ngpus=%d\ngpu_ranks=%s\n"
        "operations=%llu\nrelayed=%llu\nrelay_backoffs=%llu\nrelay_bytes=%zu\nrelay_reason=%s\n"
        "messages=%llu\nrelayed_messages=%llu\ncaptured=%llu\nnvtx=%s\n%s",
        cuda->by_slabs ? "slabs" : "host", shc_slab_kind_name(cuda->share.kind), cuda->reason,
        cuda->half_bytes, cuda->gpu.name, cuda->by_mps ? "yes" : "no", cuda->gpu_count, ranks,
        (unsigned long long)sequence, (unsigned long long)relayed, (unsigned long long)backoffs,
        cuda->relay.limit, cuda->relay.reason, (unsigned long long)messages,
        (unsigned long long)relayed_messages, (unsigned long long)captured,
        shc_nvtx_is_built() ? "yes" : "no", paths);
    if (used < 0 || (size_t)used >= capacity)
        return shc_cuda_fail(SHC_ERR_INVALID, "the text needs %d bytes", used + 1);
    return SHC_OK;
}

/* ---- leaving ---- */

static bool await_idle(struct shc_cuda_comm *cuda, uint64_t patience_ns, bool while_healthy)
{
    const uint64_t deadline_ns = shc_clock_ns() + patience_ns;
    while (!shc_watch_idle(cuda)) {
        if (shc_clock_ns() >= deadline_ns || (while_healthy && shc_watch_look(cuda) != SHC_OK))
            return false;
        shc_sys_sleep_ns(SHC_NS_PER_MS / 5);
    }
    return true;
}

/* A legacy slab goes with its process, so receivers get a while to take the pieces that lie there. pre: the
 * mail's lock. */
static void linger(struct shc_cuda_comm *cuda)
{
    const uint64_t deadline_ns = shc_clock_ns() + CLOSING_NS;
    while (cuda->by_slabs && cuda->share.kind == SHC_SLAB_LEGACY && !shc_mail_is_taken(cuda) &&
           shc_clock_ns() < deadline_ns && shc_watch_look(cuda) == SHC_OK)
        shc_sys_sleep_ns(SHC_NS_PER_MS / 5);
}

void shc_cuda_comm_close(struct shc_cuda_comm *cuda)
{
    if (is_child(cuda))
        return;
    pthread_mutex_lock(&cuda->state_lock);
    cuda->closing = true; /* ends a call that waits for other CPUs */
    pthread_mutex_unlock(&cuda->state_lock);
    pthread_mutex_lock(&cuda->order_lock);
    pthread_mutex_lock(&cuda->mail.lock);
    if (!is_closed(cuda)) {
        if (!await_idle(cuda, CLOSING_NS, true)) {
            char text[SHC_HOST_REASON_BYTES];
            snprintf(text, sizeof text, "%s closed the group while operations were under way",
                     shc_comm_rank_name(cuda->core, cuda->rank).text);
            (void)!shc_failure_set(cuda, SHC_ERR_PEER_LEFT, text);
            (void)await_idle(cuda, DRAINING_NS, false);
        }
        (void)!shc_watch_verdicts(cuda); /* a gate may have shut before the last "done" */
        linger(cuda);
        /* release cuda/left -> acquire in shc_departure(): its last operation. */
        shc_a64_store_release(&shc_host_part(&cuda->host, cuda->rank)->left.word,
                              cuda->lane.sequence + 1);
        if (shc_watch_idle(cuda)) { /* else a stream still needs to be poisoned */
            shc_watch_stop(cuda);
            shc_relay_stop(cuda);
            shc_capture_seal(cuda);
        }
        pthread_mutex_lock(&cuda->state_lock);
        cuda->closed = true;
        pthread_mutex_unlock(&cuda->state_lock);
    }
    pthread_mutex_unlock(&cuda->mail.lock);
    pthread_mutex_unlock(&cuda->order_lock);
}

void shc_cuda_comm_free(struct shc_cuda_comm *cuda)
{
    if (cuda == NULL || is_child(cuda))
        return;
    shc_cuda_comm_close(cuda);
    if (shc_watch_idle(cuda))
        drop(cuda);
}
