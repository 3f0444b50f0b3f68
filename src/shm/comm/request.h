/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Requests: one submitted operation with its own copy of the descriptor.
 *
 *   queued -> running -> done [-> completing -> completed, if notify was asked for]
 *
 * Two parties hold a reference: the caller's handle and the engine. The engine's thread never frees
 * a request: it may hold the last reference to memory whose owner wants another thread.
 */

#include "shm/comm/op.h"
#include "shm/p2p/message.h"

enum shc_request_state {
    SHC_REQUEST_QUEUED = 0,
    SHC_REQUEST_RUNNING,
    SHC_REQUEST_CANCELLED, /* the caller of a synchronous operation gave up in the queue */
};

struct shc_request {
    shc_a32 references;
    shc_a32 done;         /* 1 once status and error are stored */
    shc_a32 completed;    /* 1 when `complete` has returned */
    shc_a32 state;        /* enum shc_request_state */
    shc_a64 completer;    /* number of the thread that is inside `complete` */
    shc_a64 submitted_ns; /* 0: a thread that may run it has begun to wait for it, or a message */
    struct shc_comm *comm;
    struct shc_request_hooks hooks;
    struct shc_op op;
    struct shc_task task;       /* of a collective */
    struct shc_message message; /* of a send or a receive; guarded by the lock of comm->p2p */
    bool notify;                /* guarded by the engine's lock until done */
    enum shc_status status;
    struct shc_request *next; /* of the engine's lists */
    char *error;              /* the text of a failed one; NULL: none, or no memory for it */
};

/* Has the operation itself ended? */
SHC_INLINE bool shc_request_has_ended(const struct shc_request *request)
{
    /* acquire request/done <- release in shc_request_finish(): status, error, the output. */
    return shc_a32_load_acquire(&request->done) != 0;
}

/* The operation has ended. Stores status and error, and hands over to `complete` if that was asked for;
 * otherwise releases the engine's reference. On the runner's thread. */
void shc_request_finish(struct shc_request *request, enum shc_status status, const char *error);

/* shc_p2p_env's `done`: for a message that is part of a request. */
void shc_request_finish_message(struct shc_message *message, enum shc_status status,
                                const char *error);

/* Calls the hook and releases the engine's reference. On an engine thread that holds nothing. */
void shc_request_complete(struct shc_request *request);

/* Why it failed, or "". pre: it is done. */
SHC_INLINE const char *shc_request_reason(const struct shc_request *request)
{
    if (request->status == SHC_OK)
        return "";
    return request->error ? request->error : "(no memory for the reason)";
}

/* Calls the hook and frees. On a caller's thread. */
void shc_request_retire(struct shc_request *request);
