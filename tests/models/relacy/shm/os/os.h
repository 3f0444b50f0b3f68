// SPDX-License-Identifier: BSD-3-Clause
#pragma once
//
// Stands for shm/os/os.h in the weak_*.cc models: the futex, and the heavy fence. The kernel compares and queues
// under one lock, which waking takes too: so the comparison reads the newest value. There are no
// time-outs and no spurious ends, which would hide a lost wake-up.

#include "shm/base/atomic.h"

SHC_INLINE int shc_os_futex_wait(shc_a32 *word, uint32_t expected, uint64_t, bool)
{
    rl::context &c = rl::ctx();
    c.sched();
    {
        rl::preemption_disabler alone(c);
        if (word->v_.fetch_add(0, rl::mo_acq_rel, $) != expected)
            return 0;
    }
    word->v_.wait(c, false, false, $);
    return 0;
}

SHC_INLINE void shc_os_futex_wake_all(shc_a32 *word, bool)
{
    rl::context &c = rl::ctx();
    c.sched();
    word->v_.wake(c, 0x7fffffff, $);
}

SHC_INLINE bool shc_os_can_populate()
{
    return true;
}

SHC_INLINE int shc_os_populate(void *, size_t)
{
    return 0;
}

SHC_INLINE void shc_os_fence_heavy()
{
    if (model_fence(true))
        rl::atomic_thread_fence(rl::mo_seq_cst, $);
}
