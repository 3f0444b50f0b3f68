/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/p2p/message.h"

#include "shm/kernel/alias.h"
#include "shm/p2p/p2p.h"

#include <string.h>

enum shc_status shc_message_prepare(struct shc_message *message, const struct shc_p2p_env *env,
                                    const struct shc_op *op)
{
    const bool sends = op->kind == SHC_SEND;
    const int world = env->seat->world_size, ranks = world + env->remote.count;
    uint32_t elem_bytes = 0;
    SHC_TRY(shc_op_check_reserved(op));
    SHC_TRY(shc_op_elem_bytes(op, &elem_bytes));
    if ((op->peer < 0 || op->peer >= ranks) && (sends || op->peer != SHC_ANY_SOURCE))
        return shc_fail(SHC_ERR_INVALID, "%s: the peer %d is not a rank (0 to %d)",
                        shc_op_kind_name(op->kind), op->peer, world - 1);
    memset(message, 0, sizeof *message);
    SHC_TRY(shc_buf_init(&message->buf, sends ? &op->input : &op->output, elem_bytes, !sends));
    if (!sends && !message->buf.flat)
        SHC_TRY(shc_buf_check_output(&message->buf));
    message->kind = op->kind;
    message->peer = op->peer;
    message->source = op->peer;
    message->tag = op->tag;
    /* relaxed: a new time-out is for the messages that start after it. */
    message->timeout_ns = op->timeout_ns ? op->timeout_ns : shc_a64_load_relaxed(env->timeout_ns);
    message->shape = (struct shc_shape){
        .dtype = op->dtype,
        .elem_bytes = elem_bytes,
        .dtype_tag = op->dtype == SHC_OPAQUE ? op->dtype_tag : 0,
        .bytes = message->buf.bytes,
    };
    return SHC_OK;
}
