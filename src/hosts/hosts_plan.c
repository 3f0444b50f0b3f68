/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/hosts_plan.h"

#include "hosts/hosts.h"

#include "shm/base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAYLOAD_BYTES 4096u
#define RECORDS_BYTES \
    16384u /* up to which a call of an engine takes about as long as an empty one */
#define PIECE_BYTES      ((size_t)64 << 10)
#define CHUNK_BYTES      ((size_t)1 << 20)
#define MOST_CHUNK_BYTES ((size_t)8 << 20)
#define SLOW_RATE        240000000u /* below it the link is the limit: 2 Gbit/s */
#define SLOW_CHUNKS      8u         /* of a vector there */
#define SLOW_CHUNK_BYTES ((uint64_t)256 << 10)
#define SLOW_PIECE_BYTES ((uint64_t)1 << 10) /* a chunk has one for each rail and host */
#define INPUTS_BYTES     ((size_t)4 << 20)   /* of all ranks of a host, on one rail */

/* Numbers the hosts in the order in which their first ranks come. `label_of` may hold anything, so that a host is
 * found by a walk; the last rank's host comes first, because neighbours mostly share one. */
static int number_hosts(struct shc_hosts_plan *plan, const int32_t *label_of)
{
    int hosts = 0;
    for (int rank = 0; rank < plan->world; rank++) {
        int host = rank > 0 ? plan->host_of[rank - 1] : 0;
        if (rank == 0 || label_of[rank] != label_of[rank - 1])
            for (host = 0; host < hosts; host++)
                if (label_of[plan->rank_at[host]] == label_of[rank])
                    break;
        if (host == hosts)
            plan->rank_at[hosts++] = rank; /* its first rank, for the time being */
        plan->host_of[rank] = host;
        plan->local_of[rank] = plan->first[host + 1]++;
    }
    return hosts;
}

static void find_runs(struct shc_hosts_plan *plan)
{
    for (int rank = 0; rank < plan->world; rank++)
        if (rank == 0 || plan->host_of[rank] != plan->host_of[rank - 1])
            plan->run[plan->runs++] = rank;
    plan->run[plan->runs] = plan->world;
}

static void list_ranks(struct shc_hosts_plan *plan)
{
    for (int host = 0; host < plan->hosts; host++)
        plan->first[host + 1] += plan->first[host];
    for (int rank = 0; rank < plan->world; rank++)
        plan->rank_at[plan->first[plan->host_of[rank]] + plan->local_of[rank]] = rank;
}

enum shc_status shc_hosts_plan_init(struct shc_hosts_plan *plan, int world, const int32_t *label_of,
                                    const int32_t *name_of, int rails, const char **why)
{
    *plan = (struct shc_hosts_plan){.world = world};
    *why = "1 to 65536 ranks are possible";
    if (world < 1 || world > SHC_HOSTS_MAX_WORLD || rails < 0)
        return SHC_ERR_INVALID;
    const size_t count = (size_t)world;
    plan->host_of = calloc(6 * count + 2, sizeof *plan->host_of); /* all six in one */
    *why = "there is no memory for it";
    if (!plan->host_of)
        return SHC_ERR_NOMEM;
    plan->local_of = plan->host_of + count;
    plan->rank_at = plan->local_of + count;
    plan->name_of = plan->rank_at + count;
    plan->first = plan->name_of + count;
    plan->run = plan->first + count + 1;
    for (int rank = 0; rank < world; rank++)
        plan->name_of[rank] = name_of ? name_of[rank] : rank;
    plan->hosts = number_hosts(plan, label_of);
    list_ranks(plan);
    find_runs(plan);
    int least = world;
    for (int host = 0; host < plan->hosts; host++) {
        const int size = shc_hosts_plan_size(plan, host);
        least = size < least ? size : least;
        plan->most = size > plan->most ? size : plan->most;
    }
    plan->rails = least < SHC_HOSTS_MAX_RAILS ? least : SHC_HOSTS_MAX_RAILS;
    if (rails > 0 && rails < plan->rails)
        plan->rails = rails;
    *why = "at most 256 of its ranks can share a host";
    if (plan->most <= SHC_MAX_WORLD)
        return SHC_OK;
    shc_hosts_plan_fini(plan);
    return SHC_ERR_INVALID;
}

void shc_hosts_plan_fini(struct shc_hosts_plan *plan)
{
    free(plan->host_of);
    *plan = (struct shc_hosts_plan){0};
}

void shc_hosts_plan_text(const struct shc_hosts_plan *plan, int host, char *text, size_t capacity)
{
    const int size = shc_hosts_plan_size(plan, host);
    const int32_t *rank = plan->rank_at + plan->first[host], *name = plan->name_of;
    size_t used = (size_t)snprintf(text, capacity, "rank%s ", size == 1 ? "" : "s");
    for (int i = 0, next; i < size && used < capacity; i = next) {
        char run[40];
        for (next = i + 1; next < size && name[rank[next]] == name[rank[next - 1]] + 1; next++)
            continue;
        const char *comma = i > 0 ? ", " : "";
        const int length = next - i > 1
                               ? snprintf(run, sizeof run, "%s%d-%d", comma, (int)name[rank[i]],
                                          (int)name[rank[next - 1]])
                               : snprintf(run, sizeof run, "%s%d", comma, (int)name[rank[i]]);
        const bool fits = used + (size_t)length + sizeof ", ..." <= capacity;
        used += (size_t)snprintf(text + used, capacity - used, "%s", fits ? run : ", ...");
        if (!fits)
            return;
    }
}

struct shc_slice shc_hosts_slice(uint64_t count, int parts, int index)
{
    const uint64_t each = count / (uint64_t)parts, more = count % (uint64_t)parts;
    const uint64_t at = (uint64_t)index;
    return (struct shc_slice){
        .first = each * at + (at < more ? at : more),
        .count = each + (at < more),
    };
}

size_t shc_hosts_payload_bytes(int hosts)
{
    const size_t bytes = shc_min_size(PAYLOAD_BYTES, RECORDS_BYTES / (size_t)hosts) & ~(size_t)63;
    return bytes ? bytes : 64;
}

size_t shc_hosts_eager_bytes(int hosts)
{
    if (hosts < 2 || hosts > SHC_HOSTS_EAGER_HOSTS)
        return 0;
    return SHC_HOSTS_MESSAGE_BYTES / (size_t)(hosts - 1);
}

uint64_t shc_hosts_chunk_elements(const struct shc_hosts_plan *plan, uint32_t elem_bytes)
{
    const size_t pieces = (size_t)plan->rails * (size_t)plan->hosts;
    size_t bytes =
        pieces > MOST_CHUNK_BYTES / PIECE_BYTES ? MOST_CHUNK_BYTES : PIECE_BYTES * pieces;
    bytes = bytes < CHUNK_BYTES ? CHUNK_BYTES : bytes;
    return bytes / elem_bytes;
}

static bool is_slow(uint64_t rate)
{
    return rate > 0 && rate < SLOW_RATE;
}

static uint64_t least_bytes(const struct shc_hosts_plan *plan)
{
    const uint64_t pieces = SLOW_PIECE_BYTES * (uint64_t)plan->rails * (uint64_t)plan->hosts;
    return pieces < SLOW_CHUNK_BYTES ? SLOW_CHUNK_BYTES : pieces;
}

/* A part of so many elements, within limits: whole cache lines. */
static uint64_t part_of(uint64_t all, uint64_t least, uint64_t most)
{
    const uint64_t part = shc_align_up(shc_div_ceil(all, SLOW_CHUNKS), 64);
    return shc_min_size(part < least ? least : part, most);
}

uint64_t shc_hosts_chunk_by_rate(const struct shc_hosts_plan *plan, uint32_t elem_bytes,
                                 uint64_t count, uint64_t rate)
{
    const uint64_t most = shc_hosts_chunk_elements(plan, elem_bytes);
    return is_slow(rate) ? part_of(count, least_bytes(plan) / elem_bytes, most) : most;
}

uint64_t shc_hosts_column_by_rate(const struct shc_hosts_plan *plan, uint64_t width,
                                  uint64_t longest, uint64_t rate)
{
    const uint64_t chunk = shc_hosts_chunk_elements(plan, 1);
    const uint64_t bytes = shc_min_size(least_bytes(plan), chunk);
    const uint64_t least = width / chunk * bytes + width % chunk * bytes / chunk;
    return is_slow(rate) ? part_of(longest, least > 0 ? least : 1, width) : width;
}

uint64_t shc_hosts_ordered_elements(const struct shc_hosts_plan *plan, uint32_t elem_bytes)
{
    const uint64_t most = INPUTS_BYTES * (size_t)plan->rails / (size_t)plan->most;
    return shc_min_size(shc_hosts_chunk_elements(plan, elem_bytes), most / elem_bytes);
}

bool shc_hosts_adds_whole(const struct shc_hosts_plan *plan)
{
    return plan->hosts <= 2;
}
