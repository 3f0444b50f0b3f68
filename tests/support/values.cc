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

} // namespace shmcoll::test
