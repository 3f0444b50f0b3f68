// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/hosts_oracle.h"

#include <cmath>
#include <cstring>

namespace shmcoll::test
{

shc_op reduction_of(shc_op_kind kind, const Combination &what, double premul)
{
    shc_op op = op_of(kind);
    op.dtype = what.dtype;
    op.redop = what.redop;
    op.premul = premul;
    return op;
}

namespace
{

template <class T>
T element(const uint8_t *at)
{
    T x;
    memcpy(&x, at, sizeof x);
    return x;
}

bool goes_in_floats(const Combination &c)
{
    return ref::is_narrow(c.dtype) && c.dtype != SHC_BFLOAT16 && c.redop != SHC_MIN &&
           c.redop != SHC_MAX;
}

float combine(shc_redop redop, float a, float b)
{
    const float result = redop == SHC_PRODUCT ? a * b : a + b;
    return result;
}

void integer_average(const Combination &c, const std::vector<Bytes> &inputs, size_t i, uint8_t *out)
{
    const size_t bytes = shc_dtype_bytes(c.dtype);
    uint64_t sum = 0;
    for (const Bytes &input : inputs) {
        const uint8_t *at = input.data() + i * bytes;
        uint64_t x = 0;
        memcpy(&x, at, bytes);
        const bool is_signed = c.dtype <= SHC_INT64;
        if (is_signed && bytes < 8 && x >> (8 * bytes - 1))
            x |= ~uint64_t{0} << (8 * bytes);
        sum += x;
    }
    const auto ranks = static_cast<int64_t>(inputs.size());
    const uint64_t result = c.dtype == SHC_UINT64
                                ? sum / static_cast<uint64_t>(ranks)
                                : static_cast<uint64_t>(static_cast<int64_t>(sum) / ranks);
    memcpy(out, &result, bytes);
}

void divide(shc_dtype dtype, size_t ranks, uint8_t *sum)
{
    const size_t bytes = shc_dtype_bytes(dtype);
    const bool is_double = dtype == SHC_FLOAT64 || dtype == SHC_COMPLEX128;
    for (size_t at = 0; at < bytes; at += is_double ? 8 : 4) {
        if (is_double) {
            const double x = element<double>(sum + at) / static_cast<double>(ranks);
            memcpy(sum + at, &x, 8);
        } else {
            const float x = element<float>(sum + at) / static_cast<float>(ranks);
            memcpy(sum + at, &x, 4);
        }
    }
}

} // namespace

void narrow_element(const Combination &c, const Labels &labels, const std::vector<Bytes> &inputs,
                    const std::vector<double> &factors, size_t i, uint8_t *out)
{
    const ref::Narrow format = ref::narrow(c.dtype);
    const size_t bytes = shc_dtype_bytes(c.dtype);
    bool first_host = true;
    float total = 0;
    for (const std::vector<size_t> &ranks : hosts_of(labels)) {
        bool first = true;
        float sum = 0;
        for (const size_t rank : ranks) {
            uint32_t code = 0;
            memcpy(&code, inputs[rank].data() + i * bytes, bytes);
            auto x = static_cast<float>(format.is_nan(code) ? NAN : format.value(code));
            if (c.redop == SHC_PREMUL_SUM)
                x = static_cast<float>(factors[rank]) * x;
            sum = first ? x : combine(c.redop, sum, x);
            first = false;
        }
        total = first_host ? sum : combine(c.redop, total, sum);
        first_host = false;
    }
    if (c.redop == SHC_AVG)
        total /= static_cast<float>(labels.size());
    const uint32_t code = format.code(static_cast<double>(total));
    memcpy(out, &code, bytes);
}

void expected_element(const Combination &c, const Labels &labels, const std::vector<Bytes> &inputs,
                      const std::vector<double> &factors, size_t i, uint8_t *out)
{
    if (goes_in_floats(c)) {
        narrow_element(c, labels, inputs, factors, i, out);
        return;
    }
    if (c.redop == SHC_AVG && c.dtype <= SHC_UINT64) {
        integer_average(c, inputs, i, out);
        return;
    }
    const size_t bytes = shc_dtype_bytes(c.dtype);
    std::vector<Bytes> sums;
    for (const std::vector<size_t> &ranks : hosts_of(labels)) {
        std::vector<const uint8_t *> sources;
        std::vector<double> own;
        for (const size_t rank : ranks) {
            sources.push_back(inputs[rank].data());
            own.push_back(factors[rank]);
        }
        sums.emplace_back(bytes);
        ref::reduce(c.dtype, c.redop == SHC_AVG ? SHC_SUM : c.redop, sources, i, own.data(),
                    sums.back().data());
    }
    std::vector<const uint8_t *> sources;
    for (const Bytes &sum : sums)
        sources.push_back(sum.data());
    if (c.dtype == SHC_BFLOAT16 && c.redop == SHC_AVG) { // divided before it is rounded
        const ref::Narrow format = ref::narrow(c.dtype);
        float total = 0;
        for (size_t host = 0; host < sums.size(); host++) {
            const uint32_t code = element<uint16_t>(sources[host]);
            const auto x = static_cast<float>(format.is_nan(code) ? NAN : format.value(code));
            total = host == 0 ? x : combine(SHC_SUM, total, x);
        }
        const auto code =
            static_cast<uint16_t>(format.code(total / static_cast<float>(labels.size())));
        memcpy(out, &code, 2);
        return;
    }
    const bool adds = c.redop == SHC_AVG || c.redop == SHC_PREMUL_SUM;
    ref::reduce(c.dtype, adds ? SHC_SUM : c.redop, sources, 0, nullptr, out);
    if (c.redop == SHC_AVG)
        divide(c.dtype, labels.size(), out);
}

} // namespace shmcoll::test
