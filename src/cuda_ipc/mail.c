/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A message as work in a stream (docs/CUDA.md, "Messages"): by pieces, through two slots of the
 * sender's memory. Nothing here waits, but reserve() for a record that is still to be read.
 */
#include "cuda_ipc/capture.h"
#include "cuda_ipc/cuda_comm.h"
#include "cuda_ipc/placement.h"
#include "shm/base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One message on its way into a stream. */
struct letter {
    struct shc_cuda_comm *comm;
    struct shc_end *end;
    struct shc_cu_stream *stream;
    uint64_t number; /* of the channel */
    struct shc_flat *flat;
    struct shc_flight flight;
    struct shc_copy_args copies;
};

/* ---- where things are ---- */

static shc_cu_address gate_of(const struct shc_cuda_comm *comm, const struct shc_end *end)
{
    const int index = end->sends ? end->peer : comm->world + end->peer;
    return comm->gate + SHC_GATE_BYTES + (size_t)index * SHC_LINE_BYTES;
}

/* The slot of this piece, in the sender's memory. */
static shc_cu_address slot_of(const struct shc_cuda_comm *comm, const struct shc_end *end,
                              uint64_t piece)
{
    const int from = end->sends ? comm->rank : end->peer, to = end->sends ? end->peer : comm->rank;
    const shc_cu_address data =
        comm->by_slabs ? comm->share.slabs[from].address
                       : shc_host_device(&comm->host, shc_host_halves(&comm->host, from));
    return data + SHC_HALVES * comm->half_bytes +
           ((size_t)to * SHC_MAIL_SLOTS + piece % SHC_MAIL_SLOTS) *
               shc_mail_slot_bytes(comm->half_bytes, comm->world);
}

/* Records of this message: one's own, and the other end's. */
static const struct shc_cuda_record *record_of(const struct letter *letter, bool own)
{
    const struct shc_cuda_comm *comm = letter->comm;
    const struct shc_end *end = letter->end;
    const struct shc_end_shm *shm =
        own ? end->shm : shc_host_end(&comm->host, end->peer, !end->sends, comm->rank);
    return &shm->records[letter->number % SHC_RECORDS];
}

/* ---- a piece ---- */

/* The peer's word, behind which this piece may go on: what is to be staged must not be read any
 * more, what is to be read must be staged. 0: none. */
static uint64_t awaited_by(const struct shc_end *end, uint64_t piece)
{
    if (!end->sends)
        return piece;
    return piece > SHC_MAIL_SLOTS ? piece - SHC_MAIL_SLOTS : 0;
}

static enum shc_status wait_for_peer(const struct letter *letter, uint64_t piece)
{
    struct shc_cuda_comm *comm = letter->comm;
    const struct shc_end *end = letter->end;
    const uint64_t value = awaited_by(end, piece);
    if (value == 0)
        return SHC_OK;
    return shc_timeline_wait(&comm->timeline, letter->stream,
                             shc_host_index(&comm->host, shc_end_word(comm, end)), value);
}

/* The gate's ranks are the channel's ends, and one word stands for both. The receiver compares their
 * records; the sender, whose receiver may not have come, has its own alone. */
static enum shc_status gate(const struct letter *letter, uint64_t piece, bool first)
{
    const struct shc_cuda_comm *comm = letter->comm;
    const struct shc_host *host = &comm->host;
    const struct shc_end *end = letter->end;
    const char *one = (const char *)record_of(letter, true),
               *other = end->sends ? one : (const char *)record_of(letter, false),
               *lower = one < other ? one : other;
    const struct shc_gate_args args = {
        .gate = shc_cu_pointer(gate_of(comm, end)),
        .verdict = shc_cu_pointer(shc_host_device(host, &end->shm->verdict.word)),
        .aborted = shc_cu_pointer(shc_host_device(host, &shc_host_header(host)->aborted.word)),
        .arrived = shc_cu_pointer(shc_host_device(host, shc_end_word(comm, end))),
        .arrived_stride = 0,
        .round = awaited_by(end, piece),
        .poison = SHC_TIMELINE_POISON,
        .records = first ? shc_cu_pointer(shc_host_device(host, lower)) : NULL,
        .record_stride = (uint64_t)(one < other ? other - one : one - other),
        .sequence = letter->number,
        .rank = 0,
        .world = end->sends ? 1 : 2,
    };
    return shc_kernels_gate(&comm->kernels, letter->stream, &args);
}

static enum shc_status flush(struct letter *letter)
{
    if (letter->copies.count == 0)
        return SHC_OK;
    SHC_TRY(shc_kernels_copy(&letter->comm->kernels, letter->stream, &letter->copies));
    letter->copies.count = 0;
    return SHC_OK;
}

/* Between the user's memory, from this byte on, and the piece's slot. */
static enum shc_status copy(struct letter *letter, uint64_t piece, uint64_t from, uint64_t bytes)
{
    const shc_cu_address slot = slot_of(letter->comm, letter->end, piece);
    for (uint64_t moved = 0, run; moved < bytes; moved += run) {
        char *users = shc_flat_at(letter->flat, from + moved, &run);
        void *staged = shc_cu_pointer(slot + moved);
        run = shc_min_size(run, bytes - moved);
        if (letter->copies.count == SHC_COPY_PIECES)
            SHC_TRY(flush(letter));
        letter->copies.piece[letter->copies.count++] =
            letter->end->sends ? (struct shc_copy_piece){.to = staged, .from = users, .bytes = run}
                               : (struct shc_copy_piece){.to = users, .from = staged, .bytes = run};
    }
    return flush(letter);
}

/* Tells the peer. */
static enum shc_status tell(const struct letter *letter, uint64_t piece)
{
    const struct shc_cuda_comm *comm = letter->comm;
    const struct shc_end *end = letter->end;
    const struct shc_lone_shm *word = end->sends
                                          ? shc_host_sent(&comm->host, end->peer, comm->rank)
                                          : shc_host_taken(&comm->host, end->peer, comm->rank);
    return shc_timeline_signal(&comm->gpu, letter->stream,
                               shc_host_device(&comm->host, &word->word), piece);
}

/* ---- a message ---- */

static enum shc_status enqueue_pieces(struct letter *letter)
{
    struct shc_cuda_comm *comm = letter->comm;
    struct shc_end *end = letter->end;
    const size_t slot_bytes = shc_mail_slot_bytes(comm->half_bytes, comm->world);
    const uint64_t bytes = letter->flat->bytes, before = end->piece;
    SHC_TRY(shc_watch_look(comm)); /* has the peer left? */
    if (end->stream != NULL && end->stream != letter->stream) {
        const int result = comm->driver.cuStreamWaitEvent(letter->stream, end->tail, 0);
        if (result != SHC_CU_SUCCESS)
            return shc_driver_fail(&comm->driver, result, "cuStreamWaitEvent");
    }
    while (end->piece < letter->flight.last_round) {
        const uint64_t from = (end->piece - before) * slot_bytes, piece = ++end->piece;
        SHC_TRY(wait_for_peer(letter, piece));
        SHC_TRY(gate(letter, piece, piece == before + 1));
        SHC_TRY(copy(letter, piece, from, shc_min_size(slot_bytes, bytes - from)));
        SHC_TRY(tell(letter, piece));
    }
    return SHC_OK;
}

/* Says "done" behind all that was enqueued, also when that was cut short: the watcher poisons until
 * it reads this. */
static enum shc_status finish(const struct letter *letter)
{
    struct shc_cuda_comm *comm = letter->comm;
    struct shc_end *end = letter->end;
    SHC_TRY(shc_timeline_signal(&comm->gpu, letter->stream,
                                shc_host_device(&comm->host, &end->shm->done.word),
                                letter->number));
    const int result = comm->driver.cuEventRecord(end->tail, letter->stream);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(&comm->driver, result, "cuEventRecord");
    end->stream = letter->stream;
    return SHC_OK;
}

/* The message is published: from here on a failure is the group's. */
static enum shc_status carry_out(struct letter *letter)
{
    struct shc_cuda_comm *comm = letter->comm;
    letter->copies.gate = shc_cu_pointer(gate_of(comm, letter->end));
    letter->copies.count = 0;
    const enum shc_status st = enqueue_pieces(letter);
    if (st != SHC_OK)
        (void)!shc_watch_fail(comm, st, shc_cuda_failure());
    const enum shc_status finished = finish(letter);
    if (finished != SHC_OK)
        return shc_watch_fail(comm, finished, shc_cuda_failure()); /* the first failure stands */
    return st == SHC_OK ? SHC_OK : shc_watch_verdicts(comm);
}

/* pre: nobody reads this message's record: has_room(). */
static void publish(const struct letter *letter)
{
    struct shc_end_shm *shm = letter->end->shm;
    struct shc_cuda_record *record = &shm->records[letter->number % SHC_RECORDS];
    memset(record, 0, sizeof *record);
    record->sequence = letter->number;
    memcpy(record->call, letter->flight.call, sizeof record->call);
    /* release cuda/posted -> acquire in published_by(): the record. */
    shc_a64_store_release(&shm->published.word, letter->number);
}

/* ---- an end ---- */

/* pre: the mail's lock. */
static enum shc_status make_end(struct shc_cuda_comm *comm, bool sends, int peer,
                                struct shc_end **made)
{
    struct shc_end **known = sends ? &comm->mail.to[peer] : &comm->mail.from[peer];
    *made = *known;
    if (*known != NULL)
        return SHC_OK;
    struct shc_end *end = calloc(1, sizeof *end);
    if (end == NULL)
        return shc_cuda_fail(SHC_ERR_NOMEM, "out of memory");
    end->peer = peer;
    end->sends = sends;
    end->shm = shc_host_end(&comm->host, comm->rank, sends, peer);
    const int result = comm->driver.cuEventCreate(&end->tail, SHC_CU_EVENT_DISABLE_TIMING);
    if (result != SHC_CU_SUCCESS) {
        free(end);
        return shc_driver_fail(&comm->driver, result, "an event on %s", comm->gpu.name);
    }
    pthread_mutex_lock(&comm->state_lock);
    comm->mail.used[comm->mail.count++] = end;
    pthread_mutex_unlock(&comm->state_lock);
    *known = *made = end;
    return SHC_OK;
}

bool shc_mail_is_taken(const struct shc_cuda_comm *comm)
{
    for (int r = 0; r < comm->world; r++)
        if (comm->mail.to[r] != NULL &&
            shc_end_reached(comm, comm->mail.to[r]) < comm->mail.to[r]->piece)
            return false;
    return true;
}

void shc_mail_undo(struct shc_cuda_comm *comm)
{
    for (int i = 0; i < comm->mail.count; i++) {
        (void)comm->driver.cuEventDestroy(comm->mail.used[i]->tail);
        free(comm->mail.used[i]);
    }
    comm->mail.count = 0;
}

/* Has everybody read the record that this message's is written over? */
static bool has_room(const struct shc_cuda_comm *comm, const struct shc_end *end, uint64_t number)
{
    if (number <= SHC_RECORDS)
        return true;
    const struct shc_flight *old = &end->flights[number % SHC_RECORDS];
    return shc_end_done(end) >= number - SHC_RECORDS &&
           (!end->sends || shc_end_reached(comm, end) >= old->last_round);
}

/* The end's next number, when there is a record for it. Others may enqueue meanwhile. */
static enum shc_status reserve(struct letter *letter)
{
    struct shc_cuda_comm *comm = letter->comm;
    uint64_t pause_ns = 0;
    for (;;) {
        letter->number = letter->end->sequence + 1; /* only who holds the mail's lock writes it */
        SHC_TRY(shc_work_check_open(comm));
        SHC_TRY(shc_watch_look(comm));
        if (has_room(comm, letter->end, letter->number))
            return SHC_OK;
        if (shc_clock_ns() >= letter->flight.deadline_ns)
            return shc_watch_fail(comm, SHC_ERR_TIMEOUT,
                                  "Timed out waiting for the message 64 before this one");
        pthread_mutex_unlock(&comm->mail.lock);
        shc_sys_nap(&pause_ns);
        pthread_mutex_lock(&comm->mail.lock);
    }
}

/* pre: the mail's lock; the GPU is entered. */
static enum shc_status enqueue(struct letter *letter, const struct shc_op *op,
                               const struct shc_demand *demand)
{
    struct shc_cuda_comm *comm = letter->comm;
    uint64_t capture;
    SHC_TRY(shc_placement_check(&comm->gpu, demand));
    SHC_TRY(shc_capture_of(&comm->driver, letter->stream, &capture));
    if (capture != 0) /* it would send the same piece number with every replay */
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED,
                             "%s: not offered while a CUDA graph is captured; call it beside the "
                             "graph",
                             shc_op_kind_name(op->kind));
    SHC_TRY(make_end(comm, op->kind == SHC_SEND, op->peer, &letter->end));
    SHC_TRY(reserve(letter));
    const size_t slot_bytes = shc_mail_slot_bytes(comm->half_bytes, comm->world);
    const uint64_t bytes = letter->flat->bytes;
    letter->flight.last_round =
        letter->end->piece + (bytes == 0 ? 1 : (bytes + slot_bytes - 1) / slot_bytes);
    publish(letter);
    shc_mail_begin(comm, letter->end, &letter->flight);
    return carry_out(letter);
}

enum shc_status shc_mail_enqueue(struct shc_cuda_comm *comm, const struct shc_op *op, void *stream)
{
    struct shc_demand demand;
    struct letter letter = {.comm = comm, .stream = stream};
    SHC_TRY(shc_demand_make(op, comm->rank, comm->world, &demand));
    letter.flat = op->kind == SHC_SEND ? &demand.in : &demand.out;
    letter.flight.begun_ns = shc_clock_ns();
    letter.flight.deadline_ns = shc_deadline_after(
        letter.flight.begun_ns, demand.timeout_ns ? demand.timeout_ns : comm->timeout_ns);
    memcpy(letter.flight.call, demand.call, sizeof letter.flight.call);
    pthread_mutex_lock(&comm->mail.lock);
    enum shc_status st = shc_gpu_enter(&comm->gpu);
    if (st == SHC_OK) {
        st = enqueue(&letter, op, &demand);
        shc_gpu_leave(&comm->gpu);
    }
    pthread_mutex_unlock(&comm->mail.lock);
    return st;
}
