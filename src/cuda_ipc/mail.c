/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages as work in a stream (docs/internals/cuda/messages.md): by pieces, through two slots of the
 * sender's memory. Nothing here waits, except reserve() for records that are still to be read.
 */
#include "cuda_ipc/capture.h"
#include "cuda_ipc/cuda_comm.h"
#include "cuda_ipc/placement.h"
#include "shm/base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One message on its way into a stream. */
struct message {
    struct shc_end *end;
    struct shc_flat flat;
    struct shc_flight flight;
    int part; /* of the batch */
    bool relayed;
    /* Set when it is the part's turn. */
    uint64_t number;  /* of the channel */
    uint64_t before;  /* the newest piece of the end before its own */
    uint64_t skipped; /* rounds of the part that are its end's earlier messages' */
    bool finished;
};

/*
 * Messages that share a stream; a single one is a batch of one. In each round every end that sends
 * takes one step, the next piece of its messages, and after those every end that receives: then a
 * stream waits only for steps that are earlier for all ranks, and no batch blocks itself.
 *
 * A record is used again when the message 64 before it is over, which must not be one of those that
 * it is published with. So a batch is carried out in parts, one after the other, each with at most
 * 64 messages of an end.
 */
struct batch {
    struct shc_cuda_comm *comm;
    struct shc_cu_stream *stream;
    const struct shc_op *ops;
    struct message *messages; /* one for each operation */
    int count;
    int part, parts;              /* the one whose turn it is, of so many */
    uint64_t rounds;              /* of that part */
    struct shc_clock_watch clock; /* this thread's looks at the clock */
    struct shc_copies copies;
};

/* The first message of the part whose turn it is, from this one on; NULL: there are no more. */
static struct message *of_part(const struct batch *batch, struct message *message)
{
    for (; message < batch->messages + batch->count; message++)
        if (message->part == batch->part)
            return message;
    return NULL;
}

static struct message *first_of(const struct batch *batch)
{
    return of_part(batch, batch->messages);
}

/* ---- addresses ---- */

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

/* ---- a piece ---- */

/* The value of the peer's word after which this piece may go on: the slot must no longer be read, or must
 * have been staged. 0: none. */
static uint64_t awaited_by(const struct shc_end *end, uint64_t piece)
{
    if (!end->sends)
        return piece;
    return piece > SHC_MAIL_SLOTS ? piece - SHC_MAIL_SLOTS : 0;
}

/* Between the user's memory, from this byte on, and the piece's slot. */
static enum shc_status copy(struct batch *batch, struct message *message, uint64_t piece,
                            uint64_t from, uint64_t bytes)
{
    const struct shc_end *end = message->end;
    batch->copies.args.gate = end->lane.args.gate;
    SHC_TRY(shc_copies_add_flat(&batch->copies, &message->flat, from,
                                slot_of(batch->comm, end, piece), bytes, end->sends));
    return shc_copies_flush(&batch->copies);
}

/* Tells the peer. */
static enum shc_status tell(const struct batch *batch, const struct shc_end *end, uint64_t piece)
{
    const struct shc_cuda_comm *comm = batch->comm;
    const int row = end->sends ? SHC_ROW_SENT : SHC_ROW_TAKEN;
    return shc_lane_tell(comm, batch->stream,
                         shc_host_word(&comm->host, end->peer, row, comm->rank), piece);
}

/* ---- a message ---- */

static enum shc_status finish(const struct batch *batch, struct message *message)
{
    message->finished = true;
    return shc_lane_finish(batch->comm, &message->end->lane, batch->stream, message->number);
}

static enum shc_status enqueue_piece(struct batch *batch, struct message *message, uint64_t piece)
{
    struct shc_cuda_comm *comm = batch->comm;
    struct shc_end *end = message->end;
    const size_t slot_bytes = shc_mail_slot_bytes(comm->half_bytes, comm->world);
    const uint64_t awaited = awaited_by(end, piece),
                   from = (piece - message->before - 1) * slot_bytes;
    const bool first = piece == message->before + 1, last = piece == message->flight.last_round;
    end->piece = piece;
    if (first)
        SHC_TRY(shc_lane_follow(comm, &end->lane, batch->stream));
    if (message->relayed && !end->sends) {
        SHC_TRY(
            shc_relay_receive(comm, end, batch->stream, &message->flat, message->number, piece));
        SHC_TRY(tell(batch, end, piece));
        return finish(batch, message);
    }
    if (awaited != 0)
        SHC_TRY(shc_lane_await(comm, batch->stream, end->word, awaited));
    if (message->relayed) {
        SHC_TRY(shc_relay_send(comm, end, batch->stream, &message->flat, piece));
        SHC_TRY(tell(batch, end, piece));
        return finish(batch, message);
    }
    SHC_TRY(shc_lane_gate(comm, &end->lane, batch->stream, message->number, awaited, first));
    SHC_TRY(
        copy(batch, message, piece, from, shc_min_size(slot_bytes, message->flat.bytes - from)));
    SHC_TRY(tell(batch, end, piece));
    return last ? finish(batch, message) : SHC_OK;
}

/* ---- a part of a batch ---- */

/* One step of every end that sends, or that receives. */
static enum shc_status enqueue_side(struct batch *batch, uint64_t round, bool sends)
{
    for (struct message *message = first_of(batch); message;
         message = of_part(batch, message + 1)) {
        if (message->end->sends != sends || round <= message->skipped)
            continue;
        const uint64_t piece = message->before + round - message->skipped;
        if (piece <= message->flight.last_round)
            SHC_TRY(enqueue_piece(batch, message, piece));
    }
    return SHC_OK;
}

static enum shc_status enqueue_rounds(struct batch *batch)
{
    SHC_TRY(shc_watch_look(batch->comm)); /* has a peer left? */
    for (uint64_t round = 1; round <= batch->rounds; round++) {
        SHC_TRY(enqueue_side(batch, round, true));
        SHC_TRY(enqueue_side(batch, round, false));
    }
    return SHC_OK;
}

/* The messages are published: from here on a failure is the group's. */
static enum shc_status carry_out(struct batch *batch)
{
    const enum shc_status st = enqueue_rounds(batch);
    if (st != SHC_OK)
        (void)!shc_failure_set(batch->comm, st, shc_cuda_failure());
    for (struct message *message = first_of(batch); message; message = of_part(batch, message + 1))
        if (!message->finished && finish(batch, message) != SHC_OK)
            break; /* the driver does nothing more */
    return st == SHC_OK ? SHC_OK : shc_watch_verdicts(batch->comm); /* the first failure stands */
}

/* ---- an end ---- */

/* The gate's ranks are the channel's ends, and one word stands for both. The receiver compares their
 * records; the sender, whose receiver may not have called, has its own alone. */
static void init_lane(struct shc_cuda_comm *comm, struct shc_end *end)
{
    const struct shc_host *host = &comm->host;
    struct shc_lane_shm *own = shc_host_end(host, comm->rank, end->sends, end->peer);
    const char *one = (const char *)own->records,
               *other = end->sends ? one : (const char *)end->other->records;
    const int index = end->sends ? end->peer : comm->world + end->peer;
    end->lane.flights = end->flights;
    end->lane.args = (struct shc_gate_args){
        .arrived = shc_host_pointer(host, end->word),
        .records = shc_host_pointer(host, one < other ? one : other),
        .record_stride = (uint64_t)(one < other ? other - one : one - other),
        .world = end->sends ? 1 : 2,
    };
    shc_lane_init(comm, own, comm->gates + SHC_GATE_BYTES + (size_t)index * SHC_LINE_BYTES,
                  &end->lane);
}

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
    end->other = shc_host_end(&comm->host, peer, !sends, comm->rank);
    end->word = shc_host_word(&comm->host, comm->rank, sends ? SHC_ROW_TAKEN : SHC_ROW_SENT, peer);
    init_lane(comm, end);
    const int result = comm->driver.cuEventCreate(&end->lane.tail, SHC_CU_EVENT_DISABLE_TIMING);
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
        if (comm->mail.to[r] != NULL && shc_end_reached(comm->mail.to[r]) < comm->mail.to[r]->piece)
            return false;
    return true;
}

void shc_mail_undo(struct shc_cuda_comm *comm)
{
    for (int i = 0; i < comm->mail.count; i++) {
        (void)comm->driver.cuEventDestroy(comm->mail.used[i]->lane.tail);
        free(comm->mail.used[i]->relayed);
        free(comm->mail.used[i]);
    }
    comm->mail.count = 0;
}

/* Have all readers read the record that this message's record overwrites? */
static bool has_room(const struct shc_end *end, uint64_t number)
{
    if (number <= SHC_RECORDS)
        return true;
    const struct shc_flight *old = &end->flights[number % SHC_RECORDS];
    return shc_lane_done(end->lane.shm) >= number - SHC_RECORDS &&
           (!end->sends || shc_end_reached(end) >= old->last_round);
}

/* The part's messages follow what their ends have. NULL: there is a record for each; otherwise the first one that has
 * none. */
static const struct message *lay_out(struct batch *batch)
{
    const struct shc_cuda_comm *comm = batch->comm;
    const size_t slot_bytes = shc_mail_slot_bytes(comm->half_bytes, comm->world);
    struct message *message;
    for (message = first_of(batch); message; message = of_part(batch, message + 1)) {
        message->end->next_number = message->end->lane.sequence; /* written under the mail's lock */
        message->end->next_piece = message->end->piece;
    }
    batch->rounds = 0;
    for (message = first_of(batch); message; message = of_part(batch, message + 1)) {
        struct shc_end *end = message->end;
        const uint64_t bytes = message->flat.bytes;
        message->number = ++end->next_number;
        message->before = end->next_piece;
        message->skipped = message->before - end->piece;
        end->next_piece +=
            message->relayed || bytes == 0 ? 1 : (bytes + slot_bytes - 1) / slot_bytes;
        message->flight.last_round = end->next_piece;
        if (batch->rounds < end->next_piece - end->piece)
            batch->rounds = end->next_piece - end->piece;
        if (!has_room(end, message->number))
            return message;
    }
    return NULL;
}

/* Is the time of a message over? */
static bool is_over(struct batch *batch, uint64_t now_ns)
{
    const uint64_t lost_ns = shc_clock_watch_lost(&batch->clock, now_ns);
    bool over = false;
    for (int i = 0; i < batch->count; i++) {
        struct shc_lateness *lateness = &batch->messages[i].flight.lateness;
        shc_lateness_add_lost(lateness, now_ns, lost_ns);
        over |= shc_lateness_is_over(lateness, now_ns);
    }
    return over;
}

static enum shc_status time_out(struct shc_cuda_comm *comm, const struct message *message,
                                uint64_t now_ns)
{
    const struct shc_end *end = message->end;
    char call[SHC_MESSAGE_TEXT_BYTES];
    shc_message_words_text(message->flight.call, end->sends,
                           shc_comm_rank_name(comm->core, end->peer).text, message->number, call,
                           sizeof call);
    const struct shc_waiting waiting = {.waited_ns = now_ns - message->flight.lateness.begun_ns,
                                        .call = call,
                                        .whom = "the message 64 before this one"};
    shc_tell_late(comm, SHC_TIME_OVER, &waiting);
    return shc_watch_verdicts(comm);
}

/* The part's numbers, when there are records for them. Others may enqueue meanwhile. */
static enum shc_status reserve(struct batch *batch)
{
    struct shc_cuda_comm *comm = batch->comm;
    uint64_t pause_ns = 0;
    for (;;) {
        SHC_TRY(shc_check_open(comm));
        SHC_TRY(shc_watch_look(comm));
        const struct message *without = lay_out(batch);
        if (without == NULL)
            return SHC_OK;
        const uint64_t now_ns = shc_clock_ns();
        if (is_over(batch, now_ns))
            return time_out(comm, without, now_ns);
        pthread_mutex_unlock(&comm->mail.lock);
        shc_sys_nap(&pause_ns);
        pthread_mutex_lock(&comm->mail.lock);
    }
}

static enum shc_status enqueue_part(struct batch *batch)
{
    SHC_TRY(reserve(batch));
    for (struct message *message = first_of(batch); message;
         message = of_part(batch, message + 1)) {
        struct shc_lane *lane = &message->end->lane;
        shc_lane_publish(lane, message->number, message->flight.call, 0);
        shc_lane_begin(batch->comm, lane, &message->flight);
    }
    return carry_out(batch);
}

/* ---- a batch ---- */

/* Errors of a message that this rank sees alone. */
static enum shc_status check(const struct batch *batch, const struct shc_op *op,
                             struct message *message)
{
    const struct shc_cuda_comm *comm = batch->comm;
    struct shc_demand demand;
    SHC_TRY(shc_demand_make(op, comm->rank, comm->world, &demand));
    SHC_TRY(shc_placement_check(&comm->gpu, &demand));
    message->flat = op->kind == SHC_SEND ? demand.in : demand.out;
    message->relayed = message->flat.bytes <= comm->relay.box_bytes && comm->relay.box_bytes != 0;
    message->flight.relayed = message->relayed;
    message->flight.stream = batch->stream;
    shc_lateness_begin(&message->flight.lateness, shc_clock_ns(),
                       demand.timeout_ns ? demand.timeout_ns : shc_cuda_timeout_ns(comm),
                       SHC_LATE_NS);
    memcpy(message->flight.call, demand.call, sizeof message->flight.call);
    return SHC_OK;
}

/* Checks all before anything is enqueued. pre: the GPU is entered. */
static enum shc_status prepare(struct batch *batch)
{
    const struct shc_driver *driver = &batch->comm->driver;
    int seen[2][SHC_MAX_WORLD] = {{0}}; /* messages of each end */
    uint64_t capture;
    batch->clock = (struct shc_clock_watch){.looked_ns = shc_clock_ns()};
    for (int i = 0; i < batch->count; i++) {
        const struct shc_op *op = &batch->ops[i];
        struct message *message = &batch->messages[i];
        SHC_TRY(check(batch, op, message));
        message->part = seen[op->kind == SHC_SEND][op->peer]++ / SHC_RECORDS;
        if (batch->parts <= message->part)
            batch->parts = message->part + 1;
    }
    SHC_TRY(shc_capture_of(driver, batch->stream, &capture));
    if (capture != 0) /* it would send the same piece number with every replay */
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED,
                             "%s: not offered while a CUDA graph is captured; call it outside the "
                             "graph",
                             shc_op_kind_name(batch->ops[0].kind));
    return SHC_OK;
}

/* pre: the mail's lock; the GPU is entered. */
static enum shc_status enqueue(struct batch *batch)
{
    for (int i = 0; i < batch->count; i++) {
        const struct shc_op *op = &batch->ops[i];
        SHC_TRY(make_end(batch->comm, op->kind == SHC_SEND, op->peer, &batch->messages[i].end));
    }
    for (batch->part = 0; batch->part < batch->parts; batch->part++)
        SHC_TRY(enqueue_part(batch));
    return SHC_OK;
}

enum shc_status shc_mail_enqueue(struct shc_cuda_comm *comm, const struct shc_op *ops, int count,
                                 void *stream)
{
    struct message one = {0}, *many = NULL;
    struct batch batch = {.comm = comm,
                          .stream = stream,
                          .ops = ops,
                          .messages = &one,
                          .count = count,
                          .copies = {&comm->kernels, stream, {.count = 0}}};
    if (count > 1) {
        many = calloc((size_t)count, sizeof *many);
        if (many == NULL)
            return shc_cuda_fail(SHC_ERR_NOMEM, "out of memory");
        batch.messages = many;
    }
    enum shc_status st = shc_gpu_enter(&comm->gpu);
    if (st == SHC_OK) {
        st = prepare(&batch);
        if (st == SHC_OK) {
            pthread_mutex_lock(&comm->mail.lock);
            st = enqueue(&batch);
            pthread_mutex_unlock(&comm->mail.lock);
        }
        shc_gpu_leave(&comm->gpu);
    }
    free(many);
    return st;
}
