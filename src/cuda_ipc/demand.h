/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A call, prepared: the caller's descriptor, checked as far as one rank can, as flat memory, as
 * rounds (a message has none), and as the record that ranks compare. No I/O; nothing of the GPU.
 */

#include "cuda_ipc/hostarena.h"
#include "cuda_ipc/rounds.h"

/* Contiguous tensors taken as one vector. Reading it keeps the place. */
struct shc_flat {
    const struct shc_tensor *list;
    uint32_t count;
    uint32_t elem_bytes;
    uint64_t bytes;
    uint32_t at;     /* the tensor of the last look ... */
    uint64_t before; /* ... and the bytes before it */
};

struct shc_demand {
    enum shc_dtype dtype;
    enum shc_redop redop;
    uint32_t elem_bytes;
    double premul;
    uint64_t timeout_ns; /* 0: the group's */
    struct shc_flat in, out;
    /* Refers to what is below. The half, `largest` and `fullest` are set later. */
    struct shc_rounds rounds;
    uint64_t blocks[SHC_MAX_WORLD];
    uint64_t sends[SHC_MAX_WORLD], receives[SHC_MAX_WORLD];
    uint64_t call[SHC_RECORD_CALL_WORDS];
    bool may_relay; /* set later, as the call's word of it */
};

/* The word of a call that says whether the operation may be relayed: ranks that disagree about that call
 * different things. */
#define SHC_CALL_MAY_RELAY (SHC_RECORD_CALL_WORDS - 1)

/* SHC_ERR_INVALID, SHC_ERR_UNSUPPORTED: as the core says it of the same descriptor. The tensors'
 * arrays must outlive the demand. */
SHC_NODISCARD enum shc_status shc_demand_make(const struct shc_op *op, int rank, int world,
                                              struct shc_demand *demand);

/* The address of byte `offset` of the vector; *run: so many bytes lie there in a row, at least one.
 * pre: offset < flat->bytes. */
char *shc_flat_at(struct shc_flat *flat, uint64_t offset, uint64_t *run);

/* What the words say of dtype, reduction, root and tag; *count: of elements. They may be anything. The
 * record of a message is that of a send on both sides. */
void shc_call_words_op(const uint64_t call[SHC_RECORD_CALL_WORDS], struct shc_op *op,
                       uint64_t *count);

/* The same of a message, as one of its ends sees it: "recv #5 from rank 1 (float32[8], tag 0)". */
#define SHC_MESSAGE_TEXT_BYTES 288 /* with the longest name of a rank */
void shc_message_words_text(const uint64_t call[SHC_RECORD_CALL_WORDS], bool sends,
                            const char *peer, uint64_t number, char *text, size_t capacity);

/* "all_reduce #5 (float32[8], sum)", from the words of a record. They may be anything. */
void shc_call_words_text(const uint64_t call[SHC_RECORD_CALL_WORDS], uint64_t sequence, char *text,
                         size_t capacity);
