// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Vectors of values, made and compared many elements at a time. Under a sanitizer a test is compiled
// without optimisation, and element by element it would spend its time here; values.cc is optimised.

#include <algorithm>
#include <vector>

extern template class std::vector<float>; // its loops over elements, too

namespace testing
{
class AssertionResult;
}

namespace shmcoll::test
{

// Copies the first `period` values to all places after them.
void repeat(std::vector<float> &values, size_t period);

// Writes value(0) to value(period - 1), and again.
template <class Value>
void fill(std::vector<float> &values, size_t period, Value value)
{
    for (size_t i = 0; i < std::min(values.size(), period); i++)
        values[i] = value(i);
    repeat(values, period);
}

template <class Value>
std::vector<float> repeated(size_t count, size_t period, Value value)
{
    std::vector<float> values(count);
    fill(values, period, value);
    return values;
}

// Bit for bit; else says where the first difference is.
testing::AssertionResult same(const std::vector<float> &got, const std::vector<float> &expected);

} // namespace shmcoll::test
