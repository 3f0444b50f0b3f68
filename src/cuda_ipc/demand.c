/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/demand.h"
#include "cuda_ipc/cuda_error.h"
#include "shm/base/num.h"

#include <stdio.h>
#include <string.h>

#define ELEM_BYTES_MOST ((uint32_t)1 << 16)

/* The words of a record. */
enum { KIND, DTYPE, ELEM_BYTES, DTYPE_TAG, REDOP, ROOT, COUNT, BLOCKS_HASH, TAG };

/* ---- tensors ---- */

static enum shc_status fail_tensor(const struct shc_op *op, uint32_t index, const char *what)
{
    return shc_cuda_fail(SHC_ERR_INVALID, "%s: tensor %u %s", shc_op_kind_name(op->kind), index,
                         what);
}

/* The bytes of a tensor that check_tensor has passed. */
static uint64_t tensor_bytes(const struct shc_tensor *tensor, uint32_t elem_bytes)
{
    uint64_t bytes = elem_bytes;
    for (int d = 0; d < tensor->ndim; d++) {
        if (tensor->sizes[d] == 0)
            return 0;
        bytes *= (uint64_t)tensor->sizes[d]; /* wraps only on the way to a 0 */
    }
    return bytes;
}

static bool is_contiguous(const struct shc_tensor *tensor)
{
    int64_t dense = 1;
    for (int d = tensor->ndim - 1; d >= 0 && tensor->strides != NULL; d--) {
        if (tensor->sizes[d] == 1)
            continue;
        if (tensor->strides[d] != dense)
            return false;
        dense *= tensor->sizes[d];
    }
    return true;
}

static enum shc_status check_tensor(const struct shc_op *op, const struct shc_tensor *tensor,
                                    uint32_t index, uint32_t elem_bytes)
{
    uint64_t bytes = elem_bytes;
    bool empty = false, overflow = false;
    if (tensor->ndim < 0 || (tensor->ndim > 0 && tensor->sizes == NULL))
        return fail_tensor(op, index, "has no sizes");
    for (int d = 0; d < tensor->ndim; d++) {
        if (tensor->sizes[d] < 0)
            return fail_tensor(op, index, "has a negative size");
        empty = empty || tensor->sizes[d] == 0;
        overflow = overflow || shc_mul_overflows(bytes, (uint64_t)tensor->sizes[d], &bytes) ||
                   bytes > PTRDIFF_MAX;
    }
    if (empty)
        return SHC_OK;
    if (overflow)
        return fail_tensor(op, index, "is larger than memory");
    if (tensor->data == NULL)
        return fail_tensor(op, index, "has elements but no data");
    if (!is_contiguous(tensor))
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED,
                             "%s: tensor %u is not contiguous; make it contiguous first",
                             shc_op_kind_name(op->kind), index);
    return SHC_OK;
}

static enum shc_status flatten(const struct shc_op *op, const struct shc_tensors *tensors,
                               uint32_t elem_bytes, struct shc_flat *flat)
{
    *flat =
        (struct shc_flat){.list = tensors->list, .count = tensors->count, .elem_bytes = elem_bytes};
    if (tensors->count > 0 && tensors->list == NULL)
        return shc_cuda_fail(SHC_ERR_INVALID, "%s: %u tensors, but no list",
                             shc_op_kind_name(op->kind), tensors->count);
    for (uint32_t i = 0; i < tensors->count; i++) {
        SHC_TRY(check_tensor(op, &tensors->list[i], i, elem_bytes));
        if (__builtin_add_overflow(flat->bytes, tensor_bytes(&tensors->list[i], elem_bytes),
                                   &flat->bytes))
            return fail_tensor(op, i, "makes the list larger than memory");
    }
    return SHC_OK;
}

char *shc_flat_at(struct shc_flat *flat, uint64_t offset, uint64_t *run)
{
    if (offset < flat->before) {
        flat->at = 0;
        flat->before = 0;
    }
    uint64_t bytes = tensor_bytes(&flat->list[flat->at], flat->elem_bytes);
    while (offset - flat->before >= bytes) {
        flat->before += bytes;
        flat->at++;
        bytes = tensor_bytes(&flat->list[flat->at], flat->elem_bytes);
    }
    *run = bytes - (offset - flat->before);
    return (char *)flat->list[flat->at].data + (offset - flat->before);
}

/* ---- what can be wrong ---- */

static enum shc_status check_kind(const struct shc_op *op)
{
    if ((unsigned)op->kind >= SHC_OP_KIND_COUNT)
        return shc_cuda_fail(SHC_ERR_INVALID, "operation %d does not exist", (int)op->kind);
    if (op->kind == SHC_ALL_REDUCE_SPARSE)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "all_reduce of sparse CUDA tensors is not "
                                                  "offered; move them to the CPU");
    if (op->kind == SHC_CALL)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "call: a function is no operation of a stream");
    return SHC_OK;
}

static enum shc_status check_dtype(const struct shc_op *op, struct shc_demand *demand)
{
    if (op->kind == SHC_BARRIER) {
        demand->elem_bytes = 1;
        return SHC_OK;
    }
    if ((unsigned)op->dtype >= SHC_DTYPE_COUNT)
        return shc_cuda_fail(SHC_ERR_INVALID, "%s: dtype %d does not exist",
                             shc_op_kind_name(op->kind), (int)op->dtype);
    demand->dtype = op->dtype;
    demand->elem_bytes =
        op->dtype == SHC_OPAQUE ? op->elem_bytes : (uint32_t)shc_dtype_bytes(op->dtype);
    if (demand->elem_bytes == 0 || demand->elem_bytes > ELEM_BYTES_MOST)
        return shc_cuda_fail(SHC_ERR_INVALID, "%s: an element of %u bytes (1 to %u are possible)",
                             shc_op_kind_name(op->kind), demand->elem_bytes, ELEM_BYTES_MOST);
    demand->call[DTYPE] = op->dtype;
    demand->call[ELEM_BYTES] = demand->elem_bytes;
    demand->call[DTYPE_TAG] = op->dtype == SHC_OPAQUE ? op->dtype_tag : 0;
    return SHC_OK;
}

static bool reduces(enum shc_op_kind kind)
{
    return kind == SHC_ALL_REDUCE || kind == SHC_REDUCE || kind == SHC_REDUCE_SCATTER ||
           kind == SHC_REDUCE_SCATTER_UNEVEN;
}

static bool has_root(enum shc_op_kind kind)
{
    return kind == SHC_BROADCAST || kind == SHC_REDUCE || kind == SHC_GATHER || kind == SHC_SCATTER;
}

static enum shc_status check_reduction(const struct shc_op *op, struct shc_demand *demand)
{
    if (!reduces(op->kind))
        return SHC_OK;
    if ((unsigned)op->redop >= SHC_REDOP_COUNT)
        return shc_cuda_fail(SHC_ERR_INVALID, "%s: reduce op %d does not exist",
                             shc_op_kind_name(op->kind), (int)op->redop);
    if (!shc_reduction_supported(op->dtype, op->redop))
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "%s: %s of %s does not exist",
                             shc_op_kind_name(op->kind), shc_redop_name(op->redop),
                             shc_dtype_name(op->dtype));
    demand->redop = op->redop;
    demand->premul = op->premul;
    demand->call[REDOP] = 1 + (uint64_t)op->redop;
    return SHC_OK;
}

static enum shc_status check_root(const struct shc_op *op, struct shc_demand *demand)
{
    if (!has_root(op->kind))
        return SHC_OK;
    if (op->root < 0 || op->root >= demand->rounds.world)
        return shc_cuda_fail(SHC_ERR_INVALID, "%s: root %d is not a rank (0 to %d)",
                             shc_op_kind_name(op->kind), op->root, demand->rounds.world - 1);
    demand->rounds.root = op->root;
    demand->call[ROOT] = 1 + (uint64_t)op->root;
    return SHC_OK;
}

static enum shc_status check_peer(const struct shc_op *op, const struct shc_demand *demand)
{
    if (op->kind != SHC_SEND && op->kind != SHC_RECV)
        return SHC_OK;
    if (op->kind == SHC_RECV && op->peer == SHC_ANY_SOURCE)
        return shc_cuda_fail(SHC_ERR_UNSUPPORTED,
                             "recv of a CUDA tensor from any rank is not offered; name the sender, "
                             "or receive into a CPU tensor");
    if (op->peer < 0 || op->peer >= demand->rounds.world)
        return shc_cuda_fail(SHC_ERR_INVALID, "%s: the peer %d is not a rank (0 to %d)",
                             shc_op_kind_name(op->kind), op->peer, demand->rounds.world - 1);
    return SHC_OK;
}

/* ---- each operation's shape ---- */

/* One side has a block for each rank, the other has one. */
static enum shc_status check_blocks(const struct shc_op *op, const struct shc_demand *demand,
                                    uint64_t all, uint64_t one)
{
    uint64_t wanted;
    if (!shc_mul_overflows(one, (uint64_t)demand->rounds.world, &wanted) && wanted == all)
        return SHC_OK;
    return shc_cuda_fail(SHC_ERR_INVALID,
                         "%s: %llu elements on the side of all %d ranks, but %llu of each",
                         shc_op_kind_name(op->kind), (unsigned long long)(all / demand->elem_bytes),
                         demand->rounds.world, (unsigned long long)(one / demand->elem_bytes));
}

static enum shc_status check_same(const struct shc_op *op, const struct shc_demand *demand)
{
    if (demand->in.bytes == demand->out.bytes)
        return SHC_OK;
    return shc_cuda_fail(SHC_ERR_INVALID, "%s: %llu elements in, but room for %llu out",
                         shc_op_kind_name(op->kind),
                         (unsigned long long)(demand->in.bytes / demand->elem_bytes),
                         (unsigned long long)(demand->out.bytes / demand->elem_bytes));
}

/* A list with a tensor for each rank. */
static enum shc_status measure_list(const struct shc_op *op, const struct shc_flat *flat, int world,
                                    uint64_t *bytes)
{
    if (flat->count != (uint32_t)world)
        return shc_cuda_fail(SHC_ERR_INVALID, "%s: a list of %u tensors for %d ranks",
                             shc_op_kind_name(op->kind), flat->count, world);
    for (int r = 0; r < world; r++)
        bytes[r] = tensor_bytes(&flat->list[r], flat->elem_bytes);
    return SHC_OK;
}

static enum shc_status shape_uneven(const struct shc_op *op, struct shc_demand *demand,
                                    const struct shc_flat *list, const struct shc_flat *one)
{
    const struct shc_rounds *rounds = &demand->rounds;
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a over the counts */
    SHC_TRY(measure_list(op, list, rounds->world, demand->blocks));
    if (demand->blocks[rounds->rank] != one->bytes)
        return shc_cuda_fail(
            SHC_ERR_INVALID,
            "%s: tensor %d of the list, this rank's, has %llu elements, but there are %llu on the "
            "other side",
            shc_op_kind_name(op->kind), rounds->rank,
            (unsigned long long)(demand->blocks[rounds->rank] / demand->elem_bytes),
            (unsigned long long)(one->bytes / demand->elem_bytes));
    for (int r = 0; r < rounds->world; r++)
        for (int byte = 0; byte < 64; byte += 8)
            hash = (hash ^ (demand->blocks[r] >> byte & 0xff)) * 0x100000001b3;
    demand->rounds.blocks = demand->blocks;
    demand->call[BLOCKS_HASH] = hash;
    demand->call[COUNT] = list->bytes / demand->elem_bytes;
    return SHC_OK;
}

static enum shc_status shape_all_to_all(const struct shc_op *op, struct shc_demand *demand)
{
    SHC_TRY(measure_list(op, &demand->in, demand->rounds.world, demand->sends));
    SHC_TRY(measure_list(op, &demand->out, demand->rounds.world, demand->receives));
    demand->rounds.sends = demand->sends;
    demand->rounds.receives = demand->receives;
    const int rank = demand->rounds.rank;
    if (demand->sends[rank] != demand->receives[rank])
        return shc_cuda_fail(SHC_ERR_INVALID,
                             "all_to_all: %llu elements for this rank itself, but room for %llu",
                             (unsigned long long)(demand->sends[rank] / demand->elem_bytes),
                             (unsigned long long)(demand->receives[rank] / demand->elem_bytes));
    return SHC_OK;
}

/* Sets the record's count and the rounds' bytes: those of each rank. */
static void of_bytes(struct shc_demand *demand, uint64_t bytes)
{
    demand->rounds.bytes = bytes;
    demand->call[COUNT] = bytes / demand->elem_bytes;
}

/* Both ends of a message have the same words. */
static enum shc_status shape_message(const struct shc_op *op, struct shc_demand *demand)
{
    of_bytes(demand, op->kind == SHC_SEND ? demand->in.bytes : demand->out.bytes);
    demand->call[KIND] = SHC_SEND;
    demand->call[TAG] = (uint32_t)op->tag;
    return SHC_OK;
}

static enum shc_status shape_rooted(const struct shc_op *op, struct shc_demand *demand)
{
    const bool is_root = demand->rounds.root == demand->rounds.rank;
    const uint64_t in = demand->in.bytes, out = demand->out.bytes;
    switch (op->kind) {
    case SHC_BROADCAST:
        of_bytes(demand, is_root ? in : out);
        return SHC_OK;
    case SHC_SCATTER:
        of_bytes(demand, out);
        return is_root ? check_blocks(op, demand, in, out) : SHC_OK;
    case SHC_GATHER:
        of_bytes(demand, in);
        return is_root ? check_blocks(op, demand, out, in) : SHC_OK;
    default: /* reduce */
        of_bytes(demand, in);
        return is_root ? check_same(op, demand) : SHC_OK;
    }
}

static enum shc_status shape(const struct shc_op *op, struct shc_demand *demand)
{
    switch (op->kind) {
    case SHC_BARRIER:
        return SHC_OK;
    case SHC_ALL_REDUCE:
        of_bytes(demand, demand->in.bytes);
        return check_same(op, demand);
    case SHC_ALL_GATHER:
        of_bytes(demand, demand->in.bytes);
        return check_blocks(op, demand, demand->out.bytes, demand->in.bytes);
    case SHC_REDUCE_SCATTER:
        of_bytes(demand, demand->out.bytes);
        return check_blocks(op, demand, demand->in.bytes, demand->out.bytes);
    case SHC_ALL_GATHER_UNEVEN:
        return shape_uneven(op, demand, &demand->out, &demand->in);
    case SHC_REDUCE_SCATTER_UNEVEN:
        return shape_uneven(op, demand, &demand->in, &demand->out);
    case SHC_ALL_TO_ALL:
        return shape_all_to_all(op, demand);
    case SHC_SEND:
    case SHC_RECV:
        return shape_message(op, demand);
    default:
        return shape_rooted(op, demand);
    }
}

/* Which sides this rank has. */
static bool uses_input(const struct shc_op *op, int rank)
{
    const bool is_root = op->root == rank;
    return op->kind != SHC_BARRIER && op->kind != SHC_RECV &&
           ((op->kind != SHC_BROADCAST && op->kind != SHC_SCATTER) || is_root);
}

static bool uses_output(const struct shc_op *op, int rank)
{
    const bool is_root = op->root == rank;
    switch (op->kind) {
    case SHC_BARRIER:
    case SHC_SEND:
        return false;
    case SHC_BROADCAST:
        return !is_root;
    case SHC_REDUCE:
    case SHC_GATHER:
        return is_root;
    default:
        return true;
    }
}

enum shc_status shc_demand_make(const struct shc_op *op, int rank, int world,
                                struct shc_demand *demand)
{
    SHC_TRY(check_kind(op));
    memset(demand->call, 0, sizeof demand->call);
    demand->rounds = (struct shc_rounds){.kind = op->kind, .rank = rank, .world = world};
    demand->call[KIND] = op->kind;
    demand->timeout_ns = op->timeout_ns;
    demand->in = demand->out = (struct shc_flat){.count = 0};
    SHC_TRY(check_dtype(op, demand));
    SHC_TRY(check_reduction(op, demand));
    SHC_TRY(check_root(op, demand));
    SHC_TRY(check_peer(op, demand));
    if (uses_input(op, rank))
        SHC_TRY(flatten(op, &op->input, demand->elem_bytes, &demand->in));
    if (uses_output(op, rank))
        SHC_TRY(flatten(op, &op->output, demand->elem_bytes, &demand->out));
    return shape(op, demand);
}

void shc_call_words_op(const uint64_t call[SHC_RECORD_CALL_WORDS], struct shc_op *op,
                       uint64_t *count)
{
    memset(op, 0, sizeof *op);
    if (call[KIND] < SHC_OP_KIND_COUNT)
        op->kind = (enum shc_op_kind)call[KIND];
    op->dtype = call[DTYPE] < SHC_DTYPE_COUNT ? (enum shc_dtype)call[DTYPE] : SHC_OPAQUE;
    op->elem_bytes = (uint32_t)call[ELEM_BYTES];
    if (call[REDOP] > 0 && call[REDOP] <= SHC_REDOP_COUNT)
        op->redop = (enum shc_redop)(call[REDOP] - 1);
    if (call[ROOT] > 0)
        op->root = (int)(call[ROOT] - 1);
    op->tag = (int32_t)(uint32_t)call[TAG];
    *count = call[COUNT];
}

/* " type 7 of 12 bytes": the part of an opaque dtype that its name lacks. */
static void type_text(const uint64_t call[SHC_RECORD_CALL_WORDS], char *text, size_t capacity)
{
    text[0] = '\0';
    if (call[DTYPE] == SHC_OPAQUE)
        snprintf(text, capacity, " type %u of %u bytes", (unsigned)call[DTYPE_TAG],
                 (unsigned)call[ELEM_BYTES]);
}

static const char *dtype_text(const uint64_t call[SHC_RECORD_CALL_WORDS])
{
    return call[DTYPE] < SHC_DTYPE_COUNT ? shc_dtype_name((enum shc_dtype)call[DTYPE]) : "unknown";
}

void shc_message_words_text(const uint64_t call[SHC_RECORD_CALL_WORDS], bool sends,
                            const char *peer, uint64_t number, char *text, size_t capacity)
{
    char type[48];
    type_text(call, type, sizeof type);
    snprintf(text, capacity, "%s #%llu %s %s (%s%s[%llu], tag %d)", sends ? "send" : "recv",
             (unsigned long long)number, sends ? "to" : "from", peer, dtype_text(call), type,
             (unsigned long long)call[COUNT], (int)(uint32_t)call[TAG]);
}

void shc_call_words_text(const uint64_t call[SHC_RECORD_CALL_WORDS], uint64_t sequence, char *text,
                         size_t capacity)
{
    char redop[32] = "", root[32] = "", list[32] = "", type[48];
    const char *kind = call[KIND] < SHC_OP_KIND_COUNT
                           ? shc_op_kind_name((enum shc_op_kind)call[KIND])
                           : "an unknown call";
    if (call[KIND] == SHC_BARRIER) {
        snprintf(text, capacity, "barrier #%llu", (unsigned long long)sequence);
        return;
    }
    if (call[REDOP] > 0 && call[REDOP] <= SHC_REDOP_COUNT)
        snprintf(redop, sizeof redop, ", %s", shc_redop_name((enum shc_redop)(call[REDOP] - 1)));
    if (call[ROOT] > 0)
        snprintf(root, sizeof root, ", root %u", (unsigned)(call[ROOT] - 1));
    if (call[BLOCKS_HASH] != 0)
        snprintf(list, sizeof list, ", counts %04x", (unsigned)(call[BLOCKS_HASH] & 0xffff));
    type_text(call, type, sizeof type);
    snprintf(text, capacity, "%s #%llu (%s%s[%llu]%s%s%s)", kind, (unsigned long long)sequence,
             dtype_text(call), type, (unsigned long long)call[COUNT], redop, root, list);
}
