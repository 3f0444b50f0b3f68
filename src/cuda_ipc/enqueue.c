/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An operation as work in a stream (docs/internals/cuda/rounds.md). rounds.c says which bytes move; this file
 * enqueues the steps that move them. Nothing here waits, except await() for the CPUs of others.
 */
#include "cuda_ipc/capture.h"
#include "cuda_ipc/cuda_comm.h"
#include "cuda_ipc/placement.h"
#include "shm/base/num.h"

#include <stdio.h>
#include <string.h>

/* ---- addresses ---- */

/* Rank r's half of a round: the address at which it stages, and where peers read. */
static shc_cu_address half_of(const struct shc_work *work, int r, uint64_t round)
{
    const struct shc_cuda_comm *comm = work->comm;
    const shc_cu_address halves =
        comm->by_slabs ? comm->share.slabs[r].address
                       : shc_host_device(&comm->host, shc_host_halves(&comm->host, r));
    return halves + work->halves_at + (round & 1) * comm->half_bytes;
}

/* The address at which this rank's kernels read rank r's half: scratch memory where there are no slabs. */
static shc_cu_address source_of(const struct shc_work *work, int r)
{
    return work->comm->by_slabs ? half_of(work, r, work->round)
                                : work->scratch + (size_t)r * work->comm->half_bytes;
}

/* ---- copies ---- */

/* From the user's memory to this rank's half. */
static enum shc_status stage(struct shc_work *work, const struct shc_move *move)
{
    const shc_cu_address half = half_of(work, work->comm->rank, work->round);
    return shc_copies_add_flat(&work->copies, &work->comm->demand.in, move->from, half + move->to,
                               move->bytes, true);
}

static enum shc_status keep(struct shc_work *work, const struct shc_move *move)
{
    for (uint64_t moved = 0, run; moved < move->bytes; moved += run) {
        uint64_t room;
        const char *from = shc_flat_at(&work->comm->demand.in, move->from + moved, &run);
        char *to = shc_flat_at(&work->comm->demand.out, move->to + moved, &room);
        run = shc_min_size(shc_min_size(run, room), move->bytes - moved);
        SHC_TRY(shc_copies_add(&work->copies, to, from, run));
    }
    return SHC_OK;
}

static enum shc_status fetch(struct shc_work *work, const struct shc_move *move)
{
    return shc_copies_add_flat(&work->copies, &work->comm->demand.out, move->to,
                               source_of(work, move->rank) + move->from, move->bytes, false);
}

/* Without slabs: copies the bytes that this move reads into scratch memory. None is the user's, so no gate. */
static enum shc_status pull(struct shc_work *work, const struct shc_move *move)
{
    const struct shc_cuda_comm *comm = work->comm;
    const bool all = move->kind == SHC_MOVE_SUM || move->kind == SHC_MOVE_SUM_AHEAD;
    if (comm->by_slabs || (!all && move->kind != SHC_MOVE_FETCH))
        return SHC_OK;
    for (int r = all ? 0 : move->rank; r < (all ? comm->world : move->rank + 1); r++) {
        const int result = comm->driver.cuMemcpyAsync(source_of(work, r) + move->from,
                                                      half_of(work, r, work->round) + move->from,
                                                      move->bytes, work->stream);
        if (result != SHC_CU_SUCCESS)
            return shc_driver_fail(&comm->driver, result, "from %s's host memory",
                                   shc_comm_rank_name(comm->core, r).text);
    }
    return SHC_OK;
}

/* ---- reductions ---- */

static enum shc_status reduce(struct shc_work *work, void *to, uint64_t from, uint64_t bytes)
{
    const struct shc_cuda_comm *comm = work->comm;
    const struct shc_demand *demand = &comm->demand;
    const struct shc_cuda_record *record =
        &shc_host_lane(&comm->host, 0)->records[work->sequence % SHC_RECORDS];
    struct shc_reduce_args args;
    memset(&args, 0, sizeof args);
    args.gate = work->lane->args.gate;
    args.out = to;
    args.count = bytes / demand->elem_bytes;
    args.factors = shc_host_pointer(&comm->host, &record->factor);
    args.factor_stride = comm->host.part_bytes;
    args.world = comm->world;
    for (int r = 0; r < comm->world; r++)
        args.source[r] = shc_cu_pointer(source_of(work, r) + from);
    return shc_kernels_reduce(&comm->kernels, work->stream, demand->dtype, demand->redop, &args);
}

static enum shc_status sum(struct shc_work *work, const struct shc_move *move)
{
    if (move->kind == SHC_MOVE_SUM_AHEAD) {
        const shc_cu_address next = half_of(work, work->comm->rank, work->round + 1);
        return reduce(work, shc_cu_pointer(next + move->to), move->from, move->bytes);
    }
    for (uint64_t moved = 0, run; moved < move->bytes; moved += run) {
        char *to = shc_flat_at(&work->comm->demand.out, move->to + moved, &run);
        run = shc_min_size(run, move->bytes - moved);
        SHC_TRY(reduce(work, to, move->from + moved, run));
    }
    return SHC_OK;
}

/* ---- a round ---- */

static enum shc_status consume(struct shc_work *work, const struct shc_move *move)
{
    SHC_TRY(pull(work, move));
    switch (move->kind) {
    case SHC_MOVE_KEEP:
        return keep(work, move);
    case SHC_MOVE_FETCH:
        return fetch(work, move);
    default:
        return sum(work, move);
    }
}

/* After what this rank has staged. */
static enum shc_status meet(struct shc_work *work, bool first)
{
    struct shc_cuda_comm *comm = work->comm;
    SHC_TRY(shc_lane_meet(comm, work->stream, SHC_ROW_ARRIVAL, work->round, work->round));
    return shc_lane_gate(comm, work->lane, work->stream, work->sequence, work->round, first);
}

enum shc_status shc_work_round(struct shc_work *work, uint64_t k)
{
    struct shc_cuda_comm *comm = work->comm;
    const size_t count = shc_rounds_moves(&comm->demand.rounds, k, comm->moves);
    size_t i = 0;
    work->round = work->tag != 0 ? k : ++comm->round;
    for (; i < count && comm->moves[i].kind == SHC_MOVE_STAGE; i++)
        SHC_TRY(stage(work, &comm->moves[i]));
    SHC_TRY(shc_copies_flush(&work->copies));
    SHC_TRY(work->tag != 0 ? shc_work_meet(work) : meet(work, k == 0));
    for (; i < count; i++)
        SHC_TRY(consume(work, &comm->moves[i]));
    return shc_copies_flush(&work->copies);
}

void shc_work_init(struct shc_cuda_comm *comm)
{
    const struct shc_host *host = &comm->host;
    struct shc_lane *lane = &comm->lane;
    lane->flights = comm->flights;
    lane->args = (struct shc_gate_args){
        .arrived = shc_host_pointer(host, shc_host_word(host, comm->rank, SHC_ROW_ARRIVAL, 0)),
        .arrived_stride = sizeof(struct shc_lone_shm),
        .records = shc_host_pointer(host, shc_host_lane(host, 0)->records),
        .record_stride = host->part_bytes,
        .rank = comm->rank,
        .world = comm->world,
    };
    shc_lane_init(comm, shc_host_lane(host, comm->rank), comm->gates, lane);
}

/* ---- the CPUs of others ---- */

enum shc_status shc_check_open(struct shc_cuda_comm *comm)
{
    pthread_mutex_lock(&comm->state_lock);
    const bool closing = comm->closing;
    pthread_mutex_unlock(&comm->state_lock);
    return closing ? shc_cuda_fail(SHC_ERR_CLOSED, "this rank has closed the group") : SHC_OK;
}

/* What the CPU waits for. */
struct awaited {
    uint64_t sequence; /* of the operation that waits */
    bool (*ready)(const struct shc_cuda_comm *comm, uint64_t sequence);
    const char *what;
};

/* How long an operation has waited, and this thread's looks at the clock. */
struct deadline {
    struct shc_lateness lateness;
    struct shc_clock_watch clock;
};

static bool is_over(struct deadline *deadline, uint64_t now_ns)
{
    shc_lateness_add_lost(&deadline->lateness, now_ns,
                          shc_clock_watch_lost(&deadline->clock, now_ns));
    return shc_lateness_is_over(&deadline->lateness, now_ns);
}

static enum shc_status time_out(struct shc_cuda_comm *comm, const struct awaited *awaited,
                                const struct deadline *deadline, uint64_t now_ns)
{
    char call[160];
    shc_call_words_text(comm->demand.call, awaited->sequence, call, sizeof call);
    const struct shc_waiting waiting = {
        .waited_ns = now_ns - deadline->lateness.begun_ns, .call = call, .whom = awaited->what};
    shc_watch_tell(comm, SHC_TIME_OVER, &waiting);
    return shc_watch_verdicts(comm);
}

static enum shc_status await(struct shc_cuda_comm *comm, const struct awaited *awaited,
                             struct deadline *deadline)
{
    uint64_t pause_ns = 0;
    while (!awaited->ready(comm, awaited->sequence)) {
        SHC_TRY(shc_watch_look(comm));
        SHC_TRY(shc_check_open(comm));
        const uint64_t now_ns = shc_clock_ns();
        if (is_over(deadline, now_ns))
            return time_out(comm, awaited, deadline, now_ns);
        shc_sys_nap(&pause_ns);
    }
    return SHC_OK;
}

static bool slot_is_free(const struct shc_cuda_comm *comm, uint64_t sequence)
{
    for (int r = 0; r < comm->world && sequence > SHC_RECORDS; r++)
        if (shc_lane_done(shc_host_lane(&comm->host, r)) < sequence - SHC_RECORDS)
            return false;
    return true;
}

bool shc_work_published(const struct shc_cuda_comm *comm, uint64_t sequence)
{
    for (int r = 0; r < comm->world; r++)
        if (shc_lane_published(shc_host_lane(&comm->host, r)) < sequence)
            return false;
    return true;
}

/* The record, and before it the counts of an all_to_all. */
static void publish(struct shc_cuda_comm *comm, uint64_t sequence)
{
    const struct shc_demand *demand = &comm->demand;
    if (demand->rounds.kind == SHC_ALL_TO_ALL) {
        const size_t bytes = (size_t)comm->world * sizeof(uint64_t);
        uint64_t *counts = shc_host_counts(&comm->host, comm->rank, ++comm->meetings);
        memcpy(counts, demand->sends, bytes);
        memcpy(counts + comm->world, demand->receives, bytes);
    }
    shc_lane_publish(&comm->lane, sequence, demand->call, demand->premul);
}

static enum shc_status fail_pair(struct shc_cuda_comm *comm, uint64_t sequence, int from,
                                 uint64_t sent, int to, uint64_t expected)
{
    char text[SHC_HOST_REASON_BYTES];
    snprintf(text, sizeof text, "all_to_all #%llu: %s sends %s %llu bytes, which has room for %llu",
             (unsigned long long)sequence, shc_comm_rank_name(comm->core, from).text,
             shc_comm_rank_name(comm->core, to).text, (unsigned long long)sent,
             (unsigned long long)expected);
    return shc_failure_set(comm, SHC_ERR_MISMATCH, text);
}

/* The bytes that rank `from` says it sends to rank `to`, and those that `to` expects. This rank's own counts
 * are not read back from shared memory. */
static uint64_t sent_by(const struct shc_cuda_comm *comm, int from, int to)
{
    const uint64_t *counts = shc_host_counts(&comm->host, from, comm->meetings);
    return from == comm->rank ? comm->demand.sends[to] : SHC_READ_ONCE(counts[to]);
}

static uint64_t expected_by(const struct shc_cuda_comm *comm, int to, int from)
{
    const uint64_t *counts = shc_host_counts(&comm->host, to, comm->meetings);
    return to == comm->rank ? comm->demand.receives[from]
                            : SHC_READ_ONCE(counts[comm->world + from]);
}

/* Does rank r make the same call? */
static bool calls_the_same(const struct shc_cuda_comm *comm, uint64_t sequence, int r)
{
    uint64_t call[SHC_RECORD_CALL_WORDS];
    shc_copy_once(call, shc_host_lane(&comm->host, r)->records[sequence % SHC_RECORDS].call,
                  sizeof call);
    return r == comm->rank || memcmp(call, comm->demand.call, sizeof call) == 0;
}

/* An all_to_all: every rank learns every pair's bytes, so that all take as many rounds. */
static enum shc_status exchange_counts(struct shc_cuda_comm *comm, uint64_t sequence,
                                       struct deadline *deadline)
{
    const struct awaited awaited = {sequence, shc_work_published, "all ranks to call all_to_all"};
    SHC_TRY(await(comm, &awaited, deadline));
    for (int r = 0; r < comm->world; r++)
        if (!calls_the_same(comm, sequence, r))
            return shc_failure_set_mismatch(comm, sequence, comm->rank, r);
    for (int from = 0; from < comm->world; from++) {
        for (int to = 0; to < comm->world; to++) {
            const uint64_t sent = sent_by(comm, from, to), expected = expected_by(comm, to, from);
            if (sent != expected)
                return fail_pair(comm, sequence, from, sent, to, expected);
            if (from != to && sent > comm->demand.rounds.largest)
                comm->demand.rounds.largest = sent;
            if (sent > comm->demand.rounds.fullest)
                comm->demand.rounds.fullest = sent;
        }
    }
    return SHC_OK;
}

/* ---- an operation ---- */

static enum shc_status enqueue_all(struct shc_work *work, struct deadline *deadline)
{
    struct shc_cuda_comm *comm = work->comm;
    const struct shc_rounds *rounds = &comm->demand.rounds;
    SHC_TRY(shc_watch_look(comm)); /* has a rank left that this operation needs? */
    SHC_TRY(shc_lane_follow(comm, work->lane, work->stream));
    if (rounds->kind == SHC_ALL_TO_ALL)
        SHC_TRY(exchange_counts(comm, work->sequence, deadline));
    if (comm->demand.may_relay && shc_relay_takes(comm, &comm->demand.rounds))
        return shc_relay_enqueue(work);
    const uint64_t count = shc_rounds_count(rounds);
    shc_lane_extend(comm, comm->round + count, false, false);
    for (uint64_t k = 0; k < count; k++)
        SHC_TRY(shc_work_round(work, k));
    return SHC_OK;
}

static enum shc_status fail_inside(struct shc_cuda_comm *comm, uint64_t sequence,
                                   enum shc_status st)
{
    char text[256];
    if (st != SHC_ERR_CLOSED)
        return shc_failure_set(comm, st, shc_cuda_failure());
    /* To the other ranks this is a departure. */
    snprintf(text, sizeof text, "%s left the group inside operation #%llu",
             shc_comm_rank_name(comm->core, comm->rank).text, (unsigned long long)sequence);
    return shc_failure_set(comm, SHC_ERR_PEER_LEFT, text);
}

/* The operation is published: from here on a failure is the group's. */
static enum shc_status carry_out(struct shc_cuda_comm *comm, struct shc_cu_stream *stream,
                                 uint64_t sequence, struct deadline *deadline)
{
    struct shc_work work = {.comm = comm,
                            .lane = &comm->lane,
                            .stream = stream,
                            .sequence = sequence,
                            .scratch = comm->scratch,
                            .copies = {&comm->kernels, stream, {.gate = comm->lane.args.gate}}};
    const enum shc_status st = enqueue_all(&work, deadline);
    if (st != SHC_OK)
        (void)!fail_inside(comm, sequence, st);
    const enum shc_status finished = shc_lane_finish(comm, &comm->lane, stream, sequence);
    if (finished != SHC_OK)
        return shc_failure_set(comm, finished, shc_cuda_failure()); /* the first failure stands */
    return st == SHC_OK ? SHC_OK : shc_watch_verdicts(comm);
}

enum shc_status shc_work_demand(struct shc_cuda_comm *comm, const struct shc_op *op)
{
    struct shc_demand *demand = &comm->demand;
    SHC_TRY(shc_demand_make(op, comm->rank, comm->world, demand));
    SHC_TRY(shc_placement_check(&comm->gpu, demand));
    demand->rounds.half_bytes = comm->half_bytes;
    demand->rounds.two =
        op->kind == SHC_ALL_REDUCE && shc_rounds_wants_two(&demand->rounds, comm->sharing);
    return SHC_OK;
}

/* pre: order_lock is held; the GPU is entered. */
static enum shc_status enqueue(struct shc_cuda_comm *comm, const struct shc_op *op,
                               struct shc_cu_stream *stream)
{
    struct shc_demand *demand = &comm->demand;
    uint64_t capture;
    SHC_TRY(shc_capture_of(&comm->driver, stream, &capture));
    SHC_TRY(shc_watch_look(comm));
    SHC_TRY(shc_work_demand(comm, op));
    if (capture != 0)
        return shc_capture_enqueue(comm, op, stream, capture);
    struct deadline deadline = {.clock = {.looked_ns = shc_clock_ns()}};
    shc_lateness_begin(&deadline.lateness, deadline.clock.looked_ns,
                       demand->timeout_ns ? demand->timeout_ns : shc_cuda_timeout_ns(comm),
                       SHC_LATE_NS);
    const uint64_t sequence = comm->lane.sequence + 1; /* written under order_lock */
    const struct awaited room = {sequence, slot_is_free, "the operation 64 before this one"};
    SHC_TRY(await(comm, &room, &deadline));
    struct shc_flight flight = {.last_round = comm->round + 1, .lateness = deadline.lateness};
    demand->may_relay = shc_relay_is_fast(comm, sequence);
    demand->call[SHC_CALL_MAY_RELAY] = demand->may_relay;
    memcpy(flight.call, demand->call, sizeof flight.call);
    publish(comm, sequence);
    shc_lane_begin(comm, &comm->lane, &flight);
    return carry_out(comm, stream, sequence, &deadline);
}

enum shc_status shc_cuda_comm_enqueue(struct shc_cuda_comm *cuda, const struct shc_op *op,
                                      void *stream)
{
    if (shc_comm_error(cuda->core) == SHC_ERR_FORKED)
        return shc_cuda_fail(SHC_ERR_FORKED, "the group belongs to the parent process");
    if (op->kind == SHC_SEND || op->kind == SHC_RECV)
        return shc_mail_enqueue(cuda, op, 1, stream);
    pthread_mutex_lock(&cuda->order_lock);
    enum shc_status st = shc_check_open(cuda);
    if (st == SHC_OK)
        st = shc_gpu_enter(&cuda->gpu);
    if (st == SHC_OK) {
        st = enqueue(cuda, op, stream);
        shc_gpu_leave(&cuda->gpu);
    }
    pthread_mutex_unlock(&cuda->order_lock);
    return st;
}

enum shc_status shc_cuda_comm_enqueue_batch(struct shc_cuda_comm *cuda, const struct shc_op *ops,
                                            int count, void *stream)
{
    if (shc_comm_error(cuda->core) == SHC_ERR_FORKED)
        return shc_cuda_fail(SHC_ERR_FORKED, "the group belongs to the parent process");
    for (int i = 0; i < count; i++)
        if (ops[i].kind != SHC_SEND && ops[i].kind != SHC_RECV)
            return shc_cuda_fail(SHC_ERR_INVALID, "%s: a batch takes send and recv alone",
                                 shc_op_kind_name(ops[i].kind));
    return count > 0 ? shc_mail_enqueue(cuda, ops, count, stream) : SHC_OK;
}
