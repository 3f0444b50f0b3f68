/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/kernel/kernel.h"

#include "shm/base/atomic.h"
#include "shm/base/config.h"
#include "shm/kernel/cpu.h"
#include "shm/kernel/kernel_isa.h"

static const char *const isa_names[SHC_ISA_COUNT] = {
    [SHC_ISA_BASE] = "base",
    [SHC_ISA_AVX2] = "avx2",
    [SHC_ISA_AVX512] = "avx512",
};

/* What was compiled, slowest first. */
static const struct shc_kernel_set *const sets[SHC_ISA_COUNT] = {
    [SHC_ISA_BASE] = &shc_kernel_set_base,
#ifdef SHC_HAVE_X86_ISAS
    [SHC_ISA_AVX2] = &shc_kernel_set_avx2,
    [SHC_ISA_AVX512] = &shc_kernel_set_avx512,
#endif
};

/* What the process may use: a bit per enum shc_isa. The baseline is always there, so 0 means that
 * no thread has asked yet. Every thread that finds 0 computes the same value. */
static shc_a32 usable;

static unsigned usable_isas(void)
{
    /* relaxed: the word is all the data; nothing is published with it. */
    unsigned isas = shc_a32_load_relaxed(&usable);
    if (SHC_LIKELY(isas != 0))
        return isas;
    isas = shc_cpu_allow(shc_cpu_isas(), shc_config_get()->cpu);
    for (int isa = 0; isa < SHC_ISA_COUNT; isa++)
        if (!sets[isa])
            isas &= ~(1u << isa);
    /* relaxed: the word is all the data; nothing is published with it. */
    shc_a32_store_relaxed(&usable, isas);
    return isas;
}

static shc_reduce_fn reduce_of(const struct shc_kernel_set *set, enum shc_dtype dtype,
                               enum shc_redop redop)
{
    if (!set || (unsigned)dtype >= SHC_DTYPE_COUNT || (unsigned)redop >= SHC_REDOP_COUNT)
        return NULL;
    return set->reduce[dtype][redop];
}

const struct shc_kernel_set *shc_kernel_set_chosen(void)
{
    return sets[shc_isa_chosen()];
}

const struct shc_kernel_set *shc_kernel_set_of(enum shc_isa isa)
{
    return shc_isa_usable(isa) ? sets[isa] : NULL;
}

const char *shc_isa_name(enum shc_isa isa)
{
    return (unsigned)isa < SHC_ISA_COUNT ? isa_names[isa] : "unknown";
}

bool shc_isa_usable(enum shc_isa isa)
{
    return (unsigned)isa < SHC_ISA_COUNT && (usable_isas() & 1u << isa) != 0;
}

enum shc_isa shc_isa_chosen(void)
{
    return (enum shc_isa)(31 - __builtin_clz(usable_isas()));
}

shc_reduce_fn shc_kernel_reduce(enum shc_dtype dtype, enum shc_redop redop)
{
    return reduce_of(shc_kernel_set_chosen(), dtype, redop);
}

shc_reduce_fn shc_kernel_reduce_isa(enum shc_isa isa, enum shc_dtype dtype, enum shc_redop redop)
{
    return reduce_of(shc_kernel_set_of(isa), dtype, redop);
}

bool shc_reduction_supported(enum shc_dtype dtype, enum shc_redop redop)
{
    return reduce_of(&shc_kernel_set_base, dtype, redop) != NULL;
}
