/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * How many reduction threads this rank has, and the least number that any rank of the group has. Turns are
 * as long as that number can use, so all ranks must come to the same one. Each rank's identity says which
 * number was set, or which cores it may use. After the rendezvous every rank computes every rank's number
 * from these identities, and from nothing else.
 */

#include "shm/base/config.h"
#include "shm/exec/pool.h"
#include "shm/proto/seat.h"

struct shc_thread_budget {
    int wish;              /* a number, or SHC_THREADS_AUTO */
    int agreed;            /* every rank has at least that many */
    struct shc_pool *pool; /* the process's; may be NULL */
    char from[96];         /* why this rank has the number it has */
};

/* Fills in the identity, before the rank is seated. */
void shc_thread_budget_tell(const struct shc_thread_budget *budget, struct shc_identity *identity);

/* After the rendezvous. */
void shc_thread_budget_muster(struct shc_thread_budget *budget, const struct shc_seat *seat);
