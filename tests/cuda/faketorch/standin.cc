// SPDX-License-Identifier: BSD-3-Clause
// The stand-in driver with the kernels' twins in it, for processes that load it under the driver's
// name: no test code adds the twins there.
#include "tests/cuda/twins.h"

namespace
{

__attribute__((constructor)) void add()
{
    shmcoll::test::add_twins(fake_add_kernel);
}

} // namespace
