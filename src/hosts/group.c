/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/group.h"
#include "hosts/hosts_late.h"
#include "hosts/hosts_p2p.h"

#include "shm/base/lateness.h"
#include "shm/base/num.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_NS (30 * 60 * SHC_NS_PER_S) /* as a group's */
#define GRACE_NS           (500 * SHC_NS_PER_MS)    /* HOST-26 */
#define OTHERS_NS          (250 * SHC_NS_PER_MS)
#define HINT_LOOKS         6
#define SLICE_NS           (10 * SHC_NS_PER_MS) /* between two looks at what may end a wait */
#define MOST_ELEM_BYTES    48                   /* of an opaque element */

_Static_assert(offsetof(struct shc_hosts_said, sizes) == 64, "all bytes before are compared");
_Static_assert(sizeof(struct shc_hosts_record) == 192, "its payload is aligned");

/* ---- errors ---- */

enum shc_status shc_hosts_fail(struct shc_hosts *hosts, enum shc_status status, const char *format,
                               ...)
{
    char text[SHC_HOSTS_ERROR_BYTES]; /* an argument may be the text that is there */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(hosts->turn->error, text, sizeof text);
    return status;
}

static enum shc_status say(char *error, enum shc_status status, const char *text)
{
    snprintf(error, SHC_HOSTS_ERROR_BYTES, "%s", text);
    return status;
}

/* ---- waiting ---- */

/* The island's `interrupted`: its thread may be one of the library's, which asks nothing. */
static bool is_interrupted(void *ctx)
{
    const struct shc_hosts *hosts = ctx;
    const bool asks = hosts->making || (hosts->turn && hosts->turn->interruptible);
    return asks && hosts->interrupted && hosts->interrupted(hosts->interrupted_ctx);
}

static uint64_t left_ns(const struct shc_hosts *hosts)
{
    const uint64_t now_ns = shc_clock_ns();
    if (hosts->deadline_ns == SHC_NO_DEADLINE)
        return SHC_NO_DEADLINE;
    return hosts->deadline_ns > now_ns ? hosts->deadline_ns - now_ns : 1;
}

enum shc_status shc_hosts_island_first(struct shc_hosts *hosts, struct shc_op *op)
{
    op->timeout_ns = left_ns(hosts);
    return shc_run(hosts->island, op);
}

enum shc_status shc_hosts_island(struct shc_hosts *hosts, struct shc_op *op)
{
    op->timeout_ns = shc_deadline_after(GRACE_NS, left_ns(hosts));
    return shc_run(hosts->island, op);
}

enum shc_status shc_hosts_ticket(struct shc_hosts *hosts, struct shc_ticket **ticket)
{
    *ticket = shc_gate_ticket(hosts->gate);
    return *ticket ? SHC_OK
                   : shc_hosts_fail(hosts, SHC_ERR_NOMEM, "no memory for a call of the engine");
}

/* All rails share the link, so this one has a part of what it carries. */
enum shc_status shc_hosts_rail_ticket(struct shc_hosts *hosts, uint64_t bytes,
                                      struct shc_ticket **ticket)
{
    SHC_TRY(shc_hosts_ticket(hosts, ticket));
    shc_gate_measure(*ticket, bytes * (uint64_t)hosts->plan.rails);
    return SHC_OK;
}

enum shc_status shc_hosts_begun(struct shc_hosts *hosts, struct shc_ticket **ticket, int error)
{
    char why[64];
    if (error == 0)
        return SHC_OK;
    shc_ticket_done(*ticket, "");
    shc_gate_abandon(*ticket);
    *ticket = NULL;
    return shc_hosts_fail(hosts, SHC_ERR_SYSTEM, "the engine between hosts began no call: %s",
                          strerror_r(error, why, sizeof why));
}

static enum shc_status time_is_over(struct shc_hosts *hosts)
{
    char whom[256];
    shc_late_missing_text(hosts, whom, sizeof whom);
    return shc_hosts_fail(hosts, SHC_ERR_TIMEOUT, SHC_TIMED_OUT "%.3f s waiting for %s",
                          (double)hosts->turn->timeout_ns / (double)SHC_NS_PER_S, whom);
}

/* Is there a reason to wait no longer? */
static enum shc_status look_around(struct shc_hosts *hosts)
{
    SHC_TRY(shc_comm_error(hosts->sequencer));
    SHC_TRY(shc_dead_look(hosts));
    SHC_TRY(shc_comm_error(hosts->island));
    if (shc_clock_ns() >= shc_deadline_after(hosts->deadline_ns, OTHERS_NS))
        return time_is_over(hosts);
    if (is_interrupted(hosts))
        return shc_hosts_fail(hosts, SHC_ERR_INTERRUPTED,
                              "interrupted by a signal while waiting for the other hosts of \"%s\"",
                              shc_hosts_group_name(hosts));
    return SHC_OK;
}

/* An engine knows that a connection has ended, and not why. */
static enum shc_status engine_failed(struct shc_hosts *hosts, const char *error)
{
    char joined[256];
    shc_reason_joined_text(hosts, joined, sizeof joined);
    const enum shc_status st = shc_hosts_fail(
        hosts, SHC_ERR_SYSTEM, "the engine between the hosts of \"%s\" failed: %s; it joins %s",
        shc_hosts_group_name(hosts), error, joined);
    const struct shc_hosts_call *call = hosts->dead.call;
    return call && call->proves ? st : shc_dead_settle(hosts, st, HINT_LOOKS); /* a proof goes on */
}

enum shc_status shc_hosts_await(struct shc_hosts *hosts, struct shc_ticket **ticket)
{
    char error[SHC_HOSTS_ERROR_BYTES];
    enum shc_status st = SHC_OK;
    while (st == SHC_OK && !shc_gate_wait(*ticket, SLICE_NS, error)) {
        shc_dead_await(hosts, true);
        st = look_around(hosts);
    }
    shc_dead_await(hosts, false);
    if (st != SHC_OK)
        shc_gate_abandon(*ticket);
    *ticket = NULL;
    SHC_TRY(st);
    if (!error[0])
        return SHC_OK;
    return engine_failed(hosts, error);
}

/* ---- making ---- */

enum shc_status shc_hosts_make_island(struct shc_hosts *hosts, const struct shc_comm_config *config)
{
    const struct shc_hosts_plan *plan = &hosts->plan;
    const int32_t *ranks = plan->rank_at + plan->first[hosts->host];
    int32_t members[SHC_MAX_WORLD];
    struct shc_comm_config island = *config;
    char name[sizeof hosts->name + 32];
    snprintf(name, sizeof name, "%s on host %d", hosts->name, hosts->host);
    island.name = name;
    island.outsider_prefix = NULL; /* ranks have other numbers there */
    island.description = NULL;     /* it is the group's, not this part's */
    island.rank = hosts->local;
    island.world_size = shc_hosts_plan_size(plan, hosts->host);
    for (int i = 0; i < island.world_size; i++)
        members[i] = config->global_ranks ? config->global_ranks[ranks[i]] : ranks[i];
    island.global_ranks = members; /* other members, other keys: no prefix is needed */
    island.interrupted = is_interrupted;
    island.interrupted_ctx = hosts;
    hosts->making = true;
    const enum shc_status st = shc_comm_create(&island, &hosts->island);
    hosts->making = false;
    return st;
}

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

int shc_hosts_local_of(const struct shc_hosts *hosts, int rank)
{
    return hosts->plan.local_of[rank];
}

int shc_hosts_name_of(const struct shc_hosts *hosts, int rank)
{
    return hosts->plan.name_of[rank];
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
    PART(stage->verdict, 64 + all * hosts->payload_bytes);
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
        *peer = shc_hosts_local_of(hosts, rank);
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

/* ---- running ---- */

static enum shc_status barrier(const struct shc_hosts_call *call)
{
    char *nothing;
    return shc_hosts_meet(call, 0, NULL, &nothing);
}

static enum shc_status run_kind(const struct shc_hosts_call *call)
{
    SHC_TRY(shc_hosts_announce(call));
    if (shc_hosts_is_ordered(call->hosts, call->op))
        return shc_hosts_ordered(call);
    switch (call->op->kind) {
    case SHC_BARRIER:
        return call->proves ? shc_hosts_agree(call, shc_hosts_try_rail(call->hosts))
                            : barrier(call);
    case SHC_BROADCAST:
        return shc_hosts_broadcast(call);
    case SHC_ALL_GATHER:
    case SHC_ALL_GATHER_UNEVEN:
    case SHC_GATHER:
        return shc_hosts_gather(call);
    case SHC_REDUCE_SCATTER:
    case SHC_REDUCE_SCATTER_UNEVEN:
    case SHC_SCATTER:
        return shc_hosts_scatter(call);
    case SHC_ALL_TO_ALL:
        return shc_hosts_alltoall(call);
    case SHC_ALL_REDUCE_SPARSE:
        return shc_hosts_sparse(call);
    default:
        return shc_hosts_reduce(call);
    }
}

enum shc_status shc_hosts_turn(void *ctx, struct shc_turn *turn)
{
    const struct shc_hosts_call *call = ctx;
    struct shc_hosts *hosts = call->hosts;
    hosts->number++;
    hosts->turn = turn;
    hosts->deadline_ns = shc_deadline_after(shc_clock_ns(), turn->timeout_ns);
    enum shc_status st = shc_dead_begin(call);
    if (st == SHC_OK)
        st = shc_dead_lacks_store(hosts) ? shc_hosts_tell_gone(call) : run_kind(call);
    if (st != SHC_OK && !turn->error[0])
        snprintf(turn->error, sizeof turn->error, "%s", shc_error_text());
    st = shc_dead_settle(hosts, st, 0);
    if (st != SHC_OK && st != SHC_ERR_CLOSED)
        shc_comm_abort(hosts->island, turn->error); /* the others must not wait for this rank */
    shc_dead_end(hosts, st);
    hosts->turn = NULL;
    return st;
}

static bool has(enum shc_op_kind kind)
{
    return kind <= SHC_ALL_REDUCE_SPARSE;
}

enum shc_status shc_hosts_describe(struct shc_hosts *hosts, const struct shc_op *op,
                                   struct shc_hosts_call *call, char *error)
{
    const enum shc_op_kind kind = op->kind;
    error[0] = '\0';
    *call = (struct shc_hosts_call){.hosts = hosts, .op = op};
    if (!has(kind)) {
        snprintf(error, SHC_HOSTS_ERROR_BYTES, "%s: a group over several hosts does not have it",
                 shc_op_kind_name(kind));
        return SHC_ERR_UNSUPPORTED;
    }
    if (kind == SHC_ALL_REDUCE_SPARSE && shc_hosts_is_ordered(hosts, op)) {
        snprintf(error, SHC_HOSTS_ERROR_BYTES,
                 "%s: a group over several hosts does not have it for sums in the order of ranks",
                 shc_op_kind_name(kind));
        return SHC_ERR_UNSUPPORTED;
    }
    if (!hosts->gate)
        return say(error, SHC_ERR_INVALID, "the group has no engines yet");
    return shc_check_for(hosts->rank, hosts->plan.world, op, &call->count, &call->elem_bytes);
}

enum shc_status shc_hosts_say(char *error, enum shc_status st)
{
    return st == SHC_OK || error[0] ? st : say(error, st, shc_error_text());
}

/* ---- the end ---- */

void shc_hosts_abort(struct shc_hosts *hosts, const char *reason)
{
    shc_comm_abort(hosts->sequencer, reason);
    shc_comm_abort(hosts->island, reason);
    shc_dead_tell_abort(hosts, reason);
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
