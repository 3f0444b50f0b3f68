// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Elements for tests of reductions: tame, random or special ones, the results that the reference gives for
// them, and memory that shows stores next to it.

#include "tests/support/ref.h"

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <string>

namespace elements
{

using Bytes = std::vector<uint8_t>;

std::mt19937_64 &rng();
size_t below(size_t n);

struct Combination {
    shc_dtype dtype;
    shc_redop redop;
};

// All that the library offers.
std::vector<Combination> combinations();
std::string name_of(const Combination &c);

// `count` sources of `length` elements.
std::vector<Bytes> random_sources(shc_dtype dtype, size_t count, size_t length);
std::vector<double> random_factors(size_t count);
Bytes expected_of(const Combination &c, const std::vector<Bytes> &sources,
                  const std::vector<double> &factors, size_t length);

// The same values? (ref::same)
testing::AssertionResult all_same(shc_dtype dtype, const uint8_t *got, const Bytes &expected);

// With canaries on both sides.
class Guarded
{
  public:
    Guarded(size_t bytes, size_t misalign) : bytes_(bytes), at_(kMargin + misalign)
    {
        memory_.assign(at_ + bytes + kMargin + 1, 0xa5);
        memcpy(memory_.data(), canaries(), at_);
        memcpy(memory_.data() + at_ + bytes, canaries(), kMargin + 1);
    }
    uint8_t *data() { return memory_.data() + at_; }
    void set(const Bytes &bytes) { std::copy(bytes.begin(), bytes.end(), memory_.begin() + at_); }
    bool holds(const Bytes &bytes) const
    {
        return std::equal(bytes.begin(), bytes.end(), memory_.begin() + at_);
    }
    bool margins_intact() const
    {
        return memcmp(memory_.data(), canaries(), at_) == 0 &&
               memcmp(memory_.data() + at_ + bytes_, canaries(), kMargin + 1) == 0;
    }

  private:
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
    size_t bytes_, at_;
    Bytes memory_;
};

} // namespace elements
