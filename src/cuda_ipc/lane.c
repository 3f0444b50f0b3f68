/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/lane.h"
#include "cuda_ipc/cuda_comm.h"
#include "shm/base/num.h"

#include <string.h>

void shc_lane_init(const struct shc_cuda_comm *comm, struct shc_lane_shm *shm, shc_cu_address gate,
                   struct shc_lane *lane)
{
    const struct shc_host *host = &comm->host;
    lane->shm = shm;
    lane->where = shm != NULL ? "" : " in a capture";
    if (shm != NULL) {
        lane->verdict = &shm->verdict.word;
        lane->done = &shm->done.word;
    }
    lane->gate = gate;
    lane->args.gate = shc_cu_pointer(gate);
    lane->args.verdict = shc_host_pointer(host, lane->verdict);
    lane->args.aborted = shc_host_pointer(host, &shc_host_header(host)->aborted.word);
    lane->args.poison = SHC_TIMELINE_POISON;
}

/* ---- the CPU's steps ---- */

void shc_lane_publish(const struct shc_lane *lane, uint64_t number,
                      const uint64_t call[SHC_RECORD_CALL_WORDS], double factor)
{
    struct shc_cuda_record *record = &lane->shm->records[number % SHC_RECORDS];
    memset(record, 0, sizeof *record);
    record->sequence = number;
    memcpy(record->call, call, sizeof record->call);
    record->factor = factor;
    /* release cuda/published -> acquire in shc_lane_published(): the record; of an all_to_all its counts, too. */
    shc_a64_store_release(&lane->shm->published.word, number);
}

void shc_lane_begin(struct shc_cuda_comm *comm, struct shc_lane *lane,
                    const struct shc_flight *flight)
{
    pthread_mutex_lock(&comm->state_lock);
    lane->flights[++lane->sequence % SHC_RECORDS] = *flight;
    pthread_cond_signal(&comm->stir);
    pthread_mutex_unlock(&comm->state_lock);
}

void shc_lane_extend(struct shc_cuda_comm *comm, const struct shc_lane *lane, uint64_t last_round,
                     bool relayed, bool sliced)
{
    struct shc_flight *flight = &lane->flights[lane->sequence % SHC_RECORDS];
    pthread_mutex_lock(&comm->state_lock);
    flight->last_round = last_round;
    flight->relayed = relayed;
    flight->sliced = sliced;
    pthread_mutex_unlock(&comm->state_lock);
}

bool shc_lane_flight(struct shc_cuda_comm *comm, const struct shc_lane *lane, uint64_t number,
                     struct shc_flight *flight)
{
    pthread_mutex_lock(&comm->state_lock);
    const bool known =
        number > 0 && number <= lane->sequence && lane->sequence - number < SHC_RECORDS;
    if (known)
        *flight = lane->flights[number % SHC_RECORDS];
    pthread_mutex_unlock(&comm->state_lock);
    return known;
}

enum shc_lateness_state shc_lane_look_at_time(struct shc_cuda_comm *comm, struct shc_lane *lane,
                                              uint64_t now_ns, uint64_t lost_ns, uint64_t *number,
                                              struct shc_flight *oldest)
{
    enum shc_lateness_state state = SHC_IN_TIME;
    uint64_t done = shc_lane_done(lane->shm);
    pthread_mutex_lock(&comm->state_lock);
    if (done < lane->sequence) {
        if (lane->sequence - done > SHC_RECORDS) /* the word is damaged */
            done = lane->sequence - SHC_RECORDS;
        *number = done + 1;
        for (uint64_t n = *number; lost_ns != 0 && n <= lane->sequence; n++)
            shc_lateness_add_lost(&lane->flights[n % SHC_RECORDS].lateness, now_ns, lost_ns);
        struct shc_flight *flight = &lane->flights[*number % SHC_RECORDS];
        state = shc_lateness_look(&flight->lateness, now_ns);
        *oldest = *flight;
    }
    pthread_mutex_unlock(&comm->state_lock);
    return state;
}

bool shc_lane_all_published(const struct shc_cuda_comm *comm, uint64_t sequence)
{
    for (int r = 0; r < comm->world; r++)
        if (shc_lane_published(shc_host_lane(&comm->host, r)) < sequence)
            return false;
    return true;
}

void shc_lane_show_ended(struct shc_cuda_comm *comm, struct shc_lane *lane, int peer,
                         enum shc_op_kind kind)
{
    uint64_t done = shc_lane_done(lane->shm);
    struct shc_flight flight;
    pthread_mutex_lock(&comm->state_lock);
    done = shc_min_size(done, lane->sequence); /* the word may be damaged */
    pthread_mutex_unlock(&comm->state_lock);
    uint64_t next = lane->shown + 1;
    if (done >= next + SHC_RECORDS)
        next = done - SHC_RECORDS + 1;
    for (; next <= done; next++) {
        struct shc_op op;
        uint64_t count;
        if (!shc_lane_flight(comm, lane, next, &flight))
            continue; /* too many since the look before */
        shc_call_words_op(flight.call, &op, &count);
        op.peer = peer;
        if (peer >= 0)
            op.kind = kind;
        shc_comm_keep_device(comm->core, &op, next, count, flight.lateness.begun_ns);
    }
    lane->shown = done;
}

/* ---- steps in a stream ---- */

enum shc_status shc_lane_follow(const struct shc_cuda_comm *comm, const struct shc_lane *lane,
                                struct shc_cu_stream *stream)
{
    if (!lane->any || lane->stream == stream)
        return SHC_OK;
    const int result = comm->driver.cuStreamWaitEvent(stream, lane->tail, 0);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(&comm->driver, result, "cuStreamWaitEvent%s", lane->where);
    return SHC_OK;
}

enum shc_status shc_lane_tell(const struct shc_cuda_comm *comm, struct shc_cu_stream *stream,
                              const void *word, uint64_t value)
{
    return shc_timeline_signal(&comm->gpu, stream, shc_host_device(&comm->host, word), value);
}

enum shc_status shc_lane_await(struct shc_cuda_comm *comm, struct shc_cu_stream *stream,
                               const struct shc_lone_shm *word, uint64_t value)
{
    return shc_timeline_wait(&comm->timeline, stream, shc_host_index(&comm->host, word), value);
}

enum shc_status shc_lane_meet(struct shc_cuda_comm *comm, struct shc_cu_stream *stream, int row,
                              uint64_t told, uint64_t awaited)
{
    for (int turn = 1; turn < comm->world; turn++) {
        const int peer = (comm->rank + turn) % comm->world;
        SHC_TRY(
            shc_lane_tell(comm, stream, shc_host_word(&comm->host, peer, row, comm->rank), told));
    }
    for (int turn = 1; turn < comm->world; turn++) {
        const int peer = (comm->rank + turn) % comm->world;
        SHC_TRY(shc_lane_await(comm, stream, shc_host_word(&comm->host, comm->rank, row, peer),
                               awaited));
    }
    return SHC_OK;
}

enum shc_status shc_lane_gate(const struct shc_cuda_comm *comm, const struct shc_lane *lane,
                              struct shc_cu_stream *stream, uint64_t number, uint64_t round,
                              bool first)
{
    struct shc_gate_args args = lane->args;
    args.sequence = number;
    args.round = round;
    if (first)
        args.records += number % SHC_RECORDS * sizeof(struct shc_cuda_record);
    else
        args.records = NULL;
    return shc_kernels_gate(&comm->kernels, stream, &args);
}

enum shc_status shc_lane_finish(const struct shc_cuda_comm *comm, struct shc_lane *lane,
                                struct shc_cu_stream *stream, uint64_t done)
{
    SHC_TRY(shc_lane_tell(comm, stream, lane->done, done));
    const int result = comm->driver.cuEventRecord(lane->tail, stream);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(&comm->driver, result, "cuEventRecord%s", lane->where);
    lane->stream = stream;
    lane->any = true;
    return SHC_OK;
}
