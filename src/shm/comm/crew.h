/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * How many reduction threads this rank has, and how many all ranks of the group have at least: turns
 * are as long as that many can use, so all ranks must come to the same number. Each says in its
 * identity what was set, or which cores it may use; behind the rendezvous everybody computes every
 * rank's number from what they said, and from nothing else.
 */

#include "shm/base/config.h"
#include "shm/exec/pool.h"
#include "shm/proto/seat.h"

struct shc_crew {
    int wish;              /* a number, or SHC_THREADS_AUTO */
    int agreed;            /* every rank has as many, or more */
    struct shc_pool *pool; /* the process's; may be NULL */
    char from[96];         /* why this rank has the number it has */
};

/* Into the identity, before the rank is seated. */
void shc_crew_tell(const struct shc_crew *crew, struct shc_identity *identity);

/* Behind the rendezvous. */
void shc_crew_muster(struct shc_crew *crew, const struct shc_seat *seat);
