/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Who does what in a group over several hosts: arithmetic alone, the same on all ranks.
 *
 *   host     ranks that share memory. Hosts are numbered in the order of their smallest ranks, the ranks
 *            of a host ("local" 0, 1, ...) in the order of ranks.
 *   rail     a local rank's fabric to the ranks with the same local number on all other hosts. The first
 *            ranks of each host carry one, as many as the smallest host has, at most SHC_HOSTS_MAX_RAILS.
 *   slice    what one rail carries of a chunk.
 *   chunk    what goes through island and rails at once.
 *   rate     of the slowest host's link, in bytes per second; 0: unknown. Any value is safe. Where the link is the limit
 *            chunks are short, so that little is left to do before the first and after the last one. Where CPUs are,
 *            they are long: each costs calls (docs/notebook/large-collectives.md, "The rate of a link").
 */

#include "shm/base/attrs.h"
#include "shm/shmcoll.h"

#define SHC_HOSTS_MAX_RAILS   8
#define SHC_HOSTS_MAX_WORLD   65536
#define SHC_HOSTS_EAGER_HOSTS 16 /* the most for which data go along with a record */

struct shc_hosts_plan {
    int world, hosts, rails;
    int32_t *host_of;  /* of each rank */
    int32_t *local_of; /* of each rank: its number on its host */
    int32_t *first;    /* of each host, and one more: where its ranks begin in rank_at */
    int32_t *rank_at;
    int32_t *name_of; /* of each rank: its number in the job, for texts */
    int32_t *
        run; /* of each run of ranks with successive numbers on one host, and one more: its first rank */
    int runs;
    int most; /* ranks on a host */
};

/* `label_of`: ranks with equal numbers share a host. `name_of`: ranks' numbers in the job; NULL: 0, 1, ... rails 0: as many as there can be. SHC_ERR_INVALID: a world of
 * less than 1 or more than SHC_HOSTS_MAX_WORLD ranks, or a host of more than SHC_MAX_WORLD; SHC_ERR_NOMEM. *why
 * says which, after "a group of ...: "; undone by shc_hosts_plan_fini(). */
SHC_NODISCARD enum shc_status shc_hosts_plan_init(struct shc_hosts_plan *plan, int world,
                                                  const int32_t *label_of, const int32_t *name_of,
                                                  int rails, const char **why);
void shc_hosts_plan_fini(struct shc_hosts_plan *plan);

SHC_INLINE int shc_hosts_plan_size(const struct shc_hosts_plan *plan, int host)
{
    return plan->first[host + 1] - plan->first[host];
}

/* "ranks 0-3, 6": the ranks of a host, by their numbers in the job; cut with "..." if they do not fit. */
void shc_hosts_plan_text(const struct shc_hosts_plan *plan, int host, char *text, size_t capacity);

struct shc_slice {
    uint64_t first, count; /* elements */
};

/* Slice `index` of `parts` of a vector: the first ones have an element more if it cannot be cut evenly. */
struct shc_slice shc_hosts_slice(uint64_t count, int parts, int index);

/* Room for data in a record, in bytes: the same for all calls, so that no record has another size. */
size_t shc_hosts_payload_bytes(int hosts);

/* The longest data of a host for another one that go along with its record, as a message. Its link carries them for each
 * other host; for more than that rails are faster. */
size_t shc_hosts_eager_bytes(int hosts);

/* Elements of a chunk: a rail's piece for one host is not too small, and three chunks fit the staging memory. */
uint64_t shc_hosts_chunk_elements(const struct shc_hosts_plan *plan, uint32_t elem_bytes);

/* The same where the sums are added in the order of ranks: a rail has the inputs of all ranks of its host, too. */
uint64_t shc_hosts_ordered_elements(const struct shc_hosts_plan *plan, uint32_t elem_bytes);

/* Elements of a chunk of a vector of `count`, over links of `rate`: at most as many as without one. */
uint64_t shc_hosts_chunk_by_rate(const struct shc_hosts_plan *plan, uint32_t elem_bytes,
                                 uint64_t count, uint64_t rate);

/* The width of a column of blocks of at most `longest` elements, of which a chunk has `width`. The same on all hosts,
 * whatever they carry. */
uint64_t shc_hosts_column_by_rate(const struct shc_hosts_plan *plan, uint64_t width,
                                  uint64_t longest, uint64_t rate);

/* Do all hosts give one another whole slices (one call of the engine), or does each host add a part of a slice
 * (two calls, and fewer bytes)? */
bool shc_hosts_adds_whole(const struct shc_hosts_plan *plan);
