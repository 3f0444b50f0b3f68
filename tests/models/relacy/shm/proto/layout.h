// SPDX-License-Identifier: BSD-3-Clause
#pragma once
//
// Stands for shm/proto/layout.h in the weak_*.cc models: relacy's words are larger than the real
// ones, so the offsets cannot be the same. The fields are.

#include "shm/base/atomic.h"

struct shc_bell_shm {
    shc_a32 flag;
    shc_a32 count;
};
