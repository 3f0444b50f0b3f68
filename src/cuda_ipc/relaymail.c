/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages by the relay (docs/internals/cuda/relay.md): one piece each, through slots in host memory instead
 * of slots on the sender's GPU. A SEND needs no thread. The receiver's thread makes the bytes that a RECV copies
 * back.
 */
#include "cuda_ipc/cuda_comm.h"
#include "cuda_ipc/cuda_error.h"
#include "shm/base/atomic.h"
#include "shm/base/once.h"

#include <stdlib.h>
#include <string.h>

static void count_message(struct shc_relay *relay)
{
    /* relaxed: a count; written under the mail's lock. */
    const uint64_t messages = shc_a64_load_relaxed(&relay->messages);
    /* relaxed: a count; written under the mail's lock. */
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
    /* relaxed: written under the mail's lock. */
    const uint32_t count = shc_a32_load_relaxed(&relay->end_count);
    relay->ends[count] = end;
    /* release relay/ends -> acquire in end_count(): the end. */
    shc_a32_store_release(&relay->end_count, count + 1);
    return SHC_OK;
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
    count_message(&comm->relay);
    shc_relay_hand_over(comm, &receives->queue, &receive->state);
    enum shc_status st = shc_relay_copy_out(
        comm, stream, shc_host_box(&comm->host, comm->rank, end->peer, SHC_BOX_OLD), flat, 0,
        flat->bytes);
    if (st == SHC_OK)
        st = shc_relay_meet(comm, &end->lane, stream, piece, piece);
    shc_relay_settle(&receive->state, st);
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
    struct shc_cuda_record own, other;
    shc_copy_once(&own, &end->lane.shm->records[number % SHC_RECORDS], sizeof own);
    shc_copy_once(&other, &end->other->records[number % SHC_RECORDS], sizeof other);
    if (other.sequence == number && memcmp(own.call, other.call, sizeof own.call) == 0)
        return true;
    (void)!shc_mail_mismatch(comm, end, number);
    return false;
}

/* True: the sender's bytes are where the stream copies back from. The look at the abort word comes last: if the
 * group has failed, the sender may have staged over bytes while they were read. */
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
    return !shc_failure_was_set(comm);
}

/* Has the stream reached this receive? Then its tensor's own bytes are here, and the receive before it has been
 * copied back. */
static bool is_ready(const struct shc_end *end, uint64_t piece)
{
    /* acquire relay/ready <- release in the device: the tensor's own bytes. */
    return shc_a64_load_acquire(&end->lane.shm->arrived.word) >= piece;
}

/* False: it is not to be served yet. */
static bool serve_receive(struct shc_cuda_comm *comm, const struct shc_end *end,
                          const struct shc_relayed_receive *receive)
{
    const struct shc_host *host = &comm->host;
    const enum shc_relay_state state = shc_relay_state_of(&receive->state);
    if (state == SHC_RELAY_BROKEN)
        return true;
    if (state == SHC_RELAY_ENQUEUING || !is_ready(end, receive->piece))
        return false;
    /* The gates of this end's earlier messages have run. After one that has shut, the ends need not mean the
     * same message by this number. */
    const bool failed = shc_end_look_at_verdict(comm, end) != SHC_OK || shc_failure_is_set(comm);
    if (!failed && shc_end_reached(end) < receive->piece)
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
    shc_relay_release(&end->lane, receive->piece);
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
