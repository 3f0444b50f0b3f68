/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Which kernels there are: one list for the CPU that looks them up, for nvcc, and for the twins.
 * The names in it are those of shc_dtype_name() and shc_redop_name(), all of which are identifiers;
 * the dtype's has the underscore after it here, because C has a macro with the name bool.
 *
 * ONE(dtype, dtype's name, redop, redop's name) for all that shc_reduction_supported() says.
 */

#include "shm/shmcoll.h"

/* clang-format off */
#define SHC_LIST_ORDERED(ONE, dtype, name)  \
    ONE(dtype, name, SHC_MIN, min)          \
    ONE(dtype, name, SHC_MAX, max)

#define SHC_LIST_BITS(ONE, dtype, name)     \
    ONE(dtype, name, SHC_BAND, band)        \
    ONE(dtype, name, SHC_BOR, bor)          \
    ONE(dtype, name, SHC_BXOR, bxor)

#define SHC_LIST_BOOL(ONE, dtype, name)     \
    ONE(dtype, name, SHC_SUM, sum)          \
    ONE(dtype, name, SHC_PRODUCT, product)  \
    SHC_LIST_ORDERED(ONE, dtype, name)      \
    SHC_LIST_BITS(ONE, dtype, name)

#define SHC_LIST_INT(ONE, dtype, name)      \
    SHC_LIST_BOOL(ONE, dtype, name)         \
    ONE(dtype, name, SHC_AVG, avg)

#define SHC_LIST_COMPLEX(ONE, dtype, name)  \
    ONE(dtype, name, SHC_SUM, sum)          \
    ONE(dtype, name, SHC_PRODUCT, product)  \
    ONE(dtype, name, SHC_AVG, avg)          \
    ONE(dtype, name, SHC_PREMUL_SUM, premul_sum)

#define SHC_LIST_FLOAT(ONE, dtype, name)    \
    SHC_LIST_COMPLEX(ONE, dtype, name)      \
    SHC_LIST_ORDERED(ONE, dtype, name)

#define SHC_KERNEL_REDUCTIONS(ONE)                                 \
    SHC_LIST_INT(ONE, SHC_INT8, int8_)                              \
    SHC_LIST_INT(ONE, SHC_INT16, int16_)                            \
    SHC_LIST_INT(ONE, SHC_INT32, int32_)                            \
    SHC_LIST_INT(ONE, SHC_INT64, int64_)                            \
    SHC_LIST_INT(ONE, SHC_UINT8, uint8_)                            \
    SHC_LIST_INT(ONE, SHC_UINT16, uint16_)                          \
    SHC_LIST_INT(ONE, SHC_UINT32, uint32_)                          \
    SHC_LIST_INT(ONE, SHC_UINT64, uint64_)                          \
    SHC_LIST_BOOL(ONE, SHC_BOOL, bool_)                             \
    SHC_LIST_FLOAT(ONE, SHC_FLOAT16, float16_)                      \
    SHC_LIST_FLOAT(ONE, SHC_BFLOAT16, bfloat16_)                    \
    SHC_LIST_FLOAT(ONE, SHC_FLOAT8_E4M3FN, float8_e4m3fn_)          \
    SHC_LIST_FLOAT(ONE, SHC_FLOAT8_E5M2, float8_e5m2_)              \
    SHC_LIST_FLOAT(ONE, SHC_FLOAT8_E4M3FNUZ, float8_e4m3fnuz_)      \
    SHC_LIST_FLOAT(ONE, SHC_FLOAT8_E5M2FNUZ, float8_e5m2fnuz_)      \
    SHC_LIST_FLOAT(ONE, SHC_FLOAT32, float32_)                      \
    SHC_LIST_FLOAT(ONE, SHC_FLOAT64, float64_)                      \
    SHC_LIST_COMPLEX(ONE, SHC_COMPLEX64, complex64_)                \
    SHC_LIST_COMPLEX(ONE, SHC_COMPLEX128, complex128_)
/* clang-format on */
