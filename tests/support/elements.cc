// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/elements.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

namespace elements
{

static std::mt19937_64 &rng()
{
    static std::mt19937_64 engine(20240229);
    return engine;
}

void seed(uint64_t number)
{
    rng().seed(number);
}

size_t below(size_t n)
{
    return rng()() % n;
}

std::vector<Combination> combinations()
{
    std::vector<Combination> list;
    for (int d = 0; d < SHC_DTYPE_COUNT; d++)
        for (int r = 0; r < SHC_REDOP_COUNT; r++)
            if (shc_reduction_supported(static_cast<shc_dtype>(d), static_cast<shc_redop>(r)))
                list.push_back({static_cast<shc_dtype>(d), static_cast<shc_redop>(r)});
    return list;
}

std::string name_of(const Combination &c)
{
    return std::string(shc_dtype_name(c.dtype)) + " " + shc_redop_name(c.redop);
}

namespace
{

// Real numbers per element and bytes of one: complex numbers are two.
int parts_of(shc_dtype dtype)
{
    return dtype == SHC_COMPLEX64 || dtype == SHC_COMPLEX128 ? 2 : 1;
}

bool is_float(shc_dtype dtype)
{
    return dtype >= SHC_FLOAT16 && dtype <= SHC_COMPLEX128;
}

void put_real(shc_dtype dtype, double value, uint8_t *out)
{
    const size_t bytes = shc_dtype_bytes(dtype) / parts_of(dtype);
    if (ref::is_narrow(dtype)) {
        const uint32_t code = ref::narrow(dtype).code(value);
        memcpy(out, &code, bytes); // little-endian, like every machine this runs on
    } else if (bytes == sizeof(float)) {
        const float v = static_cast<float>(value);
        memcpy(out, &v, bytes);
    } else {
        memcpy(out, &value, bytes);
    }
}

// 0, -0, inf, NaN, the ends of the denormals and of the normals, 1, -1: by their bits, so that they
// are the format's own. For integers: the ends of both readings of the sign.
void put_special(shc_dtype dtype, uint8_t *out)
{
    const size_t bytes = shc_dtype_bytes(dtype) / parts_of(dtype);
    const unsigned bits = static_cast<unsigned>(bytes) * 8;
    const uint64_t sign = uint64_t{1} << (bits - 1);
    unsigned man_bits = bits == 64 ? 52 : 23;
    if (ref::is_narrow(dtype))
        man_bits = static_cast<unsigned>(ref::narrow(dtype).man_bits);
    const uint64_t one = uint64_t{1} << (man_bits < bits ? man_bits : 0);
    const uint64_t inf = sign - one;
    const uint64_t choices[] = {0,   1,       one - 1,       one,      one + 1, inf - 1,
                                inf, inf + 1, inf + one / 2, sign - 1, sign / 2};
    uint64_t value = choices[below(sizeof choices / sizeof *choices)];
    if (below(2))
        value |= sign;
    memcpy(out, &value, bytes);
}

void put_any(shc_dtype dtype, uint8_t *out)
{
    const size_t bytes = shc_dtype_bytes(dtype) / parts_of(dtype);
    const uint64_t bits = rng()();
    memcpy(out, &bits, bytes);
}

void put_tame(shc_dtype dtype, uint8_t *out)
{
    if (!is_float(dtype))
        return put_any(dtype, out);
    // All bits of the fraction in use, sizes that do not overflow at once.
    const double unit = static_cast<double>(rng()() >> 11) / 9007199254740992.0;
    put_real(dtype, std::ldexp(unit - 0.5, static_cast<int>(below(6))), out);
}

} // namespace

// Sources whose columns are either tame throughout, or mix in what is special: else nine sources
// would nearly always hold a NaN.
std::vector<Bytes> random_sources(shc_dtype dtype, size_t count, size_t length)
{
    const size_t elem = shc_dtype_bytes(dtype), part = elem / parts_of(dtype);
    std::vector<Bytes> sources(count, Bytes(length * elem));
    for (size_t i = 0; i < length * parts_of(dtype); i++) {
        const size_t mood = below(4);
        for (Bytes &source : sources) {
            uint8_t *out = source.data() + i * part;
            const size_t kind = mood < 2 ? 0 : below(4);
            kind < 2    ? put_tame(dtype, out)
            : kind == 2 ? put_any(dtype, out)
                        : put_special(dtype, out);
        }
    }
    return sources;
}

std::vector<double> random_factors(size_t count)
{
    std::vector<double> factors(count);
    for (double &f : factors)
        f = below(8) ? std::ldexp(static_cast<double>(rng()() >> 11) / 9007199254740992.0, 2) - 2
                     : 1.0 / 3;
    return factors;
}

Bytes expected_of(const Combination &c, const std::vector<Bytes> &sources,
                  const std::vector<double> &factors, size_t length)
{
    const size_t elem = shc_dtype_bytes(c.dtype);
    std::vector<const uint8_t *> pointers;
    for (const Bytes &source : sources)
        pointers.push_back(source.data());
    Bytes out(length * elem);
    for (size_t i = 0; i < length; i++)
        ref::reduce(c.dtype, c.redop, pointers, i, factors.data(), out.data() + i * elem);
    return out;
}

size_t first_difference(shc_dtype dtype, const uint8_t *got, const Bytes &expected)
{
    const size_t elem = shc_dtype_bytes(dtype), count = expected.size() / elem;
    size_t i = 0;
    while (i < count && ref::same(dtype, got + i * elem, expected.data() + i * elem))
        i++;
    return i;
}

static constexpr size_t kMargin = 80;

// As long as the larger margin: one and 64 bytes of misalignment.
static const uint8_t *canaries()
{
    static const Bytes all = [] {
        Bytes bytes(kMargin + 64);
        for (size_t i = 0; i < bytes.size(); i++)
            bytes[i] = static_cast<uint8_t>(0xa5 ^ (i * 29));
        return bytes;
    }();
    return all.data();
}

Guarded::Guarded(size_t bytes, size_t misalign) : bytes_(bytes), at_(kMargin + misalign)
{
    memory_.assign(at_ + bytes + kMargin + 1, 0xa5);
    memcpy(memory_.data(), canaries(), at_);
    memcpy(memory_.data() + at_ + bytes, canaries(), kMargin + 1);
}

void Guarded::set(const Bytes &bytes)
{
    std::copy(bytes.begin(), bytes.end(), memory_.begin() + static_cast<std::ptrdiff_t>(at_));
}

bool Guarded::holds(const Bytes &bytes) const
{
    return std::equal(bytes.begin(), bytes.end(),
                      memory_.begin() + static_cast<std::ptrdiff_t>(at_));
}

bool Guarded::margins_intact() const
{
    return memcmp(memory_.data(), canaries(), at_) == 0 &&
           memcmp(memory_.data() + at_ + bytes_, canaries(), kMargin + 1) == 0;
}

} // namespace elements
