/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A message as its sender or its receiver sees it.
 */

#include "shm/base/atomic.h"
#include "shm/base/lateness.h"
#include "shm/exec/copymode.h"
#include "shm/kernel/buf.h"
#include "shm/shmcoll.h"

#include <stddef.h>
#include <string.h>

enum shc_message_state {
    SHC_MESSAGE_NONE = 0,
    SHC_MESSAGE_QUEUED, /* send */
    SHC_MESSAGE_ANNOUNCED,
    SHC_MESSAGE_STREAMING,
    SHC_MESSAGE_POSTED, /* recv */
    SHC_MESSAGE_GRANT_DUE,
    SHC_MESSAGE_REFUSE_DUE,
    SHC_MESSAGE_FILLING,
};

/* What both sides must agree on, but for the tag. */
struct shc_shape {
    enum shc_dtype dtype;
    uint32_t elem_bytes;
    uint32_t dtype_tag;
    uint64_t bytes;
};

struct shc_message {
    enum shc_op_kind kind; /* SHC_SEND or SHC_RECV */
    enum shc_message_state state;
    shc_a32 over;             /* for shc_message_is_over() */
    struct shc_message *next; /* in its queue */
    int peer;                 /* as asked for: a rank or SHC_ANY_SOURCE */
    int source;               /* of a receive: who sent it, once that is known; else -1 */
    int32_t tag;
    uint64_t post;   /* the order of posting on this rank */
    uint32_t number; /* of the pair's messages, once it is announced or matched; goes round */
    struct shc_buf buf;
    struct shc_shape shape;
    struct shc_shape other; /* REFUSE_DUE: the sender's */
    size_t moved;           /* bytes that have left, or are here */
    bool open;              /* in chunks that follow the header unasked */
    /* Of a send in chunks: */
    enum shc_copy_mode mode;      /* how they are copied */
    bool waits_for_reader;        /* it is over when they are read */
    uint32_t bulk_lent;           /* bulk windows, up to its last one */
    uint32_t chunks_lent;         /* other windows, likewise */
    size_t chunk_bytes;           /* how long each is in a bulk window at most */
    size_t head_bytes;            /* went in front of them */
    uint64_t streams_ns;          /* since when they go */
    struct shc_copy_trial *trial; /* where that is noted; or NULL */
    uint64_t timeout_ns;
    struct shc_lateness lateness;
};

struct shc_p2p_env;

/* Checks all that this rank alone can see wrong in the operation, a send or a receive. The tensors' arrays must
 * outlive the message. SHC_ERR_INVALID, SHC_ERR_UNSUPPORTED. */
SHC_NODISCARD enum shc_status shc_message_prepare(struct shc_message *message,
                                                  const struct shc_p2p_env *env,
                                                  const struct shc_op *op);

/* The last message of shc_run() one way: the next one is often the same but for its peer, its tag and
 * where its data lies, and then nothing else is looked at. */
struct shc_kept_message {
    struct shc_message message;
    struct shc_op op; /* its tensors are gone, only how many bytes they had is in `message` */
    bool valid;
};

/* The kept message made ready for the operation, if it is the same but for its peer, its tag and where
 * its one contiguous tensor lies; else NULL. A few instructions. The clock's fields stay as they are. */
SHC_INLINE struct shc_message *shc_message_repeat(struct shc_kept_message *kept, int world_size,
                                                  const struct shc_op *op)
{
    const struct shc_tensors *tensors = op->kind == SHC_SEND ? &op->input : &op->output;
    struct shc_message *message = &kept->message;
    if (!kept->valid || memcmp(&kept->op, op, offsetof(struct shc_op, redop)) != 0 ||
        (unsigned)op->peer >= (unsigned)world_size || tensors->count != 1 ||
        !shc_buf_repeat(&message->buf, tensors))
        return NULL;
    message->peer = op->peer;
    message->tag = op->tag;
    message->moved = 0;
    return message;
}

/* Has it ended? What it ended with its owner was told under the lock of point-to-point. */
SHC_INLINE bool shc_message_is_over(const struct shc_message *message)
{
    /* relaxed: a hint; the lock has the edges. */
    return shc_a32_load_relaxed(&message->over) != 0;
}
