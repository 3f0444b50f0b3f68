/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Operations as calls of the sequencer. One that is submitted is copied with its tensors' descriptions, because its
 * caller may drop them when the call returns. The copy goes when the library lets go of the operation (`retire`).
 */
#include "hosts/group.h"

#include "shm/base/tensors.h"
#include "shm/comm/island.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct flight {
    struct shc_hosts_call call;
    struct shc_op op;
    struct shc_function function;
    struct shc_request_hooks hooks; /* the submitter's; all NULL: none */
};

static struct shc_op turn_of(const struct shc_op *op, const struct shc_function *function)
{
    return (struct shc_op){.kind = SHC_CALL, .timeout_ns = op->timeout_ns, .function = function};
}

enum shc_status shc_hosts_check(struct shc_hosts *hosts, const struct shc_op *op, char *error)
{
    struct shc_hosts_call call;
    return shc_hosts_say(error, shc_hosts_describe(hosts, op, &call, error));
}

static enum shc_status run_now(struct shc_hosts_call *call, char *error)
{
    const struct shc_function function = {shc_hosts_turn, call, &call->said};
    const struct shc_op turn = turn_of(call->op, &function);
    shc_island_use(call->hosts->island);
    return shc_hosts_say(error, shc_run(call->hosts->sequencer, &turn));
}

enum shc_status shc_hosts_run(struct shc_hosts *hosts, const struct shc_op *op, char *error)
{
    struct shc_hosts_call call;
    const enum shc_status st = shc_hosts_describe(hosts, op, &call, error);
    return st == SHC_OK ? run_now(&call, error) : shc_hosts_say(error, st);
}

enum shc_status shc_hosts_prove(struct shc_hosts *hosts, char *error)
{
    const struct shc_op op = {.kind = SHC_BARRIER};
    struct shc_hosts_call call;
    const enum shc_status st = shc_hosts_describe(hosts, &op, &call, error);
    call.proves = true;
    if (st != SHC_OK)
        return shc_hosts_say(error, st);
    SHC_TRY(run_now(&call, error));
    shc_monitor_start(hosts);
    return SHC_OK;
}

/* ---- a copy ---- */

/* What an operation does not use on this rank may be anything. */
static void drop_unused(struct shc_op *op, int rank)
{
    const bool root = op->root == rank;
    const enum shc_op_kind kind = op->kind;
    if (kind == SHC_BARRIER || (!root && (kind == SHC_BROADCAST || kind == SHC_SCATTER)))
        op->input = (struct shc_tensors){NULL, 0};
    if (kind == SHC_BARRIER || (root && kind == SHC_BROADCAST) ||
        (!root && (kind == SHC_REDUCE || kind == SHC_GATHER)))
        op->output = (struct shc_tensors){NULL, 0};
}

/* NULL: no memory. */
static struct flight *copy_of(const struct shc_hosts_call *call,
                              const struct shc_request_hooks *hooks)
{
    struct shc_op used = *call->op;
    const struct shc_op *op = &used;
    drop_unused(&used, call->hosts->rank);
    struct flight *flight =
        calloc(1, sizeof *flight + shc_tensors_room(&op->input) + shc_tensors_room(&op->output));
    if (!flight)
        return NULL;
    char *room = (char *)(flight + 1);
    flight->call = *call;
    flight->op = *op;
    shc_tensors_copy(&flight->op.input, &room);
    shc_tensors_copy(&flight->op.output, &room);
    flight->call.op = &flight->op;
    flight->function = (struct shc_function){shc_hosts_turn, &flight->call, &flight->call.said};
    if (hooks)
        flight->hooks = *hooks;
    return flight;
}

static void complete(void *ctx, enum shc_status status, const char *error)
{
    const struct flight *flight = ctx;
    if (flight->hooks.complete)
        flight->hooks.complete(flight->hooks.ctx, status, error);
}

static void retire(void *ctx)
{
    struct flight *flight = ctx;
    if (flight->hooks.retire)
        flight->hooks.retire(flight->hooks.ctx);
    free(flight);
}

enum shc_status shc_hosts_submit(struct shc_hosts *hosts, const struct shc_op *op,
                                 const struct shc_request_hooks *hooks,
                                 struct shc_request **request, char *error)
{
    struct shc_hosts_call call;
    enum shc_status st = shc_hosts_describe(hosts, op, &call, error);
    if (st != SHC_OK)
        return shc_hosts_say(error, st);
    struct flight *flight = copy_of(&call, hooks);
    if (!flight) {
        snprintf(error, SHC_HOSTS_ERROR_BYTES, "no memory for a submitted operation");
        return SHC_ERR_NOMEM;
    }
    const struct shc_op turn = turn_of(op, &flight->function);
    shc_island_use(hosts->island);
    const struct shc_request_hooks own = {flight, complete, retire};
    st = shc_submit(hosts->sequencer, &turn, &own, request);
    if (st != SHC_OK)
        free(flight);
    return shc_hosts_say(error, st);
}
