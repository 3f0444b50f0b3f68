// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/ref.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

namespace ref
{
namespace
{

using i128 = __int128;
#ifdef __SIZEOF_FLOAT128__
using quad = __float128;
#else
using quad = long double;
#endif
static_assert(sizeof(quad) == 16, "no type is wide enough to round a double once");

template <class T>
T element(const uint8_t *base, size_t index)
{
    T v;
    memcpy(&v, base + index * sizeof v, sizeof v);
    return v;
}

template <class T>
void put(uint8_t *out, T v)
{
    memcpy(out, &v, sizeof v);
}

using Sources = std::vector<const uint8_t *>;

// ---- integers: everything in 128 bits, cut to the type after every step ----

template <class T>
T int_step(shc_redop redop, T a, T b)
{
    switch (redop) {
    case SHC_SUM:
        return static_cast<T>(i128(a) + i128(b));
    case SHC_PRODUCT: // 64 by 64 bits, so only unsigned 128 hold it for certain
        return static_cast<T>(static_cast<unsigned __int128>(a) *
                              static_cast<unsigned __int128>(b));
    case SHC_MIN:
        return i128(a) < i128(b) ? a : b;
    case SHC_MAX:
        return i128(a) < i128(b) ? b : a;
    case SHC_BAND:
        return static_cast<T>(a & b);
    case SHC_BOR:
        return static_cast<T>(a | b);
    case SHC_BXOR:
        return static_cast<T>(a ^ b);
    default:
        abort();
    }
}

template <class T>
void int_reduce(shc_redop redop, const Sources &sources, size_t index, uint8_t *out)
{
    using Wide = std::conditional_t<std::is_signed<T>::value, int64_t, uint64_t>;
    if (redop == SHC_AVG) {
        i128 sum = 0;
        for (const uint8_t *source : sources)
            sum = static_cast<Wide>(sum + i128(element<T>(source, index)));
        put(out, static_cast<T>(sum / i128(sources.size())));
        return;
    }
    T result = element<T>(sources[0], index);
    for (size_t s = 1; s < sources.size(); s++)
        result = int_step<T>(redop, result, element<T>(sources[s], index));
    put(out, result);
}

// ---- bool: counts ----

void bool_reduce(shc_redop redop, const Sources &sources, size_t index, uint8_t *out)
{
    size_t set = 0;
    for (const uint8_t *source : sources)
        set += source[index] ? 1 : 0;
    switch (redop) {
    case SHC_SUM:
    case SHC_MAX:
    case SHC_BOR:
        out[0] = set > 0;
        return;
    case SHC_PRODUCT:
    case SHC_MIN:
    case SHC_BAND:
        out[0] = set == sources.size();
        return;
    case SHC_BXOR:
        out[0] = set % 2;
        return;
    default:
        abort();
    }
}

// ---- floats: T is what a step is rounded to, W is wide enough to round only once ----

template <class T>
struct Wider;
template <>
struct Wider<float> {
    using type = double;
};
template <>
struct Wider<double> {
    using type = quad;
};

template <class T>
T extreme(T a, T b, bool largest)
{
    if (std::isnan(a) || std::isnan(b))
        return std::numeric_limits<T>::quiet_NaN();
    if (a == b)
        return std::signbit(a) == largest ? b : a;
    return (a < b) == largest ? b : a;
}

template <class T>
T float_step(shc_redop redop, T a, T b)
{
    using W = typename Wider<T>::type;
    switch (redop) {
    case SHC_SUM:
    case SHC_AVG:
    case SHC_PREMUL_SUM:
        return static_cast<T>(W(a) + W(b));
    case SHC_PRODUCT:
        return static_cast<T>(W(a) * W(b));
    case SHC_MIN:
        return extreme(a, b, false);
    case SHC_MAX:
        return extreme(a, b, true);
    default:
        abort();
    }
}

// `load` gives source s as a T.
template <class T, class Load>
T float_reduce(shc_redop redop, size_t count, const double *factors, Load load)
{
    using W = typename Wider<T>::type;
    T result = 0;
    for (size_t s = 0; s < count; s++) {
        T x = load(s);
        if (redop == SHC_PREMUL_SUM)
            x = static_cast<T>(W(static_cast<T>(factors[s])) * W(x));
        result = s == 0 ? x : float_step<T>(redop, result, x);
    }
    if (redop == SHC_AVG)
        result = static_cast<T>(W(result) / W(static_cast<T>(count)));
    return result;
}

template <class T>
void complex_reduce(shc_redop redop, const Sources &sources, size_t index, const double *factors,
                    uint8_t *out)
{
    const auto part = [&](size_t s, int p) { return element<T>(sources[s], 2 * index + p); };
    if (redop != SHC_PRODUCT) {
        for (int p = 0; p < 2; p++)
            put(out + p * sizeof(T), float_reduce<T>(redop, sources.size(), factors,
                                                     [&](size_t s) { return part(s, p); }));
        return;
    }
    const auto times = [](T a, T b) { return float_step<T>(SHC_PRODUCT, a, b); };
    const auto plus = [](T a, T b) { return float_step<T>(SHC_SUM, a, b); };
    T re = part(0, 0), im = part(0, 1);
    for (size_t s = 1; s < sources.size(); s++) {
        const T c = part(s, 0), d = part(s, 1);
        const T new_re = plus(times(re, c), -times(im, d));
        im = plus(times(re, d), times(im, c));
        re = new_re;
    }
    put(out, re);
    put(out + sizeof(T), im);
}

uint32_t narrow_element(const Narrow &format, const uint8_t *base, size_t index)
{
    return format.bits == 8 ? element<uint8_t>(base, index) : element<uint16_t>(base, index);
}

void narrow_reduce(const Narrow &format, shc_redop redop, const Sources &sources, size_t index,
                   const double *factors, uint8_t *out)
{
    const float result = float_reduce<float>(redop, sources.size(), factors, [&](size_t s) {
        return static_cast<float>(format.value(narrow_element(format, sources[s], index)));
    });
    const uint32_t code = format.code(result);
    if (format.bits == 8)
        put(out, static_cast<uint8_t>(code));
    else
        put(out, static_cast<uint16_t>(code));
}

template <class T>
bool same_float(const uint8_t *a, const uint8_t *b)
{
    return memcmp(a, b, sizeof(T)) == 0 ||
           (std::isnan(element<T>(a, 0)) && std::isnan(element<T>(b, 0)));
}

} // namespace

// ---- narrow floats ----

bool is_narrow(shc_dtype dtype)
{
    return dtype >= SHC_FLOAT16 && dtype <= SHC_FLOAT8_E5M2FNUZ;
}

Narrow narrow(shc_dtype dtype)
{
    switch (dtype) {
    case SHC_FLOAT16:
        return {Narrow::IEEE, 16, 10, 15};
    case SHC_BFLOAT16:
        return {Narrow::IEEE, 16, 7, 127};
    case SHC_FLOAT8_E4M3FN:
        return {Narrow::FN, 8, 3, 7};
    case SHC_FLOAT8_E5M2:
        return {Narrow::IEEE, 8, 2, 15};
    case SHC_FLOAT8_E4M3FNUZ:
        return {Narrow::FNUZ, 8, 3, 8};
    case SHC_FLOAT8_E5M2FNUZ:
        return {Narrow::FNUZ, 8, 2, 16};
    default:
        abort();
    }
}

// The code of +inf of an IEEE format; elsewhere, of the first code that is no finite number.
static uint32_t first_not_finite(const Narrow &f)
{
    switch (f.kind) {
    case Narrow::IEEE:
        return f.sign() - (1u << f.man_bits);
    case Narrow::FN:
        return f.sign() - 1;
    default:
        return f.sign();
    }
}

bool Narrow::is_nan(uint32_t code) const
{
    switch (kind) {
    case IEEE:
        return (code & (sign() - 1)) > first_not_finite(*this);
    case FN:
        return (code & (sign() - 1)) == first_not_finite(*this);
    default:
        return code == sign();
    }
}

double Narrow::value(uint32_t code) const
{
    if (is_nan(code))
        return std::numeric_limits<double>::quiet_NaN();
    const double unit = code & sign() ? -1.0 : 1.0;
    const uint32_t size = code & (sign() - 1);
    if (kind == IEEE && size == first_not_finite(*this))
        return unit * std::numeric_limits<double>::infinity();
    const int exponent = static_cast<int>(size >> man_bits);
    const double fraction = size & ((1u << man_bits) - 1);
    if (exponent == 0)
        return unit * std::ldexp(fraction, 1 - bias - man_bits);
    return unit * std::ldexp(fraction + std::ldexp(1.0, man_bits), exponent - bias - man_bits);
}

uint32_t Narrow::code(double v) const
{
    const uint32_t limit = first_not_finite(*this);
    if (std::isnan(v))
        return kind == FNUZ ? sign() : sign() - 1;
    const uint32_t negative = std::signbit(v) ? sign() : 0;
    const double size = std::fabs(v);
    uint64_t code = limit; // of inf, where `v` is too large to have another
    if (size < std::ldexp(1.0, 200)) {
        const int exponent = std::max(size > 0 ? std::ilogb(size) : 1 - bias, 1 - bias);
        const double units = std::nearbyint(std::ldexp(size, man_bits - exponent));
        code =
            static_cast<uint64_t>(units) + (static_cast<uint64_t>(exponent + bias - 1) << man_bits);
    }
    if (code < limit)
        return kind == FNUZ && code == 0 ? 0 : negative | static_cast<uint32_t>(code);
    switch (kind) {
    case IEEE:
        return negative | limit;
    case FN:
        return negative | (limit - 1);
    default:
        return sign();
    }
}

// ---- by dtype ----

void reduce(shc_dtype dtype, shc_redop redop, const Sources &sources, size_t index,
            const double *factors, uint8_t *out)
{
    switch (dtype) {
    case SHC_INT8:
        return int_reduce<int8_t>(redop, sources, index, out);
    case SHC_INT16:
        return int_reduce<int16_t>(redop, sources, index, out);
    case SHC_INT32:
        return int_reduce<int32_t>(redop, sources, index, out);
    case SHC_INT64:
        return int_reduce<int64_t>(redop, sources, index, out);
    case SHC_UINT8:
        return int_reduce<uint8_t>(redop, sources, index, out);
    case SHC_UINT16:
        return int_reduce<uint16_t>(redop, sources, index, out);
    case SHC_UINT32:
        return int_reduce<uint32_t>(redop, sources, index, out);
    case SHC_UINT64:
        return int_reduce<uint64_t>(redop, sources, index, out);
    case SHC_BOOL:
        return bool_reduce(redop, sources, index, out);
    case SHC_FLOAT32:
        return put(out, float_reduce<float>(redop, sources.size(), factors, [&](size_t s) {
                       return element<float>(sources[s], index);
                   }));
    case SHC_FLOAT64:
        return put(out, float_reduce<double>(redop, sources.size(), factors, [&](size_t s) {
                       return element<double>(sources[s], index);
                   }));
    case SHC_COMPLEX64:
        return complex_reduce<float>(redop, sources, index, factors, out);
    case SHC_COMPLEX128:
        return complex_reduce<double>(redop, sources, index, factors, out);
    default:
        return narrow_reduce(narrow(dtype), redop, sources, index, factors, out);
    }
}

bool same(shc_dtype dtype, const uint8_t *a, const uint8_t *b)
{
    switch (dtype) {
    case SHC_FLOAT32:
        return same_float<float>(a, b);
    case SHC_FLOAT64:
        return same_float<double>(a, b);
    case SHC_COMPLEX64:
        return same_float<float>(a, b) && same_float<float>(a + 4, b + 4);
    case SHC_COMPLEX128:
        return same_float<double>(a, b) && same_float<double>(a + 8, b + 8);
    default:
        break;
    }
    if (memcmp(a, b, shc_dtype_bytes(dtype)) == 0)
        return true;
    if (!is_narrow(dtype))
        return false;
    const Narrow format = narrow(dtype);
    return format.is_nan(narrow_element(format, a, 0)) &&
           format.is_nan(narrow_element(format, b, 0));
}

} // namespace ref
