// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// For the models of a runner or lock that may be biased (shm/os/bias.h).

#include "shm/os/bias.c"

// A bias without an owner; each entry by the word earns it.
inline void model_no_bias(shc_bias *bias)
{
    bias->whose.v_.store(0, rl::mo_relaxed, $);
    bias->inside.v_.store(0, rl::mo_relaxed, $);
    bias->lock.word.v_.store(SHC_LOCK_FREE, rl::mo_relaxed, $);
    bias->home = bias->last = 0;
    bias->in_a_row = bias->pay = 0;
    bias->left = false;
}
