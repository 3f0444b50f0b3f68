// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Direct calls from Python: methods that take tensors, and neither lists nor options.

#include "backend/process_group_shm.hpp"

#include <torch/csrc/utils/pybind.h>

namespace shmcoll
{

// Adds the type _Direct, which shmcoll/_direct.py uses, and _direct(backend, members),
// which makes one; `members`: the ranks of the group, numbered as in the whole job.
void bindDirect(pybind11::module_ &m);

} // namespace shmcoll
