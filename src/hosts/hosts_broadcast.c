/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Broadcast.
 *
 *   short  root -> its leader -> along with the record -> all leaders -> broadcast in the islands
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

static struct shc_slice message(const struct shc_hosts_call *call, const void *ctx, int from,
                                int to)
{
    (void)ctx;
    (void)to;
    return shc_hosts_message_of(call->hosts, call->count * call->elem_bytes,
                                from == root_host(call));
}

static enum shc_status take(const struct shc_hosts_call *call, const void *ctx, char *to)
{
    const uint64_t bytes = call->count * call->elem_bytes;
    (void)ctx;
    memcpy(to, shc_hosts_data_taken(call->hosts, root_host(call), 0, bytes), bytes);
    return SHC_OK;
}

static enum shc_status run_short(const struct shc_hosts_call *call)
{
    struct shc_hosts *hosts = call->hosts;
    const struct shc_slice all = {0, call->count};
    const uint64_t bytes = call->count * call->elem_bytes;
    const struct shc_hosts_data broadcast = {.message = message, .make = take};
    char *given = shc_hosts_data_given(hosts, bytes), *data;
    if (is_root(call))
        shc_vector_read(&call->op->input, call->elem_bytes, all, given);
    if (has_root(call) && hosts->plan.local_of[call->op->root] != 0)
        SHC_TRY(give_island(call, given, bytes));
    SHC_TRY(shc_hosts_meet(call, bytes, &broadcast, &data));
    if (!is_root(call))
        shc_vector_write(&call->op->output, call->elem_bytes, all, data);
    return SHC_OK;
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
    if (call->count <= shc_hosts_short_bytes(call->hosts) / call->elem_bytes)
        return run_short(call);
    SHC_TRY(shc_hosts_meet(call, 0, NULL, &nothing));
    return shc_hosts_pass_vector(
        call, shc_hosts_chunk_elements(&call->hosts->plan, call->elem_bytes), &steps);
}
