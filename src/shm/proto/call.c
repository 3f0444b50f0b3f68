/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/call.h"

#include "shm/base/num.h"

#include <stdio.h>

enum { CALL_WORDS = SHC_CALL_RECORD_SEAL, WORDS_READ = SHC_CALL_RECORD_SEAL + 1 };

enum shc_status shc_op_check_reserved(const struct shc_op *op)
{
    if (op->reserved == 0)
        return SHC_OK;
    return shc_fail(SHC_ERR_INVALID, "%s: the operation's reserved field is not 0",
                    shc_op_kind_name(op->kind));
}

enum shc_status shc_op_elem_bytes(const struct shc_op *op, uint32_t *elem_bytes)
{
    if ((unsigned)op->dtype >= SHC_DTYPE_COUNT)
        return shc_fail(SHC_ERR_INVALID, "%s: dtype %d does not exist", shc_op_kind_name(op->kind),
                        (int)op->dtype);
    *elem_bytes = op->dtype == SHC_OPAQUE ? op->elem_bytes : (uint32_t)shc_dtype_bytes(op->dtype);
    if (*elem_bytes == 0 || *elem_bytes > SHC_INLINE_BYTES)
        return shc_fail(SHC_ERR_INVALID, "%s: an element of %u bytes (1 to %d are possible)",
                        shc_op_kind_name(op->kind), *elem_bytes, SHC_INLINE_BYTES);
    return SHC_OK;
}

/* Two rounds of a 64-bit finalizer per word: different calls collide with probability 2^-64. */
static uint64_t mix(uint64_t h, uint64_t word)
{
    h ^= word;
    h *= 0xff51afd7ed558ccdULL;
    h ^= h >> 32;
    h *= 0xc4ceb9fe1a85ec53ULL;
    return h ^ h >> 29;
}

/* A barrier's words are all zero, and so is a call that has not been written: its hash must be 0,
 * too. */
static uint64_t hash_of(const uint64_t words[CALL_WORDS])
{
    return mix(mix(mix(mix(0, words[0]), words[1]), words[2]), words[3]);
}

/* Operations whose ranks compare sizes after the meeting: their count is for messages only. */
static bool compares_count(enum shc_op_kind kind)
{
    return kind != SHC_ALL_GATHER_UNEVEN && kind != SHC_REDUCE_SCATTER_UNEVEN &&
           kind != SHC_ALL_REDUCE_SPARSE;
}

static struct shc_call decode(const uint64_t words[CALL_WORDS])
{
    return (struct shc_call){
        .kind = (enum shc_op_kind)(words[0] & 0xff),
        .dtype = (enum shc_dtype)(words[0] >> 8 & 0xff),
        .redop = (enum shc_redop)(words[0] >> 16 & 0xff),
        .root = (int)(uint32_t)(words[0] >> 32),
        .count = words[1],
        .elem_bytes = (uint32_t)words[2],
        .dtype_tag = (uint32_t)(words[2] >> 32),
        .number = words[3],
    };
}

static void encode(const struct shc_call *call, uint64_t words[CALL_WORDS])
{
    words[0] = (uint64_t)call->kind | (uint64_t)call->dtype << 8 | (uint64_t)call->redop << 16 |
               (uint64_t)(uint32_t)call->root << 32;
    words[1] = call->count;
    words[2] = (uint64_t)call->elem_bytes | (uint64_t)call->dtype_tag << 32;
    words[3] = call->number;
}

void shc_call_settle(struct shc_call *call)
{
    uint64_t words[CALL_WORDS];
    encode(shc_call_shown(call), words);
    call->hash = hash_of(words);
    encode(call, words);
    if (!compares_count(call->kind))
        words[1] = 0;
    call->agreed = hash_of(words);
}

void shc_call_rewrite(struct shc_call_record_shm *record, const struct shc_call *call)
{
    uint64_t words[CALL_WORDS];
    encode(shc_call_shown(call), words);
    for (int i = 0; i < CALL_WORDS; i++) {
        /* relaxed: for messages only; the seal shows a reader that the words belong together. */
        shc_a64_store_relaxed(&record->words[i], words[i]);
    }
    /* relaxed: only this rank reads it. */
    shc_a64_store_relaxed(&record->words[SHC_CALL_RECORD_HASH], call->hash);
}

void shc_call_text(const struct shc_seat *seat, const struct shc_call *call, uint64_t epoch,
                   char *text, size_t capacity)
{
    char type[48], reduction[32] = "", root[32] = "", number[32] = "", count[32];
    call = shc_call_shown(call);
    const enum shc_op_kind kind = call->kind;
    if (epoch != 0)
        snprintf(number, sizeof number, " #%llu",
                 (unsigned long long)(call->number ? call->number : epoch));
    if (call->dtype == SHC_OPAQUE)
        snprintf(type, sizeof type, "%u-byte elements of type %u", call->elem_bytes,
                 call->dtype_tag);
    else
        snprintf(type, sizeof type, "%s", shc_dtype_name(call->dtype));
    if (kind == SHC_ALL_REDUCE || kind == SHC_REDUCE || kind == SHC_REDUCE_SCATTER ||
        kind == SHC_REDUCE_SCATTER_UNEVEN || kind == SHC_ALL_REDUCE_SPARSE)
        snprintf(reduction, sizeof reduction, ", %s", shc_redop_name(call->redop));
    if (kind == SHC_BROADCAST || kind == SHC_REDUCE || kind == SHC_GATHER || kind == SHC_SCATTER)
        snprintf(root, sizeof root, ", root %d",
                 call->number ? call->root : shc_seat_global_rank(seat, call->root));
    snprintf(count, sizeof count, compares_count(kind) ? "[%llu]" : "[%llu in all]",
             (unsigned long long)call->count);
    if (kind == SHC_BARRIER || kind == SHC_CALL)
        snprintf(text, capacity, "%s%s", shc_op_kind_name(kind), number);
    else
        snprintf(text, capacity, "%s%s (%s%s%s%s)", shc_op_kind_name(kind), number, type,
                 kind == SHC_ALL_TO_ALL ? "" : count, reduction, root);
}

void shc_call_made_text(const struct shc_seat *seat, const struct shc_call *call, uint64_t epoch,
                        char *text, size_t capacity)
{
    char made[160] = "";
    if (call)
        shc_call_text(seat, call, epoch, made, sizeof made);
    snprintf(text, capacity, "%s called %s", shc_seat_rank_name(seat, seat->rank).text, made);
}

/* One call as it is now; 0 if there is none, or if it is being rewritten. */
static uint64_t read_record(const struct shc_call_record_shm *record, struct shc_call *call)
{
    uint64_t words[WORDS_READ];
    /* acquire call/record <- release in shc_call_publish(). */
    uint64_t epoch = shc_a64_load_acquire(&record->epoch);
    for (int i = 0; i < WORDS_READ; i++) {
        /* relaxed: words that do not belong together, or not to this epoch, do not match the seal. */
        words[i] = shc_a64_load_relaxed(&record->words[i]);
    }
    *call = decode(words);
    return words[SHC_CALL_RECORD_SEAL] == hash_of(words) + epoch ? epoch : 0;
}

uint64_t shc_call_latest(const struct shc_seat *seat, int rank, struct shc_call *call)
{
    struct shc_call other;
    uint64_t even = read_record(shc_seat_call_record(seat, rank, 0), call);
    uint64_t odd = read_record(shc_seat_call_record(seat, rank, 1), &other);
    if (odd == 0 || (even != 0 && shc_reached(even, odd)))
        return even;
    *call = other;
    return odd;
}

bool shc_call_latest_text(const struct shc_seat *seat, int rank, char *text, size_t capacity)
{
    struct shc_call call;
    uint64_t epoch = shc_call_latest(seat, rank, &call);
    if (epoch == 0)
        snprintf(text, capacity, "no call");
    else
        shc_call_text(seat, &call, epoch, text, capacity);
    return epoch != 0;
}

void shc_call_last_clause(const struct shc_seat *seat, int rank, char *text, size_t capacity)
{
    char call[128];
    if (shc_call_latest_text(seat, rank, call, sizeof call))
        snprintf(text, capacity, "its last call was %s", call);
    else
        snprintf(text, capacity, "it had made no call yet");
}

const char *shc_call_lent_slot(const struct shc_seat *seat, uint64_t before)
{
    const struct shc_hand_off_slot *slot_of = &seat->hand_off_slot;
    if (seat->world_size != SHC_HAND_OFF_SLOT_RANKS)
        return shc_seat_slot_in(seat, seat->rank, before);
    if (slot_of->epoch == before)
        return shc_seat_hand_off_slot(seat, slot_of->slot);
    return slot_of->giver == seat->rank ? shc_seat_hand_off_slot(seat, 1 - slot_of->slot) : NULL;
}
