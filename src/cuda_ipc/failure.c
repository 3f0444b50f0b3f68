/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How a group fails, and in which words (docs/internals/cuda/rounds.md: failing). Calls nothing that looks for
 * failures: watch.c does.
 */
#include "cuda_ipc/cuda_comm.h"

#include <stdio.h>

/* ---- failing ---- */

/* The group's word is set: whose reason stands? */
static void adopt(struct shc_cuda_comm *comm, uint64_t finder)
{
    if (finder == 0 || finder > (uint64_t)comm->world) {
        comm->failed = SHC_ERR_ABORTED;
        snprintf(comm->failure, sizeof comm->failure, "the group \"%s\" is broken",
                 shc_comm_group_name(comm->core));
        return;
    }
    const struct shc_part_shm *part = shc_host_part(&comm->host, (int)finder - 1);
    const uint32_t status = SHC_READ_ONCE(part->reason.status);
    char text[SHC_HOST_REASON_BYTES];
    shc_copy_text_once(text, part->reason.text, sizeof text);
    snprintf(comm->failure, sizeof comm->failure, "group \"%s\": %s (found by %s)",
             shc_comm_group_name(comm->core), text,
             shc_comm_rank_name(comm->core, (int)finder - 1).text);
    comm->failed =
        status > SHC_OK && status < SHC_STATUS_COUNT ? (enum shc_status)status : SHC_ERR_ABORTED;
}

/* True when it was this call that failed the group for this rank. */
static bool fail_once(struct shc_cuda_comm *comm, enum shc_status status, const char *text)
{
    struct shc_part_shm *part = shc_host_part(&comm->host, comm->rank);
    shc_a64 *aborted = &shc_host_header(&comm->host)->aborted.word;
    pthread_mutex_lock(&comm->state_lock);
    const bool first = comm->failed == SHC_OK;
    if (first) {
        part->reason.status = status;
        snprintf(part->reason.text, sizeof part->reason.text, "%s", text);
        /* acq_rel cuda/abort: this rank's reason before the word; only the first finder's stands. */
        shc_a64_cas_acq_rel(aborted, 0, (uint64_t)comm->rank + 1);
        /* acquire cuda/abort <- acq_rel in fail_once(): the finder's reason. */
        adopt(comm, shc_a64_load_acquire(aborted));
    }
    pthread_cond_signal(&comm->stir);
    pthread_mutex_unlock(&comm->state_lock);
    return first;
}

enum shc_status shc_failure_look(struct shc_cuda_comm *comm)
{
    pthread_mutex_lock(&comm->state_lock);
    enum shc_status st = comm->failed;
    if (st != SHC_OK)
        st = shc_cuda_fail(st, "%s", comm->failure);
    pthread_mutex_unlock(&comm->state_lock);
    return st;
}

enum shc_status shc_failure_set(struct shc_cuda_comm *comm, enum shc_status status,
                                const char *text)
{
    if (fail_once(comm, status, text)) {
        shc_comm_abort(comm->core, comm->failure); /* written once: no lock is needed */
        shc_timeline_poison_by_cpu(&comm->timeline);
    }
    return shc_failure_look(comm);
}

bool shc_failure_is_set(const struct shc_cuda_comm *comm)
{
    /* acquire cuda/abort <- acq_rel in fail_once(): the finder's reason. */
    return shc_a64_load_acquire(&shc_host_header(&comm->host)->aborted.word) != 0;
}

bool shc_failure_was_set(const struct shc_cuda_comm *comm)
{
    /* acq_rel cuda/abort: a plain load might come before the reads that it is to come after. */
    return shc_a64_add_acq_rel(&shc_host_header(&comm->host)->aborted.word, 0) != 0;
}

/* The call that rank r made as its operation of that number, if it is still known. */
static void call_text(struct shc_cuda_comm *comm, int r, uint64_t sequence, char text[160])
{
    struct shc_flight flight;
    snprintf(text, 160, "something else");
    if (r == comm->rank && shc_lane_flight(comm, &comm->lane, sequence, &flight)) {
        shc_call_words_text(flight.call, sequence, text, 160);
    } else if (r != comm->rank && r < comm->world) {
        struct shc_cuda_record record;
        shc_copy_once(&record, &shc_host_lane(&comm->host, r)->records[sequence % SHC_RECORDS],
                      sizeof record);
        if (record.sequence == sequence)
            shc_call_words_text(record.call, sequence, text, 160);
    }
}

enum shc_status shc_failure_set_mismatch(struct shc_cuda_comm *comm, uint64_t sequence, int a,
                                         int b)
{
    char text[2 * SHC_HOST_REASON_BYTES], one[160], other[160];
    call_text(comm, a, sequence, one);
    call_text(comm, b, sequence, other);
    snprintf(text, sizeof text, "ranks made different calls: %s called %s, but %s called %s",
             shc_comm_rank_name(comm->core, a).text, one, shc_comm_rank_name(comm->core, b).text,
             other);
    return shc_failure_set(comm, SHC_ERR_MISMATCH, text);
}

enum shc_status shc_failure_set_aborted(struct shc_cuda_comm *comm)
{
    return shc_failure_set(comm, SHC_ERR_ABORTED, "a rank's GPU found the group aborted");
}

/* ---- whether a rank takes part ---- */

enum shc_status shc_check_open(struct shc_cuda_comm *comm)
{
    pthread_mutex_lock(&comm->state_lock);
    const bool closing = comm->closing;
    pthread_mutex_unlock(&comm->state_lock);
    return closing ? shc_cuda_fail(SHC_ERR_CLOSED, "this rank has closed the group") : SHC_OK;
}

uint64_t shc_departure(struct shc_cuda_comm *comm, int rank)
{
    /* acquire cuda/left <- release in shc_cuda_comm_close(): its last operation, its streams' last words. */
    const uint64_t left = shc_a64_load_acquire(&shc_host_part(&comm->host, rank)->left.word);
    return left != 0 && shc_comm_is_ending(comm->core, rank) ? 0 : left;
}

/* ---- telling ---- */

void shc_say(struct shc_cuda_comm *comm, const char *line)
{
    if (comm->say != NULL)
        comm->say(comm->say_ctx, line);
    else
        shc_log_warning(line);
}

void shc_tell_late(struct shc_cuda_comm *comm, enum shc_lateness_state state,
                   const struct shc_waiting *waiting)
{
    char text[1200];
    const struct shc_rank_name self = shc_comm_rank_name(comm->core, comm->rank);
    const double seconds = (double)waiting->waited_ns / (double)SHC_NS_PER_S;
    if (state == SHC_TIME_OVER) {
        snprintf(text, sizeof text, SHC_TIMED_OUT "%.3f s waiting for %s; in %s: %s", seconds,
                 waiting->whom, self.text, waiting->call);
        (void)!shc_failure_set(comm, SHC_ERR_TIMEOUT, text);
        return;
    }
    snprintf(text, sizeof text, "%s: %s on CUDA group \"%s\" " SHC_HAS_WAITED " for %s%s",
             self.text, waiting->call, shc_comm_group_name(comm->core), seconds, waiting->whom,
             waiting->more ? waiting->more : "");
    if (comm->say != NULL)
        comm->say(comm->say_ctx, text);
    else
        shc_comm_log_late(comm->core, waiting->number, waiting->missing, waiting->waited_ns, text);
}
