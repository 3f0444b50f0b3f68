// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Elements for tests of reductions: tame, random or special ones, the results that the reference gives for
// them, and memory that shows stores next to it.

#include "tests/support/ref.h"

#include <string>

namespace testing
{
class AssertionResult;
}

namespace elements
{

using Bytes = std::vector<uint8_t>;

// The same numbers from here on in each run.
void seed(uint64_t number);
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

// The element from which on the values are not the same (ref::same), or how many there are.
size_t first_difference(shc_dtype dtype, const uint8_t *got, const Bytes &expected);
// Is there none?
testing::AssertionResult all_same(shc_dtype dtype, const uint8_t *got, const Bytes &expected);

// With canaries on both sides.
class Guarded
{
  public:
    Guarded(size_t bytes, size_t misalign);
    uint8_t *data() { return memory_.data() + at_; }
    void set(const Bytes &bytes);
    bool holds(const Bytes &bytes) const;
    bool margins_intact() const;

  private:
    size_t bytes_, at_;
    Bytes memory_;
};

} // namespace elements
