/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Looks for what has failed a group, and the thread that does so (docs/internals/cuda/rounds.md: failing).
 */
#include "cuda_ipc/capture.h"
#include "cuda_ipc/cuda_comm.h"
#include "shm/base/num.h"

#include <stdio.h>
#include <string.h>

#define LOOK_SOONEST_NS SHC_NS_PER_MS
#define LOOK_LATEST_NS  (10 * SHC_NS_PER_MS)
#define LISTED          8
#define LATE_PART       0x20000u /* collectives on CUDA tensors, in a hash of ranks */

static uint64_t done_of(const struct shc_cuda_comm *comm, int rank)
{
    return shc_lane_done(shc_host_lane(&comm->host, rank));
}

static uint64_t sequence_of(struct shc_cuda_comm *comm)
{
    pthread_mutex_lock(&comm->state_lock);
    const uint64_t sequence = comm->lane.sequence;
    pthread_mutex_unlock(&comm->state_lock);
    return sequence;
}

/* Except replays. pre: state_lock. */
static bool is_idle(const struct shc_cuda_comm *comm)
{
    return done_of(comm, comm->rank) >= comm->lane.sequence && shc_mail_idle(comm);
}

bool shc_watch_idle(struct shc_cuda_comm *comm)
{
    pthread_mutex_lock(&comm->state_lock);
    const bool idle = is_idle(comm) && !shc_capture_busy(comm);
    pthread_mutex_unlock(&comm->state_lock);
    return idle;
}

/* The words are only ever ended, so what the driver says of it is not the reason of anything. */
static void poison(struct shc_cuda_comm *comm)
{
    if (shc_timeline_poison_again(&comm->timeline) == SHC_OK)
        return;
    pthread_mutex_lock(&comm->state_lock);
    comm->stuck = true;
    pthread_mutex_unlock(&comm->state_lock);
}

/* ---- looking ---- */

static enum shc_status look_at_verdict(struct shc_cuda_comm *comm)
{
    const uint64_t verdict = shc_lane_verdict(&comm->lane);
    if (verdict == 0)
        return SHC_OK;
    /* The gate compares all with rank 0; where that one is at another operation, with this rank. */
    const int rank = SHC_VERDICT_RANK(verdict);
    if (SHC_VERDICT_STATE(verdict) == SHC_GATE_MISMATCH)
        return shc_failure_set_mismatch(comm, SHC_VERDICT_SEQUENCE(verdict), rank ? 0 : comm->rank,
                                        rank);
    return shc_failure_set_aborted(comm);
}

/* The CPU group sees deaths. The rank that failed it may have failed this group before: that reason counts. */
static enum shc_status look_at_members(struct shc_cuda_comm *comm)
{
    const enum shc_status st = shc_comm_error(comm->core);
    if (st == SHC_OK)
        return SHC_OK;
    return shc_failure_set(comm, st, shc_error_text());
}

/* A rank that has left takes part in no later operation. */
static enum shc_status look_at_leavers(struct shc_cuda_comm *comm, uint64_t sequence)
{
    for (int r = 0; r < comm->world; r++) {
        const uint64_t left = shc_departure(comm, r);
        if (r == comm->rank || left == 0 || left > sequence)
            continue;
        char text[256];
        snprintf(text, sizeof text, "%s has left the group after operation #%llu",
                 shc_comm_rank_name(comm->core, r).text, (unsigned long long)(left - 1));
        return shc_failure_set(comm, SHC_ERR_PEER_LEFT, text);
    }
    return SHC_OK;
}

enum shc_status shc_watch_verdicts(struct shc_cuda_comm *comm)
{
    SHC_TRY(shc_failure_look(comm));
    if (shc_failure_is_set(comm))
        return shc_failure_set(comm, SHC_ERR_ABORTED, "told by another rank");
    SHC_TRY(look_at_verdict(comm));
    return shc_mail_look_at_verdicts(comm);
}

enum shc_status shc_watch_look(struct shc_cuda_comm *comm)
{
    SHC_TRY(shc_watch_verdicts(comm));
    SHC_TRY(look_at_members(comm));
    SHC_TRY(shc_capture_look(comm));
    SHC_TRY(look_at_leavers(comm, sequence_of(comm)));
    return shc_mail_look_at_leavers(comm);
}

/* ---- whom an operation waits for ---- */

/* The round in which rank r has arrived last. Nobody writes to himself: what this rank's stream has
 * told another one counts. */
static uint64_t arrival_of(const struct shc_cuda_comm *comm, const struct shc_flight *flight, int r)
{
    if (flight->relayed)
        return shc_relay_arrival(&comm->host, r);
    const int other = comm->rank == 0 ? 1 : 0;
    const struct shc_lone_shm *word =
        shc_host_word(&comm->host, r == comm->rank ? other : comm->rank, SHC_ROW_ARRIVAL, r);
    /* acquire cuda/arrival <- release in the device: for messages alone. */
    return shc_a64_load_acquire(&word->word);
}

/* One of the latest ranks. */
static void late_text(struct shc_cuda_comm *comm, int r, const struct shc_flight *flight,
                      uint64_t sequence, char *text, size_t capacity)
{
    const uint64_t called = shc_lane_published(shc_host_lane(&comm->host, r));
    const struct shc_rank_name name = shc_comm_rank_name(comm->core, r);
    if (flight->sliced && arrival_of(comm, flight, r) + 1 == flight->last_round)
        snprintf(text, capacity, "%s (its relay thread has not added its slice)", name.text);
    else if (r == comm->rank)
        snprintf(text, capacity, "%s (this rank: its stream has other work)", name.text);
    else if (called >= sequence)
        snprintf(text, capacity, "%s (its stream is not there)", name.text);
    else if (called == 0)
        snprintf(text, capacity, "%s (it has made no call yet)", name.text);
    else
        snprintf(text, capacity, "%s (its last call is #%llu)", name.text,
                 (unsigned long long)called);
}

/* Returns a hash of the ranks, 0 if this rank sees other things than the others do. `late`: a bit for each. */
static uint32_t whom_text(struct shc_cuda_comm *comm, const struct shc_flight *flight,
                          uint64_t sequence, uint64_t late[SHC_MAX_WORLD / 64], char *text,
                          size_t capacity)
{
    uint64_t least = UINT64_MAX;
    uint32_t missing = shc_late_hash(SHC_LATE_HASH, LATE_PART);
    bool own = false;
    int listed = 0;
    size_t used = 0;
    for (int r = 0; r < comm->world && comm->world > 1; r++)
        least = shc_min_size(least, arrival_of(comm, flight, r));
    if (least >= flight->last_round) {
        snprintf(text, capacity, "this rank's %s: all ranks have arrived",
                 flight->relayed ? "relay thread or GPU" : "GPU");
        return 0;
    }
    for (int r = 0; r < comm->world; r++) {
        if (arrival_of(comm, flight, r) != least)
            continue;
        missing = shc_late_hash(missing, (uint32_t)r);
        late[r / 64] |= UINT64_C(1) << r % 64;
        own = own || r == comm->rank;
    }
    for (int r = 0; r < comm->world && used < capacity; r++) {
        char one[224];
        if (arrival_of(comm, flight, r) != least || listed++ >= LISTED)
            continue;
        late_text(comm, r, flight, sequence, one, sizeof one);
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", used ? ", " : "", one);
    }
    if (listed > LISTED && used < capacity)
        snprintf(text + used, capacity - used, " and %d more", listed - LISTED);
    return own ? 0 : missing;
}

/* The oldest operation that is not over. */
static void look_at_time(struct shc_cuda_comm *comm, uint64_t now_ns, uint64_t lost_ns)
{
    uint64_t number;
    struct shc_flight flight;
    const enum shc_lateness_state state =
        shc_lane_look_at_time(comm, &comm->lane, now_ns, lost_ns, &number, &flight);
    if (state == SHC_IN_TIME)
        return;
    char call[160], whom[512];
    uint64_t late[SHC_MAX_WORLD / 64] = {0};
    shc_call_words_text(flight.call, number, call, sizeof call);
    const uint32_t missing = whom_text(comm, &flight, number, late, whom, sizeof whom);
    const struct shc_waiting waiting = {.waited_ns = now_ns - flight.lateness.begun_ns,
                                        .call = call,
                                        .whom = whom,
                                        .number = number,
                                        .missing = missing};
    shc_tell_late(comm, state, &waiting);
}

/* Tells the board, for tools outside. */
static void show(struct shc_cuda_comm *comm, uint64_t now_ns)
{
    char call[160] = "", whom[512] = "";
    shc_lane_show_ended(comm, &comm->lane, -1, SHC_BARRIER);
    const uint64_t called = sequence_of(comm), done = done_of(comm, comm->rank);
    struct shc_device_work work = {.called = called, .done = done, .call = call, .whom = whom};
    struct shc_flight flight;
    if (done < called && shc_lane_flight(comm, &comm->lane, done + 1, &flight)) {
        work.since_ns = flight.lateness.begun_ns;
        shc_call_words_text(flight.call, done + 1, call, sizeof call);
        if (now_ns - work.since_ns >= SHC_SHOWN_NS)
            whom_text(comm, &flight, done + 1, work.missing, whom, sizeof whom);
    }
    shc_comm_show_device(comm->core, &work);
}

/* ---- the thread ---- */

/* Something is under way, or was a moment ago: one look. */
static void turn(struct shc_cuda_comm *comm, bool idle)
{
    /* After the last operation others may leave and end. */
    if ((idle ? shc_watch_verdicts(comm) : shc_watch_look(comm)) != SHC_OK) {
        poison(comm);
        return;
    }
    const uint64_t now_ns = shc_clock_ns();
    const uint64_t lost_ns = shc_clock_watch_lost(&comm->clock, now_ns);
    look_at_time(comm, now_ns, lost_ns);
    shc_mail_look_at_time(comm, now_ns, lost_ns);
    shc_capture_look_at_time(comm, now_ns, lost_ns);
    show(comm, now_ns);
    shc_mail_show(comm, now_ns);
}

/* Until an operation comes, or for a while; replays come without a word. pre: state_lock is held. */
static void rest(struct shc_cuda_comm *comm, bool a_while)
{
    const struct timespec next = shc_sys_after(LOOK_LATEST_NS);
    if (!a_while && (comm->captures.lane.sequence == 0 || comm->stuck))
        pthread_cond_wait(&comm->stir, &comm->state_lock);
    else
        pthread_cond_timedwait(&comm->stir, &comm->state_lock, &next);
    comm->clock = (struct shc_clock_watch){.looked_ns = shc_clock_ns()}; /* nobody had to look */
}

static void *watch(void *arg)
{
    struct shc_cuda_comm *comm = arg;
    uint64_t interval_ns = LOOK_SOONEST_NS, seen = 0;
    bool settled = true; /* idle, and looked at since */
    bool ended = false;  /* of a failure: a stream has written poison, too */
    comm->clock = (struct shc_clock_watch){.looked_ns = shc_clock_ns()};
    /* A capture of whichever thread's forbids others what this one does, and breaks by it. */
    (void)shc_capture_exchange(&comm->driver, SHC_CU_CAPTURE_RELAXED);
    pthread_mutex_lock(&comm->state_lock);
    while (!comm->stopping) {
        const uint64_t done = done_of(comm, comm->rank) + shc_mail_done(comm);
        const bool idle = is_idle(comm) && !shc_capture_stirs(comm);
        const bool failed = comm->failed != SHC_OK;
        /* An operation may be over by the time that its call has woken this thread: that is to be shown, too. */
        const bool looked = settled && done == seen && ended == failed;
        if ((idle && looked) || comm->stuck) {
            if (!idle) /* and stuck: poison by the CPU needs no driver */
                shc_timeline_poison_by_cpu(&comm->timeline);
            rest(comm, !idle);
            interval_ns = LOOK_SOONEST_NS;
            continue;
        }
        ended = failed;
        settled = idle; /* once more: a gate may have shut just before "done" */
        pthread_mutex_unlock(&comm->state_lock);
        turn(comm, idle);
        const struct timespec next = shc_sys_after(interval_ns);
        interval_ns = done != seen ? LOOK_SOONEST_NS : interval_ns * 2;
        interval_ns = interval_ns > LOOK_LATEST_NS ? LOOK_LATEST_NS : interval_ns;
        seen = done;
        pthread_mutex_lock(&comm->state_lock);
        if (comm->failed != SHC_OK)
            interval_ns = LOOK_SOONEST_NS; /* poison is written again and again */
        if (!comm->stopping)
            pthread_cond_timedwait(&comm->stir, &comm->state_lock, &next);
    }
    pthread_mutex_unlock(&comm->state_lock);
    return NULL;
}

enum shc_status shc_watch_start(struct shc_cuda_comm *comm)
{
    const int error = shc_sys_thread_start(&comm->watcher, "shc-cuda-watch", watch, comm);
    if (error)
        return shc_cuda_fail_errno(SHC_ERR_SYSTEM, error, "no thread to watch the group with");
    comm->watched = true;
    return SHC_OK;
}

void shc_watch_stop(struct shc_cuda_comm *comm)
{
    if (!comm->watched)
        return;
    pthread_mutex_lock(&comm->state_lock);
    comm->stopping = true;
    pthread_cond_signal(&comm->stir);
    pthread_mutex_unlock(&comm->state_lock);
    shc_sys_thread_join(&comm->watcher);
    comm->watched = false;
}
