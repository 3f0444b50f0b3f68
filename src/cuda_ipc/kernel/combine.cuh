/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How each dtype and operation combines its elements: the arithmetic is the core's own
 * (shm/kernel/ops.h), so that a GPU's bits are a CPU's. A part of bodies.cuh.
 */
#pragma once

#include "cuda_ipc/kernel/list.h"
#include "shm/kernel/ops.h"

namespace shmcoll::kernel
{

template <bool kFirst, class First, class Second>
struct If {
    using Type = First;
};
template <class First, class Second>
struct If<false, First, Second> {
    using Type = Second;
};

/* ---- the operations on integers ---- */

#define NAME(x) u8_##x
#define ACC     uint8_t
#include "shm/kernel/ops_int_tmpl.h"
#undef NAME
#undef ACC

#define NAME(x) u16_##x
#define ACC     uint16_t
#include "shm/kernel/ops_int_tmpl.h"
#undef NAME
#undef ACC

#define NAME(x) u32_##x
#define ACC     uint32_t
#include "shm/kernel/ops_int_tmpl.h"
#undef NAME
#undef ACC

#define NAME(x) u64_##x
#define ACC     uint64_t
#include "shm/kernel/ops_int_tmpl.h"
#undef NAME
#undef ACC

/* Signed values have only their order to themselves. */
#define NAME(x) i8_##x
#define ACC     int8_t
#include "shm/kernel/ops_int_tmpl.h"
#undef NAME
#undef ACC

#define NAME(x) i16_##x
#define ACC     int16_t
#include "shm/kernel/ops_int_tmpl.h"
#undef NAME
#undef ACC

#define NAME(x) i32_##x
#define ACC     int32_t
#include "shm/kernel/ops_int_tmpl.h"
#undef NAME
#undef ACC

#define NAME(x) i64_##x
#define ACC     int64_t
#include "shm/kernel/ops_int_tmpl.h"
#undef NAME
#undef ACC

/* ---- between memory and accumulator ---- */

template <class To, class From>
SHC_INLINE To convert(From x)
{
    return static_cast<To>(x);
}

SHC_INLINE uint8_t truth(uint8_t byte)
{
    return byte != 0;
}

template <class T>
SHC_INLINE T keep(T x, double)
{
    return x;
}

#define NARROW(name, mem, up, down)     \
    SHC_INLINE float name##_up(mem x)   \
    {                                   \
        return up;                      \
    }                                   \
    SHC_INLINE mem name##_down(float x) \
    {                                   \
        return static_cast<mem>(down);  \
    }

NARROW(bfloat16, uint16_t, shc_bf16_up(x), shc_bf16_down(x))
NARROW(float16, uint16_t, shc_narrow_up(x, SHC_FP16), shc_narrow_down(x, SHC_FP16))
NARROW(float8_e4m3fn, uint8_t, shc_narrow_up(x, SHC_E4M3FN), shc_narrow_down(x, SHC_E4M3FN))
NARROW(float8_e5m2, uint8_t, shc_narrow_up(x, SHC_E5M2), shc_narrow_down(x, SHC_E5M2))
NARROW(float8_e4m3fnuz, uint8_t, shc_narrow_up(x, SHC_E4M3FNUZ), shc_narrow_down(x, SHC_E4M3FNUZ))
NARROW(float8_e5m2fnuz, uint8_t, shc_narrow_up(x, SHC_E5M2FNUZ), shc_narrow_down(x, SHC_E5M2FNUZ))
#undef NARROW

/* ---- how: `pre` for every source with its factor, `op` for the next source, `post` for the result
 * with the count of sources ---- */

template <class M, class A, A (*up)(M), M (*down)(A), A (*op)(A, A), A (*pre)(A, double) = keep<A>,
          A (*post)(A, double) = keep<A>, int parts = 1>
struct How {
    using Mem = M;
    using Acc = A;
    static constexpr bool kScaled = pre != static_cast<A (*)(A, double)>(keep<A>);
    static constexpr int kParts = parts; /* Mems per element */

    SHC_DEVICE static A take(M x, double factor) { return pre(up(x), factor); }
    SHC_DEVICE static A join(A a, A b) { return op(a, b); }
    SHC_DEVICE static M give(A x, int count) { return down(post(x, count)); }
};

template <class T, T (*op)(T, T), T (*pre)(T, double) = keep<T>, T (*post)(T, double) = keep<T>,
          int parts = 1>
using Plain = How<T, T, convert<T, T>, convert<T, T>, op, pre, post, parts>;

#define INTEGER(name, wraps, wraps_as, ordered, ordered_as, divide)             \
    using name##_sum = Plain<wraps_as, wraps##_sum>;                            \
    using name##_product = Plain<wraps_as, wraps##_product>;                    \
    using name##_band = Plain<wraps_as, wraps##_band>;                          \
    using name##_bor = Plain<wraps_as, wraps##_bor>;                            \
    using name##_bxor = Plain<wraps_as, wraps##_bxor>;                          \
    using name##_min = Plain<ordered_as, ordered##_min>;                        \
    using name##_max = Plain<ordered_as, ordered##_max>;                        \
    using name##_avg = How<ordered_as, uint64_t, convert<uint64_t, ordered_as>, \
                           convert<ordered_as, uint64_t>, shc_wide_sum, keep<uint64_t>, divide>;

INTEGER(int8, u8, uint8_t, i8, int8_t, shc_wide_divide_signed)
INTEGER(int16, u16, uint16_t, i16, int16_t, shc_wide_divide_signed)
INTEGER(int32, u32, uint32_t, i32, int32_t, shc_wide_divide_signed)
INTEGER(int64, u64, uint64_t, i64, int64_t, shc_wide_divide_signed)
INTEGER(uint8, u8, uint8_t, u8, uint8_t, shc_wide_divide)
INTEGER(uint16, u16, uint16_t, u16, uint16_t, shc_wide_divide)
INTEGER(uint32, u32, uint32_t, u32, uint32_t, shc_wide_divide)
INTEGER(uint64, u64, uint64_t, u64, uint64_t, shc_wide_divide)
#undef INTEGER

template <uint8_t (*op)(uint8_t, uint8_t)>
using Bool = How<uint8_t, uint8_t, truth, convert<uint8_t, uint8_t>, op>;

using bool_sum = Bool<shc_bool_or>;
using bool_product = Bool<shc_bool_and>;
using bool_min = Bool<shc_bool_and>;
using bool_max = Bool<shc_bool_or>;
using bool_band = Bool<shc_bool_and>;
using bool_bor = Bool<shc_bool_or>;
using bool_bxor = Bool<shc_bool_xor>;

#define NARROW(name, mem, type, code)                                               \
    template <float (*op)(float, float), float (*pre)(float, double) = keep<float>, \
              float (*post)(float, double) = keep<float>>                           \
    using name##_how = How<mem, float, name##_up, name##_down, op, pre, post>;      \
    using name##_sum = name##_how<shc_f32_sum>;                                     \
    using name##_avg = name##_how<shc_f32_sum, keep<float>, shc_f32_divide>;        \
    using name##_product = name##_how<shc_f32_product>;                             \
    using name##_min = Plain<code, shc_##type##_min>;                               \
    using name##_max = Plain<code, shc_##type##_max>;                               \
    using name##_premul_sum = name##_how<shc_f32_sum, shc_f32_scale>;

NARROW(float16, uint16_t, fp16, int16_t)
NARROW(bfloat16, uint16_t, bf16, int16_t)
NARROW(float8_e4m3fn, uint8_t, e4m3fn, int8_t)
NARROW(float8_e5m2, uint8_t, e5m2, int8_t)
NARROW(float8_e4m3fnuz, uint8_t, e4m3fnuz, int8_t)
NARROW(float8_e5m2fnuz, uint8_t, e5m2fnuz, int8_t)
#undef NARROW

/* A sum of complex numbers is one of twice as many parts. */
#define FLOAT(name, type, acc, complex)                                                    \
    using name##_sum = Plain<type, shc_##acc##_sum>;                                       \
    using name##_avg = Plain<type, shc_##acc##_sum, keep<type>, shc_##acc##_divide>;       \
    using name##_product = Plain<type, shc_##acc##_product>;                               \
    using name##_min = Plain<type, shc_##acc##_min>;                                       \
    using name##_max = Plain<type, shc_##acc##_max>;                                       \
    using name##_premul_sum = Plain<type, shc_##acc##_sum, shc_##acc##_scale>;             \
    using complex##_sum = Plain<type, shc_##acc##_sum, keep<type>, keep<type>, 2>;         \
    using complex##_avg = Plain<type, shc_##acc##_sum, keep<type>, shc_##acc##_divide, 2>; \
    using complex##_premul_sum = Plain<type, shc_##acc##_sum, shc_##acc##_scale, keep<type>, 2>;

FLOAT(float32, float, f32, complex64)
FLOAT(float64, double, f64, complex128)
#undef FLOAT

using complex64_product = Plain<struct shc_c64, shc_c64_product>;
using complex128_product = Plain<struct shc_c128, shc_c128_product>;

} // namespace shmcoll::kernel
