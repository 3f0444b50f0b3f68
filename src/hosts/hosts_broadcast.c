/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Broadcast.
 *
 *   short  root -> its leader -> the record's payload -> all leaders -> broadcast in the islands
 *   eager  the same, but the data are a message for each other host, which goes before the record: a host waits for the
 *          network once. The message's receive names its size, so hosts that expect another one get none of it. If the
 *          records differ, nobody looks at what has come.
 *   long   for each chunk: broadcast in the root's island; its rails give a slice each to the other hosts; these
 *          put the slices together by an all_gather in the island
 *
 * Bytes into a host that is not the root's: n, once.
 */
#include "hosts/group.h"

#include <string.h>

static bool is_root(const struct shc_hosts_call *call)
{
    return call->op->root == call->hosts->rank;
}

static int root_host(const struct shc_hosts_call *call)
{
    return call->hosts->plan.host_of[call->op->root];
}

static bool has_root(const struct shc_hosts_call *call)
{
    return root_host(call) == call->hosts->host;
}

/* The tensors of this rank. */
static const struct shc_tensors *tensors_of(const struct shc_hosts_call *call)
{
    return is_root(call) ? &call->op->input : &call->op->output;
}

/* A broadcast of bytes in the root's island. */
static enum shc_status give_island(const struct shc_hosts_call *call, char *data, size_t bytes)
{
    return shc_hosts_give(call->hosts, call->hosts->plan.local_of[call->op->root], data, bytes);
}

/* Where a part of the vector is, contiguous; staging memory if user memory is not. */
static char *place_for(const struct shc_hosts_call *call, struct shc_slice part)
{
    char *at = shc_vector_at(tensors_of(call), call->elem_bytes, part.first);
    return at ? at : call->hosts->stage.narrow;
}

static void store(const struct shc_hosts_call *call, struct shc_slice part, const char *from)
{
    if (from == call->hosts->stage.narrow)
        shc_vector_write(&call->op->output, call->elem_bytes, part, from);
}

/* ---- short ---- */

static enum shc_status take_payload(const struct shc_hosts_call *call, const void *ctx, char *to)
{
    (void)ctx;
    struct shc_hosts_record *record = shc_hosts_record_of(call->hosts, root_host(call));
    memcpy(to, shc_hosts_payload(record), call->count * call->elem_bytes);
    return SHC_OK;
}

static enum shc_status run_short(const struct shc_hosts_call *call)
{
    struct shc_hosts *hosts = call->hosts;
    const struct shc_slice all = {0, call->count};
    char *own = shc_hosts_payload((struct shc_hosts_record *)(void *)hosts->stage.record);
    const struct shc_hosts_digest digest = {take_payload, NULL};
    char *data;
    if (is_root(call))
        shc_vector_read(&call->op->input, call->elem_bytes, all, own);
    if (has_root(call) && hosts->plan.local_of[call->op->root] != 0)
        SHC_TRY(give_island(call, own, call->count * call->elem_bytes));
    SHC_TRY(shc_hosts_meet(call, call->count * call->elem_bytes, &digest, &data));
    if (!is_root(call))
        shc_vector_write(&call->op->output, call->elem_bytes, all, data);
    return SHC_OK;
}

/* ---- eager ---- */

static bool is_eager(const struct shc_hosts_call *call)
{
    const size_t most = shc_hosts_eager_bytes(call->hosts->plan.hosts);
    return call->hosts->messages && call->count <= most / call->elem_bytes;
}

/* Of a leader: the messages of its host, by host. */
struct eager {
    struct shc_ticket *tickets[SHC_HOSTS_EAGER_HOSTS];
};

static enum shc_status begin_eager(const struct shc_hosts_call *call, struct eager *eager)
{
    struct shc_hosts *hosts = call->hosts;
    const struct shc_fabric *line = &hosts->line;
    const size_t bytes = call->count * call->elem_bytes;
    const int root = root_host(call);
    for (int host = 0; host < hosts->plan.hosts; host++) {
        struct shc_ticket **ticket = &eager->tickets[host];
        if (host == hosts->host || (!has_root(call) && host != root))
            continue;
        SHC_TRY(shc_hosts_ticket(hosts, ticket));
        const int error = has_root(call)
                              ? line->send(line->ctx, hosts->stage.narrow, bytes, host, *ticket)
                              : line->receive(line->ctx, hosts->stage.narrow, bytes, host, *ticket);
        SHC_TRY(shc_hosts_begun(hosts, ticket, error));
    }
    return SHC_OK;
}

static enum shc_status await_eager(struct shc_hosts *hosts, struct eager *eager)
{
    for (int host = 0; host < hosts->plan.hosts; host++)
        if (eager->tickets[host])
            SHC_TRY(shc_hosts_await(hosts, &eager->tickets[host]));
    return SHC_OK;
}

static void abandon_eager(const struct shc_hosts *hosts, const struct eager *eager)
{
    for (int host = 0; host < hosts->plan.hosts; host++)
        if (eager->tickets[host])
            shc_gate_abandon(eager->tickets[host]);
}

/* The leader, once all hosts are known to make this call: the data are there. */
static enum shc_status take_eager(const struct shc_hosts_call *call, const void *ctx, char *to)
{
    (void)to;
    return has_root(call) ? SHC_OK : await_eager(call->hosts, *(struct eager *const *)ctx);
}

/* The root's host, before the message: the data are in staging memory of the leader, or of all if it is not the root. */
static enum shc_status stage_eager(const struct shc_hosts_call *call, struct shc_slice all)
{
    char *narrow = call->hosts->stage.narrow;
    if (is_root(call))
        shc_vector_read(&call->op->input, call->elem_bytes, all, narrow);
    if (has_root(call) && call->hosts->plan.local_of[call->op->root] != 0)
        return give_island(call, narrow, call->count * call->elem_bytes);
    return SHC_OK;
}

/* After the verdict. */
static enum shc_status spread_eager(const struct shc_hosts_call *call, struct shc_slice all)
{
    struct shc_hosts *hosts = call->hosts;
    char *data = hosts->stage.narrow;
    if (!has_root(call) || hosts->plan.local_of[call->op->root] == 0) {
        if (!shc_hosts_leads(hosts))
            data = place_for(call, all);
        SHC_TRY(shc_hosts_give(hosts, 0, data, call->count * call->elem_bytes));
    }
    if (!is_root(call))
        store(call, all, data);
    return SHC_OK;
}

static enum shc_status run_eager(const struct shc_hosts_call *call)
{
    struct shc_hosts *hosts = call->hosts;
    const struct shc_slice all = {0, call->count};
    struct eager eager = {{NULL}}, *own = &eager;
    const struct shc_hosts_digest digest = {take_eager, &own};
    char *nothing;
    SHC_TRY(stage_eager(call, all));
    enum shc_status st = shc_hosts_leads(hosts) ? begin_eager(call, own) : SHC_OK;
    if (st == SHC_OK)
        st = shc_hosts_meet(call, 0, &digest, &nothing);
    if (st == SHC_OK)
        st = spread_eager(call, all);
    if (st == SHC_OK)
        st = await_eager(hosts, own);
    if (st != SHC_OK)
        abandon_eager(hosts, own);
    return st;
}

/* ---- long ---- */

/* The root's host: the part reaches all its ranks, and this rank's slice goes into staging memory. */
static enum shc_status share(const struct shc_hosts_call *call, const struct shc_hosts_chunk *chunk,
                             char *slice)
{
    char *part = place_for(call, chunk->part);
    if (is_root(call) && part == call->hosts->stage.narrow)
        shc_vector_read(&call->op->input, call->elem_bytes, chunk->part, part);
    SHC_TRY(give_island(call, part, chunk->part.count * call->elem_bytes));
    if (chunk->slice.count > 0)
        memcpy(slice, part + chunk->slice.first * call->elem_bytes,
               chunk->slice.count * call->elem_bytes);
    if (!is_root(call))
        store(call, chunk->part, part);
    return SHC_OK;
}

static enum shc_status begin(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct shc_hosts_call *call = ctx;
    struct shc_hosts *hosts = call->hosts;
    char *slice = hosts->stage.chunk[place].in;
    if (has_root(call))
        SHC_TRY(share(call, chunk, slice));
    if (chunk->slice.count == 0)
        return SHC_OK;
    SHC_TRY(shc_hosts_ticket(hosts, &chunk->ticket));
    const int error =
        hosts->rail.broadcast(hosts->rail.ctx, slice, chunk->slice.count * call->elem_bytes,
                              root_host(call), chunk->ticket);
    return shc_hosts_begun(hosts, &chunk->ticket, error);
}

static enum shc_status finish(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct shc_hosts_call *call = ctx;
    struct shc_hosts *hosts = call->hosts;
    if (chunk->slice.count > 0)
        SHC_TRY(shc_hosts_await(hosts, &chunk->ticket));
    if (has_root(call))
        return SHC_OK;
    char *part = place_for(call, chunk->part);
    SHC_TRY(shc_hosts_collect(hosts, chunk, call->elem_bytes, hosts->stage.chunk[place].in, part));
    store(call, chunk->part, part);
    return SHC_OK;
}

enum shc_status shc_hosts_broadcast(const struct shc_hosts_call *call)
{
    struct shc_hosts_call copy = *call; /* for the steps */
    const struct shc_hosts_steps steps = {.step = {begin, NULL, finish}, .ctx = &copy};
    char *nothing;
    if (call->count <= call->hosts->payload_bytes / call->elem_bytes)
        return run_short(call);
    if (is_eager(call))
        return run_eager(call);
    SHC_TRY(shc_hosts_meet(call, 0, NULL, &nothing));
    return shc_hosts_pass_vector(
        call, shc_hosts_chunk_elements(&call->hosts->plan, call->elem_bytes), &steps);
}
