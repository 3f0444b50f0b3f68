/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A call of a collective: what is awaited from the CPUs of others, the record, and its rounds (work.c), the relay
 * or a capture. Nothing here waits except await().
 */
#include "cuda_ipc/capture.h"
#include "cuda_ipc/cuda_comm.h"
#include "cuda_ipc/nvtx.h"

#include <stdio.h>
#include <string.h>

/* ---- the CPUs of others ---- */

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
    shc_tell_late(comm, SHC_TIME_OVER, &waiting);
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
    const struct awaited awaited = {sequence, shc_lane_all_published,
                                    "all ranks to call all_to_all"};
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
    shc_lane_extend(comm, &comm->lane, comm->round + count, false, false);
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
                            .meet = shc_work_meet,
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

static enum shc_status enqueue_collective(struct shc_cuda_comm *cuda, const struct shc_op *op,
                                          void *stream)
{
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

static bool is_message(const struct shc_op *op)
{
    return op->kind == SHC_SEND || op->kind == SHC_RECV;
}

enum shc_status shc_cuda_comm_enqueue(struct shc_cuda_comm *cuda, const struct shc_op *op,
                                      void *stream)
{
    if (shc_comm_error(cuda->core) == SHC_ERR_FORKED)
        return shc_cuda_fail(SHC_ERR_FORKED, "the group belongs to the parent process");
    shc_nvtx_begin(cuda->nvtx, op, 1);
    const enum shc_status st = is_message(op) ? shc_mail_enqueue(cuda, op, 1, stream)
                                              : enqueue_collective(cuda, op, stream);
    shc_nvtx_end(cuda->nvtx);
    return st;
}

enum shc_status shc_cuda_comm_enqueue_batch(struct shc_cuda_comm *cuda, const struct shc_op *ops,
                                            int count, void *stream)
{
    if (shc_comm_error(cuda->core) == SHC_ERR_FORKED)
        return shc_cuda_fail(SHC_ERR_FORKED, "the group belongs to the parent process");
    for (int i = 0; i < count; i++)
        if (!is_message(&ops[i]))
            return shc_cuda_fail(SHC_ERR_INVALID, "%s: a batch takes send and recv alone",
                                 shc_op_kind_name(ops[i].kind));
    if (count <= 0)
        return SHC_OK;
    shc_nvtx_begin(cuda->nvtx, ops, count);
    const enum shc_status st = shc_mail_enqueue(cuda, ops, count, stream);
    shc_nvtx_end(cuda->nvtx);
    return st;
}
