// SPDX-License-Identifier: BSD-3-Clause
// What GoogleTest is told of elements and values. Their own files are optimised, and do without its header.
#include "tests/support/elements.h"
#include "tests/support/values.h"

#include <cstring>
#include <gtest/gtest.h>

namespace elements
{

testing::AssertionResult all_same(shc_dtype dtype, const uint8_t *got, const Bytes &expected)
{
    const size_t elem = shc_dtype_bytes(dtype), i = first_difference(dtype, got, expected);
    if (i * elem >= expected.size())
        return testing::AssertionSuccess();
    auto failure = testing::AssertionFailure() << "element " << i << ": got ";
    for (size_t b = 0; b < elem; b++)
        failure << std::hex << int{got[i * elem + elem - 1 - b]} << " ";
    failure << "expected ";
    for (size_t b = 0; b < elem; b++)
        failure << std::hex << int{expected[i * elem + elem - 1 - b]} << " ";
    return failure;
}

} // namespace elements

namespace shmcoll::test
{

testing::AssertionResult same(const std::vector<float> &got, const std::vector<float> &expected)
{
    if (got.size() != expected.size())
        return testing::AssertionFailure()
               << got.size() << " elements, not " << expected.size() << " ";
    if (got.empty() || memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0)
        return testing::AssertionSuccess();
    size_t i = 0;
    while (memcmp(&got[i], &expected[i], sizeof(float)) == 0)
        i++;
    return testing::AssertionFailure() << "element " << i << " of " << got.size() << " is "
                                       << got[i] << ", not " << expected[i] << " ";
}

} // namespace shmcoll::test
