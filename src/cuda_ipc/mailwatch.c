/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The part of the watcher for messages: ends whose gates were shut, peers that have left, time.
 */
#include "cuda_ipc/cuda_comm.h"

#include <stdio.h>
#include <string.h>

/* With so many streams that wait another one goes on, over the 8 hardware queues that a process has by
 * default (an H100). */
#define WAITING_APART 5

uint64_t shc_end_reached(const struct shc_end *end)
{
    /* acquire cuda/mail <- release in the device: the receiver has read the record; else nothing. */
    return shc_a64_load_acquire(&end->word->word);
}

/* ---- what there is ---- */

uint64_t shc_mail_count(const struct shc_cuda_comm *comm)
{
    uint64_t sum = 0;
    for (int i = 0; i < comm->mail.count; i++)
        sum += comm->mail.used[i]->lane.sequence;
    return sum;
}

uint64_t shc_mail_done(const struct shc_cuda_comm *comm)
{
    uint64_t sum = 0;
    for (int i = 0; i < comm->mail.count; i++)
        sum += shc_lane_done(comm->mail.used[i]->lane.shm);
    return sum;
}

bool shc_mail_idle(const struct shc_cuda_comm *comm)
{
    for (int i = 0; i < comm->mail.count; i++)
        if (shc_lane_done(comm->mail.used[i]->lane.shm) < comm->mail.used[i]->lane.sequence)
            return false;
    return true;
}

/* The i-th of the used ends; NULL: there are no more. */
static struct shc_end *end_at(struct shc_cuda_comm *comm, int i)
{
    pthread_mutex_lock(&comm->state_lock);
    struct shc_end *end = i < comm->mail.count ? comm->mail.used[i] : NULL;
    pthread_mutex_unlock(&comm->state_lock);
    return end;
}

/* The newest message of this end. False: it is over, and all others are. */
static bool newest_of(struct shc_cuda_comm *comm, const struct shc_end *end, uint64_t *number,
                      struct shc_flight *flight)
{
    pthread_mutex_lock(&comm->state_lock);
    *number = end->lane.sequence;
    pthread_mutex_unlock(&comm->state_lock);
    return shc_lane_done(end->lane.shm) < *number &&
           shc_lane_flight(comm, &end->lane, *number, flight);
}

/* ---- verdicts ---- */

/* The message as this end, or the other one, was called for it. */
static void called_text(const struct shc_cuda_comm *comm, const struct shc_end *end, bool own,
                        uint64_t number, char *text, size_t capacity)
{
    const struct shc_lane_shm *shm = own ? end->lane.shm : end->other;
    struct shc_cuda_record record;
    shc_copy_once(&record, &shm->records[number % SHC_RECORDS], sizeof record);
    if (record.sequence == number)
        shc_message_words_text(record.call, own == end->sends,
                               shc_comm_rank_name(comm->core, own ? end->peer : comm->rank).text,
                               number, text, capacity);
    else
        snprintf(text, capacity, "something else");
}

enum shc_status shc_mail_mismatch(struct shc_cuda_comm *comm, const struct shc_end *end,
                                  uint64_t number)
{
    char text[2 * SHC_HOST_REASON_BYTES], own[SHC_MESSAGE_TEXT_BYTES],
        other[SHC_MESSAGE_TEXT_BYTES];
    called_text(comm, end, true, number, own, sizeof own);
    called_text(comm, end, false, number, other, sizeof other);
    snprintf(text, sizeof text, "the ends of a message differ: %s called %s, but %s called %s",
             shc_comm_rank_name(comm->core, end->peer).text, other,
             shc_comm_rank_name(comm->core, comm->rank).text, own);
    return shc_failure_set(comm, SHC_ERR_MISMATCH, text);
}

enum shc_status shc_end_look_at_verdict(struct shc_cuda_comm *comm, const struct shc_end *end)
{
    const uint64_t verdict = shc_lane_verdict(&end->lane);
    if (verdict == 0)
        return SHC_OK;
    if (SHC_VERDICT_STATE(verdict) == SHC_GATE_MISMATCH)
        return shc_mail_mismatch(comm, end, SHC_VERDICT_SEQUENCE(verdict));
    return shc_failure_set_aborted(comm);
}

enum shc_status shc_mail_look_at_verdicts(struct shc_cuda_comm *comm)
{
    struct shc_end *end;
    for (int i = 0; (end = end_at(comm, i)) != NULL; i++)
        SHC_TRY(shc_end_look_at_verdict(comm, end));
    return SHC_OK;
}

/* ---- peers that have left ---- */

/* A rank that has left has carried out all its calls: pieces that it has not sent, or taken, by then it never
 * will. */
enum shc_status shc_mail_look_at_leavers(struct shc_cuda_comm *comm)
{
    struct shc_end *end;
    for (int i = 0; (end = end_at(comm, i)) != NULL; i++) {
        const uint64_t left = shc_departure(comm, end->peer);
        struct shc_flight flight;
        uint64_t number;
        if (left == 0 || end->peer == comm->rank || !newest_of(comm, end, &number, &flight) ||
            shc_end_reached(end) >= flight.last_round)
            continue;
        char call[SHC_MESSAGE_TEXT_BYTES], text[2 * SHC_HOST_REASON_BYTES];
        shc_message_words_text(flight.call, end->sends,
                               shc_comm_rank_name(comm->core, end->peer).text, number, call,
                               sizeof call);
        snprintf(text, sizeof text, "%s has left the group, after its %s #%llu %s %s; %s",
                 shc_comm_rank_name(comm->core, end->peer).text, end->sends ? "recv" : "send",
                 (unsigned long long)shc_lane_published(end->other), end->sends ? "from" : "to",
                 shc_comm_rank_name(comm->core, comm->rank).text, call);
        return shc_failure_set(comm, SHC_ERR_PEER_LEFT, text);
    }
    return SHC_OK;
}

/* ---- time ---- */

/* Has the peer? */
static bool has_done(const struct shc_end *end, const struct shc_flight *flight)
{
    /* Pieces that nobody needs to have taken. */
    const uint64_t ahead = end->sends ? SHC_MAIL_SLOTS : 0;
    return shc_end_reached(end) + ahead >= flight->last_round;
}

static void whom_text(const struct shc_cuda_comm *comm, const struct shc_end *end, uint64_t number,
                      const struct shc_flight *flight, char *text, size_t capacity)
{
    const struct shc_rank_name name = shc_comm_rank_name(comm->core, end->peer);
    const uint64_t called = shc_lane_published(end->other);
    if (has_done(end, flight))
        snprintf(text, capacity, "this rank's %s: %s has done its part",
                 flight->relayed && !end->sends ? "relay thread or GPU" : "GPU", name.text);
    else if (called >= number)
        snprintf(text, capacity, "%s (its stream is not there)", name.text);
    else
        snprintf(text, capacity, "%s (its last %s this rank is #%llu)", name.text,
                 end->sends ? "recv from" : "send to", (unsigned long long)called);
}

/* Do messages wait on so many streams that these may hold one another up? */
static bool is_crowded(struct shc_cuda_comm *comm)
{
    const void *streams[WAITING_APART];
    int count = 0;
    bool crowded = false;
    pthread_mutex_lock(&comm->state_lock);
    for (int i = 0; i < comm->mail.count && !crowded; i++) {
        const struct shc_end *end = comm->mail.used[i];
        const uint64_t oldest = shc_lane_done(end->lane.shm) + 1;
        const void *stream = end->flights[oldest % SHC_RECORDS].stream;
        int known = 0;
        while (known < count && streams[known] != stream)
            known++;
        if (oldest > end->lane.sequence || known < count)
            continue;
        crowded = count == WAITING_APART;
        if (!crowded)
            streams[count++] = stream;
    }
    pthread_mutex_unlock(&comm->state_lock);
    return crowded;
}

/* A hash of the peer; 0: it has done its part. */
static uint32_t missing_of(const struct shc_end *end, const struct shc_flight *flight)
{
    const uint32_t part = end->sends ? 0x30001u : 0x30000u; /* messages of CUDA tensors */
    return has_done(end, flight)
               ? 0
               : shc_late_hash(shc_late_hash(SHC_LATE_HASH, part), (uint32_t)end->peer);
}

/* The oldest message of this end that is not over. */
static void look_at_end(struct shc_cuda_comm *comm, struct shc_end *end, uint64_t now_ns,
                        uint64_t lost_ns)
{
    uint64_t number;
    struct shc_flight flight;
    const enum shc_lateness_state state =
        shc_lane_look_at_time(comm, &end->lane, now_ns, lost_ns, &number, &flight);
    if (state == SHC_IN_TIME)
        return;
    char call[SHC_MESSAGE_TEXT_BYTES], whom[320];
    const char *hint =
        "; messages wait on more than 5 streams, which share hardware queues: use "
        "batch_isend_irecv, or CUDA_DEVICE_MAX_CONNECTIONS=32 before CUDA starts, if "
        "it is not set";
    shc_message_words_text(flight.call, end->sends, shc_comm_rank_name(comm->core, end->peer).text,
                           number, call, sizeof call);
    whom_text(comm, end, number, &flight, whom, sizeof whom);
    const struct shc_waiting waiting = {.waited_ns = now_ns - flight.lateness.begun_ns,
                                        .call = call,
                                        .whom = whom,
                                        .more = state == SHC_LATE && is_crowded(comm) ? hint : NULL,
                                        .missing = missing_of(end, &flight)};
    shc_tell_late(comm, state, &waiting);
}

void shc_mail_look_at_time(struct shc_cuda_comm *comm, uint64_t now_ns, uint64_t lost_ns)
{
    struct shc_end *end;
    for (int i = 0; (end = end_at(comm, i)) != NULL; i++)
        look_at_end(comm, end, now_ns, lost_ns);
}

/* ---- what tools outside see ---- */

/* The oldest message of all that are not over, by the end that it is of; NULL: there is none. */
static struct shc_end *oldest_of(struct shc_cuda_comm *comm, uint64_t *number,
                                 struct shc_flight *flight)
{
    struct shc_end *end, *oldest = NULL;
    for (int i = 0; (end = end_at(comm, i)) != NULL; i++) {
        struct shc_flight one;
        const uint64_t next = shc_lane_done(end->lane.shm) + 1;
        if (!shc_lane_flight(comm, &end->lane, next, &one) ||
            (oldest && flight->lateness.begun_ns <= one.lateness.begun_ns))
            continue;
        oldest = end;
        *number = next;
        *flight = one;
    }
    return oldest;
}

void shc_mail_show(struct shc_cuda_comm *comm, uint64_t now_ns)
{
    char call[SHC_MESSAGE_TEXT_BYTES] = "", whom[320] = "";
    struct shc_device_work work = {.messages = true, .call = call, .whom = whom};
    struct shc_flight flight;
    struct shc_end *end;
    uint64_t number;
    for (int i = 0; (end = end_at(comm, i)) != NULL; i++)
        shc_lane_show_ended(comm, &end->lane, end->peer, end->sends ? SHC_SEND : SHC_RECV);
    end = oldest_of(comm, &number, &flight);
    if (end) {
        work.since_ns = flight.lateness.begun_ns;
        shc_message_words_text(flight.call, end->sends,
                               shc_comm_rank_name(comm->core, end->peer).text, number, call,
                               sizeof call);
        if (now_ns - work.since_ns >= SHC_SHOWN_NS) {
            whom_text(comm, end, number, &flight, whom, sizeof whom);
            if (!has_done(end, &flight))
                work.missing[end->peer / 64] = UINT64_C(1) << end->peer % 64;
        }
    }
    pthread_mutex_lock(&comm->state_lock);
    work.called = shc_mail_count(comm);
    work.done = shc_mail_done(comm);
    pthread_mutex_unlock(&comm->state_lock);
    if (work.called > 0)
        shc_comm_show_device(comm->core, &work);
}
