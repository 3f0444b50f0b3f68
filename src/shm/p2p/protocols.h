/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The protocols of messages: by which a message of a size may go to another rank, in the order in which its sender
 * tries them. The first one that has room carries it. (send.c has what each does.)
 */

#include "shm/proto/seat.h"

enum shc_protocol {
    SHC_PROTOCOL_HAND_OFF,
    SHC_PROTOCOL_LINE,
    SHC_PROTOCOL_EAGER,
    SHC_PROTOCOL_LONG_HAND_OFF,
    SHC_PROTOCOL_EAGER_POOL,
    SHC_PROTOCOL_HAND_OFF_PREFIX,
    SHC_PROTOCOL_FRAGMENTS,
    SHC_PROTOCOL_RENDEZVOUS,
    SHC_PROTOCOLS
};

struct shc_protocol_row {
    const char *name; /* as describe() has it */
    const char *what; /* for people */
    size_t more_than; /* so many bytes go by it, */
    size_t most;      /* and up to so many */
    bool of_two;      /* only between the ranks of a group of two */
};

extern const struct shc_protocol_row shc_protocols[SHC_PROTOCOLS];

/* Between ranks that have such mailboxes. */
bool shc_protocol_fits(const struct shc_mail_geometry *mail, enum shc_protocol protocol,
                       size_t bytes);

/* "hand-off, line": those by which a message of so many bytes may go. */
void shc_protocols_text(const struct shc_mail_geometry *mail, size_t bytes, char *text,
                        size_t capacity);
