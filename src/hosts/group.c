/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/group.h"
#include "hosts/hosts_p2p.h"

#include "shm/base/lateness.h"
#include "shm/base/num.h"
#include "shm/comm/island.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_NS (30 * 60 * SHC_NS_PER_S) /* as a group's */
#define MOST_ELEM_BYTES    48                       /* of an opaque element */

_Static_assert(offsetof(struct shc_hosts_said, sizes) == 64, "all bytes before are compared");
_Static_assert(sizeof(struct shc_hosts_record) == 192, "its payload is aligned");

static enum shc_status say(char *error, enum shc_status status, const char *text)
{
    snprintf(error, SHC_HOSTS_ERROR_BYTES, "%s", text);
    return status;
}

/* ---- making ---- */

static enum shc_status make_sequencer(struct shc_hosts *hosts, const struct shc_comm_config *config)
{
    struct shc_comm_config alone = *config;
    int32_t member = config->global_ranks ? config->global_ranks[config->rank] : config->rank;
    alone.rank = 0;
    alone.world_size = 1;
    alone.global_ranks = &member;
    return shc_comm_create(&alone, &hosts->sequencer);
}

static enum shc_status check_config(const struct shc_comm_config *config, char *error)
{
    const int world = config->world_size;
    if (world >= 1 && world <= SHC_HOSTS_MAX_WORLD && config->rank >= 0 && config->rank < world)
        return SHC_OK;
    snprintf(error, SHC_HOSTS_ERROR_BYTES, "rank %d of a group of %d ranks: 1 to %d are possible",
             config->rank, world, SHC_HOSTS_MAX_WORLD);
    return SHC_ERR_INVALID;
}

enum shc_status shc_hosts_create(const struct shc_comm_config *config,
                                 const struct shc_hosts_wish *wish, struct shc_hosts **out,
                                 char *error)
{
    struct shc_comm_config settled = *config;
    if (settled.timeout_ns == 0)
        settled.timeout_ns = DEFAULT_TIMEOUT_NS;
    error[0] = '\0';
    SHC_TRY(check_config(config, error));
    struct shc_hosts *hosts = calloc(1, sizeof *hosts);
    if (!hosts)
        return say(error, SHC_ERR_NOMEM, "no memory for a group over hosts");
    snprintf(hosts->name, sizeof hosts->name, "%s", config->name ? config->name : "");
    hosts->rank = config->rank;
    hosts->interrupted = config->interrupted;
    hosts->interrupted_ctx = config->interrupted_ctx;
    hosts->by_rank = wish->by_rank;
    hosts->known_rate = wish->rate;
    hosts->wide = wish->wide || wish->by_rank; /* on one host a sum is rounded once */
    snprintf(hosts->engine, sizeof hosts->engine, "%s", wish->engine ? wish->engine : "");
    enum shc_status st = shc_hosts_map(hosts, &settled, wish, error);
    if (st != SHC_OK)
        goto err_free;
    hosts->payload_bytes = shc_hosts_payload_bytes(hosts->plan.hosts);
    st = make_sequencer(hosts, &settled);
    if (st != SHC_OK)
        goto err_said;
    const struct shc_hosts_plan *plan = &hosts->plan;
    const struct shc_island facts = {
        .hosts = (uint32_t)plan->hosts,
        .host = (uint32_t)hosts->host,
        .world = (uint32_t)plan->world,
        .ranks = plan->rank_at + plan->first[hosts->host],
        .id = hosts->id,
    };
    shc_island_join(hosts->island, hosts->sequencer, &facts);
    st = shc_dead_init(hosts, &config->store, wish);
    if (st != SHC_OK)
        goto err_sequencer;
    *out = hosts;
    return SHC_OK;

err_sequencer:
    shc_comm_free(hosts->sequencer);
    st = say(error, st, "no memory for a group over hosts");
    goto err_free;
err_said:
    (void)say(error, st, shc_error_text());
err_free:
    if (hosts->island)
        shc_comm_free(hosts->island);
    shc_hosts_map_fini(hosts, config->world_size);
    shc_hosts_plan_fini(&hosts->plan);
    free(hosts);
    return st;
}

void shc_hosts_get_place(const struct shc_hosts *hosts, struct shc_hosts_place *place)
{
    *place = (struct shc_hosts_place){
        .hosts = hosts->plan.hosts,
        .host = hosts->host,
        .ranks = shc_hosts_plan_size(&hosts->plan, hosts->host),
        .local = hosts->local,
        .rails = hosts->plan.rails,
    };
    memcpy(place->prefix, hosts->prefix, sizeof place->prefix);
}

void shc_hosts_ranks_text(const struct shc_hosts *hosts, int host, char *text, size_t capacity)
{
    shc_hosts_plan_text(&hosts->plan, host, text, capacity);
}

int shc_hosts_world_size(const struct shc_hosts *hosts)
{
    return hosts->plan.world;
}

int shc_hosts_host_of(const struct shc_hosts *hosts, int rank)
{
    return hosts->plan.host_of[rank];
}

struct shc_comm *shc_hosts_get_sequencer(const struct shc_hosts *hosts)
{
    return hosts->sequencer;
}

struct shc_comm *shc_hosts_get_island(const struct shc_hosts *hosts)
{
    return hosts->island;
}

/* Lays out the staging memory, from `base` on; NULL: only measures it. */
static size_t lay_out(struct shc_hosts *hosts, char *base)
{
    const struct shc_hosts_plan *plan = &hosts->plan;
    struct shc_hosts_stage *stage = &hosts->stage;
    const size_t ranks = (size_t)shc_hosts_plan_size(plan, hosts->host), all = (size_t)plan->hosts;
    const size_t record = shc_hosts_record_bytes(hosts), chunk = shc_hosts_chunk_elements(plan, 1);
    /* A slice, with room for the elements by which it is longer than others or padded. */
    const size_t slice = shc_div_ceil(chunk, (size_t)plan->rails) + (all + 1) * MOST_ELEM_BYTES;
    const size_t gathered =
        shc_hosts_adds_whole(plan) ? all * slice : slice + all * MOST_ELEM_BYTES;
    size_t used = 0;
#define PART(where, bytes)                   \
    do {                                     \
        (where) = base ? base + used : NULL; \
        used += shc_align_up((bytes), 64);   \
    } while (0)
    PART(stage->said, ranks * sizeof(struct shc_hosts_said));
    PART(stage->record, all > 2 ? all * record : record);
    PART(stage->records, all * record);
    const size_t given = shc_hosts_data_bytes(hosts), in_records = all * hosts->payload_bytes;
    PART(stage->given, given);
    PART(stage->taken, shc_hosts_leads(hosts) ? given : 0);
    PART(stage->verdict, 64 + (given > in_records ? given : in_records));
    PART(stage->text, SHC_HOSTS_ERROR_BYTES);
    PART(stage->answers, all * SHC_HOSTS_ANSWER_BYTES);
    PART(stage->narrow, chunk);
    PART(stage->wide, chunk);
    const size_t ordered = shc_hosts_ordered_elements(plan, 1) / (size_t)plan->rails;
    const size_t inputs = hosts->by_rank ? ranks * (ordered + 2 * MOST_ELEM_BYTES) : 0;
    for (int i = 0; i < SHC_HOSTS_DEPTH && shc_hosts_carries(hosts); i++) {
        PART(stage->chunk[i].inputs, inputs);
        PART(stage->chunk[i].in, slice);
        PART(stage->chunk[i].out, gathered);
        PART(stage->chunk[i].sum, slice);
    }
#undef PART
    return used;
}

enum shc_status shc_hosts_connect(struct shc_hosts *hosts, const struct shc_fabric *line,
                                  const struct shc_fabric *rail, const struct shc_watch *watch,
                                  char *error)
{
    if ((shc_hosts_leads(hosts) && !line) || (shc_hosts_carries(hosts) && !rail))
        return say(error, SHC_ERR_INVALID, "an engine of this rank is missing");
    if (hosts->gate)
        return say(error, SHC_ERR_INVALID, "the group has its engines already");
    const size_t all = (size_t)hosts->plan.hosts;
    const size_t world = (size_t)hosts->plan.world;
    const void **sources = calloc(1, world * sizeof *sources + 2 * all * sizeof *hosts->in_bytes);
    struct shc_gate *gate = sources ? shc_gate_create(lay_out(hosts, NULL)) : NULL;
    free(gate ? NULL : sources);
    if (!gate)
        return say(error, SHC_ERR_NOMEM, "no memory for what goes between hosts");
    lay_out(hosts, shc_gate_stage(gate));
    if (line)
        hosts->line = *line;
    if (rail)
        hosts->rail = *rail;
    hosts->sources = sources;
    hosts->in_bytes = (uint64_t *)(void *)(sources + world);
    hosts->out_bytes = hosts->in_bytes + all;
    hosts->gate = gate;
    return shc_dead_start(hosts, watch) == SHC_OK
               ? SHC_OK
               : say(error, SHC_ERR_NOMEM, "no memory for what tells of failures");
}

/* ---- messages ---- */

/* In a forked child the threads of the parent are not there, and its locks may be held for ever. */
static bool is_forked(struct shc_hosts *hosts)
{
    return shc_comm_error(hosts->sequencer) == SHC_ERR_FORKED;
}

enum shc_status shc_hosts_connect_p2p(struct shc_hosts *hosts, const struct shc_p2p_fabric *engine,
                                      char *error)
{
    if (hosts->gate)
        return say(error, SHC_ERR_INVALID, "the group has its engines already");
    if (hosts->p2p || shc_hosts_p2p_create(hosts, engine, &hosts->p2p) == SHC_OK)
        return SHC_OK;
    return say(error, SHC_ERR_NOMEM, "no memory for messages between hosts");
}

/* Messages that may come from another host are carried. */
static enum shc_status carry(struct shc_hosts *hosts, char *error)
{
    char why[64];
    if (is_forked(hosts)) /* a thread of the parent may have held the lock */
        return say(error, SHC_ERR_FORKED, shc_error_text());
    const int failed = shc_hosts_p2p_start(hosts->p2p);
    if (failed) {
        snprintf(error, SHC_HOSTS_ERROR_BYTES, "no thread for messages between hosts: %s",
                 strerror_r(failed, why, sizeof why));
        return SHC_ERR_SYSTEM;
    }
    const enum shc_status st = shc_dead_watch(hosts);
    return st == SHC_OK ? st : say(error, st, "no memory for what tells of failures");
}

enum shc_status shc_hosts_find_peer(struct shc_hosts *hosts, enum shc_op_kind kind, int *peer,
                                    char *error)
{
    const int rank = *peer;
    const char *call = shc_op_kind_name(kind);
    const bool any = rank == SHC_ANY_SOURCE && kind == SHC_RECV;
    if (!any && (rank < 0 || rank >= hosts->plan.world)) {
        snprintf(error, SHC_HOSTS_ERROR_BYTES, "%s: the peer %d is not a rank (0 to %d)", call,
                 rank, hosts->plan.world - 1);
        return SHC_ERR_INVALID;
    }
    if (!any && shc_hosts_host_of(hosts, rank) == hosts->host) {
        *peer = hosts->plan.local_of[rank];
        return SHC_OK;
    }
    if (any && hosts->plan.hosts == 1)
        return SHC_OK;
    if (!hosts->p2p) {
        snprintf(error, SHC_HOSTS_ERROR_BYTES,
                 "%s: this group has no engine for messages between hosts", call);
        return SHC_ERR_UNSUPPORTED;
    }
    if (!any)
        *peer = shc_hosts_p2p_index(hosts->p2p, rank);
    return carry(hosts, error);
}

int shc_hosts_peer_rank(const struct shc_hosts *hosts, int number)
{
    const int locals = shc_hosts_plan_size(&hosts->plan, hosts->host);
    if (number < 0)
        return number;
    if (number < locals)
        return hosts->plan.rank_at[hosts->plan.first[hosts->host] + number];
    return shc_hosts_p2p_rank(hosts->p2p, number);
}

/* ---- the end ---- */

void shc_hosts_abort(struct shc_hosts *hosts, const char *reason)
{
    shc_comm_abort(hosts->sequencer, reason);
    shc_comm_abort(hosts->island, reason);
    shc_dead_tell_abort(hosts, reason);
}

int shc_hosts_lost_host(const struct shc_hosts *hosts)
{
    return hosts->dead.oob ? shc_dead_lost_host(hosts) : -1;
}

enum shc_status shc_hosts_error(struct shc_hosts *hosts)
{
    SHC_TRY(shc_comm_error(hosts->sequencer));
    return shc_comm_error(hosts->island);
}

void shc_hosts_close(struct shc_hosts *hosts)
{
    const enum shc_status before = shc_comm_error(hosts->sequencer);
    const bool forked = before == SHC_ERR_FORKED;
    shc_comm_close(hosts->island); /* first: a thread of the sequencer may be inside */
    shc_comm_close(hosts->sequencer);
    if (forked)
        return;
    if (hosts->p2p)
        shc_hosts_p2p_close(hosts->p2p);
    /* If the process ends, the store may be gone (HOST-12). */
    shc_dead_close(hosts, before != SHC_ERR_CLOSED);
    shc_monitor_stop(hosts);
}

void shc_hosts_free(struct shc_hosts *hosts)
{
    const bool forked = is_forked(hosts);
    shc_hosts_close(hosts);
    shc_comm_free(hosts->sequencer);
    shc_comm_free(hosts->island);
    if (hosts->gate)
        shc_gate_release(hosts->gate);
    free(hosts->sources);
    if (!forked && hosts->p2p)
        shc_hosts_p2p_free(hosts->p2p);
    if (!forked)
        shc_dead_free(hosts);
    shc_hosts_map_fini(hosts, hosts->plan.world);
    shc_hosts_plan_fini(&hosts->plan);
    free(hosts);
}
