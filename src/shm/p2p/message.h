/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A message, as its sender or its receiver sees it.
 */

#include "shm/base/atomic.h"
#include "shm/base/lateness.h"
#include "shm/exec/copymode.h"
#include "shm/kernel/buf.h"
#include "shm/proto/layout.h"
#include "shm/shmcoll.h"

enum shc_message_state {
    SHC_MESSAGE_NONE = 0,
    SHC_MESSAGE_QUEUED, /* of a send */
    SHC_MESSAGE_ANNOUNCED,
    SHC_MESSAGE_STREAMING,
    SHC_MESSAGE_POSTED, /* of a receive */
    SHC_MESSAGE_GRANT_DUE,
    SHC_MESSAGE_REFUSE_DUE,
    SHC_MESSAGE_FILLING,
};

/* What sender and receiver must agree on, except the tag. */
struct shc_shape {
    enum shc_dtype dtype;
    uint32_t elem_bytes;
    uint32_t dtype_tag;
    uint64_t bytes;
};

struct shc_message {
    enum shc_op_kind kind; /* SHC_SEND or SHC_RECV */
    enum shc_message_state state;
    shc_a32 over;             /* set when it has ended; shc_message_is_over() reads it */
    struct shc_message *next; /* the next message in its queue */
    int peer;                 /* as the call named it: a rank, or SHC_ANY_SOURCE */
    int source;               /* of a receive: its sender once that is known, before that -1 */
    int32_t tag;
    uint64_t post;   /* its place in the order of posting on this rank */
    uint32_t number; /* its number in the pair, once announced or matched; wraps */
    struct shc_buf buf;
    struct shc_shape shape;
    struct shc_shape other; /* the other side's, once that is known */
    size_t moved;           /* bytes that have left this rank, or have come */
    bool unasked;           /* its rest follows the header without CTS */
    struct shc_place place; /* of a receive: where its first bytes were */
    size_t late_moved;      /* `moved` when it was found too late */
    /* Of a send in chunks: */
    enum shc_copy_mode mode;     /* how its chunks are copied */
    bool waits_for_reader;       /* it ends when its chunks have been read */
    uint64_t pool_lent;          /* pool buffers lent up to its last chunk */
    uint32_t chunks_lent;        /* eager buffers lent for chunks up to its last chunk */
    size_t chunk_bytes;          /* the longest chunk in a pool buffer; 0: no chunk was sent */
    struct shc_copy_meter meter; /* of the chunks that it sends after CTS */
    uint64_t timeout_ns;
    struct shc_lateness lateness;
    uint64_t begun_ticks; /* of a message that the board is to keep; 0: it is not */
};

struct shc_p2p_env;

/* Checks all of a send or receive that this rank alone can find wrong. The tensors' arrays must
 * outlive the message. Fails with SHC_ERR_INVALID or SHC_ERR_UNSUPPORTED. */
SHC_NODISCARD enum shc_status shc_message_prepare(struct shc_message *message,
                                                  const struct shc_p2p_env *env,
                                                  const struct shc_op *op);

/* The last message of shc_run() in one direction. The next one often differs only in its peer, its
 * tag and the address of its data; then nothing else needs to be checked. */
struct shc_kept_message {
    struct shc_message message;
    struct shc_op op; /* without its tensors; `message` keeps their bytes' number */
    bool valid;
};

/* Has it ended? Its owner was told the result under the lock of messages. */
SHC_INLINE bool shc_message_is_over(const struct shc_message *message)
{
    /* relaxed: a hint; the lock has the edges. */
    return shc_a32_load_relaxed(&message->over) != 0;
}
