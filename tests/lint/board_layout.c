/* SPDX-License-Identifier: BSD-3-Clause */
/* Prints "structure field offset bytes" for what python/shmcoll/watch/layout.py has of proto/board.h. */
#include "shm/proto/board.h"

#include <stdio.h>

#define FIELD(type, name)                                                  \
    printf("%s %s %zu %zu\n", current, #name, offsetof(struct type, name), \
           sizeof((struct type *)0)->name)

static void header_and_records(void)
{
    const char *current = "Header";
    FIELD(shc_board_header_shm, magic);
    FIELD(shc_board_header_shm, version);
    FIELD(shc_board_header_shm, header_bytes);
    FIELD(shc_board_header_shm, group_bytes);
    FIELD(shc_board_header_shm, group_count);
    FIELD(shc_board_header_shm, record_offset);
    FIELD(shc_board_header_shm, record_bytes);
    FIELD(shc_board_header_shm, record_count);
    FIELD(shc_board_header_shm, kind_count);
    FIELD(shc_board_header_shm, level);
    FIELD(shc_board_header_shm, layout);
    FIELD(shc_board_header_shm, pid);
    FIELD(shc_board_header_shm, start_time);
    FIELD(shc_board_header_shm, pid_namespace);
    FIELD(shc_board_header_shm, boot);
    FIELD(shc_board_header_shm, ticks);
    FIELD(shc_board_header_shm, ns);
    FIELD(shc_board_header_shm, library);
    FIELD(shc_board_header_shm, dumped_ns);
    FIELD(shc_board_header_shm, dumped_unix_ns);
    FIELD(shc_board_header_shm, failed);
    FIELD(shc_board_header_shm, host);
    FIELD(shc_board_header_shm, job);
    FIELD(shc_board_header_shm, kept_offset);
    FIELD(shc_board_header_shm, kept_count);
    FIELD(shc_board_header_shm, device_offset);
    FIELD(shc_board_header_shm, device_count);
    current = "Record";
    FIELD(shc_board_record_shm, number);
    FIELD(shc_board_record_shm, begin);
    FIELD(shc_board_record_shm, end);
    FIELD(shc_board_record_shm, what);
    FIELD(shc_board_record_shm, count);
    FIELD(shc_board_record_shm, bytes);
    FIELD(shc_board_record_shm, peer);
    FIELD(shc_board_record_shm, pair);
    current = "Sum";
    FIELD(shc_board_sum_shm, ops);
    FIELD(shc_board_sum_shm, bytes);
    FIELD(shc_board_sum_shm, ticks);
    current = "Messages";
    FIELD(shc_board_messages_shm, number);
    FIELD(shc_board_messages_shm, sends);
    FIELD(shc_board_messages_shm, receives);
    FIELD(shc_board_messages_shm, kind);
    FIELD(shc_board_messages_shm, peer);
    FIELD(shc_board_messages_shm, tag);
    FIELD(shc_board_messages_shm, waiters);
    FIELD(shc_board_messages_shm, bytes);
    FIELD(shc_board_messages_shm, since_ns);
}

static void over(void)
{
    const char *current = "Over";
    FIELD(shc_board_over_shm, id);
    FIELD(shc_board_over_shm, hosts);
    FIELD(shc_board_over_shm, host);
    FIELD(shc_board_over_shm, world);
    FIELD(shc_board_over_shm, ranks);
    FIELD(shc_board_over_shm, awaits_epoch);
    FIELD(shc_board_over_shm, awaits_since_ns);
    FIELD(shc_board_over_shm, number);
    FIELD(shc_board_over_shm, whom_epoch);
    FIELD(shc_board_over_shm, whom);
}

static void device(void)
{
    const char *current = "Device";
    FIELD(shc_board_device_shm, number);
    FIELD(shc_board_device_shm, called);
    FIELD(shc_board_device_shm, done);
    FIELD(shc_board_device_shm, since_ns);
    FIELD(shc_board_device_shm, call);
    FIELD(shc_board_device_shm, whom);
    FIELD(shc_board_device_shm, missing);
}

static void block(void)
{
    const char *current = "Block";
    FIELD(shc_board_block_shm, since_ns);
    FIELD(shc_board_block_shm, thread);
    FIELD(shc_board_block_shm, peer);
    FIELD(shc_board_block_shm, kind);
    FIELD(shc_board_block_shm, tag);
}

static void end(void)
{
    const char *current = "End";
    FIELD(shc_board_end_shm, finder);
    FIELD(shc_board_end_shm, rank);
    FIELD(shc_board_end_shm, pid);
    FIELD(shc_board_end_shm, died);
    FIELD(shc_board_end_shm, kind);
    FIELD(shc_board_end_shm, code);
    FIELD(shc_board_end_shm, last_call);
    FIELD(shc_board_end_shm, why);
}

static void group(void)
{
    const char *current = "Group";
    FIELD(shc_board_group_shm, state);
    FIELD(shc_board_group_shm, rank);
    FIELD(shc_board_group_shm, world_size);
    FIELD(shc_board_group_shm, global_rank);
    FIELD(shc_board_group_shm, begun_ns);
    FIELD(shc_board_group_shm, made_ns);
    FIELD(shc_board_group_shm, timeout_ns);
    FIELD(shc_board_group_shm, segment_bytes);
    FIELD(shc_board_group_shm, nonce);
    FIELD(shc_board_group_shm, name);
    FIELD(shc_board_group_shm, failed_once);
    FIELD(shc_board_group_shm, status);
    FIELD(shc_board_group_shm, reason);
    FIELD(shc_board_group_shm, described);
    FIELD(shc_board_group_shm, description);
    FIELD(shc_board_group_shm, entered);
    FIELD(shc_board_group_shm, left);
    FIELD(shc_board_group_shm, waits_epoch);
    FIELD(shc_board_group_shm, waits_since_ns);
    FIELD(shc_board_group_shm, waits_for);
    FIELD(shc_board_group_shm, late);
    FIELD(shc_board_group_shm, slept_ns);
    FIELD(shc_board_group_shm, user);
    FIELD(shc_board_group_shm, clock_number);
    FIELD(shc_board_group_shm, clock_ticks);
    FIELD(shc_board_group_shm, clock_ns);
    FIELD(shc_board_group_shm, submitted);
    FIELD(shc_board_group_shm, ended);
    FIELD(shc_board_group_shm, block);
    FIELD(shc_board_group_shm, messages);
    FIELD(shc_board_group_shm, sending);
    FIELD(shc_board_group_shm, receiving);
    FIELD(shc_board_group_shm, looked_ns);
    FIELD(shc_board_group_shm, sums);
    FIELD(shc_board_group_shm, device);
    FIELD(shc_board_group_shm, device_messages);
    FIELD(shc_board_group_shm, device_kept);
    FIELD(shc_board_group_shm, kept_messages);
    FIELD(shc_board_group_shm, end);
    FIELD(shc_board_group_shm, over);
    FIELD(shc_board_group_shm, pids);
    FIELD(shc_board_group_shm, global_ranks);
    FIELD(shc_board_group_shm, waited_ns);
}

int main(void)
{
    header_and_records();
    device();
    over();
    block();
    end();
    group();
    return 0;
}
