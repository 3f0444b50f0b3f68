/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The arguments that the CPU hands to a kernel: plain data, of the same layout for the C compiler, nvcc and the
 * kernels' twins on the CPU. Each kernel takes one of these structs by value; pointers are as the
 * GPU sees them. Below 4096 bytes, which every GPU takes.
 *
 *   shc_gate                    opens or shuts the gate of an operation: one thread block
 *   shc_copy                    bytes from place to place, all ranks' pieces in one launch
 *   shc_reduce_<dtype>_<redop>  reads all ranks' elements in rank order, writes each result once
 *
 * Nothing waits. A kernel that finds its gate shut, or unset, stores nothing.
 */

#include "shm/base/attrs.h"
#include "shm/shmcoll.h"

#define SHC_KERNEL_THREADS 256   /* of every block */
#define SHC_KERNEL_BLOCKS  4     /* what every multiprocessor has room for, Turing's too */
#define SHC_COPY_RUN_BYTES 16384 /* what a block copies at a time */

/* The record of an operation, which a rank's CPU writes before it enqueues anything of it. All but `factor`
 * and `own` must be the same on all ranks. */
#define SHC_RECORD_CALL_WORDS 12
struct shc_cuda_record {
    uint64_t sequence;
    uint64_t call[SHC_RECORD_CALL_WORDS];
    double factor;   /* SHC_PREMUL_SUM: this rank's */
    uint64_t own[2]; /* what ranks may differ in */
};

enum shc_gate_state {
    SHC_GATE_UNSET = 0, /* as shut */
    SHC_GATE_OPEN,
    SHC_GATE_MISMATCH, /* a rank made another call */
    SHC_GATE_ABORTED,  /* the group has failed; or a wait ended without an arrival */
};

/* The first failure as the CPU sees it: 0 while there is none. The rank is that of the cause, see
 * below. */
#define SHC_VERDICT(sequence, rank, state) ((sequence) << 16 | (uint64_t)(rank) << 4 | (state))
#define SHC_VERDICT_SEQUENCE(verdict)      ((verdict) >> 16)
#define SHC_VERDICT_RANK(verdict)          ((int)((verdict) >> 4 & 0xfff))
#define SHC_VERDICT_STATE(verdict)         ((enum shc_gate_state)((verdict)&15))

/*
 * The findings of the gate, in this order, so that ranks that see the same decide alike:
 *
 *   1. a rank has not arrived: its word is below the round, or is poison. ABORTED, and the lowest
 *      such rank. Its record is not looked at: it may still be another operation's.
 *   2. a record has another sequence than `sequence`, or differs from rank 0's in a word of `call`.
 *      MISMATCH, and the lowest such rank; rank 0 only where its sequence is wrong. Where all have
 *      arrived this holds on all ranks alike, also on those that see a failed group as well.
 *   3. `aborted` is not 0. ABORTED, and this rank.
 *   4. OPEN.
 *
 * A gate that is shut stays shut: later work is a failed group's. Else, with records (an
 * operation's first round) the finding is stored. Without, a gate that is open is shut for 1 or
 * 3, and one that was never set is left as it is. A verdict is stored only over 0, and before the
 * gate's stream goes on.
 *
 * A captured operation (docs/internals/cuda/captured.md) has no records: `passed` is there, and `round` is
 * what each other rank's word must be. 0 or poison is 1, another value is 2, and 3 comes before 2:
 * after a failure a peer's stream may be rounds ahead. A gate that finds all well stays open,
 * counts the round, and sets the words back to 0: each is written again after this rank's next
 * arrival. One that is shut leaves them, so that later waits for them end; with 2 it first
 * stores the value, in the word after the verdict.
 */
struct shc_gate_args {
    uint32_t *gate;          /* of this rank, in its GPU's memory: enum shc_gate_state */
    uint64_t *verdict;       /* of this rank, in host memory: stored when the gate is shut first */
    const uint64_t *aborted; /* host memory: not zero once the group has failed */
    const char *arrived;     /* this rank's words: rank r's at arrived + r * arrived_stride, which
                              * like all words here is aligned to 8 */
    uint64_t arrived_stride; /* bytes */
    uint64_t round;          /* what each of them must have reached, poison being too much */
    uint64_t poison;
    const char *records; /* rank r's at records + r * record_stride; NULL: not the first round */
    uint64_t record_stride;
    uint64_t sequence;
    int32_t rank, world;
    uint64_t *passed; /* captured: how many rounds this gate has completed; else NULL */
    uint64_t *busy;   /* captured, an operation's last round: then this value is stored here */
    uint64_t busy_value;
};

struct shc_reduce_args {
    const uint32_t *gate;
    void *out;           /* may be one of the sources; no other overlap */
    uint64_t count;      /* elements; pointers need no alignment, all on 16 bytes is fastest */
    const char *factors; /* SHC_PREMUL_SUM: rank r's double at factors + r * factor_stride */
    uint64_t factor_stride;
    int32_t world;
    const void *source[SHC_MAX_WORLD]; /* by rank */
};

#define SHC_COPY_PIECES 128
/* Pieces do not overlap what another one is copied to; a piece onto itself is fine. Equal distance
 * of both pointers from a multiple of 16 is fastest, nothing is required. */
struct shc_copy_piece {
    void *to;
    const void *from;
    uint64_t bytes;
};
struct shc_copy_args {
    const uint32_t *gate;
    uint32_t count;
    struct shc_copy_piece piece[SHC_COPY_PIECES];
};
