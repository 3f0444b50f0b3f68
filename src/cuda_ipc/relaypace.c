/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Whether the relay is faster than kernels at this time. Where other contexts keep the GPU busy, each step of
 * a stream waits for their turns, of 2 ms on an H100: copies, words and waits then take longer than a kernel,
 * which needs one turn. Each rank times how long its stream takes to bring a result back; all ranks learn
 * what all have found, by the operations themselves, and draw the same conclusion at the same operation.
 */
#include "cuda_ipc/cuda_comm.h"
#include "shm/base/atomic.h"
#include "shm/base/clock.h"
#include "shm/base/num.h"

/* The turn of one other context: the least that a round of kernels costs. */
#define TURN_NS (180 * SHC_NS_PER_US)

#define TOO_SLOW      8                /* operations of late, less those that were fast */
#define BACKOFF       ((uint64_t)1024) /* operations by kernels, before the relay is tried again */
#define BACKOFF_MOST  ((uint64_t)1 << 16)
#define TRIAL         8 /* operations of a trial, which is assessed before there are more */
#define PACED_BYTES   ((uint64_t)16 << 10) /* longer ones take their time */
#define TIMED_MOST_NS (20 * SHC_NS_PER_MS) /* the thread does not stay awake for longer */

static shc_a32 *pace_of(struct shc_relay *relay, uint64_t sequence)
{
    return &relay->paces[sequence % SHC_PACES];
}

/* Each backoff that the trial after it does not speak against is twice as long. */
static void back_off(struct shc_relay *relay)
{
    relay->backoff = relay->next_backoff > BACKOFF ? relay->next_backoff : BACKOFF;
    relay->next_backoff = relay->backoff < BACKOFF_MOST ? 2 * relay->backoff : BACKOFF_MOST;
    relay->slowness = TOO_SLOW / 2;
    relay->trial = TRIAL;
    relay->hold = SHC_RECORDS;
    /* relaxed: a count; written under order_lock. */
    const uint64_t backoffs = shc_a64_load_relaxed(&relay->backoffs);
    /* relaxed: a count; written under order_lock. */
    shc_a64_store_relaxed(&relay->backoffs, backoffs + 1);
}

/* Operations count when all ranks are past them: at the same number on all ranks. */
static void count_pace(struct shc_relay *relay, uint64_t sequence)
{
    /* acquire relay/pace <- release in shc_relay_agree_on_pace(): nothing; the word is all there is. */
    const uint32_t pace = shc_a32_load_acquire(pace_of(relay, sequence));
    if (relay->backoff > 0 || pace == SHC_PACE_UNKNOWN)
        return;
    relay->slowness += pace == SHC_PACE_SLOW ? 1 : relay->slowness > 0 ? -1 : 0;
    if (relay->slowness == 0)
        relay->next_backoff = BACKOFF;
    if (relay->slowness >= TOO_SLOW)
        back_off(relay);
}

bool shc_relay_is_fast(struct shc_cuda_comm *comm, uint64_t sequence)
{
    struct shc_relay *relay = &comm->relay;
    if (relay->limit == 0)
        return false;
    while (relay->counted + SHC_RECORDS < sequence)
        count_pace(relay, ++relay->counted);
    /* relaxed: handed over with the operation. */
    shc_a32_store_relaxed(pace_of(relay, sequence), SHC_PACE_UNKNOWN);
    if (relay->backoff > 0) {
        relay->backoff--;
        return false;
    }
    if (relay->trial > 0) {
        relay->trial--;
        return true;
    }
    if (relay->hold > 0) {
        relay->hold--;
        return false;
    }
    return true;
}

/* A thread that looks late does not know when the stream was done: only a look that finds it not done counts. */
void shc_relay_look_at_pace(struct shc_cuda_comm *comm)
{
    struct shc_relay *relay = &comm->relay;
    if (relay->timed == 0)
        return;
    const uint64_t now_ns = shc_clock_ns();
    const bool done = shc_lane_done(comm->lane.shm) >= relay->timed;
    if (!done)
        relay->undone_ns = now_ns;
    const uint64_t turns_ns = (comm->sharing > 2 ? (uint64_t)comm->sharing - 1 : 1) * TURN_NS;
    relay->slow = relay->undone_ns - relay->timed_ns > shc_min_size(turns_ns, TIMED_MOST_NS / 2);
    if (done || now_ns - relay->timed_ns >= TIMED_MOST_NS)
        relay->timed = 0;
}

/* The words of ranks' paces are used alternately. */
static const shc_a64 *pace_word(const struct shc_cuda_comm *comm, int rank, uint64_t served)
{
    return &shc_host_part(&comm->host, rank)->pace[served & 1].word;
}

/* Reads the reports of all ranks, made with the last operation, on the one before it. They have arrived in this one, so
 * it is there; and that word is written again with the next one, in which this rank has not arrived. */
void shc_relay_agree_on_pace(struct shc_cuda_comm *comm, const struct shc_relayed *op)
{
    struct shc_relay *relay = &comm->relay;
    const uint64_t last = shc_relay_queue_served(&relay->queue) - 1;
    bool slow = false;
    for (int r = 0; r < comm->world; r++)
        /* acquire cuda/pace <- release in shc_relay_tell_pace(): nothing; the word is all there is. */
        slow =
            slow || shc_a64_load_acquire(pace_word(comm, r, last)) == SHC_PACE(relay->before, true);
    if (relay->before_paced)
        /* release relay/pace -> acquire in count_pace(): nothing; the word is all there is. */
        shc_a32_store_release(pace_of(relay, op->sequence), slow ? SHC_PACE_SLOW : SHC_PACE_FAST);
}

void shc_relay_tell_pace(struct shc_cuda_comm *comm, const struct shc_relayed *op)
{
    struct shc_relay *relay = &comm->relay;
    const uint64_t served = shc_relay_queue_served(&relay->queue);
    /* release cuda/pace -> acquire in shc_relay_agree_on_pace(): nothing; the word is all there is. */
    shc_a64_store_release(&shc_host_part(&comm->host, comm->rank)->pace[served & 1].word,
                          SHC_PACE(op->sequence, relay->slow));
    relay->before_paced = relay->paced;
    relay->before = op->sequence;
    relay->paced = op->paced;
    relay->slow = false;
    relay->timed = op->sequence;
    relay->timed_ns = relay->undone_ns = shc_clock_ns();
}

bool shc_relay_is_paced(uint64_t bytes)
{
    return bytes <= PACED_BYTES;
}
