// SPDX-License-Identifier: BSD-3-Clause
#pragma once
//
// Stands for shm/proto/seat.h in the weak_*.cc models: mailboxes alone, one after the other.

#include "shm/base/status.h"
#include "shm/proto/layout.h"

struct shc_mail_geometry {
    uint32_t lines;
    size_t lines_offset, hand_off_lines_offset, buffers_offset, pool_offset;
    uint32_t hand_offs;
    size_t hand_off_bytes;
    size_t total_bytes;
};

struct shc_seat {
    struct {
        char *base;
    } segment;
    int rank, world_size;
    shc_mail_geometry mail;
};

SHC_INLINE size_t shc_seat_mail_offset(const shc_seat *seat, int rank)
{
    return static_cast<size_t>(rank) * seat->mail.total_bytes;
}

SHC_INLINE shc_bell_shm *shc_seat_mail_bell(const shc_seat *, int)
{
    return nullptr; // the models poll
}
