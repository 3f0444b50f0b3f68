/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A group over several hosts (src/hosts) as people see it. It is made of two groups in each process: the island, of the
 * ranks of this host, and the sequencer, of this rank alone. The user has made a third one, whose calls texts and tools
 * show in the place of the island's operations. No promise to other callers.
 */

#include "shm/shmcoll.h"

#include "shm/base/agreed_call.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

struct shc_island {
    uint32_t hosts, host;
    uint32_t world;       /* ranks of all hosts */
    const int32_t *ranks; /* the numbers of the island's ranks among these */
    uint64_t id;          /* of the group, the same on all hosts; not 0 */
};

/* Tools show the sequencer's calls as those of the island's ranks. pre: no thread uses either group. */
void shc_island_join(struct shc_comm *island, struct shc_comm *sequencer,
                     const struct shc_island *facts);

/* The calling thread makes a call. */
void shc_island_use(struct shc_comm *island);

/* The island's operations are parts of that call from now on, or (NULL) of none. The thread that runs them. */
void shc_island_say(struct shc_comm *island, const struct shc_call *call);

/* The call waits for other hosts since now, or no more. The same thread. */
void shc_island_await(struct shc_comm *island, uint64_t number, bool awaits);

/* It waits for these: "host 0 (ranks 0-1): it is in ...". One thread. */
void shc_island_missing(struct shc_comm *island, uint64_t number, const char *whom);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
