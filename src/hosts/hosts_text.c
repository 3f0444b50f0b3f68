/* SPDX-License-Identifier: BSD-3-Clause */
/* What a host says of its call, as numbers and as text; and texts of failures. */
#include "hosts/group.h"

#include "shm/base/num.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool reduces(enum shc_op_kind kind)
{
    return kind == SHC_ALL_REDUCE || kind == SHC_REDUCE || kind == SHC_REDUCE_SCATTER ||
           kind == SHC_REDUCE_SCATTER_UNEVEN || kind == SHC_ALL_REDUCE_SPARSE;
}

static bool has_root(enum shc_op_kind kind)
{
    return kind == SHC_BROADCAST || kind == SHC_REDUCE || kind == SHC_GATHER || kind == SHC_SCATTER;
}

#define NO_SIZES 0xcbf29ce484222325u

static uint64_t add_size(uint64_t hash, uint64_t size)
{
    return (hash ^ size) * 0x9e3779b97f4a7c15u ^ hash >> 29;
}

/* Of the sizes of a list. */
static uint64_t hash_of(const struct shc_tensors *list)
{
    uint64_t hash = NO_SIZES;
    for (uint32_t i = 0; i < list->count; i++)
        hash = add_size(hash, shc_vector_elements(&list->list[i]));
    return hash;
}

static uint64_t hash_sparse(const struct shc_sparse *tensor)
{
    uint64_t hash = add_size(NO_SIZES, (uint64_t)tensor->sparse_ndim);
    for (int d = 0; d < tensor->ndim; d++)
        hash = add_size(hash, (uint64_t)tensor->sizes[d]);
    return hash;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t hash_pair(int sender, int receiver, uint64_t size)
{
    const uint64_t pair = (uint64_t)sender * SHC_HOSTS_MAX_WORLD + (uint64_t)receiver;
    return mix(mix(pair + 0x9e3779b97f4a7c15u) ^ size);
}

/* Of an all_to_all: the sizes of this rank's tensors (hosts_alltoall.c says why). */
static void add_sizes_of_pairs(const struct shc_hosts_call *call, struct shc_hosts_sizes *sizes)
{
    const int rank = call->hosts->rank;
    *sizes = (struct shc_hosts_sizes){.least = UINT64_MAX};
    for (int other = 0; other < call->hosts->plan.world; other++) {
        const uint64_t in = shc_vector_elements(&call->op->input.list[other]);
        const uint64_t out = shc_vector_elements(&call->op->output.list[other]);
        sizes->given += hash_pair(rank, other, in);
        sizes->wanted += hash_pair(other, rank, out);
        sizes->least = shc_min_size(sizes->least, shc_min_size(in, out));
        sizes->most = in > sizes->most ? in : sizes->most;
        sizes->most = out > sizes->most ? out : sizes->most;
    }
}

void shc_hosts_say_call(struct shc_hosts_call *call)
{
    const struct shc_op *op = call->op;
    const bool moves = op->kind != SHC_BARRIER;
    call->said =
        (struct shc_call){.kind = op->kind,
                          .count = call->count,
                          .elem_bytes = call->elem_bytes,
                          .dtype_tag = moves && op->dtype == SHC_OPAQUE ? op->dtype_tag : 0};
    if (moves)
        call->said.dtype = op->dtype;
    if (reduces(op->kind))
        call->said.redop = op->redop;
    if (has_root(op->kind))
        call->said.root = op->root;
}

struct shc_hosts_said shc_hosts_said_of(const struct shc_hosts_call *call)
{
    const struct shc_op *op = call->op;
    struct shc_hosts_said said;
    memset(&said, 0, sizeof said);
    said.version = SHC_HOSTS_VERSION;
    said.number = call->hosts->number;
    said.count = call->said.count;
    said.kind = call->said.kind;
    said.elem_bytes = call->said.elem_bytes;
    said.dtype = call->said.dtype;
    said.dtype_tag = call->said.dtype_tag;
    said.redop = call->said.redop;
    said.root = call->said.root;
    if (op->kind == SHC_ALL_GATHER_UNEVEN)
        said.list = hash_of(&op->output);
    if (op->kind == SHC_REDUCE_SCATTER_UNEVEN)
        said.list = hash_of(&op->input);
    if (op->kind == SHC_ALL_REDUCE_SPARSE)
        said.list = hash_sparse(op->sparse);
    if (op->kind == SHC_ALL_TO_ALL)
        add_sizes_of_pairs(call, &said.sizes);
    return said;
}

void shc_hosts_said_text(const struct shc_hosts_said *said, char *text, size_t capacity)
{
    const enum shc_op_kind kind = (enum shc_op_kind)said->kind;
    char more[96] = "";
    size_t used = 0;
    if (kind != SHC_ALL_TO_ALL) /* whose tensors have sizes of their own */
        used = (size_t)snprintf(more, sizeof more, "[%llu]", (unsigned long long)said->count);
    if (said->dtype == SHC_OPAQUE) /* of which there are many */
        used += (size_t)snprintf(more + used, sizeof more - used, ", type %u of %u bytes",
                                 (unsigned)said->dtype_tag, (unsigned)said->elem_bytes);
    if (reduces(kind))
        used += (size_t)snprintf(more + used, sizeof more - used, ", %s",
                                 shc_redop_name((enum shc_redop)said->redop));
    if (has_root(kind))
        used += (size_t)snprintf(more + used, sizeof more - used, ", root %d", (int)said->root);
    if (said->list)
        snprintf(more + used, sizeof more - used, ", sizes %08x", (unsigned)said->list);
    if (said->elem_bytes == 0)
        snprintf(text, capacity, "%s #%llu", shc_op_kind_name(kind),
                 (unsigned long long)said->number);
    else
        snprintf(text, capacity, "%s #%llu (%s%s)", shc_op_kind_name(kind),
                 (unsigned long long)said->number, shc_dtype_name((enum shc_dtype)said->dtype),
                 more);
}

void shc_hosts_call_text(const struct shc_hosts_call *call, char *text, size_t capacity)
{
    const struct shc_hosts_said said = shc_hosts_said_of(call);
    shc_hosts_said_text(&said, text, capacity);
}

/* ---- failures ---- */

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

enum shc_status shc_hosts_say(char *error, enum shc_status st)
{
    if (st != SHC_OK && !error[0])
        snprintf(error, SHC_HOSTS_ERROR_BYTES, "%s", shc_error_text());
    return st;
}
