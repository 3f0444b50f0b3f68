/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * What the ranks write into the store, and the one function that reads it back. A store has no
 * access rule of its own: whatever another user writes there is an error here, never more. RDV-25
 * of docs/internals/protocol/rendezvous.md.
 */

#include "shm/proto/layout.h"

#define SHC_RECORD_TEXT_BYTES  512
#define SHC_RECORD_GENERATIONS (INT64_C(1) << 40) /* more than any list can have */

enum shc_record_kind {
    SHC_RECORD_JOIN = 1,
    SHC_RECORD_OFFER,
    SHC_RECORD_VERDICT,
    SHC_RECORD_KINDS
};

/* All zero except magic, layout_version and kind, for what is not known. */
struct shc_record_head {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t kind; /* enum shc_record_kind */
    uint64_t list; /* shc_member_list_hash() */
    int64_t generation;
    int32_t attempt; /* 0: of the whole generation */
    int32_t rank;    /* the writer, in the group; in a verdict with an attempt: its own rank */
};

/* Which rank this is, and with which members it makes the group. Stored without the unused end of `ranks`. */
struct shc_join {
    struct shc_record_head head;
    struct shc_os_process process;
    uint64_t life; /* shc_process_life() */
    int32_t world_size;
    int32_t ranks[SHC_MAX_WORLD]; /* the members' numbers in the job, in the group's order */
};

struct shc_invitation { /* rank 0's offer of an attempt */
    struct shc_record_head head;
    struct shc_segment_name name;
};

struct shc_verdict { /* of a rank on an attempt; without an attempt: the decision */
    struct shc_record_head head;
    uint32_t status;
    int32_t pid; /* of the writer */
    char text[SHC_RECORD_TEXT_BYTES];
};

union shc_record {
    struct shc_record_head head;
    struct shc_join join;
    struct shc_invitation invitation;
    struct shc_verdict verdict;
};

/* What a record must contain to be accepted. Of a join record only kind and rank are compared: the list and
 * the generation of another rank are its news. */
struct shc_record_wish {
    struct shc_record_head head; /* rank -1: any */
    size_t segment_bytes;        /* of an offered segment */
};

/* The bytes of that record that are stored. */
size_t shc_record_bytes(const union shc_record *record);

/* Copies a value of the store into *record. Returns NULL, or why it does not match: then *record must not
 * be used. *older: it is a record, but of another version of this library. */
const char *shc_record_read(const struct shc_record_wish *wish, const void *value, size_t bytes,
                            union shc_record *record, bool *older);

/* Copies a text, cut to its room; each character that a terminal would not print becomes '?'. */
void shc_record_text(char *to, size_t capacity, const char *text);

/* Two ranks can meet if these are equal: a hash of the ordered list. */
uint64_t shc_member_list_hash(const int32_t *ranks, int world_size);

/* "0-3, 6", cut with "..." if it does not fit. */
void shc_member_list_text(const int32_t *ranks, int world_size, char *text, size_t capacity);
