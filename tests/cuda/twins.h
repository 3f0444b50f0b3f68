// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// The kernels' twins: their bodies compiled for the CPU, for the stand-in to run.

#include "tests/cuda/fakedriver/fake.h"

#include <vector>

namespace shmcoll::test
{

// All twins, by the names of the kernels.
const std::vector<FakeKernel> &twins();

// Registers the twins with the stand-in: `add` is its fake_add_kernel. Modules loaded later have them.
void add_twins(void (*add)(const FakeKernel *));

} // namespace shmcoll::test
