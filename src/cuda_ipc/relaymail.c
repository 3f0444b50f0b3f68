/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages by the relay (docs/internals/cuda.md, "The relay"): of one piece, through slots in host memory in the
 * place of those on the sender's GPU. A SEND needs the thread of nobody; what a RECV copies back is put
 * there by the receiver's.
 */
#include "cuda_ipc/cuda_comm.h"
#include "cuda_ipc/cuda_error.h"
#include "shm/base/atomic.h"
#include "shm/base/once.h"

#include <stdlib.h>
#include <string.h>

static void count_message(struct shc_relay *relay)
{
    /* relaxed: a count; written by who holds the mail's lock. */
    const uint64_t messages = shc_a64_load_relaxed(&relay->messages);
    /* relaxed: as above. */
    shc_a64_store_relaxed(&relay->messages, messages + 1);
}

enum shc_status shc_relay_send(struct shc_cuda_comm *comm, struct shc_end *end,
                               struct shc_cu_stream *stream, struct shc_flat *flat, uint64_t piece)
{
    char *slot = shc_host_box(&comm->host, comm->rank, end->peer,
                              SHC_BOX_SLOT + (int)(piece % SHC_MAIL_SLOTS));
    count_message(&comm->relay);
    return shc_relay_copy_out(comm, stream, slot, flat, 0, flat->bytes);
}

/* The end's receives, made with the first one. */
static enum shc_status receives_of(struct shc_cuda_comm *comm, struct shc_end *end)
{
    struct shc_relay *relay = &comm->relay;
    if (end->relayed != NULL)
        return SHC_OK;
    end->relayed = calloc(1, sizeof *end->relayed);
    if (end->relayed == NULL)
        return shc_cuda_fail(SHC_ERR_NOMEM, "out of memory");
    /* relaxed: written by who holds the mail's lock. */
    const uint32_t count = shc_a32_load_relaxed(&relay->end_count);
    relay->ends[count] = end;
    /* release relay/ends -> acquire in end_count(): the end. */
    shc_a32_store_release(&relay->end_count, count + 1);
    return SHC_OK;
}

static enum shc_status meet(const struct shc_cuda_comm *comm, const struct shc_end *end,
                            struct shc_cu_stream *stream, struct shc_flat *flat, uint64_t piece)
{
    SHC_TRY(shc_relay_copy_out(comm, stream,
                               shc_host_box(&comm->host, comm->rank, end->peer, SHC_BOX_OLD), flat,
                               0, flat->bytes));
    SHC_TRY(shc_timeline_signal(&comm->gpu, stream,
                                shc_host_device(&comm->host, &end->shm->ready.word), piece));
    return shc_relay_wait(comm, stream, &end->shm->released.word, piece);
}

enum shc_status shc_relay_receive(struct shc_cuda_comm *comm, struct shc_end *end,
                                  struct shc_cu_stream *stream, struct shc_flat *flat,
                                  uint64_t number, uint64_t piece)
{
    SHC_TRY(receives_of(comm, end));
    struct shc_relay_receives *receives = end->relayed;
    struct shc_relayed_receive *receive = &receives->ring[shc_relay_queue_place(&receives->queue)];
    receive->number = number;
    receive->piece = piece;
    receive->bytes = flat->bytes;
    /* relaxed: handed over with the receive. */
    shc_a32_store_relaxed(&receive->state, SHC_RELAY_ENQUEUING);
    count_message(&comm->relay);
    shc_relay_queue_push(&receives->queue);
    shc_relay_stir(comm);
    const enum shc_status st = meet(comm, end, stream, flat, piece);
    /* release relay/state -> acquire in serve_receive(): nothing; the word is all there is. */
    shc_a32_store_release(&receive->state, st == SHC_OK ? SHC_RELAY_ENQUEUED : SHC_RELAY_BROKEN);
    if (st != SHC_OK)
        return st;
    return shc_relay_copy_back(
        comm, stream, shc_host_box(&comm->host, comm->rank, end->peer, SHC_BOX_RESULT), flat);
}

/* ---- the thread ---- */

static uint32_t end_count(const struct shc_relay *relay)
{
    /* acquire relay/ends <- release in receives_of(): the end. */
    return shc_a32_load_acquire(&relay->end_count);
}

bool shc_relay_has_receives(const struct shc_relay *relay)
{
    for (uint32_t i = 0, count = end_count(relay); i < count; i++)
        if (shc_relay_queue_has(&relay->ends[i]->relayed->queue))
            return true;
    return false;
}

/* Do both ends say the same? */
static bool compare(struct shc_cuda_comm *comm, const struct shc_end *end, uint64_t number)
{
    const struct shc_end_shm *peers = shc_host_end(&comm->host, end->peer, true, comm->rank);
    struct shc_cuda_record own, other;
    shc_copy_once(&own, &end->shm->records[number % SHC_RECORDS], sizeof own);
    shc_copy_once(&other, &peers->records[number % SHC_RECORDS], sizeof other);
    if (other.sequence == number && memcmp(own.call, other.call, sizeof own.call) == 0)
        return true;
    (void)!shc_mail_mismatch(comm, end, number);
    return false;
}

/* True: the sender's bytes are where the stream copies back from. As for an operation, the last thing is to
 * ask whether the group had failed while they were read: then the sender may have staged over them. */
static bool take(struct shc_cuda_comm *comm, const struct shc_end *end,
                 const struct shc_relayed_receive *receive)
{
    const struct shc_host *host = &comm->host;
    if (!compare(comm, end, receive->number))
        return false;
    memcpy(shc_host_box(host, comm->rank, end->peer, SHC_BOX_RESULT),
           shc_host_box(host, end->peer, comm->rank,
                        SHC_BOX_SLOT + (int)(receive->piece % SHC_MAIL_SLOTS)),
           receive->bytes);
    return !shc_watch_was_failed(comm);
}

/* The stream is at this receive: its tensor's own bytes are here, and nothing of the one before is copied
 * back any more. */
static bool is_ready(const struct shc_end *end, uint64_t piece)
{
    /* acquire relay/ready <- release in the device: the tensor's own bytes. */
    return shc_a64_load_acquire(&end->shm->ready.word) >= piece;
}

/* False: it is not to be served yet. */
static bool serve_receive(struct shc_cuda_comm *comm, const struct shc_end *end,
                          const struct shc_relayed_receive *receive)
{
    const struct shc_host *host = &comm->host;
    /* acquire relay/state <- release in shc_relay_receive(): nothing. */
    const uint32_t state = shc_a32_load_acquire(&receive->state);
    if (state == SHC_RELAY_BROKEN)
        return true;
    if (state == SHC_RELAY_ENQUEUING || !is_ready(end, receive->piece))
        return false;
    /* Gates of this end before this message are through. Behind one that has shut the ends need not mean the
     * same message by this number. */
    const bool failed = shc_end_look_at_verdict(comm, end) != SHC_OK || shc_watch_is_failed(comm);
    if (!failed && shc_end_reached(comm, end) < receive->piece)
        return false;
    if (failed || !take(comm, end, receive))
        memcpy(shc_host_box(host, comm->rank, end->peer, SHC_BOX_RESULT),
               shc_host_box(host, comm->rank, end->peer, SHC_BOX_OLD), receive->bytes);
    return true;
}

static bool serve_end(struct shc_cuda_comm *comm, struct shc_end *end)
{
    struct shc_relay_queue *queue = &end->relayed->queue;
    const struct shc_relayed_receive *receive =
        &end->relayed->ring[shc_relay_queue_served(queue) % SHC_RECORDS];
    if (!shc_relay_queue_has(queue) || !serve_receive(comm, end, receive))
        return false;
    /* release cuda/released -> acquire in the device: what the stream copies back. */
    shc_a64_store_release(&end->shm->released.word, receive->piece);
    shc_relay_queue_pop(queue);
    return true;
}

bool shc_relay_serve_receives(struct shc_cuda_comm *comm)
{
    bool any = false;
    for (uint32_t i = 0, count = end_count(&comm->relay); i < count; i++)
        any = serve_end(comm, comm->relay.ends[i]) || any;
    return any;
}
