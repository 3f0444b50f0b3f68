/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The reductions: one table [dtype][op] per instruction set, one of them chosen per process.
 * Pure functions on memory: no state, no waiting, any thread.
 *
 * Numbers (docs/reference/support.md has the table): every element is combined over the sources in the order
 * given, src[0] first, never across lanes, so the bits depend neither on the instruction set nor on
 * how a message is cut. Narrow floats accumulate in fp32 and are rounded once. No multiply-add is
 * fused. NaN is NaN; its payload and sign are not promised. The calling thread's rounding and
 * denormal modes are neither used nor changed.
 */

#include "shm/base/attrs.h"
#include "shm/shmcoll.h"

struct shc_reduce_args {
    const void *const *src; /* src_count pointers, in rank order */
    void *const *dst;       /* dst_count pointers; all get the same bytes */
    int src_count;          /* >= 1 */
    int dst_count;          /* >= 1 */
    size_t count;           /* elements; 0 does nothing and looks at no pointer */
    const double *factors;  /* PREMUL_SUM: one per source; else NULL */
};

/*
 * Reduces count elements. Pointers need no alignment. A dst may be the very pointer of a src (in
 * place), of any src; other overlaps are not allowed. Work proceeds in blocks of at most
 * SHC_KERNEL_BLOCK_BYTES: a block of every src is read before the block is written to any dst.
 */
typedef void (*shc_reduce_fn)(const struct shc_reduce_args *args);

#define SHC_KERNEL_BLOCK_BYTES 1024

/* The best kernel of this process, or NULL when the combination does not exist. */
shc_reduce_fn shc_kernel_reduce(enum shc_dtype dtype, enum shc_redop redop);

/* ---- for tests and benchmarks: one instruction set by hand ---- */

enum shc_isa {
    SHC_ISA_BASE = 0, /* what the compiler targets by default (x86-64, AArch64, ...) */
    SHC_ISA_AVX2,     /* AVX2 + F16C */
    SHC_ISA_AVX512,   /* AVX-512 F, BW, DQ, VL */
    SHC_ISA_COUNT
};

const char *shc_isa_name(enum shc_isa isa);

/* Was it compiled, does this CPU have it, and does SHMCOLL_CPU allow it? */
bool shc_isa_usable(enum shc_isa isa);

/* The instruction set shc_kernel_reduce uses. */
enum shc_isa shc_isa_chosen(void);

shc_reduce_fn shc_kernel_reduce_isa(enum shc_isa isa, enum shc_dtype dtype, enum shc_redop redop);
