/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/request.h"

#include "shm/base/log.h"
#include "shm/base/tensors.h"
#include "shm/comm/comm.h"
#include "shm/proto/board.h"
#include "shm/proto/member.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making one ---- */

/* Checks the operation. pre: all zero, except what request_create() has set; op lives as long. */
static enum shc_status prepare(struct shc_request *request, struct shc_comm *comm,
                               const struct shc_op *op)
{
    return shc_is_message(op->kind) ? shc_message_prepare(&request->message, &comm->p2p.env, op)
                                    : shc_task_prepare(&request->task, comm, op);
}

/* A request with its own copy of the descriptor, after it in the same block. */
static enum shc_status request_create(struct shc_comm *comm, const struct shc_op *op,
                                      const struct shc_request_hooks *hooks,
                                      struct shc_request **out)
{
    if ((op->input.count > 0 && !op->input.list) || (op->output.count > 0 && !op->output.list))
        return shc_fail(SHC_ERR_INVALID, "%s: tensors, but no list of them",
                        shc_op_kind_name(op->kind));
    size_t bytes = shc_tensors_room(&op->input) + shc_tensors_room(&op->output);
    struct shc_request *request = malloc(sizeof *request + bytes);
    if (!request)
        return shc_fail(SHC_ERR_NOMEM, "no memory for a request");
    memset(request, 0, sizeof *request);
    char *at = (char *)(request + 1);
    request->comm = comm;
    request->op = *op;
    shc_tensors_copy(&request->op.input, &at);
    shc_tensors_copy(&request->op.output, &at);
    enum shc_status st = prepare(request, comm, &request->op);
    if (st != SHC_OK) {
        free(request);
        return st;
    }
    if (hooks)
        request->hooks = *hooks;
    /* relaxed: no other thread knows the request yet. */
    shc_a32_store_relaxed(&request->references, 2);
    *out = request;
    return SHC_OK;
}

/* At the end of a call, when no rank waits for this one any more: a `retire` may take its time. */
SHC_INLINE void tidy(struct shc_comm *comm)
{
    if (SHC_LIKELY(!shc_engine_is_inside(&comm->engine))) /* it may hold the queue's lock there */
        shc_engine_retire(&comm->engine);
}

/* The request has ended, and no other thread knows it yet. */
static void be_born_done(struct shc_request *request)
{
    /* relaxed: handing the request to another thread orders that. */
    shc_a32_store_relaxed(&request->done, 1);
    /* relaxed: handing it over orders this too; the caller's handle is left. */
    shc_a32_store_relaxed(&request->references, 1);
}

/* Only the caller knows it yet, so no other thread needs to find out first. */
static enum shc_status be_born_failed(struct shc_request *request, enum shc_status status)
{
    request->status = status;
    request->error = strdup(shc_error_text());
    be_born_done(request);
    return SHC_OK;
}

static enum shc_status submit_collective(struct shc_comm *comm, struct shc_request *request)
{
    const enum shc_status failed = shc_comm_check_failed(comm, request->op.kind);
    if (failed != SHC_OK)
        return be_born_failed(request, failed);
    SHC_TRY(shc_engine_submit(comm, request));
    /* acq_rel comm/submitted: a counter. */
    shc_a64_add_acq_rel(&comm->submitted, 1);
    return SHC_OK;
}

/* A message looks for a failure of the group under the lock which it takes anyway. */
static enum shc_status submit_message(struct shc_comm *comm, struct shc_request *request)
{
    bool over;
    const enum shc_status st = shc_p2p_submit(&comm->p2p, &request->message, &over);
    if (over)
        be_born_done(request);
    if (st == SHC_OK)
        return SHC_OK;
    const enum shc_status failed = shc_comm_check_failed(comm, request->op.kind);
    return failed == SHC_OK ? st : be_born_failed(request, failed);
}

static enum shc_status submit(struct shc_comm *comm, const struct shc_op *op,
                              const struct shc_request_hooks *hooks, struct shc_request **out)
{
    struct shc_request *request = NULL;
    if (shc_is_message(op->kind))
        shc_board_use(&comm->seat.board, shc_thread_number());
    else
        shc_board_use_call(&comm->seat.board, shc_thread_number());
    SHC_TRY(request_create(comm, op, hooks, &request));
    const enum shc_status st =
        shc_is_message(op->kind) ? submit_message(comm, request) : submit_collective(comm, request);
    if (st != SHC_OK) {
        free(request);
        return st;
    }
    *out = request;
    return SHC_OK;
}

enum shc_status shc_submit(struct shc_comm *comm, const struct shc_op *op,
                           const struct shc_request_hooks *hooks, struct shc_request **request)
{
    SHC_TRY(shc_comm_usable(comm));
    if (!shc_is_message(op->kind))
        SHC_TRY(shc_engine_run_unattended(comm, NULL, true));
    const enum shc_status st = submit(comm, op, hooks, request);
    tidy(comm);
    return st;
}

enum shc_status shc_check(struct shc_comm *comm, const struct shc_op *op)
{
    SHC_TRY(shc_comm_usable(comm));
    struct shc_request scratch = {.comm = comm}; /* zeros, as a request's */
    return prepare(&scratch, comm, op);
}

/* ---- its end ---- */

void shc_request_finish(struct shc_request *request, enum shc_status status, const char *error)
{
    struct shc_engine *engine = &request->comm->engine;
    request->status = status;
    if (status != SHC_OK)
        request->error = strdup(error);
    pthread_mutex_lock(&engine->lock);
    bool notify = request->notify;
    /* release request/done -> acquire in shc_request_has_ended(): status, error, the output. */
    shc_a32_store_release(&request->done, 1);
    if (notify)
        shc_engine_call_back(request);
    pthread_mutex_unlock(&engine->lock);
    shc_bell_ring(&engine->bell, false);
    if (notify)
        shc_engine_wake(engine);
    else
        shc_engine_drop(engine, request);
}

void shc_request_finish_message(struct shc_message *message, enum shc_status status,
                                const char *error)
{
    char *const at = (char *)message - offsetof(struct shc_request, message);
    shc_request_finish((struct shc_request *)(void *)at, status, error);
}

void shc_request_complete(struct shc_request *request)
{
    struct shc_engine *engine = &request->comm->engine;
    /* relaxed: only the thread that finds its own number acts on it. */
    shc_a64_store_relaxed(&request->completer, shc_thread_number());
    request->hooks.complete(request->hooks.ctx, request->status, shc_request_reason(request));
    /* release request/completed -> acquire in is_over(): what the callback did. */
    shc_a32_store_release(&request->completed, 1);
    shc_bell_ring(&engine->bell, false);
    shc_engine_drop(engine, request);
}

/* ---- waiting for one ---- */

enum shc_status shc_engine_run_unattended(struct shc_comm *comm, struct shc_request *until,
                                          bool interruptible)
{
    struct shc_inside inside;
    if (SHC_LIKELY(!shc_engine_is_unattended(comm)) ||
        !shc_engine_take(&comm->engine, &inside, SHC_RUNNER_QUEUED))
        return SHC_OK;
    const enum shc_status st = shc_engine_run_queue(comm, until, !interruptible);
    shc_engine_leave(&inside);
    return st;
}

/* Has the operation ended, and its `complete` returned if there is one? A thread that waits inside that
 * very callback does not wait for itself. */
static bool is_over(const struct shc_request *request)
{
    if (!shc_request_has_ended(request))
        return false;
    if (!request->notify || shc_process_leaving()) /* then no thread calls `complete` any more */
        return true;
    /* relaxed: no other thread stores this thread's number. */
    if (shc_a64_load_relaxed(&request->completer) == shc_thread_number())
        return true;
    /* acquire request/completed <- release in shc_request_complete(): what the callback did. */
    return shc_a32_load_acquire(&request->completed) != 0;
}

static bool has_ended_target(void *arg)
{
    return shc_request_has_ended(arg);
}

/* Has the request ended, or is there something to run meanwhile? */
static bool has_ended_or_queued(void *arg)
{
    const struct shc_request *request = arg;
    return shc_request_has_ended(request) || shc_runner_is_queued(&request->comm->engine.runner);
}

static bool is_over_target(void *arg)
{
    return is_over(arg);
}

/* A call of the interrupt callback, or of a signal handler, inside a call of this thread on the same group.
 * It would wait for the call that it interrupts. */
static enum shc_status check_not_inside(struct shc_comm *comm, const char *call)
{
    if (SHC_LIKELY(!shc_engine_is_inside(&comm->engine)))
        return SHC_OK;
    return shc_fail(SHC_ERR_INVALID,
                    "%s called from inside another call on the same group (a signal handler?)",
                    call);
}

/* A wait with a time-out of its own has ended: says what the operation itself waits for. */
static enum shc_status fail_timed_wait(struct shc_request *request, uint64_t timeout_ns)
{
    struct shc_comm *comm = request->comm;
    char what[176] = "a wait for ", whom[512] = "its turn after earlier operations of this rank";
    char now[160] = "", doing[320];
    const size_t used = strlen(what);
    shc_call_text(&comm->seat, &request->task.call, 0, what + used, sizeof what - used);
    shc_seat_doing_text(&comm->seat, what, doing, sizeof doing);
    pthread_mutex_lock(&comm->mapped_lock);
    if (comm->mapped) {
        struct shc_call call;
        char missing[512] = "";
        uint64_t epoch = shc_call_latest(&comm->seat, comm->seat.rank, &call);
        if (epoch != 0 && shc_member_missing_text(&comm->seat, epoch, missing, sizeof missing) > 0)
            snprintf(whom, sizeof whom, "%s", missing);
        shc_call_latest_text(&comm->seat, comm->seat.rank, now, sizeof now);
    }
    pthread_mutex_unlock(&comm->mapped_lock);
    return shc_fail(SHC_ERR_TIMEOUT,
                    "%s " SHC_TIMED_OUT "%.3f s; the operation stays in flight. This rank is in %s "
                    "and waits for %s",
                    doing, (double)timeout_ns / (double)SHC_NS_PER_S, now, whom);
}

/* The same for a message: says what it waits for. */
static enum shc_status fail_timed_message(struct shc_request *request, uint64_t timeout_ns)
{
    struct shc_comm *comm = request->comm;
    char what[256], whom[512] = "its end, which has just come";
    shc_p2p_lock(&comm->p2p);
    shc_p2p_text(&comm->p2p, &request->message, what, sizeof what);
    if (!shc_p2p_is_closed(&comm->p2p) && !shc_request_has_ended(request))
        shc_p2p_whom_text(&comm->p2p, &request->message, whom, sizeof whom);
    shc_p2p_unlock(&comm->p2p);
    return shc_fail(SHC_ERR_TIMEOUT,
                    "%s: a wait for it " SHC_TIMED_OUT "%.3f s waiting for %s; the operation "
                    "stays in flight",
                    what, (double)timeout_ns / (double)SHC_NS_PER_S, whom);
}

/* Until a collective has ended. A thread that waits without a time-out, or for what no other thread runs,
 * runs what is queued up to it. It runs nothing after it, which may wait for what this thread does next. */
static enum shc_status wait_until_ended(struct shc_request *request, uint64_t timeout_ns)
{
    struct shc_comm *comm = request->comm;
    const bool may_run = timeout_ns == SHC_NO_DEADLINE || shc_engine_is_unattended(comm);
    struct shc_wait wait = {
        .seat = &comm->seat,
        .call = &request->task.call,
        .timeout_ns = timeout_ns,
        .patience = comm->seat.patience_engine,
        .interruptible = true,
    };
    const struct shc_target target = {
        .ready = may_run ? has_ended_or_queued : has_ended_target,
        .arg = request,
        .bell = &comm->engine.bell,
        .peer = -1,
    };
    if (may_run)
        shc_engine_note_wait(&comm->engine, request);
    else if (!shc_request_has_ended(request))
        shc_engine_make_urgent(&comm->engine);
    struct shc_inside inside;
    while (!shc_request_has_ended(request)) {
        SHC_TRY(check_not_inside(comm, "a wait"));
        if (may_run && shc_engine_take(&comm->engine, &inside, SHC_RUNNER_QUEUED)) {
            if (!shc_request_has_ended(request)) /* it may have ended before the runner was free */
                (void)shc_engine_run_queue(comm, request, false);
            shc_engine_leave(&inside);
        } else {
            SHC_TRY(shc_wait_for(&wait, &target));
        }
    }
    return SHC_OK;
}

/* Until its callback, too, is over, if it has one. pre: it has ended. */
static enum shc_status wait_for_callback(struct shc_request *request, uint64_t timeout_ns)
{
    struct shc_comm *comm = request->comm;
    char whom[96];
    if (is_over(request))
        return SHC_OK;
    SHC_TRY(check_not_inside(comm, "a wait"));
    snprintf(whom, sizeof whom, "the callback of %s, which has ended",
             shc_op_kind_name(request->op.kind));
    struct shc_wait wait = {
        .seat = &comm->seat,
        .timeout_ns = timeout_ns,
        .patience = comm->seat.patience_engine,
        .interruptible = true,
    };
    const struct shc_target target = {
        .ready = is_over_target,
        .arg = request,
        .bell = &comm->engine.bell,
        .peer = -1,
        .whom = whom,
    };
    return shc_wait_for(&wait, &target);
}

/* The same for a request that has ended, but whose callback has not returned. */
static enum shc_status fail_timed_callback(const struct shc_request *request, uint64_t timeout_ns)
{
    char what[64], doing[256];
    snprintf(what, sizeof what, "a wait for %s", shc_op_kind_name(request->op.kind));
    shc_seat_doing_text(&request->comm->seat, what, doing, sizeof doing);
    return shc_fail(SHC_ERR_TIMEOUT,
                    "%s " SHC_TIMED_OUT "%.3f s waiting for its callback to return; the operation "
                    "itself has ended",
                    doing, (double)timeout_ns / (double)SHC_NS_PER_S);
}

static enum shc_status wait_for(struct shc_request *request, uint64_t timeout_ns)
{
    const bool message = shc_is_message(request->op.kind);
    const uint64_t begun_ns = timeout_ns ? shc_clock_ns() : 0;
    enum shc_status st = SHC_OK;
    if (!message)
        st = wait_until_ended(request, timeout_ns ? timeout_ns : SHC_NO_DEADLINE);
    else if (!is_over(request))
        st = shc_p2p_wait(&request->comm->p2p, &request->message, timeout_ns);
    if (st == SHC_ERR_TIMEOUT)
        return message ? fail_timed_message(request, timeout_ns)
                       : fail_timed_wait(request, timeout_ns);
    SHC_TRY(st);
    if (timeout_ns == 0)
        return wait_for_callback(request, SHC_NO_DEADLINE);
    const uint64_t took_ns = shc_clock_ns() - begun_ns;
    st = wait_for_callback(request, took_ns < timeout_ns ? timeout_ns - took_ns : 1);
    return st == SHC_ERR_TIMEOUT ? fail_timed_callback(request, timeout_ns) : st;
}

static enum shc_status result_of(const struct shc_request *request)
{
    return request->status == SHC_OK ? SHC_OK
                                     : shc_fail(request->status, "%s", shc_request_reason(request));
}

enum shc_status shc_request_wait(struct shc_request *request, uint64_t timeout_ns)
{
    if (!shc_process_is(&request->comm->mark))
        return shc_comm_usable(request->comm);
    enum shc_status st = wait_for(request, timeout_ns);
    /* Most likely it will not be received any more, so it must not take the message of the next receive. */
    if (st == SHC_ERR_INTERRUPTED && shc_is_message(request->op.kind))
        shc_p2p_cancel(&request->comm->p2p, &request->message, false);
    SHC_TRY(st);
    shc_engine_retire(&request->comm->engine);
    return result_of(request);
}

/* A thread that polls may wait for nothing else. So this call moves what no library thread
 * moves. */
static void look_after(struct shc_request *request)
{
    struct shc_comm *comm = request->comm;
    if (!shc_process_is(&comm->mark))
        return;
    (void)shc_p2p_attend(&comm->p2p);
    if (shc_is_message(request->op.kind))
        return;
    shc_engine_make_urgent(&comm->engine);
    (void)!shc_engine_run_unattended(comm, request, false);
}

bool shc_request_done(struct shc_request *request, enum shc_status *status)
{
    if (!shc_request_has_ended(request)) {
        look_after(request);
        if (!shc_request_has_ended(request))
            return false;
    }
    *status = request->status;
    return true;
}

const char *shc_request_error(struct shc_request *request)
{
    enum shc_status status;
    return shc_request_done(request, &status) ? shc_request_reason(request) : "";
}

struct shc_p2p *shc_comm_messages(struct shc_comm *comm)
{
    return &comm->p2p;
}

int shc_request_source(struct shc_request *request)
{
    return request->message.source;
}

bool shc_request_notify(struct shc_request *request)
{
    struct shc_engine *engine = &request->comm->engine;
    /* (In a forked child the lock may be held by a thread that is not here.) */
    if (!shc_process_is(&request->comm->mark) || shc_process_leaving()) {
        (void)!shc_comm_fail_unusable(request->comm);
        return false;
    }
    pthread_mutex_lock(&engine->lock);
    const bool comes =
        !shc_request_has_ended(request) && shc_engine_need_thread(request->comm) == SHC_OK;
    if (comes)
        request->notify = true;
    pthread_mutex_unlock(&engine->lock);
    if (comes && !shc_is_message(request->op.kind))
        shc_engine_make_urgent(engine);
    return comes;
}

void shc_request_retire(struct shc_request *request)
{
    if (request->hooks.retire)
        request->hooks.retire(request->hooks.ctx);
    free(request->error);
    free(request);
}

void shc_request_release(struct shc_request *request)
{
    if (!shc_process_is(&request->comm->mark))
        return; /* a forked child: the parent's engine has the other reference */
    /* relaxed: a hint. */
    if (shc_a64_load_relaxed(&request->submitted_ns) != 0)
        shc_engine_note_late(&request->comm->engine);
    /* acq_rel request/references: the engine's last use comes before the retirement. */
    if (shc_a32_add_acq_rel(&request->references, (uint32_t)-1) == 1)
        shc_request_retire(request);
}

/* ---- the synchronous call ---- */

/* The caller of a synchronous operation gives up, and its memory is about to go. If the operation has
 * begun, only the failure of the group ends it in time. */
static void cancel(struct shc_request *request)
{
    if (shc_is_message(request->op.kind)) {
        shc_p2p_cancel(&request->comm->p2p, &request->message, true);
        return;
    }
    /* acq_rel request/state: against the runner that begins it. */
    if (shc_a32_cas_acq_rel(&request->state, SHC_REQUEST_QUEUED, SHC_REQUEST_CANCELLED))
        return;
    const struct shc_seat *seat = &request->comm->seat;
    char reason[256];
    snprintf(reason, sizeof reason, "%s was interrupted inside a %s",
             shc_seat_rank_name(seat, seat->rank).text, shc_op_kind_name(request->op.kind));
    shc_comm_abort(request->comm, reason);
    struct shc_wait wait = {.seat = &request->comm->seat, .timeout_ns = SHC_NO_DEADLINE};
    const struct shc_target target = {
        .ready = is_over_target,
        .arg = request,
        .bell = &request->comm->engine.bell,
        .peer = -1,
    };
    while (shc_wait_for(&wait, &target) != SHC_OK)
        continue; /* neither a deadline nor an interrupt: it ends with the operation */
}

/* A message that did not go at once, or an operation that takes its turn after what runs or is queued. */
static SHC_NOINLINE enum shc_status run_submitted(struct shc_comm *comm, const struct shc_op *op)
{
    struct shc_request *request;
    SHC_TRY(submit(comm, op, NULL, &request));
    /* relaxed: a hint; its turn says nothing about what is queued. */
    shc_a64_store_relaxed(&request->submitted_ns, 0);
    enum shc_status st = wait_for(request, 0);
    if (st == SHC_OK)
        st = result_of(request);
    else
        cancel(request);
    shc_request_release(request);
    return st;
}

/* Most messages go, or are there, at once: no request, and no other thread is needed. */
static SHC_NOINLINE enum shc_status run_message(struct shc_comm *comm, const struct shc_op *op)
{
    bool over;
    shc_board_use(&comm->seat.board, shc_thread_number());
    enum shc_status st = op->kind == SHC_SEND ? shc_p2p_send_now(&comm->p2p, op, &over)
                                              : shc_p2p_receive_now(&comm->p2p, op, &over);
    return over || st != SHC_OK ? st : run_submitted(comm, op);
}

SHC_INLINE enum shc_status run(struct shc_comm *comm, const struct shc_op *op)
{
    if (shc_is_message(op->kind))
        return run_message(comm, op);
    struct shc_inside inside;
    if (!shc_engine_enter(&comm->engine, &inside)) {
        SHC_TRY(check_not_inside(comm, shc_op_kind_name(op->kind)));
        return run_submitted(comm, op);
    }
    struct shc_task *task = &comm->kept.task;
    enum shc_status st = shc_task_prepare_kept(&comm->kept, comm, op);
    if (SHC_LIKELY(st == SHC_OK)) {
        task->wait.interruptible = true;
        shc_board_use_call(&comm->seat.board, shc_thread_number());
        /* relaxed: a counter of the runner, so no other thread stores to it. */
        shc_a64_store_relaxed(&comm->ran, shc_a64_load_relaxed(&comm->ran) + 1);
        st = shc_comm_execute(comm, task);
    }
    shc_engine_leave(&inside);
    return st;
}

enum shc_status shc_run(struct shc_comm *comm, const struct shc_op *op)
{
    SHC_TRY(shc_comm_usable(comm));
    const enum shc_status st = run(comm, op);
    tidy(comm);
    return st;
}
