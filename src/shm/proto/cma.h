/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Cross-memory attach: the kernel copies a block out of another rank's memory (process_vm_readv), once
 * instead of twice through staging memory. What others may take of a rank's memory, and where it
 * lies, it says in a place by parity of the epoch, filled before its call line (as call lines:
 * proto/call.h).
 *
 * A rank only ever reads the others' memory. So who gives up does no harm to those who go on, but may
 * change memory that they are reading: it says so before its caller has it again, and whoever has
 * copied looks behind the copy. Run by the thread that holds the group's runner.
 */

#include "shm/proto/wait.h"

/* Fills in what others need to find out whether they can read this process's memory. */
void shc_cma_tell(struct shc_seat *seat, struct shc_identity *identity);

/* Can this rank read that rank's memory now? In another pid namespace its thread's number is a
 * stranger's, so what is there must be what the rank says. pre: the group is made. */
bool shc_cma_reaches(const struct shc_seat *seat, int rank);

/* Could others read that memory of this process, if they can read any? Not what a driver has mapped
 * there. Looks at the first and the last byte. */
bool shc_cma_is_readable(const void *memory, size_t bytes);

/* pre: the ranks have met. Copies what that rank offers to this one. SHC_OK: those are the bytes that it
 * gave; else `to` may hold anything. */
SHC_NODISCARD enum shc_status shc_cma_copy(struct shc_wait *wait, int giver, void *to,
                                           size_t bytes);

/* This rank ends an operation in which others may be reading its memory. */
void shc_cma_withdraw(const struct shc_seat *seat, uint64_t epoch);
