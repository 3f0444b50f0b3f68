// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/values.h"

#include <cstring>

template class std::vector<float>;

namespace shmcoll::test
{

void repeat(std::vector<float> &values, size_t period)
{
    for (size_t done = period; done < values.size(); done *= 2) // always whole periods
        memcpy(values.data() + done, values.data(),
               std::min(done, values.size() - done) * sizeof(float));
}

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
