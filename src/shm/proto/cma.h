/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Cross-memory attach: the kernel copies a block out of another rank's memory (process_vm_readv),
 * once instead of twice through staging memory. Before its call line, a rank publishes which memory
 * others may copy and where it lies, in a place by parity of the epoch (as call lines:
 * proto/call.h).
 *
 * A rank only ever reads the others' memory. So a rank that gives up does no harm to the others,
 * but it may change memory that they are reading. It publishes that before its caller gets the
 * memory back, and a rank that has copied checks it after the copy. Run by the thread that holds
 * the group's runner.
 */

#include "shm/proto/wait.h"

/* Publishes what others need to find out whether they can read this process's memory. */
void shc_cma_tell(struct shc_seat *seat, struct shc_identity *identity);

/* Can this rank read that rank's memory now? In another pid namespace its thread's number belongs
 * to a stranger, so the memory there must contain what the rank says. pre: the group is made. */
bool shc_cma_reaches(const struct shc_seat *seat, int rank);

/* Could others read that memory of this process, if they can read any? They cannot read memory that
 * a driver has mapped. Looks at the first and the last byte. */
bool shc_cma_is_readable(const void *memory, size_t bytes);

/* pre: the ranks have met. Copies what that rank offers to this one. SHC_OK: those are the bytes
 * that the rank gave; otherwise `to` may hold anything. */
SHC_NODISCARD enum shc_status shc_cma_copy(struct shc_wait *wait, int giver, void *to,
                                           size_t bytes);

/* This rank ends an operation in which others may be reading its memory. */
void shc_cma_withdraw(const struct shc_seat *seat, uint64_t epoch);

/* Has that rank ended it so? What it has stored since may have been read as what it gave. */
bool shc_cma_has_withdrawn(const struct shc_seat *seat, int rank, uint64_t epoch);

/* Has the operation failed, or is this rank to end? */
bool shc_cma_has_failed(const struct shc_wait *wait);

/* Waits until it shows what has become of that rank, or of the group, and fails with that. */
SHC_NODISCARD enum shc_status shc_cma_find_out(struct shc_wait *wait, int rank);
