/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The only home of atomics. A plain struct around the integer has the same layout in C, C++ and CUDA, and
 * makes a plain read or write of an atomic a compile error. Every operation has its order in its name. The
 * call site names the edge of docs/internals/protocol/edges.md that it belongs to (tests/lint/orders.py).
 *
 * There are no fences here on purpose, because thread sanitizers do not model them. The one exception is
 * the light half of an asymmetric fence, which is no instruction for the processor.
 *
 * SHC_ATOMIC_MODEL replaces the operations of this file by those of a model checker (tests/models/).
 */

#ifdef SHC_ATOMIC_MODEL
#include SHC_ATOMIC_MODEL
#else

#include "shm/base/attrs.h"
#include <stdbool.h>

typedef struct shc_a32 {
    uint32_t v_;
} shc_a32;

typedef struct shc_a64 {
    uint64_t v_;
} shc_a64;

/* Plain memory that an edge hands over. A model checker that replaces this file sees the accesses
 * and finds the one that no edge covers. */
typedef struct shc_word {
    uint64_t v_;
} shc_word;

SHC_INLINE uint64_t shc_word_get(const shc_word *p)
{
    return p->v_;
}

SHC_INLINE void shc_word_put(shc_word *p, uint64_t v)
{
    p->v_ = v;
}

SHC_INLINE uint32_t shc_a32_load_relaxed(const shc_a32 *p)
{
    return __atomic_load_n(&p->v_, __ATOMIC_RELAXED);
}

SHC_INLINE uint32_t shc_a32_load_acquire(const shc_a32 *p)
{
    return __atomic_load_n(&p->v_, __ATOMIC_ACQUIRE);
}

SHC_INLINE void shc_a32_store_relaxed(shc_a32 *p, uint32_t v)
{
    __atomic_store_n(&p->v_, v, __ATOMIC_RELAXED);
}

SHC_INLINE void shc_a32_store_release(shc_a32 *p, uint32_t v)
{
    __atomic_store_n(&p->v_, v, __ATOMIC_RELEASE);
}

SHC_INLINE uint32_t shc_a32_exchange_acq_rel(shc_a32 *p, uint32_t v)
{
    return __atomic_exchange_n(&p->v_, v, __ATOMIC_ACQ_REL);
}

SHC_INLINE uint32_t shc_a32_add_acq_rel(shc_a32 *p, uint32_t v)
{
    return __atomic_fetch_add(&p->v_, v, __ATOMIC_ACQ_REL);
}

SHC_INLINE uint32_t shc_a32_or_acq_rel(shc_a32 *p, uint32_t v)
{
    return __atomic_fetch_or(&p->v_, v, __ATOMIC_ACQ_REL);
}

SHC_INLINE uint32_t shc_a32_and_acq_rel(shc_a32 *p, uint32_t v)
{
    return __atomic_fetch_and(&p->v_, v, __ATOMIC_ACQ_REL);
}

/* True if *p was `from` and is now `to`. */
SHC_INLINE bool shc_a32_cas_acq_rel(shc_a32 *p, uint32_t from, uint32_t to)
{
    return __atomic_compare_exchange_n(&p->v_, &from, to, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

/* The address of the word itself, for a system call that waits on it or writes it. */
SHC_INLINE uint32_t *shc_a32_address(shc_a32 *p)
{
    return &p->v_;
}

SHC_INLINE uint64_t shc_a64_load_relaxed(const shc_a64 *p)
{
    return __atomic_load_n(&p->v_, __ATOMIC_RELAXED);
}

SHC_INLINE uint64_t shc_a64_load_acquire(const shc_a64 *p)
{
    return __atomic_load_n(&p->v_, __ATOMIC_ACQUIRE);
}

SHC_INLINE void shc_a64_store_relaxed(shc_a64 *p, uint64_t v)
{
    __atomic_store_n(&p->v_, v, __ATOMIC_RELAXED);
}

SHC_INLINE void shc_a64_store_release(shc_a64 *p, uint64_t v)
{
    __atomic_store_n(&p->v_, v, __ATOMIC_RELEASE);
}

SHC_INLINE bool shc_a64_cas_acq_rel(shc_a64 *p, uint64_t from, uint64_t to)
{
    return __atomic_compare_exchange_n(&p->v_, &from, to, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

SHC_INLINE uint64_t shc_a64_add_acq_rel(shc_a64 *p, uint64_t v)
{
    return __atomic_fetch_add(&p->v_, v, __ATOMIC_ACQ_REL);
}

/* Keeps the compiler from moving accesses across it. One thread has this fence between its store and its
 * load, the other has shc_os_fence_heavy() there: then at least one of them sees the other's store. */
SHC_INLINE void shc_fence_light(void)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

#endif
