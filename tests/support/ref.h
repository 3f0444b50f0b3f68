// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// The result of a reduction, computed one element at a time in wider types and without a bit trick in
// common with the library: integers in 128 bits, floats in double or quad, narrow floats by powers of two.
// Slow on purpose.

extern "C" {
#include "shm/shmcoll.h"
}

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ref
{

// Combines element `index` of every source, the first source first, into `out` (one element).
// `factors` is for SHC_PREMUL_SUM, one per source.
void reduce(shc_dtype dtype, shc_redop redop, const std::vector<const uint8_t *> &sources,
            size_t index, const double *factors, uint8_t *out);

// Are two elements the same value? Bit for bit, except that any NaN equals any other, per part.
bool same(shc_dtype dtype, const uint8_t *a, const uint8_t *b);

// A float format of up to 16 bits, and its two conversions.
struct Narrow {
    enum Kind { IEEE, FN, FNUZ } kind;
    int bits, man_bits, bias;

    uint32_t sign() const { return 1u << (bits - 1); }
    bool is_nan(uint32_t code) const;
    double value(uint32_t code) const;
    uint32_t code(double value) const; // one rounding to nearest even; a NaN's payload is free
};

// The format of a dtype of this kind.
Narrow narrow(shc_dtype dtype);
bool is_narrow(shc_dtype dtype);

} // namespace ref
