/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * What one compilation of kernel_isa.c exports: constant tables of functions. Only kernel.c and
 * copy.c look at them.
 */

#include "shm/kernel/kernel.h"

struct shc_kernel_set {
    shc_reduce_fn reduce[SHC_DTYPE_COUNT][SHC_REDOP_COUNT]; /* NULL: does not exist */
    void (*exchange)(void *out, void *cell, const void *next, size_t bytes);
    void (*exchange_past)(void *out, void *cell, const void *next, size_t bytes);
    void (*lines)(void *dst, const void *src, size_t bytes);
    void (*stream)(void *dst, const void *src, size_t bytes);
};

/* The last two exist where SHC_HAVE_X86_ISAS says so. */
extern const struct shc_kernel_set shc_kernel_set_base;
extern const struct shc_kernel_set shc_kernel_set_avx2;
extern const struct shc_kernel_set shc_kernel_set_avx512;

/* The set of this process. */
const struct shc_kernel_set *shc_kernel_set_chosen(void);

/* The set of one instruction set; NULL when it is not usable. */
const struct shc_kernel_set *shc_kernel_set_of(enum shc_isa isa);
