/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The making of a group, step by step, all ranks together. After each step every rank tells
 * all others over the CPU group whether it could; the first bad rank's reason is the reason of all. So
 * no rank goes on alone, and none is left waiting.
 *
 *   1. driver, GPU, kernels, the gate's memory; a control socket, whose address goes round
 *   2. slabs, if the route allows them: mapped, and looked at; the route
 *   3. the host arena: made and reserved
 *   4. written and registered; scratch memory
 *   5. the arena looked at; words to wait on; the watcher
 */
#include "cuda_ipc/capture.h"
#include "cuda_ipc/cuda_comm.h"
#include "shm/base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_HALF_BYTES ((size_t)4 << 20)
#define HALF_BYTES_MOST    ((uint64_t)1 << 32)
#define RELAY_BYTES_MOST   ((uint64_t)1 << 30)

/* Ranks that share a GPU: each round costs them a turn of every context, so that longer ones are
 * faster up to here (docs/internals/cuda/rounds.md), if their slabs take no more of what is free there. */
#define SHARED_HALF_BYTES ((size_t)32 << 20)
#define SHARE_OF_FREE     100

/* The message of a rank after a step. Plain data. */
struct notice {
    uint32_t status; /* enum shc_status */
    uint32_t route;
    uint64_t half_bytes;  /* as asked for */
    uint64_t relay_bytes; /* as asked for */
    uint64_t relay_works;
    uint64_t by_mps;
    uint64_t record_bytes; /* a build with another layout is another version */
    uint64_t free_bytes;   /* of the GPU's memory */
    struct shc_control_address address;
    struct shc_cu_uuid gpu; /* ordinals differ between ranks */
    char reason[SHC_SHARE_REASON_BYTES];
};

/* While a group is being made. */
struct making {
    struct shc_cuda_comm *comm;
    const struct shc_cuda_config *config;
    struct shc_control control;
    uint64_t deadline_ns;
    struct notice mine;
    struct notice theirs[SHC_MAX_WORLD];
};

/* ---- telling one another ---- */

static uint64_t time_left(const struct making *making)
{
    const uint64_t now_ns = shc_clock_ns();
    return now_ns < making->deadline_ns ? making->deadline_ns - now_ns : 1;
}

/* All ranks' notices, over the CPU group. */
static enum shc_status exchange(struct making *making)
{
    const int64_t bytes = sizeof(struct notice), all = bytes * making->comm->world;
    const struct shc_tensor in = {.data = &making->mine, .ndim = 1, .sizes = &bytes};
    const struct shc_tensor out = {.data = making->theirs, .ndim = 1, .sizes = &all};
    const struct shc_op op = {.kind = SHC_ALL_GATHER,
                              .dtype = SHC_UINT8,
                              .timeout_ns = time_left(making),
                              .input = {&in, 1},
                              .output = {&out, 1}};
    const enum shc_status st = shc_run(making->comm->core, &op);
    if (st != SHC_OK)
        return shc_cuda_fail(st, "%s", shc_error_text());
    return SHC_OK;
}

/* A rank that failed because another one had gone says so; the reason is that other rank's. */
static int first_bad(const struct making *making)
{
    int bad = -1;
    for (int r = 0; r < making->comm->world; r++) {
        const uint32_t status = making->theirs[r].status;
        if (status != SHC_OK && status != SHC_ERR_PEER_DEAD)
            return r;
        if (status != SHC_OK && bad < 0)
            bad = r;
    }
    return bad;
}

/* How this rank's step ended; returns how the group's did. */
static enum shc_status agree(struct making *making, enum shc_status mine)
{
    making->mine.status = mine;
    making->mine.reason[0] = '\0';
    if (mine != SHC_OK) {
        snprintf(making->mine.reason, sizeof making->mine.reason, "%s", shc_cuda_failure());
        shc_control_close(&making->control); /* no rank waits for this one's word any more */
    }
    SHC_TRY(exchange(making));
    const int r = first_bad(making);
    if (r < 0)
        return SHC_OK;
    struct notice *theirs = &making->theirs[r];
    theirs->reason[sizeof theirs->reason - 1] = '\0';
    return shc_cuda_fail(theirs->status < SHC_STATUS_COUNT ? (enum shc_status)theirs->status
                                                           : SHC_ERR_SYSTEM,
                         "CUDA group \"%s\": %s: %s", making->comm->name,
                         shc_comm_rank_name(making->comm->core, r).text, theirs->reason);
}

/* ---- 1 ---- */

static enum shc_status make_gate(struct shc_cuda_comm *comm)
{
    const struct shc_driver *driver = &comm->driver;
    struct shc_cu_stream *stream;
    SHC_TRY(shc_gpu_enter(&comm->gpu));
    const size_t bytes = SHC_GATE_BYTES + shc_mail_gates_bytes(comm->world);
    int result = driver->cuMemAlloc(&comm->gates, bytes);
    if (result == SHC_CU_SUCCESS)
        result = driver->cuEventCreate(&comm->lane.tail, SHC_CU_EVENT_DISABLE_TIMING);
    if (result == SHC_CU_SUCCESS)
        result = driver->cuEventCreate(&comm->captures.lane.tail, SHC_CU_EVENT_DISABLE_TIMING);
    if (result == SHC_CU_SUCCESS)
        result = driver->cuStreamCreateWithPriority(&stream, SHC_CU_STREAM_NON_BLOCKING, 0);
    if (result == SHC_CU_SUCCESS) {
        /* Open, as the first operation's staging must find it: a word of value 1. Messages open
         * theirs. */
        result = driver->cuMemsetD8Async(comm->gates, 0, bytes, stream);
        if (result == SHC_CU_SUCCESS)
            result = driver->cuMemsetD8Async(comm->gates, SHC_GATE_OPEN, 1, stream);
        if (result == SHC_CU_SUCCESS)
            result =
                driver->cuMemsetD8Async(comm->gates + SHC_GRAPH_GATE, SHC_GATE_OPEN, 1, stream);
        if (result == SHC_CU_SUCCESS)
            result = driver->cuStreamSynchronize(stream);
        (void)driver->cuStreamDestroy(stream);
    }
    shc_gpu_leave(&comm->gpu);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result, "a gate on %s", comm->gpu.name);
    return SHC_OK;
}

static enum shc_status check_config(const struct shc_cuda_comm *comm,
                                    const struct shc_cuda_config *config)
{
    if (config->half_bytes % SHC_LINE_BYTES != 0 || config->half_bytes > HALF_BYTES_MOST ||
        comm->half_bytes < (size_t)comm->world * SHC_LINE_BYTES)
        return shc_cuda_fail(SHC_ERR_INVALID,
                             "half_bytes %llu: a multiple of %d from %d to %llu is needed",
                             (unsigned long long)config->half_bytes, SHC_LINE_BYTES,
                             comm->world * SHC_LINE_BYTES, (unsigned long long)HALF_BYTES_MOST);
    if (config->relay_bytes > RELAY_BYTES_MOST && config->relay_bytes != SHC_CUDA_RELAY_OFF)
        return shc_cuda_fail(SHC_ERR_INVALID, "relay_bytes %llu: at most %llu",
                             (unsigned long long)config->relay_bytes,
                             (unsigned long long)RELAY_BYTES_MOST);
    if ((unsigned)config->route > SHC_CUDA_ROUTE_HOST)
        return shc_cuda_fail(SHC_ERR_INVALID, "route %d does not exist", (int)config->route);
    return SHC_OK;
}

/* For the control socket: the CPU group knows which ranks have died. */
static enum shc_status look_at_members(void *ctx)
{
    const enum shc_status st = shc_comm_error(ctx);
    return st == SHC_OK ? SHC_OK : shc_cuda_fail(st, "%s", shc_error_text());
}

static enum shc_status look_at_memory(struct making *making)
{
    const struct shc_cuda_comm *comm = making->comm;
    size_t free_bytes, total_bytes;
    SHC_TRY(shc_gpu_enter(&comm->gpu));
    const int result = comm->driver.cuMemGetInfo(&free_bytes, &total_bytes);
    shc_gpu_leave(&comm->gpu);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(&comm->driver, result, "the free memory of %s", comm->gpu.name);
    making->mine.free_bytes = free_bytes;
    return SHC_OK;
}

static enum shc_status open_gpu(struct making *making, const char *library)
{
    struct shc_cuda_comm *comm = making->comm;
    SHC_TRY(check_config(comm, making->config));
    SHC_TRY(shc_driver_open(library, &comm->driver));
    SHC_TRY(shc_gpu_open(&comm->driver, making->config->device, &comm->gpu));
    SHC_TRY(shc_kernels_load(&comm->gpu, &comm->kernels));
    SHC_TRY(make_gate(comm));
    SHC_TRY(look_at_memory(making));
    SHC_TRY(shc_control_open(comm->rank, comm->world, &making->control));
    making->control.look = look_at_members;
    making->control.look_ctx = comm->core;
    making->control.core = comm->core;
    making->mine.address = making->control.self;
    making->mine.gpu = comm->gpu.uuid;
    making->mine.by_mps = comm->gpu.by_mps;
    return SHC_OK;
}

/* After step 1: were all asked for the same? */
static enum shc_status compare(const struct making *making)
{
    for (int r = 1; r < making->comm->world; r++) {
        const struct notice *theirs = &making->theirs[r], *first = &making->theirs[0];
        const struct shc_rank_name one = shc_comm_rank_name(making->comm->core, 0),
                                   other = shc_comm_rank_name(making->comm->core, r);
        if (theirs->record_bytes != first->record_bytes)
            return shc_cuda_fail(SHC_ERR_VERSION, "%s runs another build than %s", other.text,
                                 one.text);
        if (theirs->relay_bytes != first->relay_bytes)
            return shc_cuda_fail(SHC_ERR_INVALID, "%s asks for relay_bytes %llu, %s for %llu",
                                 one.text, (unsigned long long)first->relay_bytes, other.text,
                                 (unsigned long long)theirs->relay_bytes);
        if (theirs->route != first->route || theirs->half_bytes != first->half_bytes)
            return shc_cuda_fail(SHC_ERR_INVALID,
                                 "%s asks for route %u and halves of %llu bytes, %s for "
                                 "route %u and %llu bytes",
                                 one.text, first->route, (unsigned long long)first->half_bytes,
                                 other.text, theirs->route, (unsigned long long)theirs->half_bytes);
    }
    return SHC_OK;
}

/* Which rank is on which GPU. */
static void place(const struct making *making)
{
    struct shc_cuda_comm *comm = making->comm;
    for (int r = 0; r < comm->world; r++) {
        int same = 0;
        while (memcmp(&making->theirs[same].gpu, &making->theirs[r].gpu,
                      sizeof making->theirs[r].gpu) != 0)
            same++;
        comm->gpu_of[r] = same < r ? comm->gpu_of[same] : comm->gpu_count++;
    }
    int ranks[SHC_MAX_WORLD] = {0};
    comm->by_mps = true;
    for (int r = 0; r < comm->world; r++)
        comm->by_mps = comm->by_mps && making->theirs[r].by_mps;
    for (int r = 0; r < comm->world; r++)
        if (++ranks[comm->gpu_of[r]] > comm->sharing)
            comm->sharing = ranks[comm->gpu_of[r]];
}

/* All ranks know these values, so all choose alike. */
static void choose_half(const struct making *making)
{
    struct shc_cuda_comm *comm = making->comm;
    if (making->config->half_bytes != 0 || making->config->route == SHC_CUDA_ROUTE_HOST ||
        comm->sharing == 1)
        return;
    uint64_t least = UINT64_MAX;
    for (int r = 0; r < comm->world; r++)
        least = shc_min_size(least, making->theirs[r].free_bytes);
    while (comm->half_bytes < SHARED_HALF_BYTES &&
           shc_data_bytes(2 * comm->half_bytes, comm->world) * (size_t)comm->sharing <=
               least / SHARE_OF_FREE)
        comm->half_bytes *= 2;
}

static enum shc_status connect_all(struct making *making)
{
    struct shc_control_address all[SHC_MAX_WORLD];
    for (int r = 0; r < making->comm->world; r++)
        all[r] = making->theirs[r].address;
    return shc_control_meet(&making->control, all, making->deadline_ns);
}

/* ---- 2 ---- */

/* Why there are no slabs, or not of the first kind. */
static void give_reason(struct shc_cuda_comm *comm)
{
    const struct shc_share *share = &comm->share;
    const char *fd = share->reasons[SHC_SLAB_FD], *legacy = share->reasons[SHC_SLAB_LEGACY];
    const bool both = !comm->by_slabs && legacy[0] != '\0';
    if (share->kind != SHC_SLAB_FD)
        snprintf(comm->reason, sizeof comm->reason, "%s: %s%s%s", shc_slab_kind_name(SHC_SLAB_FD),
                 fd, both ? "; legacy handle: " : "", both ? legacy : "");
}

/* The one place where the route is chosen. All ranks know these values, so all choose alike. */
static enum shc_status choose_route(struct shc_cuda_comm *comm, enum shc_cuda_route asked)
{
    comm->by_slabs = asked != SHC_CUDA_ROUTE_HOST && comm->share.kind != SHC_SLAB_NONE;
    if (asked == SHC_CUDA_ROUTE_HOST)
        snprintf(comm->reason, sizeof comm->reason, "asked for");
    else
        give_reason(comm);
    if (asked == SHC_CUDA_ROUTE_SLABS && !comm->by_slabs)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "the ranks' GPUs share no memory: %s",
                             comm->reason);
    if (asked == SHC_CUDA_ROUTE_AUTO && !comm->by_slabs && comm->world > 1 && comm->rank == 0) {
        char line[sizeof comm->reason + SHC_CUDA_NAME_BYTES + 128];
        snprintf(line, sizeof line,
                 "CUDA group \"%s\" goes through host memory, which is slower: the ranks' "
                 "GPUs share no memory: %s",
                 comm->name, comm->reason);
        shc_say(comm, line);
    }
    return SHC_OK;
}

static enum shc_status share_slabs(struct making *making)
{
    struct shc_cuda_comm *comm = making->comm;
    comm->prober.control = &making->control;
    comm->prober.kernels = &comm->kernels;
    comm->prober.gate = comm->gates;
    comm->prober.deadline_ns = making->deadline_ns;
    if (making->config->route != SHC_CUDA_ROUTE_HOST)
        SHC_TRY(shc_share_make(&making->control, &comm->gpu,
                               shc_data_bytes(comm->half_bytes, comm->world), making->deadline_ns,
                               &comm->prober, &comm->share));
    SHC_TRY(choose_route(comm, making->config->route));
    if (!comm->by_slabs && making->config->half_bytes == 0)
        comm->half_bytes = DEFAULT_HALF_BYTES; /* of host memory, and of scratch memory n times */
    return SHC_OK;
}

/* ---- 3 to 5 ---- */

static void size_relay(struct shc_cuda_comm *comm)
{
    comm->relay.cell_bytes = shc_relay_cell_bytes(comm->relay.limit, comm->world);
    comm->relay.box_bytes = shc_relay_box_bytes(comm->relay.limit, comm->world);
}

/* All ranks know these values, so all choose alike. */
static void choose_relay(const struct making *making)
{
    struct shc_cuda_comm *comm = making->comm;
    const uint64_t asked = making->config->relay_bytes;
    const char *why_not = "";
    if (asked == SHC_CUDA_RELAY_OFF)
        why_not = "asked for";
    else if (comm->world > 1)
        comm->relay.limit = asked != 0 ? (size_t)asked : shc_relay_limit(comm);
    if (comm->relay.limit != 0)
        size_relay(comm);
    else if (why_not[0] == '\0')
        why_not = comm->world == 1     ? "there is one rank"
                  : comm->sharing == 1 ? "no two ranks share a GPU"
                                       : "by an MPS server kernels take no turns";
    snprintf(comm->relay.reason, sizeof comm->relay.reason, "%s", why_not);
}

static enum shc_status make_scratch(struct shc_cuda_comm *comm)
{
    const size_t one = (size_t)comm->world * comm->half_bytes, bytes = 2 * one;
    if (comm->by_slabs)
        return SHC_OK;
    SHC_TRY(shc_gpu_enter(&comm->gpu));
    const int result = comm->driver.cuMemAlloc(&comm->scratch, bytes);
    shc_gpu_leave(&comm->gpu);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(&comm->driver, result, "%zu bytes of scratch memory on %s", bytes,
                               comm->gpu.name);
    comm->captures.scratch = comm->scratch + one;
    return SHC_OK;
}

static enum shc_status show_host(struct shc_cuda_comm *comm)
{
    SHC_TRY(shc_host_register(&comm->host, &comm->gpu));
    shc_work_init(comm);
    shc_capture_init(comm);
    return make_scratch(comm);
}

/* Every route has its words and records in the host arena, so without it there is no group. It is
 * looked at where the records will be: they are not in use yet. */
static enum shc_status look_at_host(struct making *making)
{
    struct shc_cuda_comm *comm = making->comm;
    struct shc_lane_shm *own = shc_host_lane(&comm->host, comm->rank);
    struct shc_probe_area area = {.bytes = sizeof own->records};
    struct shc_probe_answer answer;
    if (comm->world == 1)
        return SHC_OK;
    for (int r = 0; r < comm->world; r++)
        area.at[r] = shc_host_device(&comm->host, shc_host_lane(&comm->host, r)->records);
    SHC_TRY(shc_probe(&comm->prober, &area, &answer));
    memset(own->records, 0, sizeof own->records);
    if (answer.outcome != SHC_PROBE_GOOD)
        return shc_cuda_fail(SHC_ERR_SYSTEM, "the GPUs do not use host memory right: %s",
                             answer.reason);
    return SHC_OK;
}

/* The relay lets its streams go by a CPU's store: does that end their waits here? */
static enum shc_status look_at_stores(struct making *making)
{
    bool works;
    SHC_TRY(shc_relay_look(making->comm, &works));
    making->mine.relay_works = works;
    return SHC_OK;
}

/* All ranks know these values, so all choose alike. */
static void settle_relay(const struct making *making)
{
    struct shc_relay *relay = &making->comm->relay;
    for (int r = 0; r < making->comm->world && relay->limit != 0; r++) {
        if (making->theirs[r].relay_works)
            continue;
        relay->limit = relay->box_bytes = 0;
        snprintf(relay->reason, sizeof relay->reason,
                 "%s: a CPU's store does not end a stream's wait",
                 shc_comm_rank_name(making->comm->core, r).text);
    }
}

static enum shc_status start(struct shc_cuda_comm *comm)
{
    struct shc_lone_shm *words = shc_host_word(&comm->host, comm->rank, 0, 0);
    SHC_TRY(shc_timeline_init(&comm->gpu, shc_host_device(&comm->host, words), &words->word,
                              shc_host_waited(&comm->host), sizeof *words / sizeof words->word,
                              &comm->timeline));
    SHC_TRY(shc_watch_start(comm));
    return comm->relay.limit != 0 ? shc_relay_start(comm) : SHC_OK;
}

static enum shc_status make(struct making *making, const char *library)
{
    struct shc_cuda_comm *comm = making->comm;
    SHC_TRY(agree(making, open_gpu(making, library)));
    SHC_TRY(compare(making));
    place(making);
    choose_half(making);
    SHC_TRY(agree(making, connect_all(making)));
    SHC_TRY(agree(making, share_slabs(making)));
    choose_relay(making);
    SHC_TRY(agree(making, shc_host_share(&making->control, comm->by_slabs ? 0 : comm->half_bytes,
                                         comm->relay.cell_bytes, comm->relay.box_bytes,
                                         making->deadline_ns, &comm->host)));
    shc_host_begin(&comm->host);
    SHC_TRY(agree(making, SHC_OK));
    SHC_TRY(agree(making, show_host(comm)));
    SHC_TRY(agree(making, look_at_host(making)));
    if (comm->relay.limit != 0) {
        SHC_TRY(agree(making, look_at_stores(making)));
        settle_relay(making);
    }
    return agree(making, start(comm));
}

enum shc_status shc_setup_make(struct shc_cuda_comm *comm, const char *library,
                               const struct shc_cuda_config *config)
{
    struct making *making = calloc(1, sizeof *making);
    if (making == NULL)
        return shc_cuda_fail(SHC_ERR_NOMEM, "out of memory");
    comm->half_bytes = config->half_bytes ? (size_t)config->half_bytes : DEFAULT_HALF_BYTES;
    making->comm = comm;
    making->config = config;
    making->deadline_ns = shc_deadline_after(shc_clock_ns(), shc_cuda_timeout_ns(comm));
    making->mine.route = config->route;
    making->mine.half_bytes = config->half_bytes; /* all choose alike what 0 means */
    making->mine.relay_bytes = config->relay_bytes;
    making->mine.record_bytes = sizeof(struct shc_part_shm);
    making->control.listener = -1;
    for (int r = 0; r < SHC_MAX_WORLD; r++)
        making->control.links[r] = -1;
    const enum shc_status st = make(making, library);
    shc_control_close(&making->control);
    free(making);
    return st;
}

void shc_setup_undo(struct shc_cuda_comm *comm)
{
    shc_watch_stop(comm);
    shc_relay_stop(comm);
    /* Freeing memory waits for all work that the GPU has begun, and the probe's last work never ends: so
     * everything of the group stays. Descriptors are closed, and no kernel of the group runs. */
    if (comm->prober.hung)
        return;
    if (comm->timeline.gpu != NULL && !shc_timeline_fini(&comm->timeline))
        return; /* what it still writes must stay */
    shc_host_undo(&comm->host);
    shc_share_undo(&comm->share);
    if (comm->gpu.context != NULL && shc_gpu_enter(&comm->gpu) == SHC_OK) {
        shc_mail_undo(comm);
        shc_probe_undo(&comm->prober, &comm->driver);
        if (comm->lane.tail != NULL)
            (void)comm->driver.cuEventDestroy(comm->lane.tail);
        if (comm->captures.lane.tail != NULL)
            (void)comm->driver.cuEventDestroy(comm->captures.lane.tail);
        if (comm->gates != 0)
            (void)comm->driver.cuMemFree(comm->gates);
        if (comm->scratch != 0)
            (void)comm->driver.cuMemFree(comm->scratch);
        shc_gpu_leave(&comm->gpu);
        shc_kernels_unload(&comm->kernels);
        shc_gpu_close(&comm->gpu);
    }
    free(comm->captures.list);
    free(comm->relay.moves);
}
