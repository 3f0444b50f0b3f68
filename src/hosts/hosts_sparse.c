/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Sparse all-reduce. Each host adds its ranks' entries, and then the hosts' sums are added in the order of hosts
 * (hosts_sum.h). The bits are those of the all_reduce over the same tensors made dense.
 *
 *   1. the sparse all_reduce of the island: each of its ranks has the host's sum, which has a position once
 *   2. records: how many entries each host has, and the entries if those of every host fit
 *   3. if not: all hosts' entries as uneven blocks of bytes (hosts_gather.c), of which local rank i brings slice i
 *   4. each rank merges the hosts' entries, and adds those of one position
 *
 * Entries travel as positions (the index in all indexed dimensions, as one number), and then values. User memory is
 * only read. Bytes out of a host: its entries, once for each other host.
 */
#include "hosts/hosts_blocks.h"
#include "hosts/hosts_sum.h"

#include "shm/base/num.h"
#include "shm/base/positions.h"

#include <stdlib.h>
#include <string.h>

#define MOST_PIECES 24

/* The entries of a host, ascending. */
struct part {
    uint64_t count;
    const uint64_t *positions;
    const char *values;
    uint64_t next; /* that is to be merged */
};

struct work {
    struct shc_hosts_sum sum;
    struct shc_hosts *hosts;
    const struct shc_sparse *tensor; /* the caller's */
    struct shc_sparse island;        /* of the island's call: its input, and the host's sum */
    int64_t island_sizes[3];
    uint64_t positions; /* how many there are */
    size_t value_elements, value_bytes;
    char *given;               /* the host's entries as they travel */
    struct part *parts;        /* of each host */
    void *pieces[MOST_PIECES]; /* of memory, which go with the operation */
    int piece_count;
};

/* All zero. NULL: no memory. */
static void *take(struct work *work, uint64_t count, size_t bytes)
{
    uint64_t all;
    if (work->piece_count == MOST_PIECES || shc_mul_overflows(count, bytes, &all))
        return NULL;
    void *piece = calloc(1, all ? (size_t)all : 1);
    if (piece)
        work->pieces[work->piece_count++] = piece;
    return piece;
}

static enum shc_status no_memory(const struct work *work)
{
    return shc_hosts_fail(work->hosts, SHC_ERR_NOMEM,
                          "no memory for the entries of a sparse tensor");
}

/* ---- positions ---- */

/* Turns indices, one row per indexed dimension, into positions. False: an index is out of range. */
static bool number_entries(const struct shc_sparse *tensor, const int64_t *indices, uint64_t count,
                           uint64_t *positions)
{
    memset(positions, 0, (size_t)count * sizeof *positions);
    for (int d = 0; d < tensor->sparse_ndim; d++)
        for (uint64_t i = 0; i < count; i++) {
            const int64_t index = indices[(uint64_t)d * count + i];
            if (index < 0 || index >= tensor->sizes[d])
                return false;
            positions[i] = positions[i] * (uint64_t)tensor->sizes[d] + (uint64_t)index;
        }
    return true;
}

/* ---- this rank's entries in the type of sums ---- */

struct entry {
    uint64_t position, place;
};

static int by_position(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    if (a->position != b->position)
        return a->position < b->position ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* What the entries of this rank are made from, contiguous, and room for what becomes of them. */
struct own {
    uint64_t *positions;
    int64_t *indices;
    struct entry *entries;
    const void **sources;
    char *values, *once, *wide;
};

static bool make_own(struct work *work, struct own *own)
{
    const uint64_t count = work->tensor->count;
    const size_t narrow_bytes = work->value_elements * work->sum.call->elem_bytes;
    own->positions = take(work, count, sizeof *own->positions);
    own->indices = take(work, count, (size_t)work->tensor->sparse_ndim * sizeof *own->indices);
    own->entries = take(work, count, sizeof *own->entries);
    own->sources = take(work, count, sizeof *own->sources);
    own->values = take(work, count, narrow_bytes);
    own->once = take(work, 1, narrow_bytes);
    own->wide = take(work, count, work->value_bytes);
    return own->positions && own->indices && own->entries && own->sources && own->values &&
           own->once && own->wide;
}

/* Adds the entries that share a position, in their order and in their own type, as one host does; and widens the sums.
 * *distinct: how many positions there are. */
static enum shc_status add_repeated(const struct work *work, const struct own *own,
                                    uint64_t *distinct)
{
    const struct shc_op *op = work->sum.call->op;
    const uint64_t count = work->tensor->count;
    const size_t bytes = work->value_elements * work->sum.call->elem_bytes;
    uint64_t at = 0;
    for (uint64_t i = 0; i < count; i++)
        own->entries[i] = (struct entry){own->positions[i], i};
    qsort(own->entries, (size_t)count, sizeof *own->entries, by_position);
    for (uint64_t first = 0, end = 0; first < count; first = end, at++) {
        for (; end < count && own->entries[end].position == own->entries[first].position; end++)
            own->sources[end - first] = own->values + own->entries[end].place * bytes;
        own->positions[at] = own->entries[first].position;
        SHC_TRY(shc_fold(op->dtype, SHC_SUM, own->sources, (int)(end - first), own->once,
                         work->value_elements, 1));
        SHC_TRY(shc_convert(op->dtype, own->once, work->sum.dtype,
                            own->wide + at * work->value_bytes, work->value_elements));
    }
    *distinct = at;
    return SHC_OK;
}

/* The input of the island's call is the caller's, or its entries in the type of sums. If an index is out of range, they
 * go as they are, and the island's call refuses them. */
static enum shc_status choose_input(struct work *work)
{
    const struct shc_sparse *tensor = work->tensor;
    const uint64_t rows = (uint64_t)tensor->sparse_ndim;
    uint64_t count = tensor->count;
    struct own own;
    work->island = *tensor;
    if (!work->sum.wider)
        return SHC_OK;
    if (!make_own(work, &own))
        return no_memory(work);
    const struct shc_tensors indices = {&tensor->indices, 1}, values = {&tensor->values, 1};
    shc_vector_read(&indices, sizeof *own.indices, (struct shc_slice){0, rows * count},
                    own.indices);
    shc_vector_read(&values, work->sum.call->elem_bytes,
                    (struct shc_slice){0, count * work->value_elements}, own.values);
    if (number_entries(tensor, own.indices, count, own.positions)) {
        SHC_TRY(add_repeated(work, &own, &count));
        shc_positions_spell(tensor, own.positions, count, own.indices);
    }
    work->island_sizes[0] = (int64_t)(rows * count);
    work->island_sizes[1] = (int64_t)(count * work->value_elements);
    work->island.count = count;
    work->island.indices = shc_hosts_flat(own.indices, &work->island_sizes[0]);
    work->island.values = shc_hosts_flat(own.wide, &work->island_sizes[1]);
    return SHC_OK;
}

/* ---- the host's entries ---- */

static uint64_t block_bytes(const struct work *work, uint64_t count)
{
    return shc_align_up(count * (sizeof(uint64_t) + work->value_bytes), sizeof(uint64_t));
}

static enum shc_status add_in_island(struct work *work)
{
    struct shc_op op = shc_hosts_island_sum(&work->sum, SHC_ALL_REDUCE_SPARSE);
    SHC_TRY(choose_input(work));
    op.sparse = &work->island;
    SHC_TRY(shc_hosts_island(work->hosts, &op));
    const uint64_t count = work->island.sum_count;
    work->pieces[work->piece_count++] = work->island.sum_indices;
    work->pieces[work->piece_count++] = work->island.sum_values;
    work->given = take(work, block_bytes(work, count), 1);
    if (!work->given)
        return no_memory(work);
    (void)number_entries(work->tensor, work->island.sum_indices, count,
                         (uint64_t *)(void *)work->given);
    memcpy(work->given + count * sizeof(uint64_t), work->island.sum_values,
           (size_t)count * work->value_bytes);
    return SHC_OK;
}

/* ---- all hosts' entries ---- */

/* Where the entries of a host are. */
static void find_part(const struct work *work, int host, const char *block)
{
    struct part *part = &work->parts[host];
    part->positions = (const uint64_t *)(const void *)block;
    part->values = block + part->count * sizeof(uint64_t);
}

/* Does a record hold so many entries after their number? */
static bool fits(const struct work *work, uint64_t count)
{
    const uint64_t room = work->hosts->payload_bytes - sizeof count;
    return count <= room && block_bytes(work, count) <= room;
}

static enum shc_status take_payloads(const struct shc_hosts_call *call, const void *ctx, char *to)
{
    (void)ctx;
    const size_t bytes = call->hosts->payload_bytes;
    for (int host = 0; host < call->hosts->plan.hosts; host++)
        memcpy(to + (size_t)host * bytes, shc_hosts_payload(shc_hosts_record_of(call->hosts, host)),
               bytes);
    return SHC_OK;
}

static enum shc_status damaged(const struct work *work, int host)
{
    char ranks[96];
    shc_hosts_plan_text(&work->hosts->plan, host, ranks, sizeof ranks);
    return shc_hosts_fail(work->hosts, SHC_ERR_ABORTED,
                          "the entries of host %d (%s) came damaged over the engine between hosts",
                          host, ranks);
}

/* Learns how many entries each host has. *here: the records had them, too. */
static enum shc_status hear(struct work *work, bool *here)
{
    struct shc_hosts *hosts = work->hosts;
    char *payload = shc_hosts_payload(shc_hosts_own_record(hosts));
    const uint64_t own = work->island.sum_count;
    if (shc_hosts_leads(hosts)) {
        memcpy(payload, &own, sizeof own);
        if (fits(work, own))
            memcpy(payload + sizeof own, work->given, block_bytes(work, own));
    }
    const size_t bytes = hosts->payload_bytes;
    const struct shc_hosts_data entries = {.make = take_payloads};
    SHC_TRY(shc_hosts_meet(work->sum.call, (size_t)hosts->plan.hosts * bytes, &entries, &payload));
    work->parts = take(work, (uint64_t)hosts->plan.hosts, sizeof *work->parts);
    if (!work->parts)
        return no_memory(work);
    *here = true;
    for (int host = 0; host < hosts->plan.hosts; host++, payload += bytes) {
        uint64_t *count = &work->parts[host].count;
        memcpy(count, payload, sizeof *count);
        if (*count > work->positions)
            return damaged(work, host);
        *here = *here && fits(work, *count);
        find_part(work, host, payload + sizeof *count);
    }
    return SHC_OK;
}

/* Where the blocks of the hosts are among all; false: so many could not be in any memory. */
static bool lay_out(const struct work *work, uint64_t *begin)
{
    const uint64_t most = SIZE_MAX / 4, entry_bytes = sizeof(uint64_t) + work->value_bytes;
    begin[0] = 0;
    for (int host = 0; host < work->hosts->plan.hosts; host++) {
        const uint64_t count = work->parts[host].count;
        if (count > (most - begin[host]) / entry_bytes)
            return false;
        begin[host + 1] = begin[host] + block_bytes(work, count);
    }
    return true;
}

/* Local rank i of a host brings slice i of its block. */
static enum shc_status gather(struct work *work)
{
    struct shc_hosts *hosts = work->hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    uint64_t *begin = take(work, (uint64_t)plan->hosts + 1, sizeof *begin);
    int64_t *sizes = take(work, (uint64_t)plan->world, sizeof *sizes);
    struct shc_tensor *list = take(work, (uint64_t)plan->world, sizeof *list);
    if (!begin || !sizes || !list || !lay_out(work, begin))
        return no_memory(work);
    char *all = take(work, begin[plan->hosts], 1);
    if (!all)
        return no_memory(work);
    for (int host = 0; host < plan->hosts; host++) {
        const int ranks = shc_hosts_plan_size(plan, host);
        find_part(work, host, all + begin[host]);
        for (int local = 0; local < ranks; local++) {
            const int rank = shc_hosts_rank_at(hosts, host, local);
            const struct shc_slice slice =
                shc_hosts_slice(begin[host + 1] - begin[host], ranks, local);
            sizes[rank] = (int64_t)slice.count;
            list[rank] = shc_hosts_flat(all + begin[host] + slice.first, &sizes[rank]);
        }
    }
    const char *own = list[hosts->rank].data;
    const struct shc_tensor from = shc_hosts_flat(
        work->given + (own - all - (int64_t)begin[hosts->host]), &sizes[hosts->rank]);
    struct shc_op op = {.kind = SHC_ALL_GATHER_UNEVEN, .dtype = SHC_UINT8};
    op.input = (struct shc_tensors){&from, 1};
    op.output = (struct shc_tensors){list, (uint32_t)plan->world};
    const struct shc_hosts_call call = {.hosts = hosts, .op = &op, .elem_bytes = 1};
    return shc_hosts_gather(&call);
}

/* ---- the sum ---- */

/* Is each of them there once, in ascending order, and a position of this tensor? */
static enum shc_status check_parts(const struct work *work)
{
    for (int host = 0; host < work->hosts->plan.hosts; host++) {
        const struct part *part = &work->parts[host];
        if (!shc_positions_are_sound(part->positions, part->count, work->positions))
            return damaged(work, host);
    }
    return SHC_OK;
}

/* The lowest position that is left, and its values, in the order of hosts. Returns how many; 0: none is left. */
static int next_position(const struct work *work, uint64_t *position)
{
    struct shc_hosts *hosts = work->hosts;
    int count = 0;
    for (int host = 0; host < hosts->plan.hosts; host++) {
        const struct part *part = &work->parts[host];
        if (part->next == part->count || (count > 0 && part->positions[part->next] > *position))
            continue;
        if (count > 0 && part->positions[part->next] < *position)
            count = 0;
        *position = part->positions[part->next];
        hosts->sources[count++] = part->values + part->next * work->value_bytes;
    }
    for (int host = 0; host < hosts->plan.hosts && count > 0; host++) {
        struct part *part = &work->parts[host];
        part->next += part->next < part->count && part->positions[part->next] == *position;
    }
    return count;
}

static uint64_t count_positions(struct work *work)
{
    uint64_t distinct = 0, position;
    while (next_position(work, &position) > 0)
        distinct++;
    for (int host = 0; host < work->hosts->plan.hosts; host++)
        work->parts[host].next = 0;
    return distinct;
}

/* A host that has no entry at a position gives zeros: one stands for all, as more of them change no sum. */
static enum shc_status add_up(struct work *work, uint64_t count, uint64_t *positions, char *values)
{
    struct shc_hosts *hosts = work->hosts;
    const char *zero = take(work, 1, work->value_bytes);
    if (!zero)
        return no_memory(work);
    for (uint64_t i = 0; i < count; i++) {
        int sources = next_position(work, &positions[i]);
        if (sources < hosts->plan.hosts)
            hosts->sources[sources++] = zero;
        SHC_TRY(shc_fold(work->sum.dtype, work->sum.call->op->redop, hosts->sources, sources,
                         values + i * work->value_bytes, work->value_elements,
                         (uint32_t)hosts->plan.world));
    }
    return SHC_OK;
}

/* Keeps `piece` for the caller. */
static void *give_away(struct work *work, void *piece)
{
    for (int i = 0; i < work->piece_count; i++)
        if (work->pieces[i] == piece)
            work->pieces[i] = NULL;
    return piece;
}

static enum shc_status make_result(struct work *work)
{
    const struct shc_hosts_call *call = work->sum.call;
    struct shc_sparse *result = call->op->sparse;
    SHC_TRY(check_parts(work));
    const uint64_t count = count_positions(work), elements = count * work->value_elements;
    uint64_t *positions = take(work, count, sizeof *positions);
    int64_t *indices = take(work, count, (size_t)work->tensor->sparse_ndim * sizeof *indices);
    char *values = take(work, count, work->value_bytes), *narrow = values;
    if (work->sum.wider)
        narrow = take(work, elements, call->elem_bytes);
    if (!positions || !indices || !values || !narrow)
        return no_memory(work);
    SHC_TRY(add_up(work, count, positions, values));
    SHC_TRY(shc_hosts_narrow(&work->sum, values, narrow, elements, &narrow));
    shc_positions_spell(work->tensor, positions, count, indices);
    result->sum_count = count;
    result->sum_indices = give_away(work, indices);
    result->sum_values = give_away(work, narrow);
    return SHC_OK;
}

static enum shc_status run(struct work *work)
{
    bool here = false;
    SHC_TRY(add_in_island(work));
    SHC_TRY(hear(work, &here));
    if (!here)
        SHC_TRY(gather(work));
    return make_result(work);
}

enum shc_status shc_hosts_sparse(const struct shc_hosts_call *call)
{
    const struct shc_sparse *tensor = call->op->sparse;
    struct work work = {
        .sum = shc_hosts_sum_of(call),
        .hosts = call->hosts,
        .tensor = tensor,
        .positions = 1,
        .value_elements = 1,
    };
    for (int d = 0; d < tensor->ndim; d++)
        if (d < tensor->sparse_ndim)
            work.positions *= (uint64_t)tensor->sizes[d];
        else
            work.value_elements *= (size_t)tensor->sizes[d];
    work.value_bytes = work.value_elements * work.sum.elem_bytes;
    const enum shc_status st = run(&work);
    for (int i = 0; i < work.piece_count; i++)
        free(work.pieces[i]);
    return st;
}
