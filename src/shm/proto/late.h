/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * WAIT-10: of the ranks that wait for the same ranks, one says so. A rank that is about to say that something is late
 * asks here first. True: another rank has just said it. False: this rank is the speaker. A word that another process
 * damages costs a line, or adds one. Any thread.
 */

#include "shm/proto/seat.h"

/* A call that all ranks number alike. `which`: a hash of the ranks that are missing. */
bool shc_late_is_said(const struct shc_seat *seat, uint64_t number, uint32_t which,
                      uint64_t waited_ns);

/* Something without a number, as a message: another rank has said it within the last late period. */
bool shc_late_was_said(const struct shc_seat *seat, uint32_t which, uint64_t now_ns);
