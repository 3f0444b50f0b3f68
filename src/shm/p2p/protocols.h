/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The table of the protocols of messages: what carries a message of a given size to another rank. A
 * sender tries them in this order, and the first one that has room carries the message
 * (docs/internals/protocol/messages.md). The code of each is in send.c.
 */

#include "shm/proto/seat.h"

enum shc_protocol {
    SHC_PROTOCOL_HAND_OFF,
    SHC_PROTOCOL_LINE,
    SHC_PROTOCOL_LONG_HAND_OFF,
    SHC_PROTOCOL_HAND_OFF_PREFIX,
    SHC_PROTOCOL_POOL,
    SHC_PROTOCOL_EAGER,
    SHC_PROTOCOL_RENDEZVOUS,
    SHC_PROTOCOLS
};

struct shc_protocol_row {
    const char *name; /* as describe() shows it */
    size_t more_than; /* it carries messages of more bytes than this, */
    size_t most;      /* and of up to so many bytes */
    bool of_two;      /* it exists only in groups of two ranks */
};

extern const struct shc_protocol_row shc_protocols[SHC_PROTOCOLS];

/* Does that protocol carry so many bytes, between ranks with mailboxes of this geometry? */
bool shc_protocol_fits(const struct shc_mail_geometry *mail, enum shc_protocol protocol,
                       size_t bytes);

/* "hand-off, line": the protocols that may carry a message of so many bytes. */
void shc_protocols_text(const struct shc_mail_geometry *mail, size_t bytes, char *text,
                        size_t capacity);
