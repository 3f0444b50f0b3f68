/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/capture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEALING_NS  SHC_NS_PER_S
#define TEXT_BYTES  176
#define LATE_PART   0x40000u /* replays, in a hash of ranks */
#define ALL_ARRIVED "this rank's GPU: all ranks have arrived"

static struct shc_part_shm *own_part(const struct shc_cuda_comm *comm)
{
    return shc_host_part(&comm->host, comm->rank);
}

/* ---- of the driver ---- */

enum shc_status shc_capture_of(const struct shc_driver *driver, struct shc_cu_stream *stream,
                               uint64_t *capture)
{
    int status = SHC_CU_CAPTURE_NONE;
    uint64_t number = 0;
    *capture = 0;
    const int result = driver->cuStreamGetCaptureInfo(stream, &status, &number);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result, "whether the stream is captured");
    if (status == SHC_CU_CAPTURE_BROKEN)
        return shc_cuda_fail(SHC_ERR_INVALID, "the capture of this stream has been broken before "
                                              "this call; begin it again");
    if (status == SHC_CU_CAPTURE_ACTIVE)
        *capture = number + 1; /* drivers count from where they like */
    return SHC_OK;
}

int shc_capture_exchange(const struct shc_driver *driver, int mode)
{
    if (driver->cuThreadExchangeStreamCaptureMode != NULL)
        (void)driver->cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

enum shc_status shc_cuda_capturing(struct shc_cuda_comm *cuda, void *stream, bool *capturing)
{
    struct shc_driver opened;
    uint64_t capture = 0;
    *capturing = false;
    if (cuda == NULL && stream == NULL)
        return SHC_OK; /* the stream that cannot be captured; and there may be no context yet */
    if (cuda == NULL && shc_driver_open(SHC_DRIVER_LIBRARY, &opened) != SHC_OK)
        return SHC_OK; /* making a group reports why */
    if (cuda != NULL)
        SHC_TRY(shc_gpu_enter(&cuda->gpu));
    const enum shc_status st =
        shc_capture_of(cuda != NULL ? &cuda->driver : &opened, stream, &capture);
    if (cuda != NULL)
        shc_gpu_leave(&cuda->gpu);
    *capturing = capture != 0;
    return st;
}

/* ---- capturing ---- */

static bool reduces(enum shc_op_kind kind)
{
    return kind == SHC_ALL_REDUCE || kind == SHC_REDUCE || kind == SHC_REDUCE_SCATTER ||
           kind == SHC_REDUCE_SCATTER_UNEVEN;
}

/* Operations that need the CPU with every run are refused. */
static enum shc_status check_offered(struct shc_cuda_comm *comm, const struct shc_op *op)
{
    struct shc_demand *demand = &comm->demand;
    if (reduces(op->kind) && op->redop == SHC_PREMUL_SUM)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED,
                             "%s: premul_sum is not offered while a CUDA graph is captured; scale "
                             "the tensor, then sum",
                             shc_op_kind_name(op->kind));
    if (op->kind != SHC_ALL_TO_ALL)
        return SHC_OK;
    for (int r = 0; r < comm->world; r++)
        if (demand->sends[r] != demand->sends[0] || demand->receives[r] != demand->sends[0])
            return shc_cuda_fail(SHC_ERR_UNSUPPORTED,
                                 "all_to_all: counts that differ between ranks are not offered "
                                 "while a CUDA graph is captured");
    demand->rounds.largest = comm->world > 1 ? demand->sends[0] : 0;
    return SHC_OK;
}

/* The value of the first arrival: a hash of the call and of the captured operation's number. Above 1, the value
 * of all other arrivals, and below poison. */
static uint64_t tag_of(const struct shc_demand *demand, uint64_t number)
{
    uint64_t words[SHC_RECORD_CALL_WORDS + 2], hash = 0xcbf29ce484222325; /* FNV-1a */
    memcpy(words, demand->call, sizeof demand->call);
    words[SHC_RECORD_CALL_WORDS] = number;
    words[SHC_RECORD_CALL_WORDS + 1] = demand->rounds.largest;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int byte = 0; byte < 64; byte += 8)
            hash = (hash ^ (words[i] >> byte & 0xff)) * 0x100000001b3;
    return hash >> 2 | 2;
}

/* The next number is this operation's. */
static enum shc_status enter(struct shc_cuda_comm *comm, struct shc_captured *one, uint64_t *number)
{
    struct shc_captures *captures = &comm->captures;
    memcpy(one->call, comm->demand.call, sizeof one->call);
    pthread_mutex_lock(&comm->state_lock);
    if (captures->lane.sequence == captures->room) {
        const uint64_t room = captures->room ? 2 * captures->room : 16;
        struct shc_captured *list = realloc(captures->list, room * sizeof *list);
        if (list == NULL) {
            pthread_mutex_unlock(&comm->state_lock);
            return shc_cuda_fail(SHC_ERR_NOMEM, "out of memory");
        }
        captures->list = list;
        captures->room = room;
    }
    *number = ++captures->lane.sequence;
    one->tag = tag_of(&comm->demand, *number);
    captures->list[*number - 1] = *one;
    pthread_cond_signal(&comm->stir); /* the watcher must begin to look */
    pthread_mutex_unlock(&comm->state_lock);
    return SHC_OK;
}

/* Of a round: the arrivals, and the gate after them. */
static enum shc_status meet(struct shc_work *work)
{
    struct shc_cuda_comm *comm = work->comm;
    const uint64_t parity = work->round & 1, arrival = work->round == 0 ? work->tag : 1;
    struct shc_gate_args args = work->lane->args;
    args.arrived += parity * (uint64_t)comm->world * args.arrived_stride;
    args.round = arrival;
    args.sequence = work->sequence;
    if (work->round == work->last) {
        args.busy = shc_host_pointer(&comm->host, &own_part(comm)->busy);
        args.busy_value = SHC_BUSY(work->sequence, SHC_BUSY_WORKING);
    }
    SHC_TRY(shc_lane_meet(comm, work->stream, SHC_ROW_CAPTURED + (int)parity, arrival, 1));
    return shc_kernels_gate(&comm->kernels, work->stream, &args);
}

void shc_capture_init(struct shc_cuda_comm *comm)
{
    const struct shc_host *host = &comm->host;
    struct shc_part_shm *own = own_part(comm);
    struct shc_lane *lane = &comm->captures.lane;
    lane->verdict = &own->graph_verdict.word;
    lane->done = &own->busy.word;
    lane->args = (struct shc_gate_args){
        .arrived = shc_host_pointer(host, shc_host_word(host, comm->rank, SHC_ROW_CAPTURED, 0)),
        .arrived_stride = sizeof(struct shc_lone_shm),
        .rank = comm->rank,
        .world = comm->world,
        .passed = shc_host_pointer(host, &own->passed),
    };
    shc_lane_init(comm, NULL, comm->gates + SHC_GRAPH_GATE, lane);
}

/* An even number of rounds, so that words and halves keep alternating, whichever graph comes next. */
static enum shc_status carry_out(struct shc_work *work, uint64_t capture)
{
    struct shc_cuda_comm *comm = work->comm;
    const uint64_t waiting = SHC_BUSY(work->sequence, SHC_BUSY_WAITING);
    if (comm->captures.capture == capture) /* an event from outside would break the capture */
        SHC_TRY(shc_lane_follow(comm, work->lane, work->stream));
    SHC_TRY(shc_lane_tell(comm, work->stream, work->lane->done, waiting));
    for (uint64_t k = 0; k <= work->last; k++)
        SHC_TRY(shc_work_round(work, k));
    SHC_TRY(shc_lane_finish(comm, work->lane, work->stream, 0));
    comm->captures.capture = capture;
    return SHC_OK;
}

enum shc_status shc_capture_enqueue(struct shc_cuda_comm *comm, const struct shc_op *op,
                                    struct shc_cu_stream *stream, uint64_t capture)
{
    struct shc_captured one = {.tag = 0};
    struct shc_lane *lane = &comm->captures.lane;
    struct shc_work work = {.comm = comm,
                            .lane = lane,
                            .meet = meet,
                            .stream = stream,
                            .halves_at = 2 * comm->half_bytes,
                            .scratch = comm->captures.scratch,
                            .copies = {&comm->kernels, stream, {.gate = lane->args.gate}}};
    SHC_TRY(check_offered(comm, op));
    SHC_TRY(enter(comm, &one, &work.sequence));
    work.tag = one.tag;
    work.last = (shc_rounds_count(&comm->demand.rounds) - 1) | 1;
    return carry_out(&work, capture); /* a failure uses its number up, too, as other ranks' do */
}

/* ---- the state of replays ---- */

static uint64_t busy_of(const struct shc_cuda_comm *comm, int rank)
{
    /* acquire cuda/busy <- release in the device: the progress of the replay. */
    return shc_a64_load_acquire(&shc_host_part(&comm->host, rank)->busy.word);
}

static uint64_t passed_of(const struct shc_cuda_comm *comm, int rank)
{
    /* acquire cuda/passed <- release in the device: `busy` after an operation's last round. */
    return shc_a64_load_acquire(&shc_host_part(&comm->host, rank)->passed.word);
}

static uint64_t arrival_of(const struct shc_cuda_comm *comm, int rank, uint64_t parity)
{
    const int row = SHC_ROW_CAPTURED + (int)(parity & 1);
    /* acquire cuda/captured <- release in the device: for messages alone. */
    return shc_a64_load_acquire(&shc_host_word(&comm->host, comm->rank, row, rank)->word);
}

bool shc_capture_busy(const struct shc_cuda_comm *comm)
{
    return busy_of(comm, comm->rank) != 0;
}

bool shc_capture_stirs(const struct shc_cuda_comm *comm)
{
    return comm->captures.lane.sequence > 0 &&
           (shc_capture_busy(comm) ||
            (comm->failed == SHC_OK && shc_lane_verdict(&comm->captures.lane) != 0));
}

/* "captured all_reduce #3 (float32[8], sum)" */
static void call_text(struct shc_cuda_comm *comm, uint64_t number, char text[TEXT_BYTES])
{
    struct shc_captured one;
    pthread_mutex_lock(&comm->state_lock);
    const bool known = number > 0 && number <= comm->captures.lane.sequence;
    if (known)
        one = comm->captures.list[number - 1];
    pthread_mutex_unlock(&comm->state_lock);
    const int used = snprintf(text, TEXT_BYTES, "captured ");
    if (known)
        shc_call_words_text(one.call, number, text + used, TEXT_BYTES - (size_t)used);
    else
        snprintf(text + used, TEXT_BYTES - (size_t)used, "operation #%llu",
                 (unsigned long long)number);
}

/* The call that another rank's first arrival stands for, if this rank has captured the same. */
static void tag_text(struct shc_cuda_comm *comm, uint64_t tag, char text[TEXT_BYTES])
{
    uint64_t number = 0;
    pthread_mutex_lock(&comm->state_lock);
    for (uint64_t i = 0; i < comm->captures.lane.sequence && number == 0; i++)
        if (comm->captures.list[i].tag == tag)
            number = i + 1;
    pthread_mutex_unlock(&comm->state_lock);
    if (number != 0)
        call_text(comm, number, text);
    else
        snprintf(text, TEXT_BYTES, "one that %s has not captured so",
                 shc_comm_rank_name(comm->core, comm->rank).text);
}

static bool has_left(const struct shc_cuda_comm *comm, int rank)
{
    /* acquire cuda/left <- release in shc_cuda_comm_close(): its last rounds. */
    return shc_a64_load_acquire(&shc_host_part(&comm->host, rank)->left.word) != 0;
}

static enum shc_status fail_leaver(struct shc_cuda_comm *comm, int rank)
{
    char text[256];
    snprintf(text, sizeof text, "%s has left the group, and replays no more graphs",
             shc_comm_rank_name(comm->core, rank).text);
    return shc_failure_set(comm, SHC_ERR_PEER_LEFT, text);
}

/* A rank that has left had an open gate in all rounds that it completed, so this is a round without it. A replay
 * after its close() shut a gate, here or at another rank, which then ran on and arrived too early. This rank's
 * verdict may name that other rank. */
static enum shc_status fail_mismatch(struct shc_cuda_comm *comm, uint64_t verdict)
{
    const int rank = SHC_VERDICT_RANK(verdict);
    for (int r = 0; r < comm->world; r++)
        if (r != comm->rank && has_left(comm, r))
            return fail_leaver(comm, r);
    char text[2 * SHC_HOST_REASON_BYTES], ours[TEXT_BYTES], theirs[TEXT_BYTES];
    call_text(comm, SHC_VERDICT_SEQUENCE(verdict), ours);
    /* acquire cuda/verdict <- release in the device: it was written before the verdict. */
    tag_text(comm, shc_a64_load_acquire(&own_part(comm)->graph_verdict.theirs), theirs);
    snprintf(text, sizeof text,
             "ranks replay different operations: %s is at %s, but %s at %s (all must capture and "
             "replay the same, in the same order)",
             shc_comm_rank_name(comm->core, comm->rank).text, ours,
             shc_comm_rank_name(comm->core, rank).text, theirs);
    return shc_failure_set(comm, SHC_ERR_MISMATCH, text);
}

/* A rank that has left arrives no more: the rounds that it completed are all that others can complete. A rank
 * that is past them has met a replay that was launched after that rank's close(). */
static enum shc_status look_at_leavers(struct shc_cuda_comm *comm)
{
    for (int r = 0; r < comm->world; r++) {
        if (r == comm->rank || shc_departure(comm, r) == 0)
            continue;
        const uint64_t theirs = passed_of(comm, r), mine = passed_of(comm, comm->rank);
        const uint64_t busy = busy_of(comm, comm->rank);
        if (mine > theirs || (mine == theirs && SHC_BUSY_STATE(busy) == SHC_BUSY_WAITING))
            return fail_leaver(comm, r);
    }
    return SHC_OK;
}

enum shc_status shc_capture_look(struct shc_cuda_comm *comm)
{
    pthread_mutex_lock(&comm->state_lock);
    const bool any = comm->captures.lane.sequence > 0;
    pthread_mutex_unlock(&comm->state_lock);
    if (!any)
        return SHC_OK;
    const uint64_t verdict = shc_lane_verdict(&comm->captures.lane);
    if (SHC_VERDICT_STATE(verdict) == SHC_GATE_MISMATCH)
        return fail_mismatch(comm, verdict);
    if (verdict != 0)
        return shc_failure_set_aborted(comm);
    return look_at_leavers(comm);
}

/* ---- replays that wait ---- */

/* Returns a hash of the ranks; 0: there are none. */
static uint32_t whom_text(struct shc_cuda_comm *comm, uint64_t passed, char *text, size_t capacity)
{
    uint32_t missing = shc_late_hash(SHC_LATE_HASH, LATE_PART);
    size_t used = 0;
    for (int r = 0; r < comm->world && used < capacity; r++) {
        if (r == comm->rank || arrival_of(comm, r, passed) != 0)
            continue;
        used += (size_t)snprintf(text + used, capacity - used, "%s%s (%s)", used ? ", " : "",
                                 shc_comm_rank_name(comm->core, r).text,
                                 busy_of(comm, r) != 0 ? "its stream is not there"
                                                       : "it replays nothing");
        missing = shc_late_hash(missing, (uint32_t)r);
    }
    if (used == 0)
        snprintf(text, capacity, "%s", ALL_ARRIVED);
    return used == 0 ? 0 : missing;
}

void shc_capture_look_at_time(struct shc_cuda_comm *comm, uint64_t now_ns, uint64_t lost_ns)
{
    struct shc_captures *captures = &comm->captures;
    struct shc_lateness *lateness = &captures->lateness;
    const uint64_t passed = passed_of(comm, comm->rank), busy = busy_of(comm, comm->rank);
    if (busy == 0 || passed != captures->passed || lateness->begun_ns == 0) {
        captures->passed = passed;
        shc_lateness_begin(lateness, busy != 0 ? now_ns : 0, shc_cuda_timeout_ns(comm),
                           SHC_LATE_NS);
        return;
    }
    shc_lateness_add_lost(lateness, now_ns, lost_ns);
    const enum shc_lateness_state state = shc_lateness_look(lateness, now_ns);
    if (state == SHC_IN_TIME)
        return;
    char call[TEXT_BYTES], whom[256], replay[TEXT_BYTES + 16];
    uint32_t missing = 0;
    call_text(comm, SHC_BUSY_NUMBER(busy), call);
    snprintf(replay, sizeof replay, "a replay of %s", call);
    if (SHC_BUSY_STATE(busy) == SHC_BUSY_WAITING)
        missing = whom_text(comm, passed, whom, sizeof whom);
    else
        snprintf(whom, sizeof whom, "%s", ALL_ARRIVED);
    const struct shc_waiting waiting = {.waited_ns = now_ns - lateness->begun_ns,
                                        .call = replay,
                                        .whom = whom,
                                        .number = passed + 1,
                                        .missing = missing};
    shc_tell_late(comm, state, &waiting);
}

/* ---- leaving ---- */

/* A gate that was open may still set a word back, over poison: so poison once more after that. */
static void poison_until_calm(struct shc_cuda_comm *comm)
{
    const uint64_t deadline_ns = shc_clock_ns() + SEALING_NS;
    bool calm = false;
    while (shc_clock_ns() < deadline_ns) {
        if (comm->driver.cuStreamQuery(comm->timeline.rescue) == SHC_CU_SUCCESS) {
            if (calm)
                return;
            calm = !shc_capture_busy(comm);
            if (shc_timeline_poison_again(&comm->timeline) != SHC_OK)
                return;
        }
        shc_sys_sleep_ns(SHC_NS_PER_MS / 5);
    }
}

void shc_capture_seal(struct shc_cuda_comm *comm)
{
    pthread_mutex_lock(&comm->state_lock);
    const bool needed = comm->captures.lane.sequence > 0 && !comm->stuck;
    pthread_mutex_unlock(&comm->state_lock);
    if (!needed || shc_gpu_enter(&comm->gpu) != SHC_OK)
        return;
    const int mode = shc_capture_exchange(&comm->driver, SHC_CU_CAPTURE_RELAXED);
    /* The gate first: one that opens after the last poison would wipe it. */
    if (comm->driver.cuMemsetD8Async(comm->captures.lane.gate, SHC_GATE_ABORTED, 1,
                                     comm->timeline.rescue) == SHC_CU_SUCCESS &&
        shc_timeline_poison(&comm->timeline) == SHC_OK)
        poison_until_calm(comm);
    (void)shc_capture_exchange(&comm->driver, mode);
    shc_gpu_leave(&comm->gpu);
}
