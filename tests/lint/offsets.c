/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Prints the rows of the table of offsets in proto/layout.h as the compiler sees them: offset, bytes, name.
 * tests/lint/offsets.py compares.
 */
#include "shm/proto/layout.h"

#include <stdio.h>

static void block_row(size_t offset, const char *bytes, const char *name)
{
    printf("block + %zu|%s|%s\n", offset, bytes, name);
}

static const char *times(size_t count, size_t bytes)
{
    static char text[32];
    snprintf(text, sizeof text, "%zu * %zu", count, bytes);
    return text;
}

static const char *number(size_t bytes)
{
    static char text[32];
    snprintf(text, sizeof text, "%zu", bytes);
    return text;
}

int main(void)
{
    printf("0|%zu|header\n", sizeof(struct shc_header_shm));
    printf("%d|%zu|abort\n", SHC_ABORT_OFFSET, sizeof(struct shc_abort_shm));
    printf("%d|%zu|decision\n", SHC_DECISION_OFFSET, sizeof(struct shc_decision_shm));
    printf("%d|%zu|late\n", SHC_LATE_OFFSET, sizeof(struct shc_late_shm));
    printf("%d|%zu * %d|member\n", SHC_MEMBERS_OFFSET, sizeof(struct shc_member_shm),
           SHC_MAX_WORLD);
    printf("%d + r * %d|%d|block\n", SHC_BLOCKS_OFFSET, SHC_BLOCK_BYTES, SHC_BLOCK_BYTES);
    block_row(SHC_IDENTITY_OFFSET, number(sizeof(struct shc_identity_shm)), "identity");
    block_row(SHC_HEAP_OFFSET, number(sizeof(struct shc_heap_shm)), "heap");
    block_row(SHC_PROGRESS_OFFSET, number(sizeof(struct shc_progress_shm)), "progress");
    block_row(SHC_BELL_OFFSET, number(sizeof(struct shc_bell_shm)), "bell");
    block_row(SHC_CALLS_OFFSET, times(2, sizeof(struct shc_call_shm)), "call");
    block_row(SHC_REASON_OFFSET, number(sizeof(struct shc_reason_shm)), "reason");
    block_row(SHC_OFFER_OFFSET, number(sizeof(struct shc_offer_shm)), "offer");
    block_row(SHC_LEAVING_OFFSET, number(sizeof(struct shc_leaving_shm)), "leaving");
    block_row(SHC_CALL_RECORD_OFFSET, times(2, sizeof(struct shc_call_record_shm)), "call_record");
    block_row(SHC_SMALL_OFFSET, times(SHC_SMALL_SLOTS, SHC_SMALL_SLOT_BYTES), "small");
    block_row(SHC_CMA_OFFSET, times(2, sizeof(struct shc_cma_shm)), "cma");
    printf("mailbox + 0|%zu|mail bell\n", sizeof(struct shc_bell_shm));
    printf("mailbox + %d|p * %zu|ack\n", SHC_LINE_BYTES, sizeof(struct shc_ack_shm));
    printf("after the acks|p * lines * %zu|line\n", sizeof(struct shc_line_shm));
    printf("after the lines|p * %zu|hand-off line\n", sizeof(struct shc_line_shm));
    printf("next page|%d * %d|eager\n", SHC_EAGER_BUFFERS, SHC_EAGER_BYTES);
    printf("after the eager buffers|p * s|hand-off\n"); /* s: in words there */
    printf("after the hand-off buffers|%d * %d|pool\n", SHC_POOL_BUFFERS, SHC_POOL_BYTES);
    printf("after the pool|%d|long hand-off\n", SHC_LONG_HAND_OFF_BYTES);
    printf("after the mailboxes|%d * %d|hand-off slot\n", SHC_HAND_OFF_SLOTS,
           SHC_HAND_OFF_SLOT_BYTES);
    return 0;
}
