// SPDX-License-Identifier: BSD-3-Clause
#pragma once
//
// The operations of shm/base/atomic.h as relacy's: a load returns any value that its order allows,
// and a shc_word that no edge covers is a data race. This file is the SHC_ATOMIC_MODEL of the
// weak_*.cc models, which compile the real headers of src/shm with it. Here both halves of an asymmetric
// fence are full fences: between a thread with the light half and one with the heavy half the effect is that.
//
// Every access asks the model for its order, so that a fault can weaken one edge. The program is
// compiled once for all faults, because that takes longer than all its runs: its argument says which
// fault this run has.

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <relacy/relacy.hpp> // after the standard's headers: it redefines malloc and new

#include "shm/base/attrs.h"

inline const char *fault_of_run = "";

// Whether this run has the fault; looked up once for each place.
#define WITH(fault)                                                    \
    ([] {                                                              \
        static const bool is = std::strcmp(fault_of_run, #fault) == 0; \
        return is;                                                     \
    }())

struct shc_a32 {
    rl::atomic<uint32_t> v_;
};

struct shc_a64 {
    rl::atomic<uint64_t> v_;
};

struct shc_word {
    rl::var<uint64_t> v_;
};

using ModelOrder = decltype(rl::mo_relaxed);

// Defined by the model: the order of an access to this word. `stores`: what it stores; a load stores 0.
ModelOrder model_order(const void *word, ModelOrder order, uint64_t stores);

SHC_INLINE uint64_t shc_word_get(const shc_word *p)
{
    return p->v_($).load();
}

SHC_INLINE void shc_word_put(shc_word *p, uint64_t v)
{
    p->v_($).store(v);
}

SHC_INLINE uint32_t shc_a32_load_relaxed(const shc_a32 *p)
{
    return p->v_.load(rl::mo_relaxed, $);
}

SHC_INLINE uint32_t shc_a32_load_acquire(const shc_a32 *p)
{
    return p->v_.load(model_order(p, rl::mo_acquire, 0), $);
}

SHC_INLINE void shc_a32_store_relaxed(shc_a32 *p, uint32_t v)
{
    p->v_.store(v, rl::mo_relaxed, $);
}

SHC_INLINE void shc_a32_store_release(shc_a32 *p, uint32_t v)
{
    p->v_.store(v, model_order(p, rl::mo_release, v), $);
}

SHC_INLINE uint32_t shc_a32_exchange_acq_rel(shc_a32 *p, uint32_t v)
{
    return p->v_.exchange(v, model_order(p, rl::mo_acq_rel, v), $);
}

SHC_INLINE uint32_t shc_a32_add_acq_rel(shc_a32 *p, uint32_t v)
{
    return p->v_.fetch_add(v, model_order(p, rl::mo_acq_rel, v), $);
}

SHC_INLINE uint32_t shc_a32_or_acq_rel(shc_a32 *p, uint32_t v)
{
    return p->v_.fetch_or(v, model_order(p, rl::mo_acq_rel, v), $);
}

SHC_INLINE uint32_t shc_a32_and_acq_rel(shc_a32 *p, uint32_t v)
{
    return p->v_.fetch_and(v, model_order(p, rl::mo_acq_rel, v), $);
}

SHC_INLINE bool shc_a32_cas_acq_rel(shc_a32 *p, uint32_t from, uint32_t to)
{
    return p->v_.compare_exchange_strong(from, to, model_order(p, rl::mo_acq_rel, to), $);
}

SHC_INLINE uint64_t shc_a64_load_relaxed(const shc_a64 *p)
{
    return p->v_.load(rl::mo_relaxed, $);
}

SHC_INLINE uint64_t shc_a64_load_acquire(const shc_a64 *p)
{
    return p->v_.load(model_order(p, rl::mo_acquire, 0), $);
}

SHC_INLINE void shc_a64_store_relaxed(shc_a64 *p, uint64_t v)
{
    p->v_.store(v, rl::mo_relaxed, $);
}

SHC_INLINE void shc_a64_store_release(shc_a64 *p, uint64_t v)
{
    p->v_.store(v, model_order(p, rl::mo_release, v), $);
}

// Defined by the model, if it has fences: whether there is one.
bool model_fence(bool heavy);

SHC_INLINE void shc_fence_light()
{
    if (model_fence(false))
        rl::atomic_thread_fence(rl::mo_seq_cst, $);
}

// Runs the model and prints the outcome for run.py. Arguments: a fault or "", and which part of the
// executions is made (4: a quarter).
template <class Model>
int model_main(int argc, char **argv, unsigned executions)
{
    fault_of_run = argc > 1 ? argv[1] : "";
    rl::test_params params;
    params.iteration_count = executions / (argc > 2 ? (unsigned)std::atoi(argv[2]) : 1);
    params.execution_depth_limit = 4000;
    bool holds = rl::simulate<Model>(params);
    if (holds)
        std::cout << "HOLDS " << params.stop_iteration << std::endl;
    else
        std::cout << "FOUND " << rl::test_result_str(params.test_result) << std::endl;
    return holds ? 0 : 1;
}
